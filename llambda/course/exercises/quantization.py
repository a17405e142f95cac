"""The exercises of lesson 09: a block by instructions, room in 16 bits, codes, a broken matrix."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .base import Answer, Wrong, exercise, expect_calls, expect_choices, expect_number
from .quantization_codes import judge_codes

Bytes = npt.NDArray[Any]  # 32 of them, int8 or uint8
Shorts = npt.NDArray[np.int16]
Ints = npt.NDArray[np.int32]

BYTES = 32  # in a register
LOWEST, HIGHEST = -(2**15), 2**15 - 1  # of an int16
TOP = 127  # the largest code of an activation

# ---------------------------------------------------------------- 09.1 a block by instructions

CALLED: list[str] = []  # the instructions that the answer has used


def register(v: Any, kind: Any, name: str) -> npt.NDArray[Any]:
    """The bits of a register, read as numbers of a kind. Raises TypeError for no register."""
    array, want = np.asarray(v), np.dtype(kind)
    count = BYTES // want.itemsize
    if array.dtype.itemsize != want.itemsize or array.shape != (count,):
        shape = list(array.shape)
        raise TypeError(
            f"{name} takes {count} numbers of {want.itemsize} byte(s), not {array.dtype} {shape}"
        )
    return np.ascontiguousarray(array).view(kind)


def maddubs(a: Bytes, b: Bytes) -> Shorts:
    """vpmaddubsw: 32 bytes times 32 bytes, neighbours added: int16 [16].

    It sees bits, and no dtype: a's are taken for unsigned, b's for signed. A sum that an int16
    cannot hold becomes the nearest that it can.
    """
    CALLED.append("maddubs")
    unsigned = register(a, np.uint8, "maddubs").astype(np.int32)
    products = unsigned * register(b, np.int8, "maddubs")
    pairs = products.reshape(-1, 2).sum(1)
    return np.clip(pairs, LOWEST, HIGHEST).astype(np.int16)


def madd(a: Shorts, b: Shorts) -> Ints:
    """vpmaddwd: 16 int16 times 16 int16, neighbours added: int32 [8]."""
    CALLED.append("madd")
    products = register(a, np.int16, "madd").astype(np.int32) * register(b, np.int16, "madd")
    return products.reshape(-1, 2).sum(1).astype(np.int32)


def exact(w: Bytes, x: Bytes) -> int:
    return int(w.astype(np.int64) @ x.astype(np.int64))


def added(a: Bytes, b: Bytes) -> int:
    """All products, as the two instructions add them."""
    return int(madd(maddubs(a, b), np.ones(16, np.int16)).sum())


def size_of(w: Bytes) -> Bytes:
    return np.abs(w.astype(np.int16)).astype(np.uint8)


def turned(x: Bytes, w: Bytes) -> Bytes:
    """x with the sign of w: a byte stays a byte, so that -(-128) is -128."""
    return np.sign(w) * x


def moved_up(w: Bytes) -> Bytes:
    return (w.astype(np.int16) + 128).astype(np.uint8)


def wrapping(a: Bytes, b: Bytes) -> int:
    """As `added`, in a 16-bit arithmetic that wraps around."""
    with np.errstate(over="ignore"):
        products = a.astype(np.int16) * b.astype(np.int16)
        return int(products.reshape(-1, 2).sum(1, dtype=np.int16).sum(dtype=np.int64))


def in_shorts(w: Bytes, x: Bytes) -> int:
    pairs = maddubs(size_of(w), turned(x, w))
    return int(pairs.sum(dtype=np.int16))


DotOf = Callable[[Bytes, Bytes], Any]
REACHES = "a pair of them reaches 255 x 127 x 2 = 64,770, and an int16 ends at 32,767:"
FIRST = "maddubs takes its first argument for unsigned and its second for signed."
DOT_MISTAKES: list[tuple[DotOf, str]] = [
    (
        lambda w, x: added(moved_up(w), x) - 128 * int(x.sum(dtype=np.int64)),
        f"the weights are moved up by 128. Then {REACHES} the sum saturates.",
    ),
    (
        lambda w, x: wrapping(moved_up(w), x) - 128 * int(x.sum(dtype=np.int64)),
        f"the weights are moved up by 128. Then {REACHES} yours wraps around, where the "
        "processor's would saturate. Neither is right.",
    ),
    (
        lambda w, x: added(w.astype(np.uint8), x),
        "a negative weight is read as unsigned, and the bits of -5 mean 251.",
    ),
    (lambda w, x: added(x, w), f"the arguments are swapped. {FIRST}"),
    (
        lambda w, x: added(turned(x, w), size_of(w)),
        f"the sign is where it should be, and stands on the wrong side. {FIRST}",
    ),
    (
        lambda w, x: added(size_of(x), turned(w, x)),
        "the sign goes from x to the weight, and a weight may be -128: there is no +128 in a "
        "signed byte. Take the sign off the weight, and give it to x.",
    ),
    (
        lambda w, x: added(np.minimum(size_of(w), TOP).astype(np.uint8), turned(x, w)),
        "a weight of -128 has lost one: its size is 128, and a uint8 can hold that.",
    ),
    (lambda w, x: added(size_of(w), size_of(x)), "all signs are lost, and the sum only grows."),
    (lambda w, x: added(size_of(w), x), "the sign of the weight is taken off, and nobody has it."),
    (
        in_shorts,
        "the 16 pair sums are added up in 16 bits, which wraps around. `madd` with ones is there "
        "to make them 32 bits wide.",
    ),
    (
        lambda w, x: madd(maddubs(size_of(w), turned(x, w)), np.ones(16, np.int16)),
        "those are eight partial sums. A single number is wanted.",
    ),
]


def dot_cases() -> list[tuple[Bytes, Bytes]]:
    rng = np.random.default_rng(9)
    wide = rng.integers(-128, 128, (3, BYTES)).astype(np.int8)
    small = rng.integers(-8, 8, BYTES).astype(np.int8)
    x = rng.integers(-TOP, TOP + 1, (5, BYTES)).astype(np.int8)
    lowest, most = np.full(BYTES, -128, np.int8), np.full(BYTES, TOP, np.int8)
    pairs = [(small, x[3]), *zip(wide, x, strict=False), (lowest, most), (lowest, -most)]
    return [*pairs, (lowest, x[4]), (most, most), (most, -most)]


@exercise("09.1", "A block by two instructions", kind="code", minutes=12, difficulty=3)
def block_dot(answer: Answer) -> str:
    cases = dot_cases()
    CALLED.clear()
    expect_calls(answer, cases, exact, DOT_MISTAKES)
    if "maddubs" not in CALLED:
        raise Wrong(
            "all sums are right, and none was made by the instructions. Use `check.maddubs` and "
            "`check.madd`."
        )
    if "madd" not in CALLED:
        raise Wrong("NumPy added the pairs in 64 bits, and a lane has 16. Use `check.madd`.")
    return (
        "128 x 127 x 2 = 32,512 still fits, so not one pair saturates, and the block is exact. A "
        "weight may be -128; a code of x may not, which is why activations stop at 127."
    )


# ---------------------------------------------------------------- 09.2 room in 16 bits

BITS = (4, 5, 6, 8)


def pair_sums(bits: int, products: int = 2) -> int:
    """How many sums of so many products of unsigned codes and activations an int16 holds."""
    return HIGHEST // (products * TOP * (2**bits - 1))


@exercise("09.2", "Room for pair sums", kind="predict", minutes=5, difficulty=2)
def room(answer: Answer) -> str:
    for bits in BITS:
        key, top = f"{bits} bits", 2**bits - 1
        if not isinstance(answer, Mapping) or key not in answer:
            keys = ", ".join(f"{each} bits" for each in BITS)
            raise Wrong(f"a dict with the keys {keys} is wanted.")
        right = pair_sums(bits)
        largest = 2 * TOP * top
        mistakes: dict[float, str] = {
            pair_sums(bits, 1): (
                f"that is room for single products of {top} x {TOP}, or for pairs in an unsigned "
                "number. `maddubs` adds two products, and an int16 ends at 32,767."
            ),
            right + 1: (
                f"one too many: {right + 1} x {largest:,} = {(right + 1) * largest:,}, and an "
                "int16 ends at 32,767."
            ),
            0: f"a code of {bits} bits is at most {top}, and not 255.",
            16: "that is how many lanes there are. How often can something be added to one?",
            32: "that is how many bytes there are. How often can something be added to a sum?",
        }
        mistakes.pop(right, None)
        try:
            if isinstance(answer[key], float) and not answer[key].is_integer():
                raise Wrong("count whole sums only: a part of one cannot be added.")
            expect_number(answer[key], right, mistakes, share=1e-9)
        except Wrong as wrong:
            raise Wrong(f"{key}: {wrong}") from None
    return (
        "A block has 32 columns, eight pair sums a lane, and four-bit codes fill 16 bits with "
        f"exactly those: {pair_sums(4) * 2 * TOP * 15:,}. Each bit more halves the room, and the "
        "kernel has to widen twice as often."
    )


# ---------------------------------------------------------------- 09.3 codes of activations


@exercise("09.3", "Activations to codes", kind="code", minutes=10, difficulty=3)
def to_codes(answer: Answer) -> str:
    return judge_codes(answer)


# ---------------------------------------------------------------- 09.4 one matrix is broken

# The tiny model, one kind of matrix at a time in 8 and in 4 bits and all others as float32; at 59
# positions, against the model as it is. Layer 0's q was read with the scale of the next row.
KL: dict[str, tuple[float, float]] = {
    "attn_q": (4.45e-2, 1.42e-1),
    "attn_k": (1.27e-4, 2.25e-2),
    "attn_v": (2.26e-4, 3.83e-2),
    "attn_output": (1.59e-4, 1.81e-2),
    "ffn_gate": (3.49e-4, 3.92e-2),
    "ffn_up": (1.55e-4, 2.57e-2),
    "ffn_down": (3.42e-4, 8.92e-2),
    "token_embd": (4.71e-4, 9.86e-2),
}
# Of that q in Q8_0: the scale of six rows, and their weights in columns 0 and 5, right and read.
SCALES = (0.00623, 0.00661, 0.01019, 0.00803, 0.00690, 0.00767)
CODES = ((-40, 14, -11, -42, 12), (21, -9, 33, 5, -27))
COLUMNS = (0, 5)


def show_kl() -> None:
    """Print what somebody measured, matrix by matrix."""
    print(f"{'only this in few bits':<24}{'KL, 8 bits':>12}{'KL, 4 bits':>12}")
    for name, (eight, four) in KL.items():
        print(f"{name:<24}{eight:>12.5f}{four:>12.5f}")


def show_columns() -> None:
    """Print some weights of the broken matrix, as they are and as its engine reads them."""
    print(f"{'row':>3}{'its scale':>11}", *(f"{'column ' + str(c):>19}" for c in COLUMNS))
    print(f"{'':14}", *(f"{'right':>10}{'read':>9}" for _ in COLUMNS))
    for row in range(len(SCALES) - 1):
        values = [(SCALES[row] * c[row], SCALES[row + 1] * c[row]) for c in CODES]
        pairs = (f"{right:>10.4f}{read:>9.4f}" for right, read in values)
        print(f"{row:>3}{SCALES[row]:>11.5f}", *pairs)


def falls_least() -> str:
    """The matrix to which four more bits do the least good."""
    return min(KL, key=lambda name: KL[name][1] / KL[name][0])


@exercise("09.4", "One matrix is broken", kind="diagnose", minutes=8, difficulty=4)
def broken(answer: Answer) -> str:
    culprit = falls_least()
    right: dict[str, Any] = {"matrix": culprit, "cause": "scale", "bytes too far": 2}
    mistakes: dict[tuple[str, Any], str] = {
        ("matrix", "none"): (
            "you call it quantization noise. Noise falls when it is given bits: about 256 times "
            "from four to eight. Divide the columns, row by row."
        ),
        ("cause", "noise"): (
            "quantization noise is at most half a scale, and here a weight of row 1 is half as "
            "large again. Its codes are right: divide what is read by what is right."
        ),
        ("cause", "order"): (
            "a weight in a wrong place would be another weight, with another sign at times. Here "
            "both columns of a row are wrong by the same factor."
        ),
        ("cause", "saturation"): (
            "saturation needs large sums of many products, and each of these weights came out of "
            "a single one."
        ),
        ("bytes too far", 1): "a row is one scale further, and a scale is a half, of two bytes.",
        ("bytes too far", 4): "that is the size of a float32. These scales are kept as halves.",
        ("bytes too far", 16): "that is as far as all eight scales; the neighbour's is the next.",
        ("bytes too far", 34): (
            "that is a whole block of the file: there the next scale belongs to the same row. "
            "Whose scale explains what is read of row 0?"
        ),
    }
    for name, (eight, four) in KL.items():
        mistakes["matrix", name] = (
            f"{name} loses {four:.2g} in four bits and {eight:.2g} in eight: {four / eight:.0f} "
            "times less. Four bits are a factor of 16 in the error, and of 256 in KL: that one "
            "behaves as noise does."
        )
    expect_choices(answer, right, mistakes)
    return (
        "The row's scale was read from the wrong half, the neighbour's, two bytes further. Codes "
        "and sums are exact, signs are right, the text reads well: nothing but a count tells it "
        "from noise, and the count is this one: a fault does not shrink with more bits."
    )
