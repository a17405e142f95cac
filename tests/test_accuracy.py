"""How far 8-bit activations are from exact ones, beside llama.cpp, on the real model.

PyTorch in float32 on the decoded weights is the truth. What llama.cpp loses was recorded at 305
positions of six texts; at the same ones the fused engine may lose at most 1.15 times as much.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from llambda import modelfile
from llambda.check import kl_divergence
from llambda.engines import step
from llambda.engines.fused import FusedEngine
from llambda.kernels import quantized
from llambda.kernels.matrix import FORMS
from llambda.oracle import Oracle

RECORDED = json.loads((Path(__file__).parent / "golden/llamacpp_vs_pytorch.json").read_text())
CASES = RECORDED["cases"]
ROOM = 1.15

pytestmark = pytest.mark.real


class Lost(NamedTuple):
    """At all positions. wrong : how often another token than PyTorch's is the most probable"""

    kl: np.ndarray
    wrong: int


THEIRS = Lost(
    np.concatenate([case["kl"] for case in CASES]),
    sum(not same for case in CASES for same in case["top1_agrees"]),
)


@pytest.fixture(scope="module")
def truth_and_engine(smollm2_path: Path) -> Iterator[tuple[list[np.ndarray], FusedEngine]]:
    with modelfile.open(smollm2_path) as file:
        config = modelfile.read_config(file)
        weights = modelfile.read_weights(file, config)
        oracle = Oracle(config, weights)
        truth = [oracle.logits(case["ids"]) for case in CASES]
        engine = FusedEngine(config, weights, threads=2)
        yield truth, engine
        engine.close()


@pytest.fixture
def engine(truth_and_engine: tuple[list[np.ndarray], FusedEngine]) -> FusedEngine:
    return truth_and_engine[1]


@pytest.fixture
def truth(truth_and_engine: tuple[list[np.ndarray], FusedEngine]) -> list[np.ndarray]:
    return truth_and_engine[0]


def lost(engine: FusedEngine, truth: list[np.ndarray]) -> Lost:
    logits = [
        engine.forward(engine.new_state(len(case["ids"])), case["ids"], all_logits=True)
        for case in CASES
    ]
    kl = [kl_divergence(*pair) for pair in zip(truth, logits, strict=True)]
    differ = [a.argmax(-1) != b.argmax(-1) for a, b in zip(truth, logits, strict=True)]
    return Lost(np.concatenate(kl), int(np.concatenate(differ).sum()))


def is_near_enough(ours: Lost) -> bool:
    within = ours.kl.mean() <= ROOM * THEIRS.kl.mean() and ours.wrong <= ROOM * THEIRS.wrong
    print(
        f"mean KL {ours.kl.mean():.5f}, llama.cpp's {THEIRS.kl.mean():.5f}; 99 % are below "
        f"{np.percentile(ours.kl, 99):.4f}, its {np.percentile(THEIRS.kl, 99):.4f}; "
        f"{ours.wrong} other tokens, its {THEIRS.wrong}, of {len(ours.kl)}"
    )
    return bool(within)


def scales_of(engine: FusedEngine, layer: int, matrix: int, cols: int) -> np.ndarray:
    """The scales of a packed matrix of Q4_1: uint8 [panels, blocks, bytes], to be written to."""
    record = FORMS["Q4_1"].record
    plan = engine._plan
    row = plan.table[layer]
    begin = int(row[matrix + step.WEIGHTS]) - plan._arena.ctypes.data
    end = int(row[matrix + step.MATRIX + step.WEIGHTS]) - plan._arena.ctypes.data
    blocks = cols // 32
    panels = plan._arena[begin:end].reshape(-1, blocks, record)
    return panels[:, :, quantized.NIBBLES : quantized.NIBBLES + quantized.HALVES]


def test_the_truth_is_what_it_was_recorded_against(truth: list[np.ndarray]):
    for case, logits in zip(CASES, truth, strict=True):
        assert logits.argmax(-1).tolist() == case["pytorch_argmax"]


def test_as_near_as_llama_cpp(engine: FusedEngine, truth: list[np.ndarray]):
    assert len(THEIRS.kl) == RECORDED["positions"] == 305
    assert THEIRS.kl.mean() == pytest.approx(RECORDED["mean_kl"], abs=1e-6)
    assert is_near_enough(lost(engine, truth))


@pytest.mark.parametrize(
    ("layer", "matrix"), [(0, step.Q), (15, step.OUT)], ids=["first q", "middle o"]
)
def test_scales_shifted_by_a_block_are_noticed(
    layer: int, matrix: int, engine: FusedEngine, truth: list[np.ndarray]
):
    """In one of 211 matrices each block gets the scale of the next; of those tried, in layers 0,
    10, 15 and 29, the first layer's q shows it least."""
    scales = scales_of(engine, layer, matrix, engine.config.dim)
    whole = scales.copy()
    scales[:] = np.roll(whole, -1, axis=1)
    try:
        assert not is_near_enough(lost(engine, truth))
    finally:
        scales[:] = whole
