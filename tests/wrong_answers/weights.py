"""What learners answer in lesson 02, and a phrase that the explanation must hold."""

import io
import struct
from collections import UserDict

import numpy as np

# ---------------------------------------------------------------- 02.1


def pads_natively(data, at):
    (length,) = struct.unpack_from("Q", data, at)
    name = data[at + 8 : at + 8 + length].decode()
    at += 8 + length
    (kind,) = struct.unpack_from("I", data, at)
    if kind == 8:
        _, length = struct.unpack_from("IQ", data, at)
        start = at + struct.calcsize("IQ")
        if start + length > len(data):
            raise ValueError("too long")
        return name, data[start : start + length].decode(), start + length
    letter = {4: "I", 6: "f", 10: "Q"}[kind]
    _, value = struct.unpack_from("I" + letter, data, at)
    return name, value, at + struct.calcsize("I" + letter)


def pads_all_in_one(data, at):
    (length,) = struct.unpack_from("Q", data, at)
    layout = f"Q{length}sI"
    _, name, kind = struct.unpack_from(layout, data, at)
    at += struct.calcsize(layout)
    if kind == 8:
        (length,) = struct.unpack_from("Q", data, at)
        return name.decode(), data[at + 8 : at + 8 + length].decode(), at + 8 + length
    letter = {4: "I", 6: "f", 10: "Q"}[kind]
    return name.decode(), *struct.unpack_from(letter, data, at), at + struct.calcsize(letter)


def aligns_to_eight(data, at):
    (length,) = struct.unpack_from("<Q", data, at)
    name = data[at + 8 : at + 8 + length].decode()
    at = (at + 8 + length + 7) // 8 * 8
    (kind,) = struct.unpack_from("<I", data, at)
    at += 4
    if kind == 8:
        (length,) = struct.unpack_from("<Q", data, at)
        return name, data[at + 8 : at + 8 + length].decode(), at + 8 + length
    code, size = {4: ("<I", 4), 6: ("<f", 4), 10: ("<Q", 8)}[kind]
    return name, struct.unpack_from(code, data, at)[0], at + size


def trusts(data, at):
    length = int.from_bytes(data[at : at + 8], "little")
    name = data[at + 8 : at + 8 + length].decode()
    at += 8 + length
    kind = int.from_bytes(data[at : at + 4], "little")
    at += 4
    if kind == 8:
        length = int.from_bytes(data[at : at + 8], "little")
        return name, data[at + 8 : at + 8 + length].decode(), at + 8 + length
    if kind == 6:
        return name, np.frombuffer(data[at : at + 4] + bytes(4), "<f4")[0], at + 4
    size = {4: 4, 10: 8}[kind]
    return name, int.from_bytes(data[at : at + size], "little"), at + size


def trusts_strings_only(data, at):
    """Numbers are read by struct inside try; strings are slices, which never complain."""
    try:
        name, value, end = packed(data, at)
    except (struct.error, KeyError) as error:
        raise ValueError(str(error)) from error
    return name, value, end


def packed(data, at):
    (length,) = struct.unpack_from("<Q", data, at)
    name = bytes(data[at + 8 : at + 8 + length]).decode()
    at += 8 + length
    (kind,) = struct.unpack_from("<I", data, at)
    at += 4
    if kind == 8:
        (length,) = struct.unpack_from("<Q", data, at)
        at += 8
        return name, bytes(data[at : at + length]).decode(), at + length
    code = {4: "<I", 6: "<f", 10: "<Q"}[kind]
    return name, struct.unpack_from(code, data, at)[0], at + struct.calcsize(code)


def lets_struct_error_through(data, at):
    name, value, end = packed(data, at)
    if end > len(data):
        raise ValueError("cut")
    return name, value, end


def knows_every_type(data, at):
    try:
        return lets_struct_error_through(data, at)
    except (struct.error, OverflowError) as error:
        raise ValueError(str(error)) from error


def skips_what_it_does_not_know(data, at):
    try:
        return knows_every_type(data, at)
    except KeyError:
        return "", None, at


def forgets_at(data, at):
    return packed(data, 0)


def name_from_the_start(data, at):
    (length,) = struct.unpack_from("<Q", data, at)
    _, value, end = packed(data, at)
    return data[8 : 8 + length].decode(errors="replace"), value, end


def end_from_the_entry(data, at):
    name, value, end = packed(data, at)
    return name, value, end - at


def forgets_the_end(data, at):
    name, value, end = packed(data, at)
    if end > len(data):
        raise ValueError("cut")
    return name, value


