"""Our products of floats against the processor's peak and PyTorch's, matrix by matrix."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from goal import Goal, Settings, of_spread
from llambda.config import ModelConfig, RopeConfig
from llambda.engines.base import Engine
from llambda.engines.fused import FusedEngine
from llambda.errors import plural
from llambda.kernels import products
from llambda.kernels.activations import tiled_floats, tiles
from llambda.kernels.aligned import aligned_zeros
from llambda.kernels.matrix import Matrix, pack
from llambda.oracle import TorchEngine
from llambda.probe import fma_peak
from llambda.profiling import costs, total
from llambda.race import PAUSE, spread
from llambda.simd.foreign import call3, longs_at
from llambda.simd.jit import foreign
from llambda.simd.tiles import TILE
from llambda.simd.widest import LANES
from llambda.tensor import Tensor
from llambda.threads import share
from llambda.weights import Layer, Weights, layer_shapes
from llambda.workers import Workers

SMOLLM2 = [(576, 576), (192, 576), (1536, 576), (576, 1536)]  # rows, columns
EXERCISE = [(768, 768), (2048, 768), (768, 2048), (32000, 768)]
TOKENS, EXERCISE_TOKENS = 512, 513
SECONDS = 0.05  # that one measurement takes at least


def gemm(settings: Settings) -> list[Goal]:
    """Weights are packed already, as at load, and so are activations."""
    shapes = [(shape, TOKENS, True) for shape in SMOLLM2]
    shapes += [(shape, EXERCISE_TOKENS, False) for shape in EXERCISE]
    found = []
    for threads in settings.threads:
        for shape, tokens, judged in shapes:
            found += one_shape(shape, tokens, threads, settings, judged)
    return found


def one_shape(
    shape: tuple[int, int], tokens: int, threads: int, settings: Settings, judged: bool
) -> list[Goal]:
    rows, cols = shape
    source = np.random.default_rng(0)
    weight = source.standard_normal((rows, cols), np.float32)
    x = source.standard_normal((tokens, cols), np.float32)
    theirs = partial(torch.nn.functional.linear, torch.from_numpy(x), torch.from_numpy(weight))
    of_peak, of_torch = [], []
    with Workers(threads) as workers, torch.inference_mode():
        ours = product(pack(Tensor.from_numpy(weight)), x, workers)
        assert np.allclose(ours()[:, :rows], theirs().numpy(), atol=1e-2)
        torch.set_num_threads(threads)
        for _ in range(settings.rounds):
            mine, other = seconds_of(ours), seconds_of(theirs)
            peak = fma_peak(threads, LANES, repeats=3)
            of_peak.append(2 * rows * cols * tokens / mine / peak)
            of_torch.append(other / mine)
    case = f"{rows} x {cols}, {tokens} tokens, {plural(threads, 'thread')}"
    wanted = (0.75, 1.0) if judged else (None, None)
    return [
        of_spread("gemm", case, "of the FMA peak", spread(of_peak), wanted[0], ceiling=1),
        of_spread("gemm", case, "x PyTorch", spread(of_torch), wanted[1]),
    ]


def product(matrix: Matrix, x: np.ndarray, workers: Workers) -> Callable[[], np.ndarray]:
    """All strips of a matrix times all tokens; gives [tokens, padded rows]."""
    cuts = tiles(len(x))
    packed = aligned_zeros(sum(cut.width for cut in cuts) * matrix.cols, np.float32)
    columns = [tiled_floats(x[c.first : c.first + c.tokens], c.width).reshape(-1) for c in cuts]
    packed[:] = np.concatenate(columns)
    weights = aligned_zeros(matrix.data.nbytes, np.uint8)
    weights[:] = matrix.data
    out = aligned_zeros((len(x) + TILE) * matrix.padded_rows, np.float32)
    whole = len(x) // TILE
    runs = [(0, TILE, whole)] if whole else []
    runs += [(cuts[-1].first, cuts[-1].width, 1)] if len(x) % TILE else []
    jobs = np.zeros((len(runs), products.JOB), np.int64)
    for job, (first, width, count) in zip(jobs, runs, strict=True):
        job[products.W], job[products.COLS] = weights.ctypes.data, matrix.cols
        job[products.X] = packed[first * matrix.cols :].ctypes.data
        job[products.OUT] = out[first * matrix.padded_rows :].ctypes.data
        job[products.TOKENS], job[products.TILES] = width, count
        job[products.STRIDE] = matrix.padded_rows

    task = np.array(
        [matrix.form.product.address, jobs.ctypes.data, len(jobs), matrix.strips], np.int64
    )

    def multiply() -> np.ndarray:
        workers.run_compiled(some_strips, task.ctypes.data)
        assert len(weights) and len(packed)  # jobs only know where they are
        return out.reshape(-1, matrix.padded_rows)[: len(x)]

    return multiply


@foreign
def some_strips(address: int, rank: int, threads: int) -> None:
    """A thread's strips in each of some jobs: [product, address of jobs, how many, strips]."""
    task = longs_at(address, 4)
    first, last = share(task[3], rank, threads)
    for number in range(task[2]):
        call3(task[0], task[1] + 8 * products.JOB * number, first, last)


