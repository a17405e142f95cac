"""What learners answer in lesson 07, and a phrase that the explanation must hold."""


def answer(**changed):
    """A ledger as a learner writes it, with some entries computed in another way.

    changed : norm_flops, norm_bytes, qkv_flops ... -> a function of the five sizes
    """

    def ledger(dim, n_heads, n_kv_heads, head_dim, seen):
        sizes = (dim, n_heads, n_kv_heads, head_dim, seen)
        outs = (n_heads + 2 * n_kv_heads) * head_dim
        entries = {
            "norm": [4 * dim, 4 * dim],
            "qkv": [2 * dim * outs, 4 * dim * outs],
            "attention": [4 * n_heads * head_dim * seen, 8 * n_kv_heads * head_dim * seen],
        }
        for name, function in changed.items():
            operation, column = name.split("_")
            entries[operation]["flops bytes".split().index(column)] = function(*sizes)
        return {name: tuple(pair) for name, pair in entries.items()}

    return ledger


def macs_for_flops(dim, n_heads, n_kv_heads, head_dim, seen):
    right = answer()(dim, n_heads, n_kv_heads, head_dim, seen)
    halved = {name: (flops // 2, nbytes) for name, (flops, nbytes) in right.items()}
    return halved | {"norm": right["norm"]}


def swaps_the_pairs(*sizes):
    return {name: pair[::-1] for name, pair in answer()(*sizes).items()}


def gives_only_flops(*sizes):
    return {name: pair[0] for name, pair in answer()(*sizes).items()}


def gives_the_pairs_alone(*sizes):
    return list(answer()(*sizes).values())


def has_no_norm(*sizes):
    return {name: pair for name, pair in answer()(*sizes).items() if name != "norm"}


def raises(*sizes):
    return {"norm": sizes["dim"]}


def q_rows_everywhere(d, h, kv, w, n):
    return 2 * d * (h * w) * 3


WRONG = {
    "07.1": [
        ("a multiply-add as one", macs_for_flops, "operations of qkv: a multiply-add is counted"),
        (
            "a multiply-add as one, in attention",
            answer(attention_flops=lambda d, h, kv, w, n: 2 * h * w * n),
            "operations of attention: half of it",
        ),
        ("weights forgotten", answer(qkv_bytes=lambda *s: 0), "weights are forgotten"),
        (
            "the row for the weights",
            answer(qkv_bytes=lambda d, h, kv, w, n: 4 * d),
            "that is the row that comes in",
        ),
        (
            "weights and rows",
            answer(qkv_bytes=lambda d, h, kv, w, n: 4 * (d + d * w * (h + 2 * kv))),
            "the row that comes in is counted as well",
        ),
        (
            "weights and all rows",
            answer(qkv_bytes=lambda d, h, kv, w, n: 4 * (d + 1) * w * (h + 2 * kv) + 4 * d),
            "come in and go out",
        ),
        (
            "weights as numbers",
            answer(qkv_bytes=lambda d, h, kv, w, n: d * w * (h + 2 * kv)),
            "There are so many weights",
        ),
        ("k and v as wide as q", answer(qkv_flops=q_rows_everywhere), "to be as wide as q. But"),
        (
            "k and v as wide as q, in bytes",
            answer(qkv_bytes=lambda d, h, kv, w, n: 12 * d * h * w),
            "as many keys and values as queries",
        ),
        (
            "the matrix of q alone",
            answer(qkv_flops=lambda d, h, kv, w, n: 2 * d * h * w),
            "matrix of q alone",
        ),
        (
            "one of k and v",
            answer(qkv_flops=lambda d, h, kv, w, n: 2 * d * w * (h + kv)),
            "only one of k and v",
        ),
        (
            "square matrices",
            answer(qkv_flops=lambda d, h, kv, w, n: 2 * 3 * d * d),
            "taken to be square",
        ),
        (
            "products for every position",
            answer(qkv_flops=lambda d, h, kv, w, n: 2 * n * d * w * (h + 2 * kv)),
            "seen does not matter here",
        ),
        (
            "key/value heads compute",
            answer(attention_flops=lambda d, h, kv, w, n: 4 * kv * w * n),
            "n_kv_heads is taken for n_heads",
        ),
        (
            "V forgotten, a multiply-add as one",
            answer(attention_flops=lambda d, h, kv, w, n: h * w * n),
            "one of the two products is missing",
        ),
        (
            "one position more",
            answer(attention_flops=lambda d, h, kv, w, n: 4 * h * w * (n + 1)),
            "operations of attention: seen counts",
        ),
        (
            "all pairs of positions",
            answer(attention_flops=lambda d, h, kv, w, n: 4 * h * w * n * n),
            "that is one row",
        ),
        (
            "the cache of query heads",
            answer(attention_bytes=lambda d, h, kv, w, n: 8 * h * w * n),
            "bytes of attention: a cache has",
        ),
        (
            "keys without values",
            answer(attention_bytes=lambda d, h, kv, w, n: 4 * kv * w * n),
            "both keys and values",
        ),
        (
            "the cache as numbers",
            answer(attention_bytes=lambda d, h, kv, w, n: 2 * kv * w * n),
            "in the keys and values",
        ),
        (
            "one position of the cache",
            answer(attention_bytes=lambda d, h, kv, w, n: 8 * kv * w),
            "of them are read",
        ),
        ("no cache", answer(attention_bytes=lambda *s: 0), "all that was kept"),
        (
            "heads of dim over n_heads",
            answer(qkv_flops=lambda d, h, kv, w, n: 2 * d * (h + 2 * kv) * (d // h)),
            "a size of its own",
        ),
        (
            "the matrix behind attention, too",
            answer(qkv_flops=lambda d, h, kv, w, n: 4 * d * w * (h + kv)),
            "qkv are three",
        ),
        (
            "scores read",
            answer(attention_bytes=lambda d, h, kv, w, n: 8 * kv * w * n + 4 * h * n),
            "made here, and not read",
        ),
        ("both norms", answer(norm_flops=lambda d, *s: 8 * d), "a single one is asked for"),
        ("a norm of one", answer(norm_flops=lambda d, *s: d), "the text counts four operations"),
        ("half a norm", answer(norm_flops=lambda d, *s: 2 * d), "second half is missing"),
        ("the root counted", answer(norm_flops=lambda d, *s: 4 * d + 1), "not the root"),
        ("a norm without weights", answer(norm_bytes=lambda *s: 0), "weights of its own"),
        ("a norm and its row", answer(norm_bytes=lambda d, *s: 8 * d), "and the row itself"),
        ("something else", answer(norm_bytes=lambda d, *s: 5 * d), "you have 2,880"),
        ("pairs swapped", swaps_the_pairs, "wrong way round"),
        ("no pairs", gives_only_flops, "a pair (operations, bytes)"),
        ("no dict", gives_the_pairs_alone, "return a dict"),
        ("a key missing", has_no_norm, "norm is missing"),
        ("it raises", raises, "your function stops with TypeError"),
    ],
    "07.2": [
        ("the lanes", 8, "multiply 8 numbers at a time"),
        ("Amdahl with eight lanes", 3.33, "with products 8 times as fast"),
        ("Amdahl alone", 5, "Amdahl's law alone"),
        ("the roof alone", 1.67, "the roof alone"),
        ("the rest lost", 2.083, "not touched, so they stay"),
        ("60% taken away", 1.923, "40% that could go"),
        ("saved and added", 1.32, "takes 68% of its time"),
        ("the time that remains", 0.68, "the time that remains"),
        ("the share saved", 0.32, "the share of time saved"),
        ("the share saved, percent", 32, "of the time, in percent"),
        ("percent", 47.06, "1 would be no change"),
        ("divided by the share", 1.25, "divides by the share"),
        ("something else", 3, "too large"),
        ("words", "half", "a number is wanted"),
    ],
    "07.3": [
        ("key/value heads", 11_674, "each of the 9 *query* heads"),
        ("V omitted", 7_782, "one for its score and one for"),
        ("key/value heads, V omitted", 23_347, "only one product of two"),
        ("operations against multiply-adds", 1_945.6, "Use one unit for both"),
        ("one layer", 116_736, "attention is in every layer"),
        ("one number for a row", 249_037, "two rows of 64 numbers"),
        ("one head", 35_021, "that is one query head"),
        ("the head left out", 3_072, "the head is left out"),
        ("something else", 100, "too small"),
    ],
    "07.4": [
        (
            "nothing but noise",
            dict.fromkeys("ABC", "a disturbed machine"),
            "A: noise would not come back",
        ),
        (
            "B is noise",
            {"A": "the compile counted", "B": "a disturbed machine", "C": "a disturbed machine"},
            "B: a disturbance makes",
        ),
        (
            "C is noise",
            {"A": "the compile counted", "B": "nested spans added", "C": "a disturbed machine"},
            "C: noise makes slow",
        ),
        (
            "A is nested",
            {"A": "nested spans added", "B": "the compile counted", "C": "the compile counted"},
            "A: the parts add up",
        ),
        (
            "A is prefill",
            {
                "A": "prefill counted as decode",
                "B": "nested spans added",
                "C": "the compile counted",
            },
            "A: 976 calls are 61",
        ),
        (
            "B is the compile",
            {"A": "the compile counted", "B": "the compile counted", "C": "nested spans added"},
            "B: no call is out of",
        ),
        (
            "B is prefill",
            {
                "A": "the compile counted",
                "B": "prefill counted as decode",
                "C": "nested spans added",
            },
            "B: 16 tokens, 16 calls",
        ),
        (
            "C is nested",
            {"A": "the compile counted", "B": "nested spans added", "C": "nested spans added"},
            "C: the parts add up",
        ),
        (
            "C is the compile",
            {"A": "the compile counted", "B": "nested spans added", "C": "the compile counted"},
            "C: the longest call is 1%",
        ),
        (
            "one left open",
            {"A": "the compile counted", "B": ..., "C": "nested spans added"},
            "no answer yet for B",
        ),
        (
            "another cause",
            {"A": "the compile counted", "B": "nested spans added", "C": "too slow"},
            "is none of",
        ),
        ("no dict", "the compile counted", "a dict with the keys"),
    ],
}
