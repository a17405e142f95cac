"""What learners answer in lesson 04, and a phrase that the explanation must hold."""

import cmath
import math

import numpy as np

# ---------------------------------------------------------------- 04.1


def shares(scores):
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    return [weight / sum(weights) for weight in weights]


def score(query, key, divisor):
    return sum(a * b for a, b in zip(query, key, strict=True)) / divisor


def blend(weights, rows):
    return [
        sum(w * row[i] for w, row in zip(weights, rows, strict=True)) for i in range(len(rows[0]))
    ]


def softmax_over_the_queries(q, k, v, window):
    n, root = len(q), math.sqrt(len(q[0]))
    table = [[0.0] * n for _ in range(n)]
    for j in range(n):  # a key, and the queries that see it
        seen = range(j, min(n, j + window))
        for p, share in zip(seen, shares([score(q[p], k[j], root) for p in seen]), strict=True):
            table[p][j] = share
    return [blend(row, v) for row in table]


def mask_after_softmax(q, k, v, window):
    out = []
    for p, query in enumerate(q):
        row = shares([score(query, key, math.sqrt(len(query))) for key in k])
        out.append(blend([w if p - window < j <= p else 0 for j, w in enumerate(row)], v))
    return out


def between(first, last, divisor=math.sqrt):
    """A head that sees the positions from first(p, window) to last(p, n), both included."""

    def one_head(q, k, v, window):
        out = []
        for p, query in enumerate(q):
            seen = range(max(0, first(p, window)), min(last(p, len(q)), len(q) - 1) + 1)
            row = [0.0] * len(v[0])
            if len(seen):
                weights = shares([score(query, k[j], divisor(len(query))) for j in seen])
                row = blend(weights, [v[j] for j in seen])
            out.append(row)
        return out

    return one_head


def reads_past_the_end(q, k, v, window):
    return [
        blend(shares([score(query, k[j], 1) for j in range(p + 2)]), v[: p + 2])
        for p, query in enumerate(q)
    ]


def leaves_out_the_first(q, k, v, window):
    return [
        blend(shares([score(query, key, 1) for key in k[max(0, p - window) : p]]), v[:p])
        for p, query in enumerate(q)
    ]


def forgets_to_divide_by_the_sum(q, k, v, window):
    out = []
    for p, query in enumerate(q):
        seen = range(max(0, p + 1 - window), p + 1)
        weights = [math.exp(score(query, k[j], math.sqrt(len(query)))) for j in seen]
        out.append(blend(weights, [v[j] for j in seen]))
    return out


def window_after_softmax(q, k, v, window):
    out = []
    for p, query in enumerate(q):
        row = shares([score(query, key, math.sqrt(len(query))) for key in k[: p + 1]])
        out.append(blend(row[-window:], v[: p + 1][-window:]))
    return out


def rotates_again(q, k, v, window):
    def again(rows):
        return [[value * cmath.exp(1j * p).real for value in row] for p, row in enumerate(rows)]

    return between(lambda p, w: p - w + 1, lambda p, n: p)(again(q), again(k), v, window)


def divided_by(size):
    """A right head, but for what its scores are divided by: the root of size(q, v)."""

    def answer(q, k, v, window):
        root = math.sqrt(size(q, v))
        right = between(lambda p, w: p - w + 1, lambda p, n: p, divisor=lambda d: root)
        return right(q, k, v, window)

    return answer


def only_the_last(q, k, v, window):
    return between(lambda p, w: p - w + 1, lambda p, n: p)(q, k, v, window)[-1]


def both_sides(q, k, v, window):
    return between(lambda p, w: p - w + 1, lambda p, n: p + window - 1)(q, k, v, window)


def no_largest_taken_off(q, k, v, window):
    out = []
    for p, query in enumerate(q):
        seen = range(max(0, p + 1 - window), p + 1)
        weights = [math.exp(score(query, k[j], math.sqrt(len(query)))) for j in seen]
        row = [weight / sum(weights) for weight in weights]
        out.append(blend(row, [v[j] for j in seen]))
    return out


def in_numpy(hidden, largest):
    """A head in arrays: hidden keys get this score, and largest(scores) is taken off."""

    def answer(q, k, v, window):
        q, k, v = np.array(q), np.array(k), np.array(v)
        scores = q @ k.T / np.sqrt(q.shape[1])
        seen = np.tri(len(q), dtype=bool) & ~np.tri(len(q), k=-window, dtype=bool)
        scores[~seen] = hidden
        weights = np.exp(scores - largest(scores))
        return weights / weights.sum(axis=1, keepdims=True) @ v

    return answer


def of_each_row(scores):
    return scores.max(axis=1, keepdims=True)


def clipped(q, k, v, window):
    """A way to keep exp small that changes the shares."""
    out = []
    for p, query in enumerate(q):
        seen = range(max(0, p + 1 - window), p + 1)
        scores = [score(query, k[j], math.sqrt(len(query))) for j in seen]
        weights = [math.exp(max(-100, min(100, score))) for score in scores]
        out.append(blend([w / sum(weights) for w in weights], [v[j] for j in seen]))
    return out


