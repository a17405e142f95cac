"""The judge of exercise 07.1: flops and bytes of three operations, and how they are miscounted."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .base import Answer, Raised, Wrong, result, same, shown

OPERATIONS, COLUMNS = ("norm", "qkv", "attention"), ("operations", "bytes")
BYTES = 4  # of a float32


class Sizes(NamedTuple):
    """The arguments: of one layer, for one token that looks at `seen` positions."""

    dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    seen: int

    @property
    def q(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def kv(self) -> int:
        return self.n_kv_heads * self.head_dim

    @property
    def weights(self) -> int:
        """Of the three matrices that make q, k and v."""
        return self.dim * (self.q + 2 * self.kv)


CASES = [Sizes(576, 9, 3, 64, 100), Sizes(128, 4, 2, 32, 1), Sizes(96, 8, 2, 16, 37)]

RIGHT: dict[tuple[str, str], Callable[[Sizes], float]] = {
    ("norm", "operations"): lambda s: 4 * s.dim,
    ("norm", "bytes"): lambda s: BYTES * s.dim,
    ("qkv", "operations"): lambda s: 2 * s.weights,
    ("qkv", "bytes"): lambda s: BYTES * s.weights,
    ("attention", "operations"): lambda s: 4 * s.q * s.seen,
    ("attention", "bytes"): lambda s: 2 * BYTES * s.kv * s.seen,
}

MAC = "a multiply-add is counted as one. It is two operations, a multiplication and an addition."
UNREAD = "the weights are forgotten: every one of the three matrices has to be read."
GROUPED = "heads share keys and values here: there are only n_kv_heads of each."
CACHE = (
    "a cache has keys and values of n_kv_heads heads. The query heads of a group read the same "
    "ones, which count once."
)
QUERIES = (
    "every one of the n_heads query heads computes scores and a mixture of its own, even if it "
    "shares the keys and values."
)
NUMBERS = "that counts numbers, and a float32 takes four bytes."
MISTAKES: dict[tuple[str, str], list[tuple[Callable[[Sizes], float], str]]] = {
    ("norm", "operations"): [
        (lambda s: s.dim, "the text counts four operations for each of the dim numbers."),
        (lambda s: 2 * s.dim, "the second half is missing: times 1 / rms, and times a weight."),
        (lambda s: 3 * s.dim, "three operations a number: the text counts four."),
        (lambda s: 8 * s.dim, "a layer has two norms, but a single one is asked for."),
        (lambda s: 4 * s.dim + 1, "only what is done for each number counts, not the root."),
    ],
    ("norm", "bytes"): [
        (lambda s: 0, "a norm has weights of its own, one for each number of the row."),
        (lambda s: s.dim, f"{NUMBERS} (A norm has dim weights.)"),
        (
            lambda s: 2 * BYTES * s.dim,
            "that is the weights and the row itself. The row was just made and is still at hand: "
            "only weights are counted.",
        ),
    ],
    ("qkv", "operations"): [
        (lambda s: s.weights, MAC),
        (lambda s: 2 * s.dim * 3 * s.q, f"k and v are taken to be as wide as q. But {GROUPED}"),
        (lambda s: s.dim * 3 * s.q, f"k and v are as wide as q, where {GROUPED} Besides, {MAC}"),
        (lambda s: 2 * s.dim * s.q, "that is the matrix of q alone. k and v have one each."),
        (
            lambda s: 6 * s.dim**2,
            "the matrices are taken to be square: they make heads of head_dim.",
        ),
        (
            lambda s: 2 * s.dim * (s.q + s.kv),
            "only one of k and v is there, and each has a matrix of its own.",
        ),
        (
            lambda s: 2 * s.dim * (s.n_heads + 2 * s.n_kv_heads) * (s.dim // s.n_heads),
            "head_dim is taken to be dim over n_heads. It is a size of its own.",
        ),
        (
            lambda s: 2 * (s.weights + s.dim * s.q),
            "a fourth matrix is counted, the one behind attention. qkv are three.",
        ),
        (lambda s: 2 * s.weights * s.seen, "one token passes through: seen does not matter here."),
    ],
    ("qkv", "bytes"): [
        (lambda s: 0, UNREAD),
        (
            lambda s: BYTES * s.dim,
            "that is the row that comes in, and it is at hand. What has to be read are the "
            "weights of the three matrices.",
        ),
        (lambda s: s.weights, f"{NUMBERS} (There are so many weights.)"),
        (
            lambda s: BYTES * (s.weights + s.dim),
            "the row that comes in is counted as well. It was just made and is still at hand.",
        ),
        (
            lambda s: BYTES * (s.weights + s.dim + s.q + 2 * s.kv),
            "the rows that come in and go out are counted as well. Only weights are.",
        ),
        (lambda s: 2 * BYTES * s.weights, "each weight is read once, and counted twice here."),
        (
            lambda s: 3 * BYTES * s.dim * s.q,
            f"these matrices would make as many keys and values as queries. But {GROUPED}",
        ),
    ],
    ("attention", "operations"): [
        (
            lambda s: 2 * s.q * s.seen,
            "half of it: a multiply-add is two operations, and there are two products for every "
            "position, one for the score and one for the mixture of values.",
        ),
        (lambda s: s.q * s.seen, f"one of the two products is missing, and {MAC}"),
        (lambda s: 4 * s.kv * s.seen, f"n_kv_heads is taken for n_heads: {QUERIES}"),
        (lambda s: 2 * s.kv * s.seen, f"half of it, and of too few heads: {QUERIES}"),
        (lambda s: 4 * s.q * (s.seen + 1), "seen counts the token itself already."),
        (lambda s: 4 * s.q * s.seen**2, "one token looks, at seen positions: that is one row."),
        (lambda s: 4 * s.q, "that is a single position, and seen of them are looked at."),
    ],
    ("attention", "bytes"): [
        (lambda s: 0, "attention has no weights, but it reads all that was kept: the cache."),
        (lambda s: 2 * BYTES * s.q * s.seen, CACHE),
        (lambda s: BYTES * s.kv * s.seen, "half of it: both keys and values are read."),
        (lambda s: BYTES * s.q * s.seen, f"half of it, and of too many heads: {CACHE}"),
        (lambda s: 2 * s.kv * s.seen, f"{NUMBERS} (There are so many in the keys and values.)"),
        (lambda s: 2 * BYTES * s.kv, "that is a single position, and seen of them are read."),
        (
            lambda s: BYTES * s.seen * (2 * s.kv + s.n_heads),
            "the scores are counted as well. They are made here, and not read from the cache.",
        ),
        (
            lambda s: 2 * BYTES * s.kv * (s.seen + 1),
            "one position too many is read: seen counts the token itself already.",
        ),
    ],
}


def judge_ledger(answer: Answer) -> None:
    """Raise Wrong for the first entry, in order, that is not right in every case."""
    if not callable(answer):
        raise Wrong("a function is wanted.")
    given = [entries(result(answer, tuple(case)), case) for case in CASES]
    for key, formula in RIGHT.items():
        wrong = [(s, row[key]) for s, row in zip(CASES, given, strict=True)
                 if not same(row[key], formula(s), 1e-6)]  # fmt: skip
        if not wrong:
            continue
        sizes, number = wrong[0]
        for mistake, why in MISTAKES[key]:
            if all(same(value, mistake(s), 1e-6) for s, value in wrong):
                raise Wrong(f"{' of '.join(reversed(key))}: {why} {example(key, sizes, number)}")
        raise Wrong(f"{' of '.join(reversed(key))}: {example(key, sizes, number)}")


def example(key: tuple[str, str], sizes: Sizes, number: Any) -> str:
    call = ", ".join(f"{name}={value}" for name, value in sizes._asdict().items())
    given = f"{number:,}" if isinstance(number, int) else shown(number)
    return f"With {call} you have {given}; right is {RIGHT[key](sizes):,}."


def entries(given: Any, sizes: Sizes) -> dict[tuple[str, str], Any]:
    """(operation, column) -> number. Raises Wrong for what is no ledger."""
    if isinstance(given, Raised):
        raise Wrong(f"your function stops with {given.said}")
    if not isinstance(given, Mapping):
        raise Wrong(f"return a dict with the keys {', '.join(OPERATIONS)}; not {shown(given)}.")
    found: dict[tuple[str, str], Any] = {}
    for name in OPERATIONS:
        if name not in given:
            raise Wrong(f"{name} is missing in the dict.")
        pair = given[name]
        if not isinstance(pair, tuple | list) or len(pair) != len(COLUMNS):
            raise Wrong(f"{name}: a pair (operations, bytes) is wanted; not {shown(pair)}.")
        found |= {(name, column): value for column, value in zip(COLUMNS, pair, strict=True)}
    swapped = all(
        same(found[name, "operations"], RIGHT[name, "bytes"](sizes))
        and same(found[name, "bytes"], RIGHT[name, "operations"](sizes))
        for name in OPERATIONS
    )
    if swapped:
        raise Wrong("the pairs are the wrong way round: first the operations, then the bytes.")
    return found
