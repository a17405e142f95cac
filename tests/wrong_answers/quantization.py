"""What learners answer in lesson 09, and a phrase that the explanation must hold."""

import math

import numpy as np

from llambda.course.exercises import quantization as check

ONES = np.ones(16, np.int16)

# ---------------------------------------------------------------- 09.1


def total(pairs):
    return int(check.madd(pairs, ONES).sum())


def moves_up(w, x):
    u = (w.astype(int) + 128).astype(np.uint8)
    return total(check.maddubs(u, x)) - 128 * int(x.astype(int).sum())


def moves_up_and_wraps(w, x):
    u = w.view(np.uint8) ^ 128
    pairs = [int(u[i]) * int(x[i]) + int(u[i + 1]) * int(x[i + 1]) for i in range(0, 32, 2)]
    wrapped = [(p + 32768) % 65536 - 32768 for p in pairs]
    return sum(wrapped) - 128 * sum(int(v) for v in x)


def reads_251(w, x):
    return total(check.maddubs(w, x))


def swaps(w, x):
    return total(check.maddubs(x.view(np.uint8), w))


def swaps_after_the_trick(w, x):
    size = np.abs(w.astype(int)).astype(np.uint8)
    return total(check.maddubs(np.where(w < 0, -x, np.where(w > 0, x, 0)).astype(np.int8), size))


def turns_the_weight(w, x):
    size = np.abs(x).view(np.uint8)
    with np.errstate(all="ignore"):
        signed = np.where(x < 0, -w, np.where(x > 0, w, 0)).astype(np.int8)
    return total(check.maddubs(size, signed))


def clips(w, x):
    w = np.maximum(w, -127)
    return total(check.maddubs(np.abs(w).view(np.uint8), (np.sign(w) * x).astype(np.int8)))


def loses_all_signs(w, x):
    return total(check.maddubs(np.abs(w), np.abs(x)))


def loses_one_sign(w, x):
    return total(check.maddubs(np.abs(w).view(np.uint8), x))


def adds_in_16_bits(w, x):
    pairs = check.maddubs(np.abs(w), (np.sign(w) * x).astype(np.int8))
    acc = np.int16(0)
    with np.errstate(all="ignore"):
        for pair in pairs:
            acc = np.int16((int(acc) + int(pair) + 32768) % 65536 - 32768)
    return int(acc)


def leaves_eight(w, x):
    return check.madd(check.maddubs(np.abs(w), np.sign(w) * x), ONES)


def adds_pairs_by_numpy(w, x):
    return int(check.maddubs(np.abs(w), np.sign(w) * x).sum())


def uses_int64(w, x):
    return int(w.astype(np.int64) @ x.astype(np.int64))


def multiplies_bytes(w, x):
    return int(w @ x)


def hands_over_int64(w, x):
    return total(check.maddubs(np.abs(w.astype(np.int64)), x))


def leaves_out_the_second_of_a_pair(w, x):
    return sum(int(a) * int(b) for a, b in zip(w[::2], x[::2], strict=True))


# ---------------------------------------------------------------- 09.2

RIGHT = {"4 bits": 8, "5 bits": 4, "6 bits": 2, "8 bits": 0}

# ---------------------------------------------------------------- 09.3


def in_loops(x, top=127.0, rounding=round, returned=lambda d: d, magnitude=abs):
    codes, scales = [], []
    for start in range(0, len(x), 32):
        block = [float(v) for v in x[start : start + 32]]
        d = max(magnitude(v) for v in block) / top
        if d == 0:
            codes.append([0] * 32)
            scales.append(0.0)
            continue
        codes.append([max(-128, min(127, rounding(v / d))) for v in block])
        scales.append(returned(d))
    return np.array(codes, np.int8), np.array(scales, np.float32)


def forgets_zeros(x):
    b = x.reshape(-1, 32)
    d = np.abs(b).max(-1) / np.float32(127)
    return np.rint(b / d[:, None]).astype(np.int8), d


