"""The exercises of lesson 06: attention in chunks, what a position takes, a prefix used again."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...config import RopeConfig
from ...errors import plural
from ...kernels.attention import attention
from ...kernels.rope import frequencies, rotate, table
from .base import Answer, Wrong, exercise, expect_number, result, same, shown
from .kv_cache_reuse import REUSE_CASES, judge_reuse

Floats = npt.NDArray[np.float32]

N, HEADS, KV_HEADS, WIDTH = 9, 4, 2, 8
RNG = np.random.default_rng(6)
Q: Floats = RNG.normal(size=(N, HEADS, WIDTH)).astype(np.float32)
K, V = RNG.normal(size=(2, N, KV_HEADS, WIDTH)).astype(np.float32)
# The buffers are longer than needed, and an earlier text left its keys and values there.
OLD_KEYS, OLD_VALUES = RNG.normal(size=(2, KV_HEADS, N + 3, WIDTH)).astype(np.float32)
TURNING = frequencies(RopeConfig(WIDTH))

# A score adds WIDTH products, a row N values, a rotation 2: additions in series, as in check.py.
TOLERANCE = 2**-24 * 64 * (WIDTH + N + 2) ** 0.5 * float(np.abs(V).max())


def turn(x: Floats, start: int) -> Floats:
    """RoPE: x [n, heads, 8] of positions start, start + 1, ... turned by their angles."""
    return rotate(x, *table(TURNING, start, start + len(x)))


def chunkings(n: int) -> Iterator[list[int]]:
    """Every way to write n as a sum of counts, in order: 2 ** (n - 1) of them."""
    if n == 0:
        yield []
    for first in range(n, 0, -1):
        for rest in chunkings(n - first):
            yield [first, *rest]


Attend = Callable[..., Floats]  # (q, k, v, start, keys, values)


def plan(
    q_at: str | None = "start",
    k_at: str | None = "start",
    v_at: str | None = None,
    mask_at: str = "start",
    again: str = "",
    past: bool = True,
    kept: bool = True,
    reshaped: bool = False,
) -> Attend:
    """The exercise's function, right by default; a decision may be taken wrongly.

    ..._at : where q, k, v are turned and the mask begins: a key of `at`; None for not
    again : what is turned once more, "stored" keys or keys that are "read"
    past, kept : whether earlier keys are looked at, whether new ones are kept
    reshaped : whether heads are brought to the front by a reshape, instead of swapping axes
    """

    def attend(q: Floats, k: Floats, v: Floats, start: int, keys: Floats, values: Floats) -> Floats:
        end = start + len(q)
        at = {"start": start, "zero": 0, "end": end, "twice": 2 * start}
        q, k, v = (
            x if name is None else turn(x, at[name])
            for x, name in ((q, q_at), (k, k_at), (v, v_at))
        )
        if not kept:
            keys, values = keys.copy(), values.copy()
        if reshaped:
            k, v = (x.reshape(KV_HEADS, -1, WIDTH).swapaxes(0, 1) for x in (k, v))
        keys[:, start:end] = k.swapaxes(0, 1)
        values[:, start:end] = v.swapaxes(0, 1)
        seen = keys[:, :end]
        if again:
            seen = turn(seen.swapaxes(0, 1), 0).swapaxes(0, 1)
        if again == "stored":
            keys[:, :end] = seen
        first = 0 if past else start
        return attention(q, seen[:, first:], values[:, first:end], at[mask_at] - first)

    return attend


def rows_of(given: Any, count: int) -> Floats:
    """The rows that a call gave for so many ids. Raises Wrong for everything else."""
    try:
        rows: Floats = np.asarray(given, np.float32)
    except (TypeError, ValueError, OverflowError):
        rows = np.zeros((), np.float32)
    if rows.shape != (count, HEADS, WIDTH):
        what = f"shape {list(rows.shape)}" if rows.ndim else shown(given)
        raise Wrong(
            f"return the rows of the chunk, [{count}, {HEADS}, {WIDTH}] for {plural(count, 'id')}; "
            f"not {what}."
        )
    return rows


def in_chunks(attend: Attend, sizes: Sequence[int]) -> Floats:
    """Rows of all positions, from calls of these sizes on buffers that were in use before."""
    keys, values, rows, start = OLD_KEYS.copy(), OLD_VALUES.copy(), [], 0
    for size in sizes:
        at = slice(start, start + size)
        given = attend(Q[at].copy(), K[at].copy(), V[at].copy(), start, keys, values)
        rows.append(rows_of(given, size))
        start += size
    return np.concatenate(rows)


def in_turns(attend: Attend) -> list[Floats]:
    """Rows of two texts that take turns, each with buffers of its own: of all calls, in order."""
    texts = [(Q, K, V), (Q[::-1], K[::-1], V[::-1])]
    buffers = [(OLD_KEYS.copy(), OLD_VALUES.copy()) for _ in texts]
    rows = []
    for start, end in ((0, 2), (2, 5), (5, N)):
        for text, (keys, values) in zip(texts, buffers, strict=True):
            q, k, v = (x[start:end].copy() for x in text)
            rows.append(rows_of(attend(q, k, v, start, keys, values), end - start))
    return rows


RESTARTS = (
    "RoPE restarts in every call. A chunk's first row stands at position `start`, not at 0, and "
    "is turned by that angle."
)
MASK = (
    "the mask has no offset: row i of a chunk is position start + i, and may see that many keys "
    "and its own."
)
TWICE = "keys are rotated twice:"
ATTEND_MISTAKES: list[tuple[Attend, str]] = [
    (plan("zero", "zero"), RESTARTS),
    (plan(q_at="zero"), f"{RESTARTS} (Here it is the queries.)"),
    (plan(k_at="zero"), f"{RESTARTS} (Here it is the keys.)"),
    (plan(mask_at="zero"), MASK),
    (plan("zero", "zero", mask_at="zero"), "`start` is forgotten twice, by RoPE and by the mask."),
    (plan(again="read"), f"{TWICE} when they are stored, and again when they are read."),
    (plan(k_at=None, again="stored"), f"{TWICE} every call turns the whole buffer again."),
    (plan(past=False), "a chunk looks only at itself. What earlier calls kept is before `start`."),
    (plan(past=False, mask_at="twice"), "`attention` wants keys and values from position 0 on."),
    (plan(reshaped=True), "a reshape mixes heads and positions: use k.swapaxes(0, 1)."),
    (
        plan(kept=False),
        "nothing is kept for the next call: write the new rows into `keys` and `values` "
        "themselves, keys[:, start:end] = ...",
    ),
    (plan(mask_at="end"), "nothing is masked: a chunk's first rows see the keys of its last."),
    (
        plan("end", "end"),
        "the position has moved on before it was used: turn by `start`, not by the end. (Calls "
        "of equal sizes hide it.)",
    ),
    (plan(k_at=None), "the queries are rotated, the keys are not."),
    (plan(q_at=None), "the keys are rotated, the queries are not."),
    (plan(None, None), "nothing is rotated: without RoPE no position is told from another."),
    (plan(v_at="start"), "the values are rotated: RoPE turns queries and keys only."),
]


@exercise("06.1", "A chunk at any start", kind="code", minutes=12, difficulty=3)
def attend(answer: Answer) -> str:
    if not callable(answer):
        raise Wrong("a function is wanted.")
    new = (x[:3].copy() for x in (Q, K, V))
    try:
        first = answer(*new, 0, OLD_KEYS.copy(), OLD_VALUES.copy())
    except ValueError as error:
        if "(3,2,8) into shape (2,3,8)" in str(error):
            raise Wrong("`k` is [n, 2, 8], `keys` is [2, room, 8]: swap the two axes.") from None
        raise
    rows_of(first, 3)
    right = in_chunks(plan(), [N])
    wrong = []
    for sizes in chunkings(N):
        rows = in_chunks(answer, sizes)
        if not same(rows, right, TOLERANCE):
            wrong.append((sizes, rows))
    if not wrong:
        if not same(result(in_turns, (answer,)), in_turns(plan()), TOLERANCE):
            raise Wrong(
                "two texts that take turns get mixed up. Something is kept outside of `keys` and "
                "`values`, in a global perhaps, and so all texts share it. Every call brings the "
                "buffers of its own text, and its `start`: use nothing else."
            )
        return (
            "All 256 chunkings agree. A row depends on its position and on what stands before it, "
            "and not on the call that brought it: so a server may cut a long prompt wherever it "
            "likes, and answer others in between."
        )
    some = wrong[:4] + wrong[-4:]
    sizes, rows = wrong[0]
    off = ~np.isclose(rows, right, rtol=0, atol=TOLERANCE).all(axis=(1, 2))
    calls = ", ".join(map(str, sizes))
    example = (
        f"In calls of {calls}, position {int(off.argmax())} is the first that comes out wrong."
    )
    for mistake, why in ATTEND_MISTAKES:
        if all(same(in_chunks(mistake, each), given, TOLERANCE) for each, given in some):
            raise Wrong(f"{why} {example}")
    raise Wrong(
        f"{example} `start` is needed three times: for the angle, for the mask, and for the place "
        "in the buffers."
    )


LAYERS, QUERY_HEADS, CACHED_HEADS, HEAD_DIM, F32 = 30, 9, 3, 64, 4


@exercise("06.2", "What a position takes", kind="predict", minutes=4, difficulty=1)
def position_bytes(answer: Answer) -> str:
    right = 2 * LAYERS * CACHED_HEADS * HEAD_DIM * F32
    mistakes: dict[float, str] = {
        right * QUERY_HEADS / CACHED_HEADS: (
            "that counts the query heads. What is kept are keys and values, and of those a layer "
            "has only 3 heads: three query heads share one."
        ),
        right * QUERY_HEADS / CACHED_HEADS / 2: (
            "query heads are counted, which are not kept, and only one of keys and values, which "
            "both are."
        ),
        right / 2: (
            "that is half: the values are forgotten, or a float32 counts two bytes. Keys *and* "
            "values are kept, four bytes a number."
        ),
        right / F32: "that many numbers, and each takes four bytes.",
        right / LAYERS: "that is one layer, and every layer keeps keys and values of its own.",
        right * 8: "bits. Bytes were asked for.",
        right / 1000: "that is in kilobytes. Bytes were asked for.",
        right / 1024: "that is in KiB, 1,024 bytes each. Bytes were asked for.",
        **dict.fromkeys(
            (45_000, 46_000, 46_100, 46_500),
            "that is a rounded figure. It is a product of whole numbers, so give it exactly.",
        ),
    }
    expect_number(answer, right, mistakes, share=1e-9)
    return (
        f"2 x 30 x 3 x 64 x 4. At 4,096 positions that is {4096 * right / 1e6:.0f} MB, twice the "
        "96 MB in which the file stores the weights. So GQA, three query heads on one key/value "
        "head, is there to make this number small."
    )


@exercise("06.3", "A prefix used again", kind="code", minutes=10, difficulty=2)
def reuse(answer: Answer) -> str:
    if not callable(answer):
        raise Wrong("a function is wanted.")
    for held, asked, fewest in REUSE_CASES:
        judge_reuse(answer, held, asked, fewest)
    return (
        "The last id is always evaluated: its keys and values were kept, its logits were not. "
        "llambda's chat does the same (`common_prefix` in llambda/conversation.py), so that a "
        "long conversation costs only what is new."
    )
