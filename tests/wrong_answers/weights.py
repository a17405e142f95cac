"""What learners answer in lesson 02, and a phrase that the explanation must hold."""

import struct

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
        ("struct.error let through", lets_struct_error_through, "not cleanly"),
        ("KeyError for an unknown type", knows_every_type, "ValueError: KeyError"),
        ("AssertionError for an unknown type", asserts, "ValueError: AssertionError"),
        ("signed numbers", takes_numbers_as_signed, "have no sign"),
        ("an unknown type let through", skips_what_it_does_not_know, "type 99 is accepted"),
        ("end forgotten", forgets_the_end, "`end` is missing"),
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
        ("bytes", {"Q8_0": 34 / 32, "Q4_0": 18 / 32, "Q4_1": 20 / 32}, "bits are asked for"),
        ("a block's bytes", BITS | {"Q8_0": 34}, "a block's bytes"),
        ("one is missing", {"Q8_0": 8.5, "Q4_0": 4.5}, "a dict with the keys"),
    ],
}
