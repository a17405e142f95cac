"""The encoders against recorded bytes and the `gguf` package, bit for bit, and against arithmetic.

One function, `complaints`, judges an encoder. The planted mistakes below, each of them made by
some real program, show that it would notice them.
"""

from collections.abc import Callable

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from llambda.encode import ENCODERS, encode
from llambda.errors import InputError, UnsupportedError
from llambda.quants import BY_NAME, decode
from llambda.tensor import F32, DType, Tensor

Encoder = Callable[[np.ndarray], np.ndarray]  # float32 [..., n] -> uint8 [..., bytes of a row]

NAMES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]
BLOCKS = ["Q8_0", "Q4_0", "Q4_1"]
GOLDEN = {  # linspace(-1, 1, 32) in float32, as the gguf package 0.19 stores it
    "Q4_0": "0030809191a2a2b3b3c4c4d5d5e6e6f7f7f8",
    "Q4_1": "443000bc80809191a2a2b3b3c4c4d5d5e6e6f7f7",
    "Q8_0": "08208189919aa2aab2bac3cbd3dbe3ecf4fc040c141d252d353d464e565e666f777f",
}
BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))
TIES = [
    127,
    0.5,
    1.5,
    2.5,
    3.5,
    -0.5,
    -1.5,
    -2.5,
    63.5,
    -64.5,
    BELOW_HALF,
    -BELOW_HALF,
    126.5,
    -127,
]


def dtype(name: str) -> DType:
    return BY_NAME[name].dtype


def reference(name: str, x: np.ndarray) -> np.ndarray:
    """What the `gguf` package stores for float32 [rows, n]: uint8 [rows, bytes]."""
    with np.errstate(all="ignore"):
        stored = gguf.quants.quantize(x, gguf.GGMLQuantizationType[name])
    return np.ascontiguousarray(stored).view(np.uint8).reshape(len(x), -1)


