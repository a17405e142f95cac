"""Models of any sizes and any mixture of storage formats, with random weights."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
from kernels_made import HALVES, random_bytes, tensor_of, with_halves

from llambda.config import ModelConfig, RopeConfig
from llambda.encode import ENCODERS, encode
from llambda.quants import BY_NAME, decode
from llambda.tensor import Tensor
from llambda.weights import Layer, Weights, layer_shapes


def sized(
    *,
    dim: int,
    heads: tuple[int, int],
    head_dim: int,
    ffn_dim: int,
    vocab_size: int,
    n_layers: int = 2,
    biases: bool = False,
    tied: bool = False,
) -> ModelConfig:
    """heads : those of queries, and of keys and values"""
    return ModelConfig(
        name="drawn",
        n_layers=n_layers,
        dim=dim,
        n_heads=heads[0],
        n_kv_heads=heads[1],
        head_dim=head_dim,
        ffn_dim=ffn_dim,
        vocab_size=vocab_size,
        context_length=512,
        norm_eps=1e-5,
        rope=RopeConfig(head_dim, 10000.0, "none"),
        tied=tied,
        attention_bias=biases,
        mlp_bias=biases,
    )


def draw(config: ModelConfig, kinds: Sequence[str], seed: int = 0) -> Weights[Tensor]:
    """Matrices get the formats in turn; where blocks do not fit into a row, F16 is taken."""
    source = np.random.default_rng(seed)
    turn = cycle(kinds)

    def matrix(rows: int, cols: int) -> Tensor:
        name = next(turn)
        return drawn_matrix(name if cols % BY_NAME[name].dtype.block == 0 else "F16", rows, cols,
                            source)  # fmt: skip

    def vector(name: str, n: int) -> Tensor:
        numbers = source.normal(0, 0.5, n) if "bias" in name else source.uniform(0.5, 1.5, n)
        return Tensor.from_numpy(numbers.astype(np.float32))

    def layer() -> Layer[Tensor]:
        made: dict[str, Any] = {}
        for name, shape in layer_shapes(config).items():
            if len(shape) == 2:
                made[name] = matrix(*shape)
            elif config.attention_bias or "bias" not in name:
                made[name] = vector(name, *shape)
        return Layer(**made)

    embed = matrix(config.vocab_size, config.dim)
    return Weights(
        embed=embed,
        layers=tuple(layer() for _ in range(config.n_layers)),
        final_norm=vector("norm", config.dim),
        head=embed if config.tied else matrix(config.vocab_size, config.dim),
    )


def drawn_matrix(name: str, rows: int, cols: int, source: np.random.Generator) -> Tensor:
    """Numbers whose products with a row of ones in size keep about that size."""
    if name in ENCODERS:
        numbers = source.normal(0, cols**-0.5, (rows, cols))
        return Tensor(encode(numbers, BY_NAME[name].dtype), BY_NAME[name].dtype, (rows, cols))
    raw = random_bytes(name, rows, cols, int(source.integers(2**32)))
    ones = with_halves(name, raw, np.ones((*raw.shape[:2], len(HALVES[name]))))
    size = 1 / (np.std(decode(tensor_of(name, ones, cols))) * cols**0.5)
    scales = size * source.uniform(0.5, 1.5, (*raw.shape[:2], len(HALVES[name])))
    return tensor_of(name, with_halves(name, raw, scales), cols)
