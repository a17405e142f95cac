"""Decoding under other conditions: busy neighbours, and far into a long text."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from goal import Goal, Settings, of_spread
from llambda import modelfile
from llambda.engines.base import State
from llambda.engines.fused import FusedEngine
from llambda.errors import plural
from llambda.ladder import bytes_per_token
from llambda.model import resolve, understand
from llambda.race import PAUSE, spread
from llambda.streaming import Stream

START, NEW = 8, 64
NEAR, FAR, STEPS = 100, 4000, 16
SETTLE = 0.3  # seconds until a new process is at work


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that do nothing but keep a core each busy."""
    spin = [sys.executable, "-S", "-c", "while True: pass"]
    running = [subprocess.Popen(spin) for _ in range(processes)]
    try:
        time.sleep(SETTLE if processes else PAUSE)
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def neighbours(settings: Settings) -> list[Goal]:
    """Share of the quiet speed that is kept."""
    threads = settings.threads[-1]
    found = []
    with ExitStack() as stack:
        file = stack.enter_context(modelfile.open(resolve("smollm2")))
        config, _, _ = understand(file)
        tensors = modelfile.read_weights(file, config)
        engine = stack.enter_context(closing(FusedEngine(config, tensors, threads)))
        state = engine.new_state(START + NEW)
        decode_s(engine, state, START, NEW)
        for processes, wanted in ((1, 0.4), (threads, 0.25)):
            kept = []
            for _ in range(settings.rounds):
                with busy(0):
                    decode_s(engine, state, START, NEW)  # all threads come back
                quiet = decode_s(engine, state, START, NEW)
                with busy(processes):
                    kept.append(quiet / decode_s(engine, state, START, NEW))
            case = f"{processes} busy of {threads} cores"
            found.append(of_spread("neighbours", case, "of quiet speed", spread(kept), wanted))
    return found


def decode_s(engine: FusedEngine, state: State, start: int, new: int) -> float:
    """Seconds a token, behind `start` others."""
    if state.length < start:
        engine.forward(state, [1] * (start - state.length))
    state.truncate(start)
    begin = time.perf_counter()
    for token in range(new):
        engine.forward(state, [100 + token])
    return (time.perf_counter() - begin) / new


def stream_rate(threads: int, nbytes: int) -> float:
    """Bytes a second that our products read alone, over and over the same ones."""
    with Stream(threads, nbytes) as stream:
        return stream.rate()


def position(settings: Settings) -> list[Goal]:
    """Time a token late over early, as a multiple of the ratio of the bytes that are read."""
    threads, found = settings.threads[-1], []
    with ExitStack() as stack:
        file = stack.enter_context(modelfile.open(resolve("smollm2")))
        config, _, weights = understand(file)
        tensors = modelfile.read_weights(file, config)
        engine = stack.enter_context(closing(FusedEngine(config, tensors, threads)))
        states = {start: engine.new_state(start + STEPS) for start in (NEAR, FAR)}
        bytes_far, bytes_near = (
            bytes_per_token(engine, weights, s + STEPS // 2) for s in (FAR, NEAR)
        )
        ratios = []
        for number in range(settings.rounds + 1):
            near, far = (decode_s(engine, states[s], s, STEPS) for s in (NEAR, FAR))
            ratios += [far / near / (bytes_far / bytes_near)] if number else []
        case = f"{FAR} over {NEAR}, {plural(threads, 'thread')}"
        unit = f"x bytes read ({bytes_far / bytes_near:.2f})"
        # A large last cache brings the few bytes faster than memory brings the many.
        allowed = stream_rate(threads, bytes_near) / stream_rate(threads, bytes_far)
        found.append(
            of_spread("position", case, unit, spread(ratios), 1.2, at_most=True, ceiling=allowed)
        )
    return found