def takes_numbers_as_signed(data, at):
    name, value, end = knows_every_type(data, at)
    if isinstance(value, int):
        size = end - at - 12 - len(name.encode())
        value = int.from_bytes(data[end - size : end], "little", signed=True)
    return name, value, end


def asserts(data, at):
    try:
        return knows_every_type(data, at)
    except KeyError:
        assert False, "unknown type"  # noqa: B011 - as a learner writes it


def reader(name="utf-8", value="utf-8", strict=False, by_letters=False, signed=False, short=False):
    """A careful reader with faults that can be chosen, each in name and value or in both."""
    code = "<q" if signed else "<Q"

    def read(data, at, *, faulty=("name", "value")):
        def left(nbytes):
            if nbytes > len(data) - at or (strict and nbytes == len(data) - at):
                raise ValueError("the file ends too early")

        def string(part, encoding):
            nonlocal at
            left(8)
            (length,) = struct.unpack_from(code if part in faulty else "<Q", data, at)
            if short and part in faulty:
                length %= 2**32
            at += 8
            left(length)
            word = data[at : at + length].decode(encoding if part in faulty else "utf-8")
            at += len(word) if by_letters and part in faulty else length
            return word

        def number(code):
            nonlocal at
            left(struct.calcsize(code))
            at += struct.calcsize(code)
            return struct.unpack_from(code, data, at - struct.calcsize(code))[0]

        key, kind = string("name", name), number("<I")
        if kind == 8:
            return key, string("value", value), at
        if kind not in (4, 6, 10):
            raise ValueError(f"type {kind}")
        return key, number({4: "<I", 6: "<f", 10: "<Q"}[kind]), at

    return read


def only_in(part, **faults):
    """The reader with its faults in the name or in the value only."""
    return lambda data, at: reader(**faults)(data, at, faulty=(part,))


