"""One stage of a pipeline, as a process of its own. Lesson 12.

    python -m llambda.course.pipeline_worker JOB RANK

JOB is a JSON file: {"model": "tiny", "cut": 2, "texts": [[1, 2, 3], [4, 5]], "new": 8}. Rank 0 has
the layers below `cut`, rank 1 the others and the head. They find each other through a file beside
the job, and talk over this machine's loopback device. Rank 1 leaves all logits there, as
logits.npy, float32 [new, texts, vocab_size].

A worker never stays behind: it ends when its work is done, when SECONDS are over, and when its
stdin is closed, which also happens when whoever started it dies. A failure is one line on stderr.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..engines.base import Floats
from ..engines.cached import CachedEngine
from ..errors import one_line
from ..kernels.panel_cache import PanelCache
from ..kernels.rope import table
from ..model import load

ENGINE = "quantized"  # the last rung that calls its layers one by one, on one thread
SECONDS = 200

Job = dict[str, Any]


class Stage:
    """Layers first to last - 1 of an engine; of the last stage also what comes after them."""

    def __init__(self, engine: CachedEngine, first: int, last: int):
        self.engine = engine
        self.layers = range(first, last)

    def run(self, cache: PanelCache, start: int, x: Floats) -> Floats:
        """x [n, dim], of positions start and on of one text, through these layers."""
        rope = table(self.engine.turning, start, start + len(x))
        store = partial(cache.extend, start)
        for layer in self.layers:
            x = self.engine.block(layer, x, start, rope, store, lambda name, value: None)
        return x  # [n, dim]

    def leave(self, x: Floats) -> Floats:
        weights, eps = self.engine.weights, self.engine.config.norm_eps
        last = self.engine.rms_norm(x[-1:], weights.final_norm, eps)
        return self.engine.linear(last, weights.head)[0]  # [vocab_size]


class Link:
    """The way to the other stage. What is sent waits there in order until it is received."""

    def __init__(self, rank: int, folder: Path):
        import torch
        from torch import distributed

        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        self.torch, self.dist, self.other = torch, distributed, 1 - rank
        place, limit = (folder / "store").as_uri(), timedelta(seconds=SECONDS)
        distributed.init_process_group("gloo", place, limit, rank=rank, world_size=2)
        self._sent: list[Any] = []  # an array must live until the other stage has it

    def send(self, array: np.ndarray) -> None:
        tensor = self.torch.from_numpy(array)
        self._sent.append((self.dist.isend(tensor, self.other), tensor))

    def receive(self, shape: tuple[int, ...], kind: Any) -> np.ndarray:
        array = np.empty(shape, kind)
        self.dist.recv(self.torch.from_numpy(array), self.other)
        return array

    def close(self) -> None:
        for sending, _ in self._sent:
            sending.wait()
        self.dist.destroy_process_group()


def passes(job: Job) -> Iterator[tuple[int, int, int, int]]:
    """What goes through the pipeline, in order: (step, text, its first position, its tokens)."""
    for step in range(job["new"]):
        for i, text in enumerate(job["texts"]):
            yield (step, i, len(text) + step - 1, 1) if step else (0, i, 0, len(text))


def front(stage: Stage, caches: list[PanelCache], job: Job, link: Link) -> None:
    for step, i, start, _ in passes(job):
        ids = link.receive((1,), np.int64).tolist() if step else job["texts"][i]
        link.send(stage.run(caches[i], start, stage.engine.embed(ids)))


def back(stage: Stage, caches: list[PanelCache], job: Job, link: Link) -> Floats:
    """The logits; each text's likeliest token goes back to the front."""
    config = stage.engine.config
    logits = np.empty((job["new"], len(caches), config.vocab_size), np.float32)
    for step, i, start, n in passes(job):
        x = link.receive((n, config.dim), np.float32)
        logits[step, i] = stage.leave(stage.run(caches[i], start, x))
        if step + 1 < job["new"]:
            link.send(logits[step, i].argmax(keepdims=True))
    return logits


def work(rank: int, job: Job, folder: Path) -> None:
    with load(job["model"], engine=ENGINE) as model:
        engine = model.engine
        assert isinstance(engine, CachedEngine)
        caches = [PanelCache(engine.config, len(text) + job["new"]) for text in job["texts"]]
        link = Link(rank, folder)  # not before: if one failed, gloo of the other would complain
        if rank == 0:
            front(Stage(engine, 0, job["cut"]), caches, job, link)
        else:
            stage = Stage(engine, job["cut"], engine.config.n_layers)
            np.save(folder / "logits.npy", back(stage, caches, job, link))
    link.close()


def main(path: Path, rank: int) -> None:
    def give_up(why: str) -> NoReturn:
        os.write(2, f"rank {rank}: {one_line(why)}\n".encode())
        os._exit(1)

    def wait_for_the_end_of_stdin() -> None:
        sys.stdin.buffer.read()
        give_up("whoever started it is gone")

    late = threading.Timer(SECONDS, give_up, [f"not done after {SECONDS} seconds"])
    for thread in (late, threading.Thread(target=wait_for_the_end_of_stdin)):
        thread.daemon = True
        thread.start()
    try:
        work(rank, json.loads(path.read_text("utf-8")), path.resolve().parent)
    except (Exception, KeyboardInterrupt) as error:
        give_up(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[2] not in ("0", "1"):
        sys.exit("usage: python -m llambda.course.pipeline_worker JOB RANK, where RANK is 0 or 1")
    main(Path(sys.argv[1]), int(sys.argv[2]))