def softmax_and_nothing_else(q, k, v, window):
    return [[math.nan for _ in row] for row in v]


# ---------------------------------------------------------------- 04.2


def turned(row, position, base, places, exponent=lambda i, d: -2 * i / d, unit=1.0):
    """A row whose pairs, at places(i, d), are turned."""
    out, d = list(row), len(row)
    for i in range(d // 2):
        one, other = places(i, d)
        point = complex(row[one], row[other])
        point *= cmath.exp(1j * unit * position * base ** exponent(i, d))
        out[one], out[other] = point.real, point.imag
    return out


def neighbours(i, d):
    return 2 * i, 2 * i + 1


def halves(i, d):
    return i, i + d // 2


def all_three(q, k, v, position, base):
    return [turned(row, position, base, neighbours) for row in (q, k, v)]


def in_halves(q, k, v, position, base):
    return [turned(q, position, base, halves), turned(k, position, base, halves), v]


def the_query_only(q, k, v, position, base):
    return [turned(q, position, base, neighbours), k, v]


def without_position(q, k, v, position, base):
    return q, k, v


def qk(**options):
    def answer(q, k, v, position, base):
        return [*(turned(row, position, base, neighbours, **options) for row in (q, k)), v]

    return answer


def always_ten_thousand(q, k, v, position, base):
    return [*(turned(row, position, 10_000, neighbours) for row in (q, k)), v]


def every_element_its_own_angle(q, k, v, position, base):
    def spin(row):
        out = []
        for i, value in enumerate(row):
            angle = position * base ** (-i / len(row))
            partner = row[i + 1] if i % 2 == 0 else row[i - 1]
            sign = -1 if i % 2 == 0 else 1
            out.append(value * math.cos(angle) + sign * partner * math.sin(angle))
        return out

    return [spin(q), spin(k), v]


def power_of_the_position(q, k, v, position, base):
    def spin(row):
        out = list(row)
        for i in range(0, len(row), 2):
            angle = (base ** (-i / len(row))) ** position if position else 0.0
            a, b = row[i], row[i + 1]
            out[i] = a * math.cos(angle) - b * math.sin(angle)
            out[i + 1] = b * math.cos(angle) + a * math.sin(angle)
        return out

    return [spin(q), spin(k), v]


def counts_from_one(q, k, v, position, base):
    return [*(turned(row, position + 1, base, neighbours) for row in (q, k)), v]


def overwrites_too_early(q, k, v, position, base):
    for row in (q, k):
        for i in range(0, len(row), 2):
            angle = position * base ** (-i / len(row))
            row[i] = row[i] * math.cos(angle) - row[i + 1] * math.sin(angle)
            row[i + 1] = row[i + 1] * math.cos(angle) + row[i] * math.sin(angle)
    return [q, k, v]


def four_pairs(q, k, v, position, base):
    def spin(row):
        out = list(row)
        for i, frequency in enumerate([1, base**-0.25, base**-0.5, base**-0.75]):
            point = complex(*row[2 * i : 2 * i + 2]) * cmath.exp(1j * position * frequency)
            out[2 * i : 2 * i + 2] = point.real, point.imag
        return out

    return [spin(q), spin(k), v]


def returns_two(q, k, v, position, base):
    return [turned(q, position, base, neighbours), turned(k, position, base, neighbours)]


# ---------------------------------------------------------------- 04.3 and 04.4

SOLVED = {"A": "attn_heads", "B": "attn_norm", "C": "attn_residual"}
LAYER = 576 * 576 + 192 * 576 + 192 * 576 + 576 * 576 + 1536 * 576 + 1536 * 576 + 576 * 1536
HEAD = 49152 * 576

WRONG = {
    "04.1": [
        ("softmax over queries", softmax_over_the_queries, "softmax runs over the queries"),
        ("mask after softmax", mask_after_softmax, "the mask comes after softmax"),
        (
            "no 1/sqrt(d)",
            between(lambda p, w: p - w + 1, lambda p, n: p, divisor=lambda d: 1),
            "not divided by sqrt(d)",
        ),
        (
            "one too far",
            between(lambda p, w: p - w + 1, lambda p, n: p + 1),
            "also sees position p + 1",
        ),
        ("not itself", between(lambda p, w: p - w + 1, lambda p, n: p - 1), "does not see itself"),
        ("no mask", between(lambda p, w: p - w + 1, lambda p, n: n), "nothing is hidden"),
        ("window one longer", between(lambda p, w: p - w, lambda p, n: p), "reaches one further"),
        (
            "no window",
            between(lambda p, w: 0, lambda p, n: p),
            "`window` is not used",
        ),
        ("past the end", reads_past_the_end, "IndexError"),
        ("nothing for the first", leaves_out_the_first, "ValueError"),
        ("sum forgotten", forgets_to_divide_by_the_sum, "do not add up to 1: divide"),
        ("one row", only_the_last, "rows like those of v are wanted"),
        ("nan", softmax_and_nothing_else, "a window of 6, row 0 is [nan"),
        ("window after softmax", window_after_softmax, "the window is cut after softmax"),
        ("to both sides", both_sides, "the window reaches to both sides"),
        ("root of n", divided_by(lambda q, v: len(q)), "the root of the number of positions"),
        ("root of a value's length", divided_by(lambda q, v: len(v[0])), "a value's length"),
        (
            "root of a constant",
            between(lambda p, w: p - w + 1, lambda p, n: p, divisor=lambda d: 2),
            "divided by sqrt(4)",
        ),
        (
            "root of the model's d",
            between(lambda p, w: p - w + 1, lambda p, n: p, divisor=lambda d: math.sqrt(32)),
            "divided by sqrt(32)",
        ),
        ("hidden scores 0", in_numpy(0, of_each_row), "exp(0) is 1"),
        ("no largest taken off", no_largest_taken_off, "exp(1024) is too large"),
        ("largest of the table", in_numpy(-np.inf, np.max), "that this query sees"),
        ("hidden scores -1000", in_numpy(-1000, of_each_row), "does not hide a key"),
        ("clipped", clipped, "near 1,024 row 1 is"),
        ("rotated once more", rotates_again, "a window of 6, row 1 is ["),
    ],
    "04.2": [
        ("halves", in_halves, "2i + 1 turn together."),
        ("v rotated", all_three, "v is turned too"),
        ("right at 0 only", power_of_the_position, "right at position 0 and 1 only"),
        ("own angles", every_element_its_own_angle, "right at position 0 only"),
        ("query only", the_query_only, "only q is turned"),
        ("nothing turned", without_position, "nothing is turned at all"),
        ("exponent i/d", qk(exponent=lambda i, d: -i / d), "Yours has i / d"),
        ("one speed", qk(exponent=lambda i, d: 0), "all pairs turn equally fast"),
        ("positive exponent", qk(exponent=lambda i, d: 2 * i / d), "The exponent is negative"),
        ("d of the model", qk(exponent=lambda i, d: -2 * i / 32), "is not the 32 of"),
        ("four pairs", four_pairs, "wrong for rows of 12"),
        ("backwards", qk(unit=-1.0), "pairs turn backwards"),
        ("degrees", qk(unit=math.pi / 180), "the angle is in radians"),
        ("base", always_ten_thousand, "yours always takes 10,000"),
        ("from one", counts_from_one, "even position 0"),
        ("i over half, twice", qk(exponent=lambda i, d: -4 * i / d), "Yours is twice that"),
        ("overwritten", overwrites_too_early, "from the first when that is turned already"),
        ("two rows", returns_two, "q, k and v are wanted back"),
    ],
    "04.3": [
        ("largest in A", SOLVED | {"A": "logits"}, "A: logits has the largest error"),
        ("largest in B", SOLVED | {"B": "logits"}, "B: logits has the largest error"),
        ("largest in C", SOLVED | {"C": "logits"}, "C: logits has the largest error"),
        ("a later one", SOLVED | {"A": "ffn_out"}, "A: ffn_out is wrong, but something before"),
        ("largest ratio", SOLVED | {"B": "attn_heads"}, "B: attn_heads is wrong, but something"),
        ("one that is right", SOLVED | {"C": "attn_norm"}, "C: attn_norm is off by 4.16e-08"),
        ("C missing", {"A": "attn_heads", "B": "attn_norm"}, "a dict with the keys A, B, C"),
        ("a name of one's own", SOLVED | {"C": "rmsnorm"}, "no operation is called 'rmsnorm'"),
        ("C open", SOLVED | {"C": ...}, "no answer yet for C"),
    ],
    "04.4": [
        ("flops", 2 * (30 * LAYER + HEAD), "those are flops"),
        (
            "9 key/value heads",
            30 * (LAYER + 2 * 384 * 576) + HEAD,
            "their matrices have 192 rows, not 576",
        ),
        ("head forgotten", 30 * LAYER, "the head is forgotten"),
        ("embedding counted", 30 * LAYER + 2 * HEAD, "one row is looked up"),
        ("one layer", LAYER + HEAD, "There are 30 layers"),
        ("no gate", 30 * (LAYER - 1536 * 576) + HEAD, "gate, up and down"),
        ("no output projection", 30 * (LAYER - 576 * 576) + HEAD, "and o behind it"),
        ("rounded", 134.5e6, "a rounded figure"),
        ("all weights", 30 * (LAYER + 2 * 576) + 576 + HEAD, "the norms' are no matrix"),
        ("something else", 100, "too small"),
        ("a text", "many", "'many' is none"),
    ],
}
