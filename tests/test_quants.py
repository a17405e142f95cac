"""The decoders against recorded values, the `gguf` package, NumPy and torch, bit for bit.

One function, `complaints`, judges a decoder. The planted mistakes below, each of them made by
some real program, show that it would notice them.
"""

import warnings
from collections.abc import Callable

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llambda.errors import UnsupportedError
from llambda.quants import BY_ID, BY_NAME, DECODED, LISTED, Format, decode
from llambda.tensor import BF16, F16, F32, DType, Tensor

Decoder = Callable[[np.ndarray], np.ndarray]  # uint8 [..., block_bytes] -> float32 [..., block]

QUANTIZED = [form for form in DECODED if form.dtype.block > 1]
HALVES = {  # where the half-precision numbers of a block stand
    "F16": [0],
    "Q8_0": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
# Block byte i = (37 i + 11) & 255, then 0.5 and, where there is a second one, 0.25 for the halves.
# Elements 0, 1, 15, 16, 31 (and 32, 63, 64, 127, 128, 255), and the sum of all.
GOLDEN = {
    "Q4_0": ([-1.5, 1, -4, -1.5, 0], -10.5),
    "Q4_1": ([7.75, 2.25, 5.25, 4.75, 6.25], 130.5),
    "Q5_0": ([4.5, -1, -6, 7, 0.5], 7.5),
    "Q5_1": ([9.75, 12.25, 15.25, 9.75, 2.75], 260.5),
    "Q8_0": ([42.5, 61, -64, -45.5, -24], -88),
    "Q4_K": ([157.75, -12.75, 80.25, 157.75, 80.25, 4, 20, 210.25, 40.5, 211.5, 24.25], 27220),
    "Q5_K": ([405.75, -12.75, 80.25, 405.75, 80.25, 56, 40, 210.25, -1.5, 523.5, 54.25], 58108),
    "Q6_K": ([-715.5, 848, -159, -216, -48, 115.5, -290, -1520, 750, -175.5, -30], 2306),
}
SEEN = [0, 1, 15, 16, 31, 32, 63, 64, 127, 128, 255]


def golden_block(form: Format) -> np.ndarray:
    """uint8 [block_bytes]."""
    block = (37 * np.arange(form.dtype.block_bytes) + 11 & 255).astype(np.uint8)
    for at, value in zip(HALVES[form.name], (0.5, 0.25), strict=False):
        block[at : at + 2] = np.array([value], "<f2").view(np.uint8)
    return block


def random_blocks(form: Format, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Any codes, and finite scales of any size and sign: uint8 [*shape, block_bytes]."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (*shape, form.dtype.block_bytes), np.uint8)
    for at in HALVES.get(form.name, []):
        scales = rng.integers(0, 0x7C00, shape, np.uint16) | rng.integers(0, 2, shape) << 15
        blocks[..., at : at + 2] = scales.astype("<u2")[..., None].view(np.uint8)
    return blocks


def reference(form: Format, blocks: np.ndarray) -> np.ndarray:
    """What the `gguf` package makes of blocks [rows, n, block_bytes]: float32 [rows, elements]."""
    kind = gguf.GGMLQuantizationType(form.ggml_id)
    rows = np.ascontiguousarray(blocks).reshape(len(blocks), -1)
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(rows, kind)


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """The same numbers bit for bit, zeros with their signs; any NaN for a NaN."""
    if found.dtype != np.float32 or found.shape != expected.shape:
        return False
    equal = found.view(np.uint32) == expected.view(np.uint32)
    return bool(np.all(equal | (np.isnan(found) & np.isnan(expected))))


def complaints(form: Format, decoder: Decoder) -> list[str]:
    """What is wrong with a decoder of this format: nothing, if it is right."""
    found = []
    if form.name in GOLDEN:
        values, total = GOLDEN[form.name]
        weights = decoder(golden_block(form)[None])[0]
        if weights[SEEN[: len(values)]].tolist() != values:
            found.append("recorded values")
        if weights.sum(dtype=np.float64) != total:
            found.append("recorded sum")
    blocks = random_blocks(form, (3, 4))
    with np.errstate(all="ignore"):
        weights = decoder(blocks)
    if not same(weights.reshape(3, -1), reference(form, blocks)):
        found.append("gguf's values of three rows of four blocks")
    return found


@pytest.mark.parametrize("form", DECODED, ids=lambda form: form.name)
def test_a_decoder_is_right(form: Format):
    assert complaints(form, form.decode) == []


# Planted mistakes


def with_bytes(name: str, *order: int | range) -> Decoder:
    """The right decoder on blocks whose bytes are taken in another order."""
    at = [i for part in order for i in ([part] if isinstance(part, int) else part)]
    return lambda blocks: BY_NAME[name].decode(np.take(blocks, at, axis=-1))


def with_elements(name: str, order: np.ndarray) -> Decoder:
    """The right decoder with its elements in another order."""
    return lambda blocks: BY_NAME[name].decode(blocks)[..., order]


def with_change(name: str, at: slice, change: Callable[[np.ndarray], np.ndarray]) -> Decoder:
    """The right decoder on blocks with some bytes changed."""

    def decoder(blocks: np.ndarray) -> np.ndarray:
        changed = blocks.copy()
        changed[..., at] = change(blocks[..., at])
        return BY_NAME[name].decode(changed)

    return decoder


def swap_nibbles(qs: np.ndarray) -> np.ndarray:
    return qs << 4 | qs >> 4


def reverse_bits(qh: np.ndarray) -> np.ndarray:
    bits = np.unpackbits(qh, axis=-1, bitorder="little")
    return np.packbits(bits, axis=-1, bitorder="big")


def bits_in_line(qh: np.ndarray) -> np.ndarray:
    """What makes the right decoder give element 8 i + j bit j of qh[i]."""
    bits = np.unpackbits(qh, axis=-1, bitorder="little").reshape(*qh.shape[:-1], 8, 32)
    return np.packbits(bits.swapaxes(-1, -2), axis=-1, bitorder="little")[..., 0]


def widen(half: np.ndarray) -> np.ndarray:
    """A bfloat16 as float32: what a half is not."""
    return (half.view("<u2").astype(np.uint32) << 16).view(np.float32)


def bf16_scale(blocks: np.ndarray) -> np.ndarray:
    return widen(blocks[..., :2]) * blocks[..., 2:].view(np.int8).astype(np.float32)


def wrapping_codes(blocks: np.ndarray) -> np.ndarray:
    codes = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=-1) - 8  # uint8
    return blocks[..., :2].view("<f2").astype(np.float32) * codes.astype(np.float32)


def twos_complement(blocks: np.ndarray) -> np.ndarray:
    codes = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=-1).astype(np.int8)
    codes -= 16 * (codes > 7)
    return blocks[..., :2].view("<f2").astype(np.float32) * codes.astype(np.float32)