def begins_at_eight(data, at):
    return reader()(data, (at + 7) // 8 * 8)


def wraps_around(data, at):
    """Positions are kept in 64 bits, as C does it."""

    def take(length):
        nonlocal at
        end = (at + length) % 2**64
        if end > len(data):
            raise ValueError("cut")
        at, found = end, data[at:end]
        return found

    def number(size):
        return int.from_bytes(take(size), "little")

    name, kind = take(number(8)).decode(), number(4)
    if kind == 8:
        return name, take(number(8)).decode(), at
    if kind == 6:
        return name, struct.unpack("<f", take(4))[0], at
    if kind not in (4, 10):
        raise ValueError("type")
    return name, number({4: 4, 10: 8}[kind]), at


def reads_a_stream(data, at):
    """io reads what is there, and cannot take a length of more than 63 bits."""
    stream = io.BytesIO(data[at:])

    def take(length):
        found = stream.read(length)
        if len(found) < length:
            raise ValueError("cut")
        return found

    name = take(int.from_bytes(take(8), "little")).decode()
    kind = int.from_bytes(take(4), "little")
    if kind == 8:
        value = take(int.from_bytes(take(8), "little")).decode()
    elif kind in (4, 6, 10):
        value = struct.unpack({4: "<I", 6: "<f", 10: "<Q"}[kind], take(8 if kind == 10 else 4))[0]
    else:
        raise ValueError("type")
    return name, value, at + stream.tell()


def knowing(codes):
    """A careful reader of other types, too: type -> struct code."""

    def read(data, at):
        try:
            return reader()(data, at)
        except ValueError:
            (length,) = struct.unpack_from("<Q", data[at:] + bytes(8))
            start = at + 8 + length + 4
            kind = int.from_bytes(data[start - 4 : start], "little")
            if kind not in codes or len(data) < start + struct.calcsize(codes[kind]):
                raise
            value = struct.unpack_from(codes[kind], data, start)[0]
            return data[at + 8 : start - 4].decode(), value, start + struct.calcsize(codes[kind])

    return read


takes_the_rest_for_u32 = knowing(dict.fromkeys((0, 1, 2, 3, 5, 7, 9, 11, 12), "<I"))
takes_bool_for_four_bytes = knowing({7: "<I"})
takes_i64_for_four_bytes = knowing({11: "<i", 12: "<d"})
takes_f64_for_four_bytes = knowing({12: "<f"})
reads_the_type_in_an_array = knowing({9: "<I"})
reads_i32_as_well = knowing({5: "<i"})


def knows_no_array(data, at):
    """Whoever has a table of types may forget to ask whether the type is in it."""
    try:
        return reader()(data, at)
    except ValueError:
        if data[at + 9 : at + 13] == b"\x09\0\0\0":
            raise KeyError(9) from None
        raise


# ---------------------------------------------------------------- 02.2


def half_at(block, at):
    return float(np.frombuffer(block[at : at + 2], np.float16)[0])


def interleaves(block):
    values = []
    for byte in block[4:]:
        values += [byte % 16, byte // 16]
    return [half_at(block, 0) * code + half_at(block, 2) for code in values]


def in_halves(codes):
    return [byte % 16 for byte in codes] + [byte // 16 for byte in codes]


def two_byte_header(block):
    return [half_at(block, 0) * code for code in in_halves(block[2:18])]


def two_byte_header_with_minimum(block):
    return [half_at(block, 0) * code + half_at(block, 2) for code in in_halves(block[2:18])]


def as_q4_0(block):
    return [half_at(block, 0) * (code - 8) for code in in_halves(block[2:18])]


def drops_the_minimum(block):
    return np.array([half_at(block, 0) * code for code in in_halves(block[4:])])


def minus_eight(block):
    return np.array([half_at(block, 0) * (code - 8) for code in in_halves(block[4:])])


def minus_eight_and_minimum(block):
    return [half_at(block, 0) * (c - 8) + half_at(block, 2) for c in in_halves(block[4:])]


def swaps(block):
    return np.array([half_at(block, 2) * c + half_at(block, 0) for c in in_halves(block[4:])])


def high_half_first(block):
    codes = in_halves(block[4:])
    return [half_at(block, 0) * code + half_at(block, 2) for code in codes[16:] + codes[:16]]


def high_nibbles_in_place(block):
    codes = [byte & 0x0F for byte in block[4:]] + [byte & 0xF0 for byte in block[4:]]
    return [half_at(block, 0) * code + half_at(block, 2) for code in codes]


def subtracts_the_minimum(block):
    return [half_at(block, 0) * code - half_at(block, 2) for code in in_halves(block[4:])]


def stays_in_halves(block):
    d, m = np.frombuffer(block[:4], "<f2")
    qs = np.frombuffer(block, np.uint8, 16, 4)
    return np.concatenate([qs & 15, qs >> 4]) * d + m


def ends_in_halves(block):
    codes = np.array(in_halves(block[4:]), np.float32)
    return (half_at(block, 0) * codes + half_at(block, 2)).astype(np.float16)


def by_hand(block, at, subnormal):
    """A half, taken apart."""
    bits = int.from_bytes(block[at : at + 2], "little")
    sign, exponent, fraction = bits >> 15, bits >> 10 & 31, bits & 1023
    size = (1024 + fraction) * 2.0 ** (exponent - 25) if exponent else subnormal(fraction)
    return -size if sign else size


def with_halves(subnormal):
    def decode(block):
        d, m = by_hand(block, 0, subnormal), by_hand(block, 2, subnormal)
        return [d * code + m for code in in_halves(block[4:])]

    return decode


forgets_subnormals = with_halves(lambda fraction: 0.0)
takes_subnormals_for_normal = with_halves(lambda fraction: (1024 + fraction) * 2.0**-25)


# ---------------------------------------------------------------- 02.3 and 02.4

FAULTS = {"A": "bf16", "B": "scale", "C": "minimum", "D": "order", "E": "sign", "blind": 2.0}
BITS = {"Q8_0": 8.5, "Q4_0": 4.5, "Q4_1": 5}

WRONG = {
    "02.1": [
        ("native padding, type and length", pads_natively, "struct skips 4 bytes"),
        ("native padding, all in one", pads_all_in_one, "next multiple of 4"),
        ("rounded up to eight", aligns_to_eight, "next multiple of 8"),
        ("at forgotten", forgets_at, "not at byte 0"),
        ("name from the file's start", name_from_the_start, "the name is taken from"),
        ("end from the entry's start", end_from_the_entry, "`end` counts from the entry"),
        ("length trusted", trusts, "a number is made of fewer bytes"),
        ("length of strings trusted", trusts_strings_only, "a length is trusted"),
        ("nothing checked", packed, "nothing is compared with what is left"),
        ("struct.error let through", lets_struct_error_through, "ends in struct.error"),
        (
            "KeyError for an unknown type",
            knows_every_type,
            "type 99 ends in another error than ValueError: KeyError",
        ),
        ("AssertionError for an unknown type", asserts, "ValueError: AssertionError"),
        ("signed numbers", takes_numbers_as_signed, "have no sign"),
        ("an unknown type let through", skips_what_it_does_not_know, "type 99 is accepted"),
        ("end forgotten", forgets_the_end, "`end` is missing"),
        ("the last byte refused", reader(strict=True), "ends exactly where the file ends"),
        ("letters counted", only_in("value", by_letters=True), "a length counts bytes"),
        ("Latin-1", reader("latin-1", "latin-1"), "one letter of every byte"),
        ("ASCII", reader("ascii", "ascii"), "beyond ASCII is refused"),
        ("entry at a multiple of 8", begins_at_eight, "begins at an odd place"),
        ("positions wrap around", wraps_around, "goes on backwards: a name"),
        ("a value's length signed", only_in("value", signed=True), "goes on backwards: a string"),
        ("half a name's length", only_in("name", short=True), "a name of 4,294"),
        ("half a value's length", only_in("value", short=True), "a string of 4,294"),
        ("OverflowError", reads_a_stream, "OverflowError"),
        ("all others are u32", takes_the_rest_for_u32, "type 0 (u8)"),
        ("bool of four bytes", takes_bool_for_four_bytes, "type 7 (bool)"),
        ("i64 of four bytes", takes_i64_for_four_bytes, "type 11 (i64)"),
        ("f64 of four bytes", takes_f64_for_four_bytes, "type 12 (f64)"),
        ("an array's type", reads_the_type_in_an_array, "type 9 (array)"),
        ("i32 as well", reads_i32_as_well, "type 5 (i32)"),
        ("KeyError for an array", knows_no_array, "type 9 ends in"),
        ("no function", 5, "a function is wanted"),
    ],
    "02.2": [
        ("interleaved", interleaves, "interleaved"),
        ("2-byte header", two_byte_header, "Besides, m is not added"),
        ("2-byte header, m read", two_byte_header_with_minimum, "its bytes again as codes"),
        ("read as Q4_0", as_q4_0, "What you read is Q4_0"),
        ("min dropped", drops_the_minimum, "another sign than d"),
        ("min dropped, less 8", minus_eight, "which has no minimum"),
        ("less 8", minus_eight_and_minimum, "the 8 belongs to Q4_0"),
        ("d and m swapped", swaps, "swapped"),
        ("high nibbles first", high_half_first, "the low nibbles are the first half"),
        ("high nibbles not shifted", high_nibbles_in_place, "not shifted down"),
        ("m subtracted", subtracts_the_minimum, "the K-quants subtract m"),
        ("in halves", stays_in_halves, "a half has 11"),
        ("halves at the end", ends_in_halves, "rounded to float16"),
        ("subnormals are zero", forgets_subnormals, "taken for zero"),
        ("subnormals are normal", takes_subnormals_for_normal, "no 1 in front"),
        ("nothing", lambda block: np.zeros(32), "gives [0., 0., 0., ..., 0., 0., 0.]"),
    ],
    "02.3": [
        ("scale for bf16", FAULTS | {"A": "scale"}, "What else can the 16 bits"),
        ("bf16 for scale", FAULTS | {"B": "bf16"}, "no factor was applied"),
        ("scale for minimum", FAULTS | {"C": "scale"}, "by the same 1.5"),
        ("minimum for order", FAULTS | {"D": "minimum"}, "so is its minimum"),
        ("scale for order", FAULTS | {"D": "scale"}, "so is its scale"),
        ("scale for sign", FAULTS | {"E": "scale"}, "where the code is positive"),
        ("sign for order", FAULTS | {"D": "sign"}, "no sign. Look where"),
        ("order for scale", FAULTS | {"B": "order"}, "no value has moved"),
        ("1.0 would hide it", FAULTS | {"blind": 1.0}, "0.00781 as bfloat16"),
        ("0.5 would hide it", FAULTS | {"blind": 0.5}, "3.05e-05 as bfloat16"),
    ],
    "02.4": [
        ("codes alone", {"Q8_0": 8, "Q4_0": 4, "Q4_1": 4}, "Q8_0: that is the code alone"),
        ("codes alone in Q4_0", BITS | {"Q4_0": 4}, "Q4_0: that is the code alone"),
        ("codes alone in Q4_1", BITS | {"Q4_1": 4}, "its scale and its minimum"),
        ("one half in Q4_1", BITS | {"Q4_1": 4.5}, "Q4_1: count the halves"),
        ("bytes", {"Q8_0": 34 / 32, "Q4_0": 18 / 32, "Q4_1": 20 / 32}, "Q8_0: that is bytes"),
        ("a block's bytes", BITS | {"Q8_0": 34}, "a block's bytes"),
        ("one is missing", {"Q8_0": 8.5, "Q4_0": 4.5}, "a dict with the keys"),
        (
            "bytes, in a mapping that is no dict",
            UserDict(BITS, Q4_0=18 / 32),
            "Q4_0: that is bytes",
        ),
    ],
}