def decoded(name: str, stored: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return decode(Tensor(np.ascontiguousarray(stored), dtype(name), shape))


def wide_data() -> np.ndarray:
    """Rows of many sizes, of one sign, of zeros, of ties: float32 [rows, 96], no two blocks alike.

    The smallest still have a scale whose inverse is a finite float32; with smaller ones, all of
    which are stored with a scale of 0, the reference leaves the codes to the compiler.
    """
    rng = np.random.default_rng(3)
    sizes = 10.0 ** np.linspace(-33, 36, 139)
    x = rng.standard_normal((len(sizes), 96)) * sizes[:, None]
    x[::5] = np.abs(x[::5])
    x[1::5] = -np.abs(x[1::5])
    x[2::7, ::3] = 0
    x[3::7] += 1000 * sizes[3::7, None]  # far from zero: a large minimum, a small range
    special = np.zeros((13, 96))
    special[1] = -0.0
    special[2] = 1
    special[3] = -3
    special[4, 40] = -7
    special[5, :14] = TIES
    special[6, 32:46] = -np.array(TIES)
    special[7, 64:80] = np.linspace(-8, 7, 16)  # every code of Q4_0, and in front of ...
    special[7, 80:96] = np.linspace(-7.5, 7.5, 16)  # ... values midway between two
    special[8, :32] = np.linspace(0, 15.5, 32)
    special[9, :2] = [8, -8]  # equal in size: the first gives the scale
    special[10, :2] = [-8, 8]
    special[11] = np.where(np.arange(96) % 2, 1e-41, -5e-37)  # some of it denormal
    special[12, :4] = [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11]  # ties of halves
    return np.concatenate([x, special]).astype(np.float32)


DATA = wide_data()


def complaints(name: str, encoder: Encoder) -> list[str]:
    """What is wrong with an encoder of this format: nothing, if it is right."""
    found = []
    if name in GOLDEN:
        ramp = np.linspace(-1, 1, 32, dtype=np.float32)
        if encoder(ramp).tobytes().hex() != GOLDEN[name]:
            found.append("recorded bytes")
    with np.errstate(all="ignore"):
        stored = encoder(DATA)
    if not np.array_equal(stored, reference(name, DATA)):
        found.append("gguf's bytes")
    return found


@pytest.mark.parametrize("name", NAMES)
def test_an_encoder_is_right(name: str):
    assert complaints(name, lambda x: encode(x, dtype(name))) == []


def test_every_format_that_is_written_is_tested_here():
    assert sorted(ENCODERS) == sorted(NAMES)


@given(st.data())
def test_random_rows_are_the_references(data: st.DataObject):
    """Any finite numbers, of like and of unlike size."""
    name = data.draw(st.sampled_from(NAMES))
    shape = (data.draw(st.integers(1, 3)), 32 * data.draw(st.integers(1, 3)))
    numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
    scale = data.draw(st.sampled_from([1.0, 1e-6, 1e4]))
    near = st.floats(-1, 1, width=32).map(lambda value: value * scale)
    x = data.draw(hnp.arrays(np.float32, shape, elements=st.one_of(near, numbers), fill=near))
    stored, expected = encode(x, dtype(name)), reference(name, x)
    if name in BLOCKS:  # leave out the blocks whose codes mean nothing: see above
        spread = np.ptp(x.reshape(-1, 32).astype(np.float64), axis=1)
        extreme = np.abs(x.reshape(-1, 32)).max(axis=1)
        sound = ((extreme == 0) | (extreme > 1e-36)) & ((spread == 0) | (spread > 1e-36))
        sound &= (spread < 3e38) | (name != "Q4_1")
        stored, expected = (s.reshape(len(sound), -1)[sound] for s in (stored, expected))
    assert np.array_equal(stored, expected)


# Planted mistakes


def in_blocks(function: Callable[[np.ndarray], list[np.ndarray]]) -> Encoder:
    """An encoder out of a function that gives the parts of the blocks float32 [..., 32]."""

    def encoder(x: np.ndarray) -> np.ndarray:
        parts = function(x.reshape(*x.shape[:-1], -1, 32))
        return np.concatenate(parts, axis=-1).reshape(*x.shape[:-1], -1)

    return encoder


def half(values: np.ndarray) -> np.ndarray:
    return values.astype("<f2").view(np.uint8)


def inverse(d: np.ndarray) -> np.ndarray:
    return np.where(d == 0, np.float32(0), np.float32(1) / d)


def away(x: np.ndarray) -> np.ndarray:
    whole = np.floor(np.abs(x))
    return np.sign(x) * (whole + np.floor(2 * (np.abs(x) - whole)))


def pack(codes: np.ndarray) -> np.ndarray:
    codes = np.minimum(codes, 15).astype(np.uint8)
    return codes[..., :16] | codes[..., 16:] << 4


def wrong_q8_0(
    rounding: Callable[[np.ndarray], np.ndarray] = away,
    divisor: float = 127,
    store: Callable[[np.ndarray], np.ndarray] = half,
    used: Callable[[np.ndarray], np.ndarray] = lambda d: d,
) -> Encoder:
    def blocks(x: np.ndarray) -> list[np.ndarray]:
        d = np.abs(x).max(axis=-1, keepdims=True) / np.float32(divisor)
        codes = rounding(x * inverse(used(d)))
        return [store(d), codes.astype(np.int8).view(np.uint8)]

    return in_blocks(blocks)


def wrong_q4_0(
    extreme: Callable[[np.ndarray], np.ndarray] = lambda x: np.take_along_axis(
        x, np.abs(x).argmax(axis=-1, keepdims=True), axis=-1
    ),
    divisor: float = -8,
    packing: Callable[[np.ndarray], np.ndarray] = pack,
    used: Callable[[np.ndarray], np.ndarray] = lambda d: d,
    shift: float = 8.5,
) -> Encoder:
    def blocks(x: np.ndarray) -> list[np.ndarray]:
        d = extreme(x) / np.float32(divisor)
        return [half(d), packing(x * inverse(used(d)) + np.float32(shift))]

    return in_blocks(blocks)


def wrong_q4_1(
    divisor: float = 15,
    packing: Callable[[np.ndarray], np.ndarray] = pack,
    sign: int = 1,
    used: Callable[[np.ndarray], np.ndarray] = lambda d: d,
    minimum: Callable[[np.ndarray], np.ndarray] = lambda m: m,
    swap: bool = False,
) -> Encoder:
    def blocks(x: np.ndarray) -> list[np.ndarray]:
        m = x.min(axis=-1, keepdims=True)
        d = (x.max(axis=-1, keepdims=True) - m) / np.float32(divisor)
        codes = packing((x - minimum(m)) * inverse(used(d)) + np.float32(0.5))
        scales = [half(d), half(sign * m)]
        return [*(scales[::-1] if swap else scales), codes]

    return in_blocks(blocks)


def as_half(d: np.ndarray) -> np.ndarray:
    """The scale as it will be read again."""
    return d.astype(np.float16).astype(np.float32)


def interleaved(codes: np.ndarray) -> np.ndarray:
    codes = np.minimum(codes, 15).astype(np.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4


def high_first(codes: np.ndarray) -> np.ndarray:
    packed = pack(codes)
    return packed << 4 | packed >> 4


def without_cap(codes: np.ndarray) -> np.ndarray:
    codes = codes.astype(np.uint8) & 15
    return codes[..., :16] | codes[..., 16:] << 4


def upper_half(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) >> 16).astype("<u2").view(np.uint8)


def cut_f16(x: np.ndarray) -> np.ndarray:
    """Toward zero instead of to the nearest."""
    rounded = x.astype(np.float16)
    too_far = np.abs(rounded.astype(np.float32)) > np.abs(x)
    return np.where(too_far, np.nextafter(rounded, np.float16(0)), rounded).view(np.uint8)


def nearest_up(x: np.ndarray) -> np.ndarray:
    """Ties away from zero instead of to even."""
    return ((x.view(np.uint32).astype(np.uint64) + 0x8000) >> 16).astype("<u2").view(np.uint8)


def add_half_and_cut(x: np.ndarray) -> np.ndarray:
    return np.trunc(x + np.copysign(np.float32(0.5), x))


RIGHT = {"Q8_0": wrong_q8_0(), "Q4_0": wrong_q4_0(), "Q4_1": wrong_q4_1()}
MISTAKES: list[tuple[str, str, Encoder]] = [
    ("F16", "cut instead of rounded", cut_f16),
    ("BF16", "cut instead of rounded", upper_half),
    ("BF16", "ties away from zero", nearest_up),
    ("Q8_0", "ties to even", wrong_q8_0(rounding=np.rint)),
    ("Q8_0", "ties upward", wrong_q8_0(rounding=lambda x: np.floor(x + np.float32(0.5)))),
    ("Q8_0", "the float below a half becomes 1", wrong_q8_0(rounding=add_half_and_cut)),
    ("Q8_0", "cut instead of rounded", wrong_q8_0(rounding=np.trunc)),
    ("Q8_0", "divided by 128", wrong_q8_0(divisor=128)),
    ("Q8_0", "codes from the rounded scale", wrong_q8_0(used=as_half)),
    ("Q8_0", "scale stored as bfloat16", wrong_q8_0(store=upper_half)),
    ("Q4_0", "codes from the rounded scale", wrong_q4_0(used=as_half)),
    ("Q4_0", "extreme without its sign", wrong_q4_0(lambda x: np.abs(x).max(-1, keepdims=True))),
    ("Q4_0", "largest instead of extreme", wrong_q4_0(lambda x: x.max(-1, keepdims=True))),
    ("Q4_0", "the last extreme of two", wrong_q4_0(
        lambda x: np.take_along_axis(x, 31 - np.abs(x[..., ::-1]).argmax(-1, keepdims=True), -1))),
    ("Q4_0", "divided by 8", wrong_q4_0(divisor=8)),
    ("Q4_0", "divided by 7", wrong_q4_0(divisor=-7)),
    ("Q4_0", "cut instead of rounded", wrong_q4_0(shift=8)),
    ("Q4_0", "16 wraps to 0", wrong_q4_0(packing=without_cap)),
    ("Q4_0", "nibbles interleaved", wrong_q4_0(packing=interleaved)),
    ("Q4_0", "high nibbles first", wrong_q4_0(packing=high_first)),
    ("Q4_1", "codes from the rounded scale", wrong_q4_1(used=as_half)),
    ("Q4_1", "codes from the rounded minimum", wrong_q4_1(minimum=as_half)),
    ("Q4_1", "divided by 16", wrong_q4_1(divisor=16)),
    ("Q4_1", "minimum negated", wrong_q4_1(sign=-1)),
    ("Q4_1", "scale and minimum exchanged", wrong_q4_1(swap=True)),
    ("Q4_1", "nibbles interleaved", wrong_q4_1(packing=interleaved)),
    ("Q4_1", "high nibbles first", wrong_q4_1(packing=high_first)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "encoder"),
    [pytest.param(name, encoder, id=f"{name}-{what}") for name, what, encoder in MISTAKES],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # wrong encoders may overflow
def test_a_planted_mistake_is_noticed(name: str, encoder: Encoder):
    stored, right = encoder(DATA), encode(DATA, dtype(name))
    assert (stored.shape, stored.dtype) == (right.shape, right.dtype), "wrong in its values only"
    assert complaints(name, encoder)


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_means_of_planting_plant_nothing_by_themselves(name: str):
    assert complaints(name, RIGHT[name]) == []


# Rounding, and the ends of the range


def codes_of(x: np.ndarray) -> list[int]:
    return encode(x, dtype("Q8_0"))[..., 2:].view(np.int8).tolist()


def test_ties_go_away_from_zero():
    x = np.zeros(32, np.float32)
    x[:6] = [127, 0.5, 1.5, 2.5, -0.5, -1.5]
    assert codes_of(x)[:6] == [127, 1, 2, 3, -1, -2]
    x[1:5] = [BELOW_HALF, -BELOW_HALF, 2.4999998, -63.499996]
    assert codes_of(x)[:5] == [127, 0, 0, 2, -63]


def test_a_block_too_small_for_its_scale():
    """Stored as a scale of 0: the codes are what they are, and the values zero."""
    x = np.full(32, 1e-9, np.float32)
    stored = encode(x, dtype("Q8_0"))
    assert stored.tobytes() == b"\0\0" + bytes([127]) * 32
    for name in BLOCKS:
        assert np.all(decoded(name, encode(x, dtype(name)), (32,)) == 0)


@pytest.mark.parametrize("size", [1e-45, 1e-44, 1e-41, 1e-39, 1e-38])
def test_a_block_of_denormal_numbers(size: float):
    """1 / scale is no float32. The reference's codes are undefined here; these stand for zero."""
    x = np.linspace(-size, size, 32).astype(np.float32)
    for name, zero in (("Q8_0", 0x00), ("Q4_0", 0x88), ("Q4_1", 0x00)):
        stored = encode(x, dtype(name))
        values = decoded(name, stored, (32,))
        assert np.all(values == 0)
        assert np.array_equal(values, decoded(name, reference(name, x[None]), (32,)))
        if size < 1e-38:
            assert set(stored[-16:].tolist()) == {zero}


def test_a_block_of_zeros():
    """No division by zero, and nothing but zeros comes back; Q4_0's scale is -0, as in C."""
    zeros = np.zeros((2, 32), np.float32)
    assert encode(zeros, dtype("Q8_0")).tobytes() == bytes(68)
    assert encode(zeros, dtype("Q4_0")).tobytes() == (b"\x00\x80" + b"\x88" * 16) * 2
    assert encode(zeros, dtype("Q4_1")).tobytes() == bytes(40)
    for name in NAMES:
        assert np.all(decoded(name, encode(zeros, dtype(name)), (2, 32)) == 0)


def test_what_is_too_large_becomes_infinite():
    assert encode(np.full(32, 1e6 * 127), dtype("Q8_0"))[:2].tobytes() == bytes.fromhex("007c")
    assert encode(np.full(32, 1e6 * 8), dtype("Q4_0"))[:2].tobytes() == bytes.fromhex("00fc")
    assert encode(np.full(32, 1e6), dtype("Q4_1"))[:4].tobytes() == bytes.fromhex("0000 007c")
    assert encode(np.array([65519.9, 65520, -7e4]), dtype("F16")).tobytes() == bytes.fromhex(
        "ff7b 007c 00fc"
    )
    assert encode([1e300, -1e300], F32).view("<f4").tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
def test_a_value_that_is_no_number_leaves_none_in_its_block(name: str, value: float):
    x = np.linspace(-1, 1, 96, dtype=np.float32)
    x[40] = value
    found = decoded(name, encode(x, dtype(name)), (96,))
    assert not np.isfinite(found[32:64]).any()
    assert np.isfinite(found[:32]).all()
    assert np.isfinite(found[64:]).all()


def test_bfloat16_is_rounded_to_even_and_a_nan_stays_one():
    values = [1.0, 1.00390625, 1.01171875, -0.1, 3.4e38, np.nan, np.inf, 1e-40]
    found = encode(np.array(values, np.float32), dtype("BF16")).view("<u2")
    expected = [0x3F80, 0x3F80, 0x3F82, 0xBDCD, 0x7F80, 0x7FC0, 0x7F80, 0x0001]
    assert found.tolist() == expected
    for bits in (0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF):
        nan = np.array([bits], np.uint32).view(np.float32)
        assert np.isnan(decoded("BF16", encode(nan, dtype("BF16")), (1,)))


@pytest.mark.parametrize(("name", "type_"), [("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_halves_are_torchs(name: str, type_: torch.dtype):
    """Numbers next to, on and midway between representable ones, with any exponent."""
    rng = np.random.default_rng(5)
    upper = rng.integers(0, 65536, 5000, np.uint32) << 16
    lower = [0, 1, 0x0FFF, 0x1000, 0x1001, 0x2000, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    x = (upper[:, None] | np.array(lower, np.uint32)).view(np.float32)
    x = x[~np.isnan(x)]
    expected = torch.from_numpy(x).to(type_).view(torch.int16).numpy()
    assert np.array_equal(encode(x, dtype(name)).view("<i2"), expected)


# There and back


def largest_error(name: str, x: np.ndarray) -> np.ndarray:
    """The most by which a stored value may differ, float64 [rows, n], by the format's arithmetic.

    Rounding to a half moves a scale by 2^-11 of itself, or by 2^-25 if it is denormal. A code is
    off by half a step; in Q4_0 by a whole one where the cap at 15 cuts 8 steps down to 7. The
    float32 operations add a few times 2^-24 of the largest intermediate value.
    """
    x = x.astype(np.float64)
    if name == "F32":
        return np.zeros_like(x)
    if name == "F16":
        return np.abs(x) * 2.0**-11 + 2.0**-25
    if name == "BF16":
        return np.abs(x) * 2.0**-8 + 2.0**-134
    blocks = x.reshape(len(x), -1, 32)

    def moved(scale: np.ndarray) -> np.ndarray:
        return np.abs(scale) * 2.0**-11 + 2.0**-25

    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(-1, keepdims=True), -1)
    noise = np.abs(extreme) * 2.0**-21
    if name == "Q8_0":
        d = np.abs(extreme) / 127
        bound = d / 2 + 127 * moved(d) + noise
    elif name == "Q4_0":
        d = np.abs(extreme) / 8
        capped = -blocks * np.sign(extreme) > 7.499 * d
        bound = np.where(capped, d, d / 2) + 8 * moved(d) + noise
    else:
        m = blocks.min(-1, keepdims=True)
        d = (blocks.max(-1, keepdims=True) - m) / 15
        bound = d / 2 + 15 * moved(d) + moved(m) + noise
    return np.broadcast_to(bound, blocks.shape).reshape(x.shape)


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(0, 999), st.floats(-6, 4), st.floats(-3, 3))
def test_what_comes_back_is_near(name: str, seed: int, size: float, offset: float):
    x = np.random.default_rng(seed).standard_normal((4, 64))
    x = ((x + offset) * 10.0**size).astype(np.float32)
    error = np.abs(decoded(name, encode(x, dtype(name)), x.shape).astype(np.float64) - x)
    assert np.all(error <= largest_error(name, x))


@pytest.mark.parametrize("name", NAMES[1:])
def test_the_bounds_are_as_narrow_as_they_can_be(name: str):
    """Some value comes within a fifth of its bound: a worse encoder would leave it."""
    x = np.random.default_rng(0).standard_normal((400, 64)).astype(np.float32)
    error = np.abs(decoded(name, encode(x, dtype(name)), x.shape).astype(np.float64) - x)
    assert (error / largest_error(name, x)).max() > 0.8


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("F16", cut_f16),
        ("BF16", upper_half),
        ("Q8_0", wrong_q8_0(rounding=np.trunc)),
        ("Q8_0", wrong_q8_0(divisor=128)),
        ("Q4_0", wrong_q4_0(shift=8)),
        ("Q4_0", wrong_q4_0(packing=without_cap)),
        ("Q4_1", wrong_q4_1(divisor=16)),
        ("Q4_1", wrong_q4_1(sign=-1)),
    ],
)
def test_a_worse_encoder_leaves_the_bounds(name: str, wrong: Encoder):
    x = np.random.default_rng(0).standard_normal((400, 64)).astype(np.float32)
    error = np.abs(decoded(name, wrong(x), x.shape).astype(np.float64) - x)
    assert np.any(error > largest_error(name, x))


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(0, 999), st.floats(-4, 3), st.floats(-30, 30))
def test_to_store_again_what_was_read_changes_nothing(
    name: str, seed: int, size: float, offset: float
):
    """Every block holds its extreme code, so that the same scale comes out.

    Q4_1 needs a minimum of not many thousand steps besides, and all a scale that is not 0.
    """
    x = np.random.default_rng(seed).standard_normal((3, 64))
    x = ((x + offset) * 10.0**size).astype(np.float32)
    stored = encode(x, dtype(name))
    again = encode(decoded(name, stored, x.shape), dtype(name))
    assert np.array_equal(stored, again)


def test_where_that_does_not_hold():
    """A scale of 0 forgets the codes; a block that lacks the extreme code gets a finer scale."""
    tiny = encode(np.full(32, 1e-9, np.float32), dtype("Q8_0"))
    coarse = np.concatenate([np.array([1], "<f2").view(np.uint8), np.full(32, 100, np.uint8)])
    for stored in (tiny, coarse):
        again = encode(decoded("Q8_0", stored, (32,)), dtype("Q8_0"))
        assert not np.array_equal(stored, again)


# Shapes and arguments


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "shape", [(64,), (1, 64), (3, 64), (2, 3, 32), (2, 1, 3, 96), (0, 64), (3, 0), (0,), (0, 0)]
)
def test_any_shape(name: str, shape: tuple[int, ...]):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    stored = encode(x, dtype(name))
    row = shape[-1] // dtype(name).block * dtype(name).block_bytes
    assert (stored.shape, stored.dtype) == ((*shape[:-1], row), np.uint8)
    if x.size:
        assert np.array_equal(stored.reshape(-1, row), reference(name, x.reshape(-1, shape[-1])))