def unsigned_codes(blocks: np.ndarray) -> np.ndarray:
    return blocks[..., :2].view("<f2").astype(np.float32) * blocks[..., 2:].astype(np.float32)


def unsigned_scales(blocks: np.ndarray) -> np.ndarray:
    weights = BY_NAME["Q6_K"].decode(blocks).reshape(*blocks.shape[:-1], 16, 16)
    scales = blocks[..., 192:208, None]
    return (weights / scales.view(np.int8) * scales).reshape(*blocks.shape[:-1], 256)


def minimum_added(name: str) -> Decoder:
    return with_change(name, slice(3, 4), lambda sign: sign ^ 128)


def scales_in_line(name: str) -> Decoder:
    """The packed scale bytes read as if the first eight were the scales of the eight blocks."""

    def decoder(blocks: np.ndarray) -> np.ndarray:
        changed = blocks.copy()
        changed[..., 12:16] = blocks[..., 8:12] & 15 | blocks[..., 8:12] << 4
        return BY_NAME[name].decode(changed)

    return decoder


def first_scale_everywhere(name: str) -> Decoder:
    """The scale and minimum of sub-block 0 for all eight."""

    def decoder(blocks: np.ndarray) -> np.ndarray:
        changed = blocks.copy()
        sc, m = blocks[..., 4:5] & 63, blocks[..., 8:9] & 63
        changed[..., 4:8] = sc | (sc >> 4) << 6
        changed[..., 8:12] = m | (m >> 4) << 6
        changed[..., 12:16] = (sc & 15) | (m & 15) << 4
        return BY_NAME[name].decode(changed)

    return decoder


def first_block_only(form: Format) -> Decoder:
    def decoder(blocks: np.ndarray) -> np.ndarray:
        weights = form.decode(blocks)
        weights[..., 1:, :] = 0
        return weights

    return decoder


