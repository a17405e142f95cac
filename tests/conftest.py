"""What all tests share: no network, the same examples every time, and the two models."""

import os
from pathlib import Path

import hypothesis
import pytest

from llambda.paths import data_dir, models_dir

SMOLLM2 = models_dir() / "SmolLM2-135M-Instruct.Q4_1.gguf"

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
hypothesis.settings.load_profile("ci")  # built in: fixed seed, no deadline (compiling takes time)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that asks for the real model's file is a `real` test, marked or not."""
    for item in items:
        if "smollm2_path" in getattr(item, "fixturenames", ()):
            item.add_marker("real")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Without the real model a `real` test is skipped; CI sets LLAMBDA_REQUIRE_REAL: it fails."""
    if item.get_closest_marker("real") and not SMOLLM2.is_file():
        reason = "needs the real model; get it with: llambda fetch smollm2"
        if os.environ.get("LLAMBDA_REQUIRE_REAL") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real model, SmolLM2-135M-Instruct in Q4_1."""
    return SMOLLM2


@pytest.fixture(scope="session")
def tiny_path() -> Path:
    """The tiny model that ships with the course."""
    return data_dir() / "tiny.gguf"