def divides_in_python(x):
    blocks = x.reshape(-1, 32).tolist()
    d = [max(map(abs, block)) / 127 for block in blocks]
    codes = [[round(v / s) for v in block] for block, s in zip(blocks, d, strict=True)]
    return np.array(codes, np.int8), np.array(d, np.float32)


def makes_zeros_nan(x):
    codes, d = in_loops(x)
    return codes, np.where(d == 0, np.nan, d)


def over_128(x):
    b = x.reshape(-1, 32)
    d = np.abs(b).max(-1) / np.float32(128)
    with np.errstate(all="ignore"):
        return np.rint(b / d[:, None]).astype(np.int8), d


def over_128_and_cut(x):
    return in_loops(x, top=128.0)


def inverted(x):
    return in_loops(x, returned=lambda d: 1 / d)


def largest_for_scale(x):
    return in_loops(x, returned=lambda d: 127 * d)


def ties_away(x):
    return in_loops(x, rounding=lambda v: int(math.copysign(math.floor(abs(v) + 0.5), v)))


def ties_up(x):
    return in_loops(x, rounding=lambda v: math.floor(v + 0.5))


def cut_off(x):
    return in_loops(x, rounding=int)


def rounded_down(x):
    return in_loops(x, rounding=math.floor)


def one_scale(x):
    d = np.abs(x).max() / np.float32(127)
    return np.rint(x / d).astype(np.int8).reshape(-1, 32), np.full(len(x) // 32, d)


def one_scale_alone(x):
    d = np.abs(x).max() / np.float32(127)
    return np.rint(x / d).astype(np.int8).reshape(-1, 32), d


def largest_not_magnitude(x):
    b = x.reshape(-1, 32)
    d = b.max(-1) / np.float32(127)
    with np.errstate(all="ignore"):
        return np.rint(b / d[:, None]).astype(np.int8), d


def signed_scale(x):
    b = x.reshape(-1, 32)
    d = b[np.arange(len(b)), np.abs(b).argmax(1)] / np.float32(127)
    return np.rint(b / d[:, None]).astype(np.int8), d


def does_not_divide(x):
    b = x.reshape(-1, 32)
    return np.rint(b).astype(np.int8), np.abs(b).max(-1) / np.float32(127)


def range_over_255(x):
    b = x.reshape(-1, 32)
    d = np.ptp(b, axis=-1) / np.float32(255)
    with np.errstate(all="ignore"):
        return np.rint(b / d[:, None]).astype(np.int8), d


def half_scale(x):
    codes, d = in_loops(x)
    return codes, d.astype(np.float16)


def codes_as_floats(x):
    codes, d = in_loops(x)
    return codes.astype(np.float32), d


def flat(x):
    codes, d = in_loops(x)
    return codes.ravel(), d


def scales_in_a_column(x):
    codes, d = in_loops(x)
    return codes, d[:, None]


def only_codes(x):
    return in_loops(x)[0]


def rounds_before(x):
    codes, d = in_loops(np.round(x, 1))
    return codes, d


def first_block_only(x):
    return in_loops(x[:32])


# ---------------------------------------------------------------- 09.4

SOUND = {"matrix": "attn_q", "cause": "scale", "bytes too far": 2}

WRONG = {
    "09.1": [
        ("moved up, saturates", moves_up, "the sum saturates"),
        ("moved up, wraps", moves_up_and_wraps, "wraps around, where the"),
        ("uint8 251", reads_251, "mean 251"),
        ("unsigned and signed swapped", swaps, "the arguments are swapped"),
        ("swapped after the trick", swaps_after_the_trick, "on the wrong side"),
        ("-128", turns_the_weight, "there is no +128"),
        ("-128 cut", clips, "has lost one"),
        ("no signs", loses_all_signs, "all signs are lost"),
        ("one sign lost", loses_one_sign, "nobody has it"),
        ("16 bits", adds_in_16_bits, "added up in 16 bits"),
        ("eight sums", leaves_eight, "eight partial sums"),
        ("pairs added by NumPy", adds_pairs_by_numpy, "in 64 bits"),
        ("int64", uses_int64, "none was made by the instructions"),
        ("bytes times bytes", multiplies_bytes, "gives 89;"),
        ("int64 as a register", hands_over_int64, "not int64 [32]"),
        ("half of the products", leaves_out_the_second_of_a_pair, "gives -1234;"),
    ],
    "09.2": [
        ("pairs forgotten", RIGHT | {"4 bits": 17}, "4 bits: that is room for single products"),
        ("255 assumed", RIGHT | {"4 bits": 0}, "4 bits: a code of 4 bits is at most 15"),
        ("rounded up", RIGHT | {"4 bits": 9}, "one too many: 9"),
        ("pairs forgotten, 5 bits", RIGHT | {"5 bits": 8}, "5 bits: that is room"),
        ("pairs forgotten, 6 bits", RIGHT | {"6 bits": 4}, "6 bits: that is room"),
        ("8 bits fit once", RIGHT | {"8 bits": 1}, "one too many: 1 x 64,770"),
        ("lanes", RIGHT | {"5 bits": 16}, "how many lanes"),
        ("bytes", RIGHT | {"6 bits": 32}, "how many bytes"),
        ("not rounded", RIGHT | {"5 bits": 32767 / (2 * 127 * 31)}, "whole sums only"),
        ("a width left out", {"4 bits": 8, "5 bits": 4, "6 bits": 2}, "a dict with the keys"),
        ("something else", RIGHT | {"4 bits": 5}, "too small"),
    ],
    "09.3": [
        ("zero block, by luck", forgets_zeros, "happens to be 0"),
        ("zero block, an error", divides_in_python, "stops with ZeroDivisionError"),
        ("zero block, nan", makes_zeros_nan, "its scale finite"),
        ("/128", over_128, "an int8 ends before"),
        ("/128, cut", over_128_and_cut, "wrong by a whole code"),
        ("scale inverted", inverted, "inverted"),
        ("largest for scale", largest_for_scale, "the largest magnitude is returned"),
        ("ties away", ties_away, "ties go away from zero"),
        ("ties up", ties_up, "ties go up"),
        ("cut off", cut_off, "cut off towards zero"),
        ("rounded down", rounded_down, "rounded down"),
        ("one scale", one_scale, "one scale serves all"),
        ("one scale alone", one_scale_alone, "4 blocks need 4 scales"),
        ("no magnitude", largest_not_magnitude, "is not the largest magnitude"),
        ("signed scale", signed_scale, "the scale has a sign"),
        ("not divided", does_not_divide, "rounded as they are"),
        ("range over 255", range_over_255, "the range over 255"),
        ("half scale", half_scale, "rounded to a half"),
        ("codes as floats", codes_as_floats, "the codes are float32"),
        ("flat", flat, "and not [32]"),
        ("scales in a column", scales_in_a_column, "one axis, and not [1, 1]"),
        ("only codes", only_codes, "two arrays are wanted"),
        ("rounds before", rounds_before, "gets the code -25"),
    ],
    "09.4": [
        ("called noise", SOUND | {"matrix": "none"}, "you call it quantization noise"),
        ("the largest in four bits", SOUND | {"matrix": "token_embd"}, "209 times less"),
        ("another", SOUND | {"matrix": "ffn_down"}, "ffn_down loses"),
        ("noise as cause", SOUND | {"cause": "noise"}, "at most half a scale"),
        ("order", SOUND | {"cause": "order"}, "would be another weight"),
        ("saturation", SOUND | {"cause": "saturation"}, "needs large sums"),
        ("one byte", SOUND | {"bytes too far": 1}, "a half, of two bytes"),
        ("a float32", SOUND | {"bytes too far": 4}, "size of a float32"),
        ("all scales", SOUND | {"bytes too far": 16}, "as far as all eight"),
        ("a block", SOUND | {"bytes too far": 34}, "a whole block of the file"),
    ],
}