@pytest.mark.parametrize("name", NAMES)
def test_any_layout_of_the_values(name: str):
    x = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    expected = reference(name, x)
    kept = x.copy()
    for given_ in (x.tolist(), x.astype(np.float64), x.astype(">f4"), np.asfortranarray(x)):
        assert np.array_equal(encode(given_, dtype(name)), expected)
    assert np.array_equal(encode(x.T[:, ::-1], dtype(name)), reference(name, x.T[:, ::-1].copy()))
    x.flags.writeable = False
    stored = encode(x, dtype(name))
    stored[...] = 0  # the caller's own
    assert np.array_equal(x, kept)


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("n", [1, 16, 31, 33, 48, 65])
def test_rows_that_blocks_do_not_divide(name: str, n: int):
    """Not even where the whole array would be divided."""
    for shape in ((n,), (32, n), (2, 32, n)):
        with pytest.raises(InputError, match=f"{name} needs rows of a multiple of 32, not {n}"):
            encode(np.zeros(shape), dtype(name))


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - set(NAMES)))
def test_a_format_that_is_only_read(name: str):
    with pytest.raises(UnsupportedError, match=f"no encoder for {name}") as caught:
        encode(np.zeros(256), dtype(name))
    assert "F32, F16, BF16, Q8_0, Q4_0, Q4_1" in caught.value.fix
