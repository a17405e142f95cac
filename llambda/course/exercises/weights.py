"""The exercises of lesson 02: a key and its value, a block of Q4_1, five bad readers, bits."""

import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...quants import BY_NAME, Bytes, Floats, decode_bf16, decode_q4_1, decode_q8_0, half, nibbles
from .base import Answer, Function, Wrong, exercise, expect_calls, expect_choices, expect_number
from .weights_entry import (
    ENTRIES,
    OTHERS,
    READERS_THAT_ERR,
    RIGHT,
    UNKNOWN,
    cuts,
    lies,
    must_refuse,
    must_refuse_type,
)

# ---------------------------------------------------------------- 02.1 a key and its value


@exercise("02.1", "A key and its value", kind="code", minutes=15, difficulty=3)
def key_value(answer: Answer) -> str:
    expect_calls(answer, list(RIGHT), lambda data, at: RIGHT[data, at], READERS_THAT_ERR)
    must_refuse(answer, [*cuts(), *lies()])
    for kind in (*UNKNOWN, *OTHERS):
        must_refuse_type(answer, kind)
    return (
        f"All {sum(len(raw) for raw, _ in ENTRIES)} prefixes are refused. One comparison in one "
        "place is enough, if whoever wants bytes has to pass there."
    )


# ---------------------------------------------------------------- 02.2 a block of Q4_1


def q4_1_block(d: float, m: float, codes: npt.NDArray[Any]) -> Bytes:
    packed = (codes[:16] | codes[16:] << 4).astype(np.uint8)
    return np.frombuffer(struct.pack("<ee", d, m) + packed.tobytes(), np.uint8)


def interleaved(qs: Bytes) -> Bytes:
    return np.stack([qs & 15, qs >> 4], axis=-1).reshape(-1)


def faulty(
    less: int = 0,
    plus: int = 1,
    order: Callable[[Bytes], Bytes | Floats] = nibbles,
    at: tuple[int, int, int] = (0, 2, 4),
    read: Callable[[Bytes, int], Floats] = half,
) -> Function:
    """A decoder d * (code - less) + plus * m, with its own order and places of d, m and codes."""

    def decode(block: bytes) -> Floats:
        raw = np.frombuffer(block, np.uint8)
        codes = order(raw[at[2] : at[2] + 16]).astype(np.float32)
        return read(raw, at[0]) * (codes - np.float32(less)) + plus * read(raw, at[1])

    return decode


def with_one_in_front(raw: Bytes, at: int) -> Floats:
    """A half whose 1 in front is taken for granted, and which thus knows no subnormal numbers."""
    value = half(raw, at)
    normal = np.copysign(2**-15 + np.abs(value) / 2, value)
    return np.where(np.abs(value) < 2**-14, normal, value).astype(np.float32)


def flushed(raw: Bytes, at: int) -> Floats:
    """A half whose subnormal numbers are taken for zero."""
    value = half(raw, at)
    return np.where(np.abs(value) < 2**-14, 0, value).astype(np.float32)


def in_halves(block: bytes) -> npt.NDArray[np.float16]:
    """A decoder that computes in the type in which d and m are stored."""
    d, m = np.frombuffer(block, "<f2", 2)
    return np.asarray(d * nibbles(np.frombuffer(block, np.uint8)[4:]).astype(np.float16) + m)


