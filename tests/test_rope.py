"""Rotary embedding with bases that no float32 holds; test_config_hf.py compares the sound ones."""

import warnings

import numpy as np
import pytest

from llambda.config import RopeConfig
from llambda.kernels.rope import frequencies, table


@pytest.mark.parametrize("scaling", ["none", "linear", "llama3"])
@pytest.mark.parametrize("base", [1e-300, 1e-45, 1e-38, 1e38, 1e39, 1e300])
def test_an_extreme_base_warns_of_nothing(base: float, scaling: str):
    rope = RopeConfig(8, base, scaling, 2.0, 1.0, 4.0, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = frequencies(rope)
        cos, _ = table(found, 0, 5)
    assert found.dtype == cos.dtype == np.float32
    assert found[0] == pytest.approx(1, rel=0.5)  # the first pair turns with any base
    if base >= 1e39:  # infinite in float32: the others stand still
        assert found[1:].tolist() == [0, 0, 0]
    if base == 1e-300:  # 0 in float32: the others turn infinitely fast, which is no angle
        assert not np.isfinite(cos[1:, 1:]).any()