def first_row_only(form: Format) -> Decoder:
    return lambda blocks: np.broadcast_to(form.decode(blocks[:1]), (*blocks.shape[:-1], 32)).copy()


HALF_AND_HALF = np.arange(32).reshape(2, 16).T.ravel()  # 0 16 1 17 ...: pairs side by side
ALL_LOW_FIRST = np.arange(256).reshape(4, 2, 32).transpose(1, 0, 2).ravel()

MISTAKES: list[tuple[str, str, Decoder]] = [
    *(
        (name, what, decoder)
        for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1")
        for what, decoder in (
            ("nibbles interleaved", with_elements(name, HALF_AND_HALF)),
            ("high nibbles first", with_change(name, slice(-16, None), swap_nibbles)),
        )
    ),
    ("Q4_0", "codes wrap around in uint8", wrapping_codes),
    ("Q4_0", "codes in two's complement", twos_complement),
    ("Q4_1", "a header of two bytes", with_bytes("Q4_1", range(4), range(2, 18))),
    ("Q4_1", "scale and minimum exchanged", with_bytes("Q4_1", 2, 3, 0, 1, range(4, 20))),
    ("Q4_1", "minimum subtracted", with_change("Q4_1", slice(3, 4), lambda sign: sign ^ 128)),
    ("Q5_0", "fifth bits from the top", with_change("Q5_0", slice(2, 6), reverse_bits)),
    ("Q5_0", "fifth bits big-endian", with_bytes("Q5_0", 0, 1, 5, 4, 3, 2, range(6, 22))),
    ("Q5_0", "fifth bits ignored", with_change("Q5_0", slice(2, 6), np.zeros_like)),
    ("Q5_0", "fifth bits behind the codes", with_bytes("Q5_0", 0, 1, range(18, 22), range(2, 18))),
    ("Q5_1", "fifth bits from the top", with_change("Q5_1", slice(4, 8), reverse_bits)),
    ("Q5_1", "scale and minimum exchanged", with_bytes("Q5_1", 2, 3, 0, 1, range(4, 24))),
    ("Q8_0", "codes unsigned", unsigned_codes),
    ("Q8_0", "scale behind the codes", with_bytes("Q8_0", 32, 33, range(32))),
    ("Q8_0", "scale read as bfloat16", bf16_scale),
    ("Q8_0", "only the first block of a row", first_block_only(BY_NAME["Q8_0"])),
    ("Q8_0", "only the first row", first_row_only(BY_NAME["Q8_0"])),
    ("F16", "read as bfloat16", widen),
    ("BF16", "read as half", lambda blocks: blocks.view("<f2").astype(np.float32)),
    ("F32", "big-endian", lambda blocks: blocks.view(">f4").astype(np.float32)),
    *(
        (name, what, decoder)
        for name in ("Q4_K", "Q5_K")
        for what, decoder in (
            ("minimum added", minimum_added(name)),
            ("one scale for all sub-blocks", first_scale_everywhere(name)),
            ("scales in line", scales_in_line(name)),
            ("scales ignored", with_change(name, slice(4, 16), np.ones_like)),
            ("all low nibbles first", with_elements(name, ALL_LOW_FIRST)),
            ("only the first block of a row", first_block_only(BY_NAME[name])),
        )
    ),
    ("Q4_K", "scale and minimum exchanged", with_bytes("Q4_K", 2, 3, 0, 1, range(4, 144))),
    ("Q5_K", "fifth bits from the top", with_change("Q5_K", slice(16, 48), reverse_bits)),
    ("Q5_K", "fifth bits in line", with_change("Q5_K", slice(16, 48), bits_in_line)),
    ("Q6_K", "scales unsigned", unsigned_scales),
    ("Q6_K", "scale first", with_bytes("Q6_K", range(2, 210), 0, 1)),
    ("Q6_K", "high bits first", with_bytes("Q6_K", range(64, 192), range(64), range(192, 210))),
    ("Q6_K", "scales backwards", with_bytes("Q6_K", range(192), range(207, 191, -1), 208, 209)),
    ("Q6_K", "elements in reading order", with_elements("Q6_K", ALL_LOW_FIRST)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "decoder"),
    [pytest.param(name, decoder, id=f"{name}-{what}") for name, what, decoder in MISTAKES],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # wrong decoders may overflow
def test_a_planted_mistake_is_noticed(name: str, decoder: Decoder):
    form = BY_NAME[name]
    right, wrong = (decode(random_blocks(form, (2, 2))) for decode in (form.decode, decoder))
    assert (wrong.shape, wrong.dtype) == (right.shape, right.dtype), "wrong in its values only"
    assert complaints(form, decoder)


@pytest.mark.parametrize("name", sorted({name for name, *_ in MISTAKES}))
def test_the_means_of_planting_plant_nothing_by_themselves(name: str):
    form = BY_NAME[name]
    for decoder in (
        with_bytes(name, range(form.dtype.block_bytes)),
        with_elements(name, np.arange(form.dtype.block)),
        with_change(name, slice(None), lambda part: part),
    ):
        assert complaints(form, decoder) == []


def test_a_scale_of_two_would_hide_the_bfloat16_mistake():
    """Half and bfloat16 agree on 2.0 (0x4000): a fixture with this scale only is blind."""
    blocks = random_blocks(BY_NAME["Q8_0"], (2, 2))
    for scale, hidden in ((2.0, True), (1.0, False), (0.5, False), (3.0, False), (-0.1, False)):
        blocks[..., :2] = np.array([scale], "<f2").view(np.uint8)
        right = BY_NAME["Q8_0"].decode(blocks)
        assert same(bf16_scale(blocks), right) is hidden, scale


# Whole tensors


@pytest.mark.parametrize("form", DECODED, ids=lambda form: form.name)
@given(st.data())
def test_views_decode_to_the_same_numbers(form: Format, data: st.DataObject):
    """Rows reversed, every other row, some of the blocks, at an odd address."""
    rows, blocks = data.draw(st.integers(2, 5)), data.draw(st.integers(2, 4))
    raw = random_blocks(form, (rows, blocks), data.draw(st.integers(0, 99)))
    shift = data.draw(st.integers(0, 3))
    buffer = bytes(shift) + raw.tobytes()
    tensor = Tensor(buffer, form.dtype, (rows, blocks * form.dtype.block), offset=shift)
    expected = reference(form, raw)
    step = data.draw(st.sampled_from([None, 2, -1, -2]))
    first = data.draw(st.integers(0, blocks - 1)) * form.dtype.block
    view = tensor[::step, first:]
    found = decode(view)
    assert found.shape == view.shape
    assert same(found, expected[::step, first:])
    found[...] = 0  # the caller's own copy
    assert same(decode(tensor), expected)


@pytest.mark.parametrize("form", DECODED, ids=lambda form: form.name)
def test_any_number_of_axes(form: Format):
    raw = random_blocks(form, (12,))
    block = form.dtype.block
    expected = reference(form, raw[None]).ravel()
    for shape in [(12 * block,), (1, 12 * block), (2, 3, 2 * block), (2, 1, 2, 3 * block)]:
        found = decode(Tensor(raw, form.dtype, shape))
        assert same(found, expected.reshape(shape))
    assert decode(Tensor(b"", form.dtype, (3, 0))).shape == (3, 0)
    assert decode(Tensor(b"", form.dtype, (0, block))).shape == (0, block)
    if block == 1:
        assert same(decode(Tensor(raw, form.dtype, ())), expected[0].reshape(()))


@pytest.mark.parametrize("form", DECODED, ids=lambda form: form.name)
def test_blocks_over_a_transposed_axis(form: Format):
    raw = random_blocks(form, (2, 3, 2))
    tensor = Tensor(raw, form.dtype, (2, 3, 2 * form.dtype.block)).transpose(1, 0, 2)
    expected = reference(form, raw.reshape(6, 2, -1)).reshape(2, 3, -1).swapaxes(0, 1)
    assert same(decode(tensor), np.ascontiguousarray(expected))


# Extremes

ALL_PATTERNS = np.arange(65536, dtype="<u2")


def test_every_half_is_numpys_and_torchs():
    found = decode(Tensor(ALL_PATTERNS, F16, (256, 256))).ravel()
    assert same(found, ALL_PATTERNS.view(np.float16).astype(np.float32))
    halves = torch.from_numpy(ALL_PATTERNS.view(np.int16)).view(torch.float16)
    assert same(found, halves.float().numpy())


def test_every_bfloat16_is_torchs():
    found = decode(Tensor(ALL_PATTERNS, BF16, (256, 256))).ravel()
    brains = torch.from_numpy(ALL_PATTERNS.view(np.int16)).view(torch.bfloat16)
    assert np.array_equal(found.view(np.uint32), brains.float().numpy().view(np.uint32))


@pytest.mark.parametrize(
    ("dtype", "bits", "value"),
    [
        (F16, 0x0001, 2.0**-24),
        (F16, 0x03FF, 1023 * 2.0**-24),
        (F16, 0x0400, 2.0**-14),
        (F16, 0x7BFF, 65504.0),
        (F16, 0xFC00, -np.inf),
        (F16, 0x3C00, 1.0),
        (BF16, 0x3F80, 1.0),
        (BF16, 0x3F82, 1.015625),
        (BF16, 0xBDCD, -0.10009765625),
        (BF16, 0x7F80, np.inf),
        (BF16, 0x0001, 2.0**-133),
    ],
)
def test_known_bit_patterns(dtype: DType, bits: int, value: float):
    assert decode(Tensor(np.array([bits], "<u2"), dtype, (1,))).item() == value


@pytest.mark.parametrize("form", QUANTIZED, ids=lambda form: form.name)
@pytest.mark.parametrize(
    "bits", [0x7C00, 0xFC00, 0x7E00, 0x7C01, 0x0001, 0x8001, 0x03FF, 0x7BFF, 0x0000, 0x8000]
)
def test_extreme_scales_are_values_and_no_events(form: Format, bits: int):
    raw = random_blocks(form, (2, 2))
    for at in HALVES[form.name]:
        raw[0, :, at : at + 2] = np.array([bits], "<u2").view(np.uint8)
    tensor = Tensor(raw, form.dtype, (2, 2 * form.dtype.block))
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = decode(tensor)
    assert same(found, reference(form, raw))


def test_extreme_floats_are_kept_bit_for_bit():
    bits = np.array([0x7F800001, 0x7FC00123, 0xFF800000, 1, 0x80000000, 0x7F7FFFFF], "<u4")
    with np.errstate(all="raise"):
        found = decode(Tensor(bits, F32, (2, 3)))
    assert found.view(np.uint32).ravel().tolist() == bits.tolist()


# The table


@pytest.mark.parametrize("form", DECODED + LISTED, ids=lambda form: form.name)
def test_numbers_and_sizes_are_ggmls(form: Format):
    kind = gguf.GGMLQuantizationType(form.ggml_id)
    sizes = dict(gguf.GGML_QUANT_SIZES)
    # gguf says 40 for Q8_1, which was so before its two scales became halves: ggml-common.h has
    # two halves and 32 bytes.
    sizes[gguf.GGMLQuantizationType.Q8_1] = (32, 36)
    assert (form.name, (form.dtype.block, form.dtype.block_bytes)) == (kind.name, sizes[kind])
    assert BY_ID[form.ggml_id] is BY_NAME[form.name] is form


def test_every_number_stands_once():
    assert len(BY_ID) == len(BY_NAME) == len(DECODED) + len(LISTED)


@pytest.mark.parametrize(
    ("name", "bits"),
    [("F32", 32), ("BF16", 16), ("Q8_0", 8.5), ("Q4_0", 4.5), ("Q4_1", 5), ("Q5_0", 5.5),
     ("Q5_1", 6), ("Q4_K", 4.5), ("Q5_K", 5.5), ("Q6_K", 6.5625)],
)  # fmt: skip
def test_bits_per_weight(name: str, bits: float):
    assert BY_NAME[name].bits_per_weight == bits


@pytest.mark.parametrize("form", LISTED, ids=lambda form: form.name)
def test_a_format_without_a_decoder_is_refused_by_name(form: Format):
    tensor = Tensor(bytes(2 * form.dtype.block_bytes), form.dtype, (2, form.dtype.block))
    with pytest.raises(UnsupportedError) as caught:
        decode(tensor, "blk.0.ffn_down.weight")
    message = str(caught.value)
    assert "'blk.0.ffn_down.weight'" in message
    assert form.name in message
    assert "Q4_0" in message, "what could be used instead"


def test_a_dtype_that_no_file_has_is_refused():
    with pytest.raises(UnsupportedError, match="'x' is stored as MINE"):
        decode(Tensor(bytes(3), DType("MINE", 3), (1,)), "x")
