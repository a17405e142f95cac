"""Weights from the file's order into the one that the products read. Lesson 08-09.

A file keeps row after row. The kernels want the same few columns of many rows side by side:

    floats      [strip][column][2 * LANES rows]
    quantized   [panel of LANES rows][block of 32 columns] of codes, then bits, then scales

Codes: eight groups of four columns. In the nibbles of groups 2k and 2k + 1 byte 4 * row + column
has the one in its low half and the other in its high half; then, for codes of more than four bits,
bit 4 * row + column of each group, a plane after another. Codes of eight bits, moved up by 128, are
byte 4 * row + column of each group. Scales are the file's own, a number for each row; the halves of
a K format stand before each eight blocks. Rows may come in groups (heads) that begin in a strip of
their own; what fills up a strip is zeros.
"""

from typing import Any

import numpy as np

from ..simd.jit import entry, inlined
from ..simd.widest import LANES
from .activations import BLOCK
from .products import STRIP
from .quantized import (
    HALVES,
    NIBBLES,
    PLANE,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
    REGISTER,
    SUPER,
)

NEAR = 64  # columns

# ---------------------------------------------------------------- 32 codes of a row, and back in


@inlined
def put_codes(out: Any, at: int, lane: int, codes: Any, bits: int) -> None:
    """The codes of one row of a block that begins at byte `at` of the panel's."""
    for i in range(BLOCK):
        group, place = i // 4, 4 * lane + i % 4
        if bits == 8:
            out[at + group * REGISTER + place] = codes[i]
            continue
        out[at + group // 2 * REGISTER + place] |= (codes[i] & 15) << 4 * (group % 2)
        for plane in range(bits - 4):
            bit = codes[i] >> 4 + plane & 1
            byte = at + NIBBLES + plane * PLANE + group * (PLANE // 8) + place // 8
            out[byte] |= bit << place % 8


@inlined
def nibbles(raw: Any, at: int, codes: Any) -> None:
    for i in range(16):
        codes[i], codes[i + 16] = raw[at + i] & 15, raw[at + i] >> 4


@inlined
def fifth_bits(raw: Any, at: int, codes: Any) -> None:
    for i in range(BLOCK):
        codes[i] |= (raw[at + i // 8] >> i % 8 & 1) << 4


@inlined
def read_q4_0(raw: Any, at: int, sub: int, codes: Any) -> None:
    nibbles(raw, at + 2, codes)


@inlined
def read_q4_1(raw: Any, at: int, sub: int, codes: Any) -> None:
    nibbles(raw, at + 4, codes)


@inlined
def read_q5_0(raw: Any, at: int, sub: int, codes: Any) -> None:
    nibbles(raw, at + 6, codes)
    fifth_bits(raw, at + 2, codes)


@inlined
def read_q5_1(raw: Any, at: int, sub: int, codes: Any) -> None:
    nibbles(raw, at + 8, codes)
    fifth_bits(raw, at + 4, codes)


@inlined
def read_q8_0(raw: Any, at: int, sub: int, codes: Any) -> None:
    for i in range(BLOCK):
        codes[i] = raw[at + 2 + i] ^ 128  # signed bytes, moved up by 128


@inlined
def read_q4_k(raw: Any, at: int, sub: int, codes: Any) -> None:
    for i in range(BLOCK):
        codes[i] = raw[at + 16 + sub // 2 * 32 + i] >> 4 * (sub % 2) & 15


@inlined
def read_q5_k(raw: Any, at: int, sub: int, codes: Any) -> None:
    for i in range(BLOCK):
        low = raw[at + 48 + sub // 2 * 32 + i] >> 4 * (sub % 2) & 15
        codes[i] = low | (raw[at + 16 + i] >> sub & 1) << 4


@inlined
def read_q6_k(raw: Any, at: int, sub: int, codes: Any) -> None:
    half, quarter = sub // 4, sub % 4
    for i in range(BLOCK):
        low = raw[at + 64 * half + 32 * (quarter % 2) + i] >> 4 * (quarter // 2) & 15
        codes[i] = low | (raw[at + 128 + 32 * half + i] >> 2 * quarter & 3) << 4


# ---------------------------------------------------------------- scales of a row


@inlined
def copy_half(raw: Any, at: int, out: Any, to: int, lane: int) -> None:
    out[to + 2 * lane], out[to + 2 * lane + 1] = raw[at], raw[at + 1]


@inlined
def one_half(raw: Any, at: int, sub: int, out: Any, top: int, to: int, lane: int) -> None:
    copy_half(raw, at, out, to, lane)


@inlined
def two_halves(raw: Any, at: int, sub: int, out: Any, top: int, to: int, lane: int) -> None:
    copy_half(raw, at, out, to, lane)
    copy_half(raw, at + 2, out, to + HALVES, lane)


@inlined
def six_bits(raw: Any, at: int, sub: int, out: Any, top: int, to: int, lane: int) -> None:
    """Q4_K and Q5_K: d and dmin, and 12 bytes that hold eight scales and eight minimums."""
    copy_half(raw, at, out, top, lane)
    copy_half(raw, at + 2, out, top + HALVES, lane)
    at += 4
    if sub < 4:
        scale, minimum = raw[at + sub] & 63, raw[at + sub + 4] & 63
    else:
        scale = raw[at + sub + 4] & 15 | raw[at + sub - 4] >> 6 << 4
        minimum = raw[at + sub + 4] >> 4 | raw[at + sub] >> 6 << 4
    out[to + lane], out[to + LANES + lane] = scale, minimum


@inlined
def signed_bytes(raw: Any, at: int, sub: int, out: Any, top: int, to: int, lane: int) -> None:
    """Q6_K: d, and a scale for each 16 columns."""
    copy_half(raw, at + 208, out, top, lane)
    out[to + lane], out[to + LANES + lane] = raw[at + 192 + 2 * sub], raw[at + 193 + 2 * sub]


# ---------------------------------------------------------------- whole matrices


@inlined
def place_of(row: int, group: int) -> int:
    """Where a row stands after groups are filled up to strips."""
    return row // group * (-(-group // STRIP) * STRIP) + row % group


@inlined
def fill(read: Any, scales: Any, bits: int, record: int, header: int, nbytes: int, raw: Any,
         rows: int, cols: int, group: int, out: Any) -> None:  # fmt: skip
    """Blocks of nbytes in the file become records, with a header before each SUPER of them."""
    codes = np.empty(BLOCK, np.uint8)
    blocks = cols // BLOCK
    subs = SUPER if header else 1  # records that one block of the file makes
    panel_bytes = blocks * record + blocks // SUPER * header
    code_bytes = NIBBLES // 4 * bits
    for row in range(rows):
        place = place_of(row, group)
        panel, lane = place // LANES * panel_bytes, place % LANES
        for b in range(blocks):
            at = (row * blocks + b) // subs * nbytes
            sub = b % subs
            top = panel + b // subs * (header + subs * record)
            to = top + header + sub * record
            read(raw, at, sub, codes)
            put_codes(out, to, lane, codes, bits)
            scales(raw, at, sub, out, top, to + code_bytes, lane)


@entry
def pack_q4_0(raw: Any, rows: int, cols: int, group: int, out: Any) -> None:
    fill(read_q4_0, one_half, 4, Q4_0, 0, 18, raw, rows, cols, group, out)


@entry
def pack_q4_1(raw: Any, rows: int, cols: int, group: int, out: Any) -> None:
    fill(read_q4_1, two_halves, 4, Q4_1, 0, 20, raw, rows, cols, group, out)


@entry
def pack_q5_0(raw: Any, rows: int, cols: int, group: int, out: Any) -> None:
    fill(read_q5_0, one_half, 5, Q5_0, 0, 22, raw, rows, cols, group, out)


@entry
def pack_q5_1(raw: Any, rows: int, cols: int, group: int, out: Any) -> None:
    fill(read_q5_1, two_halves, 5, Q5_1, 0, 24, raw, rows, cols, group, out)


@entry
def pack_q8_0(raw: Any, rows: int, cols: int, group: int, out: Any) -> None:
    fill(read_q8_0, one_half, 8, Q8_0, 0, 34, raw, rows, cols, group, out)


@entry
def pack_q4_k(raw: Any, rows: int, cols: int, group: int, out: Any) -> None:
    fill(read_q4_k, six_bits, 4, Q4_K, 2 * HALVES, 144, raw, rows, cols, group, out)


@entry
def pack_q5_k(raw: Any, rows: int, cols: int, group: int, out: Any) -> None:
    fill(read_q5_k, six_bits, 5, Q5_K, 2 * HALVES, 176, raw, rows, cols, group, out)


@entry
def pack_q6_k(raw: Any, rows: int, cols: int, group: int, out: Any) -> None:
    fill(read_q6_k, signed_bytes, 6, Q6_K, HALVES, 210, raw, rows, cols, group, out)


@entry
def pack_numbers(raw: Any, rows: int, cols: int, group: int, out: Any) -> None:
    """float32 as uint32, float16 and bfloat16 as uint16: raw and out are arrays of these."""
    # A few columns of a strip's rows at a time, so that the lines written to stay in the cache.
    for first in range(0, rows, STRIP):
        for begin in range(0, cols, NEAR):
            for row in range(first, min(first + STRIP, rows)):
                place = place_of(row, group)
                at = place // STRIP * STRIP * cols + place % STRIP
                for c in range(begin, min(begin + NEAR, cols)):
                    out[at + c * STRIP] = raw[row * cols + c]