def seconds_of(function: Callable[[], object]) -> float:
    """Of the fastest call among as many as take SECONDS: the peak is that of the fastest, too."""
    time.sleep(PAUSE)
    function()
    end = time.perf_counter() + SECONDS
    fastest = float("inf")
    while (begin := time.perf_counter()) < end:
        function()
        fastest = min(fastest, time.perf_counter() - begin)
    return fastest


# ---------------------------------------------------------------- a whole model


def exercise(settings: Settings) -> list[Goal]:
    """A public exercise's model with random weights: its prefill, with logits of every token."""
    config = ModelConfig("exercise", 12, 768, 12, 12, 64, 2048, 32000, 1024, 1e-5, RopeConfig(64))
    weights = random_weights(config)
    ids = np.random.default_rng(1).integers(0, config.vocab_size, EXERCISE_TOKENS).tolist()
    stored = weights.map(lambda tensor: tensor.nbytes)
    parts = costs(config, stored, 0, EXERCISE_TOKENS)
    flops = total(parts.values()).flops + (EXERCISE_TOKENS - 1) * parts["head"].flops
    found = []
    for threads in settings.threads:
        engines = [FusedEngine(config, weights, threads), TorchEngine(config, weights, threads)]
        pairs = [[prompt_s(engine, ids) for engine in engines] for _ in range(settings.rounds + 1)]
        peak = fma_peak(threads, LANES)
        case = f"prefill of {EXERCISE_TOKENS}, {plural(threads, 'thread')}"
        share = spread(flops / ours / peak for ours, _ in pairs[1:])
        ratio = spread(theirs / ours for ours, theirs in pairs[1:])
        found.append(of_spread("exercise", case, "of the FMA peak", share, ceiling=1))
        found.append(of_spread("exercise", case, "x PyTorch", ratio))
        for engine in engines:
            engine.close()
    return found


def random_weights(config: ModelConfig) -> Weights[Tensor]:
    source = np.random.default_rng(0)

    def random(*shape: int) -> Tensor:
        numbers = source.standard_normal(shape, np.float32) / np.float32(shape[-1] ** 0.5)
        return Tensor.from_numpy(numbers)

    shapes = {name: s for name, s in layer_shapes(config).items() if "bias" not in name}
    layers = [
        Layer(**{name: random(*shape) for name, shape in shapes.items()})
        for _ in range(config.n_layers)
    ]
    table = config.vocab_size, config.dim
    return Weights(random(*table), tuple(layers), random(config.dim), random(*table))


def prompt_s(engine: Engine, ids: Sequence[int]) -> float:
    time.sleep(PAUSE)
    state = engine.new_state(len(ids))
    begin = time.perf_counter()
    engine.forward(state, ids, all_logits=True)
    return time.perf_counter() - begin