@exercise("02.2", "A block of Q4_1", kind="code", minutes=10, difficulty=2)
def q4_1(answer: Answer) -> str:
    codes = np.random.default_rng(2).integers(0, 16, (2, 32))
    blocks = [
        q4_1_block(0.5, -1.25, (np.arange(32) * 7 + np.arange(32) // 16 * 3) % 16),
        q4_1_block(0.125, 0.75, codes[0]),
        q4_1_block(-0.25, 3.0, codes[1]),
        q4_1_block(0.0373, -0.2891, codes[0]),  # with fractions that fill a half
        q4_1_block(4.1e-5, 0.0, codes[1]),  # too small for the 1 in front of a fraction
    ]
    order = "the nibbles are interleaved. Byte j holds element j (low bits) and j + 16 (high bits)."
    header = "a header of 2 bytes is skipped. Two halves stand in front, d and m: 4 bytes."
    dropped = "the minimum m is dropped: a code means d * code + m."
    high_first = faulty(order=lambda qs: np.concatenate([qs >> 4, qs & 15]))
    unshifted = faulty(order=lambda qs: np.concatenate([qs & 15, qs & 240]))
    mistakes = [
        (faulty(order=interleaved), order),
        (faulty(at=(0, 2, 2)), f"{header} You read m right, and then its bytes again as codes."),
        (faulty(0, 0, at=(0, 2, 2)), f"{header} Besides, m is not added."),
        (faulty(8, 0, at=(0, 2, 2)), f"{header} What you read is Q4_0."),
        (faulty(0, 0), f"{dropped} Without it no weight has another sign than d."),
        (faulty(8, 0), f"{dropped} The 8 belongs to Q4_0, which has no minimum."),
        (faulty(8), "the 8 belongs to Q4_0. Here the codes count up from the minimum."),
        (faulty(0, -1), "the K-quants subtract m; here it is added."),
        (faulty(at=(2, 0, 4)), "d and m are swapped: d stands first, and multiplies."),
        (high_first, "the low nibbles are the first half, not the high ones."),
        (unshifted, "the high nibbles are not shifted down: their codes reach 240."),
        (
            in_halves,
            "you compute in float16. A product d * code has up to 15 significant bits, and a half "
            "has 11: make d and m wider before you multiply.",
        ),
        (
            lambda block: faulty()(block).astype(np.float16),
            "the weights are rounded to float16. The block stores d and m as halves; the weights "
            "made of them have more bits: give them back as float32, or as Python's numbers.",
        ),
        (
            faulty(read=flushed),
            "a tiny d is taken for zero. A half with exponent 0 is subnormal, and no zero unless "
            "its fraction is 0, too.",
        ),
        (
            faulty(read=with_one_in_front),
            "a half with exponent 0 is zero or subnormal: there is no 1 in front of its fraction.",
        ),
    ]
    cases = [(block.tobytes(),) for block in blocks]
    expect_calls(
        answer, cases, lambda block: decode_q4_1(np.frombuffer(block, np.uint8)), mistakes, 1e-6
    )
    return (
        "Most wrong versions give 32 plausible numbers, too. Only values in their places tell, and "
        "only if the block that is tested has codes all different in size and order."
    )


# ---------------------------------------------------------------- 02.3 five readers

SPREAD = np.arange(27)
CODES8 = np.array([-17, 6, 1, 24, -3, *(11 * SPREAD % 39 - 19)], np.int8)
CODES4 = np.array([3, 14, 0, 9, 5, *(7 * SPREAD[:11] % 16), 12, 1, 8, 15, 2, *(SPREAD[:11])])
BLOCK8 = np.frombuffer(struct.pack("<e", 0.5) + CODES8.tobytes(), np.uint8)
BLOCK4 = q4_1_block(0.25, -1.5, CODES4)
RIGHT8, RIGHT4 = decode_q8_0(BLOCK8), decode_q4_1(BLOCK4)
READERS: dict[str, tuple[str, Floats, Floats]] = {  # format and scales, right values, a reader's
    "A": ("Q8_0, d = 0.5", RIGHT8, decode_bf16(BLOCK8[:2]) * CODES8),
    "B": ("Q8_0, d = 0.5", RIGHT8, CODES8.astype(np.float32)),
    "C": ("Q4_1, d = 0.25, m = -1.5", RIGHT4, faulty(plus=0)(BLOCK4.tobytes())),
    "D": ("Q4_1, d = 0.25, m = -1.5", RIGHT4, faulty(order=interleaved)(BLOCK4.tobytes())),
    "E": ("Q8_0, d = 0.5", RIGHT8, half(BLOCK8, 0) * BLOCK8[2:]),
}
FAULTS = {"A": "bf16", "B": "scale", "C": "minimum", "D": "order", "E": "sign"}
SCALES = (0.5, 1.0, 2.0, 4.0)


def show_readers() -> None:
    """Print the first five values that each reader gives, under the right ones."""
    for name, (form, right, wrong) in READERS.items():
        print(f"reader {name}: {form}")
        for word, values in (("right", right), ("it says", wrong)):
            print(f"    {word:<8}" + "".join(f"{value:>14.6g}" for value in values[:5]))


def as_bfloat16(scale: float) -> float:
    """The number that the bits of a half mean as bfloat16."""
    return float(decode_bf16(np.frombuffer(struct.pack("<e", scale), np.uint8))[0])


@exercise("02.3", "Five readers", kind="diagnose", minutes=7, difficulty=3)
def readers(answer: Answer) -> str:
    right: dict[str, Any] = dict(FAULTS)
    right["blind"] = next(scale for scale in SCALES if as_bfloat16(scale) == scale)
    whole = "without a scale only whole numbers come out"
    shift = "Every value is too large by the same 1.5."
    moved = "Look where the 2 and the -1.5 went."
    mistakes: dict[tuple[str, Any], str] = {
        ("A", "scale"): f"a scale was applied, for {whole}. What else can the 16 bits of 0.5 mean?",
        ("A", "minimum"): "all values are wrong by one factor, not by one summand.",
        ("B", "bf16"): f"no factor was applied at all: {whole}.",
        ("B", "sign"): "the signs are right: -17 is the first code.",
        ("C", "scale"): f"the steps from value to value are right. {shift}",
        ("C", "sign"): f"codes of four bits have no sign. {shift}",
        ("D", "minimum"): f"the first value is right, and so is its minimum. {moved}",
        ("D", "scale"): f"the first value is right, and so is its scale. {moved}",
        ("D", "sign"): f"codes of four bits have no sign. {moved}",
        ("E", "scale"): "where the code is positive the value is right, and so is the scale.",
        ("E", "minimum"): "Q8_0 has none. Only negative values are wrong, by 128 = 256 x 0.5.",
    }
    for name in "ABCE":
        mistakes[name, "order"] = "no value has moved: compare each with the right one above it."
    for scale in SCALES:
        bits = f"the bits of {scale:g} mean {as_bfloat16(scale):.3g} as bfloat16"
        mistakes["blind", scale] = f"{bits}, and the test would have noticed."
    expect_choices(answer, right, mistakes)
    return (
        "The half 2.0 has the bits 0x4000, which are 2.0 in bfloat16 too. Choose a test's numbers "
        "so that every mistake you can think of changes them."
    )


# ---------------------------------------------------------------- 02.4 bits


@exercise("02.4", "Bits per weight", kind="predict", minutes=3, difficulty=1)
def bits_per_weight(answer: Answer) -> str:
    for name, code, halves in (("Q8_0", 8, 1), ("Q4_0", 4, 1), ("Q4_1", 4, 2)):
        if not isinstance(answer, Mapping) or name not in answer:
            raise Wrong("a dict with the keys Q8_0, Q4_0 and Q4_1 is wanted.")
        form = BY_NAME[name]
        hidden = "its scale and its minimum" if halves == 2 else "its scale"
        mistakes = {
            float(code): f"that is the code alone. The block also stores {hidden}.",
            form.bits_per_weight / 8: "that is bytes, and bits are asked for.",
            float(form.dtype.block_bytes): "that is a block's bytes: 32 weights share them.",
            code + (3 - halves) / 2: "count the halves: Q4_1 has two in a block, the others one.",
        }
        try:
            expect_number(answer[name], form.bits_per_weight, mistakes)
        except Wrong as wrong:
            raise Wrong(f"{name}: {wrong}") from None
    return (
        "Half a bit for each half that 32 weights share. Q4_K gives every 32 weights a scale and a "
        f"minimum at {BY_NAME['Q4_K'].bits_per_weight} bits: it stores those in 6 bits each."
    )
