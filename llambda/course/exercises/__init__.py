"""The exercises: one module a lesson holds its checkers, base.py what they have in common.

What outgrows a lesson's module stands beside it as <topic>_<idea>.py.
"""

import importlib

from ...errors import LlambdaError
from .base import EXERCISES, Exercise

TOPICS = {
    "00": "your_machine",
    "01": "tensors",
    "02": "weights",
    "03": "tokens",
    "04": "forward",
    "05": "generate",
    "06": "kv_cache",
    "07": "profile",
    "08": "simd",
    "09": "quantization",
    "10": "threads",
    "11": "engine",
    "12": "batching",
}


def of(lesson: str) -> list[Exercise]:
    """The exercises of a lesson ("00"), in order. Raises LlambdaError if there is none."""
    if lesson not in TOPICS:
        known = ", ".join(TOPICS)
        raise LlambdaError(f"lesson {lesson} has no exercises", fix=f"Those that have: {known}.")
    importlib.import_module(f".{TOPICS[lesson]}", __name__)
    return [EXERCISES[number] for number in sorted(EXERCISES) if number.startswith(f"{lesson}.")]
