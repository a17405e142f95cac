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
from llambda.kernels.activations import padded_tokens
from llambda.kernels.aligned import aligned_zeros
from llambda.kernels.matrix import Matrix, pack
from llambda.kernels.rows import tile_all_floats
from llambda.oracle import TorchEngine
from llambda.probe import fma_peak
from llambda.profiling import costs, total
from llambda.race import PAUSE, spread
from llambda.simd.foreign import longs_at
from llambda.simd.jit import foreign
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
    tokens, stride = len(x), matrix.padded_rows
    columns = aligned_zeros(padded_tokens(tokens) * matrix.cols, np.float32)
    tile_all_floats(x, columns)
    weights = aligned_zeros(matrix.data.nbytes, np.uint8)
    weights[:] = matrix.data
    out = aligned_zeros(padded_tokens(tokens) * stride, np.float32)
    jobs = np.zeros((workers.threads, products.JOB), np.int64)
    addresses = [array.ctypes.data for array in (weights, columns, out, jobs)]
    sizes = [matrix.cols, tokens, stride, matrix.strips]
    task = np.array([matrix.form.product.address, *addresses, *sizes], np.int64)

    def multiply() -> np.ndarray:
        workers.run_compiled(some_strips, task.ctypes.data)
        assert len(weights) and len(columns) and len(jobs)  # the task only knows where they are
        return out.reshape(-1, stride)[:tokens]

    return multiply


@foreign
def some_strips(address: int, rank: int, threads: int) -> None:
    """A thread's strips of the product of a task, as `product` writes it."""
    task = longs_at(address, 9)
    function, weights, columns, out, jobs = task[0], task[1], task[2], task[3], task[4]
    cols, tokens, stride, strips = task[5], task[6], task[7], task[8]
    first, last = share(strips, rank, threads)
    job = jobs + 8 * products.JOB * rank
    products.multiply_tokens(
        function, job, weights, columns, 4, 0, cols, tokens, out, stride, first, last
    )


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
