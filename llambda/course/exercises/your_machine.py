"""The exercises of lesson 00: the ceiling, the cores that are really ours, the kernel path."""

import math
import os
from collections.abc import Mapping

from ...machine import cpu_features, fields, kernel_path
from ...machine import usable_cores as right_cores
from .base import (
    Answer,
    Wrong,
    exercise,
    expect_calls,
    expect_choices,
    expect_number,
    result,
    shown,
)

BANDWIDTH, PEAK = 25e9, 120e9  # bytes/s, FLOP/s
MODEL_BYTES, TABLE_BYTES, WEIGHTS = 96.4e6, 30.1e6, 134.5e6


@exercise("00.1", "The ceiling", kind="predict", minutes=5, difficulty=1)
def ceiling(answer: Answer) -> str:
    bits = "bits taken for bytes, or the reverse: GB/s and MB both count bytes, so no 8 comes in."
    mistakes = {
        BANDWIDTH * 8 / MODEL_BYTES: bits,
        BANDWIDTH / 8 / MODEL_BYTES: bits,
        BANDWIDTH / (MODEL_BYTES + TABLE_BYTES): (
            "the table is counted twice. At the start of a token only one row of it is read."
        ),
        BANDWIDTH / (MODEL_BYTES - TABLE_BYTES): (
            "the table is left out. Only one row of it is read at the start of a token, but all of "
            "it at the end."
        ),
        PEAK / (2 * WEIGHTS): (
            "that is what arithmetic alone would allow. Memory stops you earlier: divide what "
            "can be read by what must be read."
        ),
        PEAK / WEIGHTS: (
            "that is a limit of arithmetic, and with one operation per weight where it takes two. "
            "Memory stops you earlier."
        ),
        1 / (MODEL_BYTES / BANDWIDTH + 2 * WEIGHTS / PEAK): (
            "the time of reading and that of computing are added. At best they overlap, and the "
            "longer of the two decides."
        ),
        BANDWIDTH / WEIGHTS: "a weight is not a byte here: 134.5 million weights take 96.4 MB.",
        BANDWIDTH / (4 * WEIGHTS): (
            "a weight is not four bytes here: 134.5 million weights take 96.4 MB."
        ),
    }
    expect_number(answer, BANDWIDTH / MODEL_BYTES, mistakes)
    return "Every weight once a token: 25 GB/s over 96.4 MB. Arithmetic would allow 446."


CORE_CASES = [
    ("200000 100000", {0, 1, 2, 3, 4, 5, 6, 7}),
    ("150000 100000", {0, 1, 2, 3, 4, 5, 6, 7}),
    ("110000 100000", {0, 1, 2, 3}),
    ("50000 100000", {2, 3}),
    ("max 100000", {0, 1, 2}),
    ("400000 100000", {4, 5}),
    ("150000 50000", {0, 1, 2, 3, 4, 5, 6, 7}),
    ("max 50000", {1, 2, 5, 7}),
]


def of_the_quota(cpu_max_text: str, affinity: set[int]) -> float:
    """The quota in cores, or the affinity's where there is none."""
    quota, period = cpu_max_text.split()
    return len(affinity) if quota == "max" else int(quota) / int(period)


@exercise("00.2", "Usable cores", kind="code", minutes=15, difficulty=2)
def cores(answer: Answer) -> str:
    def bounded(rounded: float, affinity: set[int]) -> int:
        return int(max(1, min(len(affinity), rounded)))

    def crashes_at_max(text: str, affinity: set[int]) -> int:
        return bounded(int(text.split()[0]) // int(text.split()[1]), affinity)

    mistakes = [
        (
            crashes_at_max,
            "not every quota is a number: the word max means that there is none, and then the "
            "affinity alone counts.",
        ),
        (
            lambda text, affinity: bounded(round(of_the_quota(text, affinity)), affinity),
            "a quota of 1.5 cores is rounded to 2. Two threads would spend it early and then both "
            "stand still: round down.",
        ),
        (
            lambda text, affinity: bounded(math.ceil(of_the_quota(text, affinity)), affinity),
            "a quota of 1.1 cores is rounded up to 2. Two threads would spend it early and then "
            "both stand still: round down.",
        ),
        (
            lambda text, affinity: min(len(affinity), int(of_the_quota(text, affinity))),
            "half a core becomes 0, and an engine with no thread never answers: at least 1.",
        ),
        (
            lambda text, affinity: max(1, min(len(affinity), of_the_quota(text, affinity))),
            "threads are counted in whole numbers: round the quota down.",
        ),
        (
            lambda text, affinity: bounded(
                of_the_quota(f"{text.split()[0]} 100000", affinity), affinity
            ),
            "the period is taken for 100,000, and it may be another: divide by the second word.",
        ),
        (
            lambda text, affinity: os.cpu_count(),
            "os.cpu_count() describes the computer under your notebook. Where there is no quota, "
            "it is the affinity that counts.",
        ),
        (
            lambda text, affinity: max(1, int(of_the_quota(text, affinity))),
            "the affinity is forgotten: a large quota brings no core that you may not run on.",
        ),
        (
            lambda text, affinity: len(affinity),
            "the quota is forgotten: you may run on these cores, but not all of the time.",
        ),
    ]
    given = [result(answer, case) for case in CORE_CASES] if callable(answer) else []
    if given and all(value is None for value in given):
        raise Wrong("your function returns nothing: it should return the number.")
    if given and isinstance(given[0], int) and len(set(map(shown, given))) == 1:
        raise Wrong(
            "the same number for every machine: os.cpu_count() describes the computer under your "
            "notebook. Use the two arguments, which describe the one that is asked about."
        )
    expect_calls(answer, CORE_CASES, right_cores, mistakes)
    return "Affinity says where you may run, the quota how long; an engine must ask for both."


MACHINES = {
    "rack server": """\
model name : Intel(R) Xeon(R) CPU E5-2670 v2 @ 2.50GHz
architecture : x86_64
flags : fpu sse2 ssse3 sse4_1 sse4_2 avx f16c aes
""",
    "laptop": """\
model name : 12th Gen Intel(R) Core(TM) i5-1240P
architecture : x86_64
flags : fpu sse2 ssse3 sse4_1 sse4_2 avx f16c fma bmi2 avx2 aes
""",
    "cloud instance": """\
model name : Neoverse-N1
architecture : aarch64
Features : fp asimd aes sha2 atomics fphp asimdhp asimddp
""",
}


@exercise("00.3", "Three machines", kind="diagnose", minutes=5, difficulty=1)
def paths(answer: Answer) -> str:
    right = {
        name: kernel_path(cpu_features(text), fields(text, "architecture")[0])
        for name, text in MACHINES.items()
    }
    mistakes = {
        ("rack server", "avx2"): "it has avx, which is not avx2; and no fma either.",
        ("rack server", "refuse"): "it is slow, not useless: the portable path runs on it.",
        ("laptop", "portable"): "avx2, fma and f16c are all there, in another order.",
        ("laptop", "refuse"): "avx2, fma and f16c are all there; why refuse?",
        ("cloud instance", "avx2"): "AVX2 is an extension of x86-64; this is an ARM processor.",
        ("cloud instance", "refuse"): (
            "ARM is not refused: portable means that no special instruction is needed."
        ),
    }
    for name, path in answer.items() if isinstance(answer, Mapping) else ():
        if path not in ("avx2", "portable", "refuse"):
            raise Wrong(f'{name}: {shown(path)} is none of "avx2", "portable", "refuse".')
    expect_choices(answer, right, mistakes)
    return "Only all three flags together give avx2; everything else that computes is portable."
