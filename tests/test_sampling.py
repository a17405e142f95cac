"""From logits to one token: every rule at its edges, against other people's and against chance.

A check is a function of the implementation, so that planted mistakes can show that it notices
them.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from llambda.errors import InputError, LlambdaError
from llambda.sampling import (
    Sampler,
    Sampling,
    StopState,
    draw,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    overlap,
    penalize,
    softmax,
)

INF = math.inf
LN2 = math.log(2)
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
JUST_BELOW_1 = math.nextafter(1, 0)
HALF_AND_QUARTERS = [LN2, 0.0, 0.0]  # probabilities 1/2, 1/4, 1/4: exact in binary

Rule = Callable[..., Any]


def array(values: Sequence[float], dtype: Any = np.float32) -> np.ndarray:
    """A read-only array, so that writing into the caller's logits is an error."""
    result = np.array(values, dtype)
    result.flags.writeable = False
    return result


def kept(logits: np.ndarray) -> list[int]:
    return np.flatnonzero(logits > -INF).tolist()


def random_logits(seed: int, size: int = 60) -> np.ndarray:
    return array(np.random.default_rng(seed).normal(0, 3, size))


# ---------------------------------------------------------------- softmax


def test_softmax_at_its_edges():
    with_holes = softmax(array([-INF, 0, 1, -INF]))
    assert with_holes == pytest.approx([0, 0.26894142, 0.73105858, 0], abs=5e-9)
    assert with_holes[[0, 3]].tolist() == [0, 0]
    assert softmax(array([1000, 1000])).tolist() == [0.5, 0.5]
    assert softmax(array([3.4e38, -3.4e38])).tolist() == [1, 0]  # their distance is no float32
    assert softmax(array([0, 1])).dtype == np.float64


@pytest.mark.parametrize("temperature", [1e-30, 5e-324, 1.0, 1e308])
def test_softmax_is_a_distribution_at_every_temperature(temperature: float):
    p = softmax(array([2, -1, -INF, 2, 1.5]), temperature)
    assert np.isfinite(p).all()
    assert p.sum() == pytest.approx(1, abs=1e-15)
    assert p[2] == 0
    assert p[0] == p[3] == p.max()
    if temperature < 1:
        assert p.tolist() == [0.5, 0, 0, 0.5, 0]
    if temperature > 1:
        assert p == pytest.approx([0.25, 0.25, 0, 0.25, 0.25], abs=1e-15)


# ---------------------------------------------------------------- top-k


def check_top_k(keep: Rule) -> None:
    logits = array([1, 5, 3, 4, -2])
    assert [kept(keep(logits, k)) for k in (1, 2, 3)] == [[1], [1, 3], [1, 2, 3]]
    for k in (0, 5, 6, 10**30):  # off, and all there are
        assert kept(keep(logits, k)) == [0, 1, 2, 3, 4]
    ties = array([2, 7, 2, 7, 2, 7])
    assert [kept(keep(ties, k)) for k in (1, 2, 4, 5)] == [
        [1],
        [1, 3],
        [0, 1, 3, 5],
        [0, 1, 2, 3, 5],
    ]
    assert kept(keep(array([-INF, 1, -INF, 0]), 3)) == [1, 3]


def one_too_few(logits: np.ndarray, k: int) -> np.ndarray:
    return keep_top_k(logits, k - 1) if 1 < k < logits.size else keep_top_k(logits, k)


def with_all_ties(logits: np.ndarray, k: int) -> np.ndarray:
    if k == 0 or k >= logits.size:
        return logits
    return np.where(logits >= np.sort(logits)[-k], logits, -INF)


def last_of_the_ties(logits: np.ndarray, k: int) -> np.ndarray:
    return keep_top_k(logits[::-1], k)[::-1]


def zero_keeps_nothing(logits: np.ndarray, k: int) -> np.ndarray:
    return np.full_like(logits, -INF) if k == 0 else keep_top_k(logits, k)


def test_top_k():
    check_top_k(keep_top_k)


@pytest.mark.parametrize(
    "wrong", [one_too_few, with_all_ties, last_of_the_ties, zero_keeps_nothing]
)
def test_a_wrong_top_k_is_noticed(wrong: Rule):
    with pytest.raises(AssertionError):
        check_top_k(wrong)


# ---------------------------------------------------------------- top-p


def check_top_p(keep: Rule) -> None:
    logits = array(np.log([0.3, 0.5, 0.2]))
    wanted = {0: [1], 0.49: [1], 0.51: [0, 1], 0.79: [0, 1], 0.81: [0, 1, 2], 1: [0, 1, 2]}
    assert {p: kept(keep(logits, p)) for p in wanted} == wanted
    exact = array(HALF_AND_QUARTERS, np.float64)
    wanted = {0.5: [0], math.nextafter(0.5, 1): [0, 1], 0.75: [0, 1], JUST_BELOW_1: [0, 1, 2]}
    assert {p: kept(keep(exact, p)) for p in wanted} == wanted
    assert kept(keep(array([0, 0, 0, 0]), 0.5)) == [0, 1]  # ties: the lowest ids
    assert kept(keep(array([1, 0] * 200), 0.4)) == list(range(0, 220, 2))  # 0.4 / 0.731 * 200
    assert kept(keep(array([0, -20]), 0.99999)) == [0]
    assert kept(keep(array([-INF, 1, -INF, 1]), JUST_BELOW_1)) == [1, 3]
    many = random_logits(5, size=1000)  # the sum of their probabilities is not exactly 1
    assert kept(keep(many, JUST_BELOW_1))[-1] <= 999
    assert len(kept(keep(many, 1))) == 1000


def top_p(logits: np.ndarray, p: float, extra: int = 1, sort: bool = True) -> np.ndarray:
    """Top-p, with room for mistakes."""
    order = np.argsort(-logits, kind="stable") if sort else np.arange(logits.size)
    reached = np.cumsum(softmax(logits[order]))
    result = np.full_like(logits, -INF)
    ids = order[: np.searchsorted(reached, p) + extra]
    result[ids] = logits[ids]
    return result


def test_top_p():
    check_top_p(keep_top_p)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda x, p: top_p(x, p, sort=False), id="unsorted"),
        pytest.param(lambda x, p: top_p(x, p, extra=0), id="crossing token lost"),
        pytest.param(lambda x, p: top_p(x, p, extra=2), id="one too many"),
        pytest.param(lambda x, p: keep_top_p(x, 1 - p), id="counted from the tail"),
        pytest.param(lambda x, p: keep_top_p(x[::-1], p)[::-1], id="last of the ties"),
        pytest.param(lambda x, p: x if p == 0 else keep_top_p(x, p), id="0 is off"),
    ],
)
def test_a_wrong_top_p_is_noticed(wrong: Rule):
    with pytest.raises(AssertionError):
        check_top_p(wrong)


# ---------------------------------------------------------------- min-p


def check_min_p(keep: Rule) -> None:
    exact = array(HALF_AND_QUARTERS, np.float64)  # relative to the best: 1, 1/2, 1/2
    wanted = {0: [0, 1, 2], 0.5: [0, 1, 2], math.nextafter(0.5, 1): [0], 1: [0]}
    assert {p: kept(keep(exact, p)) for p in wanted} == wanted
    assert kept(keep(array([3, 3, 2.9]), 1)) == [0, 1]
    assert kept(keep(array([-INF, 0, -5, -0.1]), 0.5)) == [1, 3]
    assert kept(keep(array([-10, -10.1, -14]), 0.1)) == [0, 1]
    assert kept(keep(array([0, 0, 0, 0]), 0.5)) == [0, 1, 2, 3]  # each has 1/4 of the whole
    assert kept(keep(array([3e38, -3e38]), 1e-300)) == [0]


def of_the_logits(logits: np.ndarray, min_p: float) -> np.ndarray:
    return np.where(logits >= min_p * logits.max(), logits, -INF)


def of_the_whole(logits: np.ndarray, min_p: float) -> np.ndarray:
    return np.where(softmax(logits) >= min_p, logits, -INF)


def above_only(logits: np.ndarray, min_p: float) -> np.ndarray:
    return np.where(np.exp(logits.astype(np.float64) - logits.max()) > min_p, logits, -INF)


def test_min_p():
    check_min_p(keep_min_p)


@pytest.mark.parametrize("wrong", [of_the_logits, of_the_whole, above_only])
def test_a_wrong_min_p_is_noticed(wrong: Rule):
    with pytest.raises(AssertionError):
        check_min_p(wrong)


# ---------------------------------------------------------------- repetition penalty


def check_penalty(penalty: Rule) -> None:
    logits = array([2, -2, 1])
    assert penalty(logits, [0, 0, 1], 2).tolist() == [1, -4, 1]
    assert penalty(logits, [], 2).tolist() == [2, -2, 1]
    assert penalty(logits, [2, 1], 0.5).tolist() == [2, -1, 2]
    assert penalty(array([0, -INF, 3]), [0, 1], 1.3).tolist() == [0, -INF, 3]
    assert penalty(logits, iter([0, 1]), 2.0**900).tolist() == [2.0**-899, -(2.0**901), 1]
    assert penalty(logits, [0, 1], 2.0**-900).tolist() == [2.0**901, -(2.0**-899), 1]
    assert logits.tolist() == [2, -2, 1]


def once_for_each_time(logits: np.ndarray, history: Any, penalty: float) -> np.ndarray:
    for token in history:
        logits = penalize(logits, [token], penalty)
    return logits


def always_divided(logits: np.ndarray, history: Any, penalty: float) -> np.ndarray:
    result = logits.astype(np.float64)
    result[list(set(history))] /= penalty
    return result


def in_float32(logits: np.ndarray, history: Any, penalty: float) -> np.ndarray:
    with np.errstate(all="ignore"):
        return penalize(logits, history, float(np.float32(penalty)))


def test_penalty():
    check_penalty(penalize)


@pytest.mark.parametrize("wrong", [once_for_each_time, always_divided, in_float32])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_a_wrong_penalty_is_noticed(wrong: Rule):
    with pytest.raises(AssertionError):
        check_penalty(wrong)


def test_a_penalty_may_rule_a_token_out():
    assert kept(penalize(array([-3e38, 1]), [0], 1.7e308)) == [1]


# ---------------------------------------------------------------- transformers
# Its rules agree but for two things. With ties at the edge, its top-k keeps all of them and its
# top-p those with the highest ids; here k are kept, and the lowest ids.


def hf(warper: Any, logits: np.ndarray, history: Sequence[int] = ()) -> np.ndarray:
    ids = torch.tensor([list(history)], dtype=torch.long)
    return warper(ids, torch.from_numpy(np.array(logits))[None])[0].numpy()


@pytest.mark.parametrize("k", [1, 2, 17, 59, 60, 100])
def test_top_k_is_that_of_transformers(k: int):
    for seed in range(20):
        logits = random_logits(seed)
        assert np.array_equal(keep_top_k(logits, k), hf(TopKLogitsWarper(k), logits))


@pytest.mark.parametrize("p", [0.01, 0.3, 0.9, 0.999])
def test_top_p_is_that_of_transformers(p: float):
    sizes = set()
    for seed in range(20):
        logits = random_logits(seed)
        assert np.array_equal(keep_top_p(logits, p), hf(TopPLogitsWarper(p), logits))
        sizes.add(len(kept(keep_top_p(logits, p))))
    assert p == 0.01 or len(sizes) > 1  # the agreement says something


@pytest.mark.parametrize("p", [0.001, 0.05, 0.5, 0.99])
def test_min_p_is_that_of_transformers(p: float):
    for seed in range(20):
        logits = random_logits(seed)
        assert np.array_equal(keep_min_p(logits, p), hf(MinPLogitsWarper(p), logits))


@pytest.mark.parametrize("penalty", [0.7, 1.1, 3.0])
def test_the_penalty_is_that_of_transformers(penalty: float):
    for seed in range(20):
        logits = random_logits(seed)
        history = np.random.default_rng(seed).integers(0, 60, 30).tolist()
        theirs = hf(RepetitionPenaltyLogitsProcessor(penalty), logits, history)
        # Theirs is rounded to float32 once in the penalty and once in the result.
        assert penalize(logits, history, penalty) == pytest.approx(theirs, rel=2 * 2**-24, abs=0)


def test_ties_are_cut_unlike_in_transformers():
    logits = array([1, 1, 1, 1])
    assert kept(hf(TopKLogitsWarper(2), logits)) == [0, 1, 2, 3]
    assert kept(keep_top_k(logits, 2)) == [0, 1]
    assert kept(hf(TopPLogitsWarper(0.5), logits)) == [2, 3]
    assert kept(keep_top_p(logits, 0.5)) == [0, 1]


# ---------------------------------------------------------------- the draw


def check_draw(choose: Rule) -> None:
    p = np.array([0, 0.25, 0, 0.25, 0.5, 0])
    wanted = {
        0.0: 1,
        5e-324: 1,
        math.nextafter(0.25, 0): 1,
        0.25: 3,
        math.nextafter(0.5, 0): 3,
        0.5: 4,
        JUST_BELOW_1: 4,
    }
    assert {u: choose(p, u) for u in wanted} == wanted
    short = np.array([0.7, 0.29999995, 0, 0])  # a distribution that ends below 1
    assert choose(short, JUST_BELOW_1) == 1
    long = np.array([0.75, 0.5, 0.0])  # the sum is taken into account
    assert (choose(long, 0.59), choose(long, 0.61)) == (0, 1)
    tiny = np.array([1.0, 1e-30])  # vanishes in the sum
    assert choose(tiny, JUST_BELOW_1) == 0
    sum_rounds_up = np.full(3, 5e-324)  # here u * sum is the sum itself
    assert choose(sum_rounds_up, JUST_BELOW_1) == 2


def ends_included(p: np.ndarray, u: float) -> int:
    return int(np.searchsorted(np.cumsum(p), u * p.sum(), side="left"))


def sum_forgotten(p: np.ndarray, u: float) -> int:
    return int(np.searchsorted(np.cumsum(p), u, side="right"))


def last_not_guarded(p: np.ndarray, u: float) -> int:
    return int(np.searchsorted(np.cumsum(p), u * np.cumsum(p)[-1], side="right"))


def cut_at_the_size(p: np.ndarray, u: float) -> int:
    return min(sum_forgotten(p, u), p.size - 1)


def test_draw():
    check_draw(draw)


@pytest.mark.parametrize("wrong", [ends_included, sum_forgotten, last_not_guarded, cut_at_the_size])
def test_a_wrong_draw_is_noticed(wrong: Rule):
    with pytest.raises(AssertionError):
        check_draw(wrong)


@given(
    st.lists(st.sampled_from([0.0, 5e-324, 1e-300, 1e-16, 0.1, 1 / 3, 1.0]), min_size=1, max_size=9)
    .filter(any),
    st.floats(0, 1, exclude_max=True),
)  # fmt: skip
def test_a_draw_never_gives_what_is_impossible(weights: list[float], u: float):
    assert weights[draw(np.array(weights), u)] > 0


# ---------------------------------------------------------------- all of it


def sample_of(settings: Sampling, logits: np.ndarray, n: int, history: Sequence[int] = ()) -> Any:
    sampler = Sampler(settings)
    return np.bincount([sampler.sample(logits, history) for _ in range(n)], minlength=logits.size)


def test_temperature_comes_last():
    logits = array([3, 2, 1])  # top-p 0.8 keeps two of them; after the temperature, one
    counts = sample_of(Sampling(temperature=0.5, top_k=0, top_p=0.8, seed=1), logits, 2000)
    assert (counts > 0).tolist() == [True, True, False]
    sharper = keep_top_p(logits / np.float32(0.5), 0.8)
    assert kept(sharper) == [0]


FIRST_TWO, FIRST = [0, 1], [0]


@pytest.mark.parametrize(
    ("setting", "wanted", "exchanged"),
    [  # of probabilities 0.4, 0.3, 0.2 and 0.1
        # Of the two best, the first has 0.57 of what is left; of all, 0.4.
        ({"top_k": 2, "top_p": 0.5}, FIRST, FIRST_TWO),
        # Of all, two are needed for 0.55; of the two that min-p leaves, one.
        ({"top_p": 0.55, "min_p": 0.6}, FIRST_TWO, FIRST),
        # At temperature 0.5 the second is 0.5625 times as probable as the first.
        ({"min_p": 0.6, "temperature": 0.5}, FIRST_TWO, FIRST),
        # The penalty makes the last one the best before the others are cut off.
        ({"top_k": 1, "repeat_penalty": 0.01}, [3], FIRST),
    ],
)
def test_the_order_of_the_rules(setting: dict[str, Any], wanted: list[int], exchanged: list[int]):
    logits = array(np.log([0.4, 0.3, 0.2, 0.1]) + 3)
    counts = sample_of(Sampling(**PLAIN | setting, seed=1), logits, 500, [3])
    assert np.flatnonzero(counts).tolist() == wanted != exchanged


def expected(logits: Sequence[float], settings: Sampling, history: Sequence[int]) -> list[float]:
    """The distribution by the book, in plain Python: penalty, top-k, top-p, min-p, temperature."""
    x = [float(value) for value in logits]
    for token in set(history):
        repeat = settings.repeat_penalty
        x[token] = x[token] / repeat if x[token] > 0 else x[token] * repeat
    ranked = sorted(range(len(x)), key=lambda i: (-x[i], i))
    ranked = ranked[: settings.top_k or None]
    total = math.fsum(math.exp(x[i]) for i in ranked)
    sums = itertools.accumulate(math.exp(x[i]) / total for i in ranked)
    inside = [i for i, reached in zip(ranked, [0, *sums], strict=False) if reached < settings.top_p]
    inside = [i for i in inside if math.exp(x[i] - x[ranked[0]]) >= settings.min_p]
    weights = {i: math.exp((x[i] - x[ranked[0]]) / settings.temperature) for i in inside}
    return [weights.get(i, 0) / math.fsum(weights.values()) for i in range(len(x))]


def chi_square_limit(freedom: int) -> float:
    """What chi-square exceeds once in a million times (Wilson and Hilferty, 1931)."""
    z, part = 4.7534, 2 / (9 * freedom)
    return freedom * (1 - part + z * part**0.5) ** 3


def fits(counts: np.ndarray, probabilities: Sequence[float]) -> bool:
    """Could these be the frequencies of independent draws with these probabilities?"""
    p = np.array(probabilities)
    if counts[p == 0].any():
        return False
    wanted = counts.sum() * p[p > 0]
    assert wanted.min() >= 5, "too few draws for the test to hold"
    statistic = float(((counts[p > 0] - wanted) ** 2 / wanted).sum())
    return statistic < chi_square_limit(max(wanted.size - 1, 1))


LOGITS = array([1.5, 0.2, -0.7, 2.0, 1.5, -1.2, 0.9, -0.1])
HISTORY = [3, 5, 3, 0]
SETTINGS = {
    "plain": PLAIN,
    "cold": PLAIN | {"temperature": 0.6},
    "hot": PLAIN | {"temperature": 3.0},
    "top-k": PLAIN | {"top_k": 2},
    "top-p": PLAIN | {"top_p": 0.7},
    "min-p": PLAIN | {"min_p": 0.3},
    "penalty": PLAIN | {"repeat_penalty": 1.6},
    "all": {"temperature": 1.4, "top_k": 6, "top_p": 0.9, "min_p": 0.2, "repeat_penalty": 1.2},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_frequencies_are_the_probabilities(name: str):
    settings = Sampling(**SETTINGS[name], seed=20)
    history = HISTORY if settings.repeat_penalty != 1 else ()
    counts = sample_of(settings, LOGITS, 6000, history)
    assert fits(counts, expected(LOGITS, settings, history))
    for other in SETTINGS:  # and they are not those of other settings
        if other != name:
            wrong = expected(LOGITS, Sampling(**SETTINGS[other]), HISTORY)
            assert not fits(counts, wrong), other


@pytest.mark.parametrize("freedom", [2, 4, 6, 8])
def test_the_limit_of_chi_square_is_right(freedom: int):
    half = chi_square_limit(freedom) / 2  # for even numbers the tail has a closed form
    tail = math.exp(-half) * sum(half**k / math.factorial(k) for k in range(freedom // 2))
    assert 0.2e-6 < tail < 1.2e-6


def test_the_defaults():
    assert Sampling() == Sampling(0.8, 40, 0.95, 0.0, 1.0, None)


def test_greedy_takes_the_best_of_the_lowest_id():
    greedy = Sampler(Sampling(temperature=0, top_k=1, top_p=0.1, min_p=1))
    assert greedy.sample(array([1, 3, -INF, 3]), []) == 1
    assert Sampler(Sampling(temperature=-0.0)).sample(array([1, 3, 3]), []) == 1
    penalized = Sampler(Sampling(temperature=0, repeat_penalty=2))
    assert penalized.sample(array([2, 3, -INF, 3]), [1, 3]) == 0


def test_a_tiny_temperature_is_nearly_greedy():
    for temperature in (1e-30, 5e-324):
        counts = sample_of(Sampling(temperature=temperature, seed=3), LOGITS, 50)
        assert counts.argmax() == 3
        assert counts[3] == 50


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(data=st.data())
def test_a_sample_is_always_possible(dtype: Any, data: st.DataObject):
    values = data.draw(
        st.lists(st.floats(-(2.0**99), 2.0**99, width=32) | st.just(-INF), min_size=1, max_size=8)
        .filter(lambda v: max(v) > -INF)
    )  # fmt: skip
    logits = array(values, dtype)
    history = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=4))
    sampler = Sampler(
        Sampling(
            temperature=data.draw(st.sampled_from([0, 1e-300, 0.5, 1, 1e300])),
            top_k=data.draw(st.integers(0, 10)),
            top_p=data.draw(st.floats(0, 1)),
            min_p=data.draw(st.floats(0, 1)),
            repeat_penalty=data.draw(st.floats(1e-3, 1e3)),
            seed=data.draw(st.integers(0, 2**70)),
        )
    )
    for _ in range(3):
        token = sampler.sample(logits, history)
        assert type(token) is int
        assert values[token] > -INF
    assert logits.tolist() == values


@pytest.mark.parametrize(
    "values",
    [[0, math.nan, 1], [math.nan] * 3, [0, INF, 1], [-INF] * 3, [INF, -INF, 0], [INF, math.nan, 1]],
)
@pytest.mark.parametrize("more", [{}, {"temperature": 0}, {"repeat_penalty": 2}, {"top_k": 1}])
def test_logits_that_are_no_numbers_raise(values: list[float], more: dict[str, Any]):
    with pytest.raises(LlambdaError, match="logits are not finite"):
        Sampler(Sampling(**more)).sample(array(values), [0])


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_penalty_that_makes_logits_infinite_is_to_blame_for_it(temperature: float):
    sampler = Sampler(Sampling(temperature, repeat_penalty=5e-324))
    with pytest.raises(InputError, match=r"repeat_penalty of 5e-324 .* Choose one nearer to 1"):
        sampler.sample(array([1, 2, 3]), [2])
    assert sampler.sample(array([1, -2, -300]), []) in (0, 1), "nothing to penalize"
    with pytest.raises(LlambdaError, match="weights are damaged"):
        sampler.sample(array([1, math.nan, 3]), [2])


# ---------------------------------------------------------------- seeds


def sequence(seed: int | None, n: int = 40) -> tuple[int, list[int]]:
    sampler = Sampler(Sampling(**PLAIN, seed=seed))
    return sampler.seed, [sampler.sample(LOGITS, []) for _ in range(n)]


def test_one_seed_gives_one_sequence():
    assert sequence(7) == sequence(7)
    assert sequence(0) == sequence(0)
    different = [sequence(seed)[1] for seed in (0, 1, 7, 2**64, 2**64 + 1)]
    assert len({tuple(each) for each in different}) == 5


def test_a_sequence_goes_on_and_does_not_restart():
    ids = sequence(7)[1]
    assert ids[:20] != ids[20:]


def test_the_random_numbers_are_those_of_pcg64():
    numbers = np.random.Generator(np.random.PCG64(7)).random(40)
    assert sequence(7)[1] == [draw(softmax(LOGITS), u) for u in numbers]


def test_without_a_seed_one_is_drawn_and_reported():
    seed, ids = sequence(None)
    assert sequence(seed) == (seed, ids)
    assert len({sequence(None)[0] for _ in range(4)}) > 1
    assert sequence(0)[0] == 0  # which is a seed


def test_two_samplers_do_not_share_random_numbers():
    one, two = (Sampler(Sampling(**PLAIN, seed=7)) for _ in range(2))
    mixed = [(one.sample(LOGITS, []), two.sample(LOGITS, [])) for _ in range(40)]
    assert [list(ids) for ids in zip(*mixed, strict=True)] == [sequence(7)[1]] * 2


def test_a_numpy_seed_becomes_a_plain_one():
    seed, ids = sequence(np.int64(7))
    assert type(seed) is int
    assert ids == sequence(7)[1]


# ---------------------------------------------------------------- settings


NOT_NUMBERS = ["x", None, math.nan, INF, -INF, [1]]
NOT_WHOLE = [2.5, -1, "3", math.nan, INF]
INVALID = [
    *(("temperature", value, "0 or more") for value in (*NOT_NUMBERS, -0.1, -1e-300)),
    *(("top_p", value, "between 0 and 1") for value in (*NOT_NUMBERS, -0.1, 1.0001, 2)),
    *(("min_p", value, "between 0 and 1") for value in (*NOT_NUMBERS, -1e-9, 1.5)),
    *(("repeat_penalty", value, "above 0") for value in (*NOT_NUMBERS, 0, 0.0, -1.1)),
    *(("top_k", value, "a whole number, 0 (off) or more") for value in NOT_WHOLE),
    *(("seed", value, "a whole number, 0 or more") for value in NOT_WHOLE),
]


@pytest.mark.parametrize(("name", "value", "wanted"), INVALID)
def test_an_invalid_setting_is_named_with_its_range(name: str, value: Any, wanted: str):
    with pytest.raises(InputError) as caught:
        Sampling(**{name: value})
    assert str(caught.value).startswith(f"{name} is {value!r}. It must be ")
    assert str(caught.value).endswith(f"{wanted}.")


@pytest.mark.parametrize("value", [*NOT_WHOLE, None])
def test_an_invalid_limit_is_named_with_its_range(value: Any):
    with pytest.raises(InputError, match=r"^max_tokens is .*\. It must be a whole number, 0 or"):
        StopState([], [], value)


def test_extreme_settings_are_allowed():
    huge = 10**400  # more than any float
    assert Sampling(top_k=huge, seed=huge).seed == huge
    assert StopState([], [], huge).tokens_left == huge
    Sampling(temperature=np.float32(0.5), top_k=np.int64(3), top_p=np.float64(1), seed=np.uint8(0))
    Sampling(temperature=0, top_k=0, top_p=0, min_p=1, repeat_penalty=5e-324, seed=0)


@pytest.mark.parametrize(
    "half", [Fraction(1, 2), np.float16(0.5), np.float32(0.5), np.longdouble(0.5)]
)
def test_any_kind_of_number_is_taken_and_kept_as_a_float(half: Any):
    settings = Sampling(half, 0, half, half, half, seed=1)
    assert settings == Sampling(0.5, 0, 0.5, 0.5, 0.5, seed=1)
    for value in (settings.temperature, settings.top_p, settings.min_p, settings.repeat_penalty):
        assert type(value) is float
    plain = Sampler(Sampling(0.5, 0, 0.5, 0.5, 0.5, seed=1))
    assert Sampler(settings).sample(LOGITS, [1]) == plain.sample(LOGITS, [1])


@pytest.mark.parametrize("name", ["temperature", "repeat_penalty"])
@pytest.mark.parametrize(
    "value", [10**400, 10**5000, Fraction(10**400), Fraction(10**400, 3)], ids="abcd"
)
def test_a_number_beyond_all_floats_is_refused(name: str, value: Any):
    with pytest.raises(InputError, match=rf"^{name} is .*\. It must fit into a float\.$") as caught:
        Sampling(**{name: value})
    assert len(str(caught.value)) < 700


def test_a_number_that_is_0_or_infinite_as_a_float_is_refused():
    with pytest.raises(InputError, match=r"^repeat_penalty is .*\. It must be a number, above 0"):
        Sampling(repeat_penalty=Fraction(1, 10**400))
    if np.finfo(np.longdouble).max > np.finfo(float).max:
        with pytest.raises(InputError, match=r"^temperature is inf"):
            Sampling(temperature=np.longdouble("1e4000"))


# ---------------------------------------------------------------- when to stop


@pytest.mark.parametrize("kind", [list, tuple, set, iter, dict.fromkeys])
def test_stop_strings_may_come_in_anything_that_is_iterated(kind: Any):
    stops = StopState(kind(["stop"]), [], 9)
    assert stops.stop_strings == ("stop",)
    assert StopState((word for word in ("a", "b")), iter([7]), 9).stop_strings == ("a", "b")
    assert StopState((), iter([7]), 9).stop_ids == {7}


@pytest.mark.parametrize("stop", [None, 5, 2.5, object])
def test_what_holds_no_stop_strings_is_refused(stop: Any):
    with pytest.raises(InputError, match=r"^stop is .*\. It must be a text or several, in a list"):
        StopState(stop, [], 9)
    with pytest.raises(InputError, match="is no stop string"):
        StopState(iter(["a", stop]), [], 9)


def shown(state: StopState, pieces: Sequence[str]) -> list[str]:
    """What becomes visible, piece by piece, and at the end."""
    visible = []
    for token, piece in enumerate(pieces):
        visible.append(state.push(token, piece))
        if state.finish_reason is not None:
            break
    return [*visible, state.flush("")]


def visible(pieces: Sequence[str], stops: Sequence[str], kind: Any = StopState) -> str:
    return "".join(shown(kind(stops, [], 1000), pieces))


def earliest_stop(text: str, stops: Sequence[str]) -> str:
    """The visible text: letter by letter, until a stop string is complete."""
    for end in range(1, len(text) + 1):
        complete = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(complete)]
    return text


def chunkings(text: str) -> list[list[str]]:
    """Every way to cut a text into pieces."""
    places = range(1, len(text))
    subsets = itertools.chain.from_iterable(
        itertools.combinations(places, n) for n in range(len(text))
    )
    cuts = [(0, *subset, len(text)) for subset in subsets]
    return [[text[a:b] for a, b in itertools.pairwise(cut)] for cut in cuts]


CASES = [  # text, stop strings, what is visible
    ("The quick brown fox", ["own fox"], "The quick br"),
    ("aaab", ["aab"], "a"),
    ("ABCDEFGHIJK", ["DEFGHIJ"], "ABC"),
    ("x own", ["own fox"], "x own"),
    ("a caf\u00e9\u2026 b", ["\u00e9\u2026"], "a caf"),
    ("\U0001f642\U0001f642!", ["\U0001f642!"], "\U0001f642"),
    ("say stopping", ["stop", "stopping"], "say "),
    ("say stopping", ["stopping", "stop"], "say "),
    ("say stoppage", ["stopping"], "say stoppage"),
    ("abcd", ["bcd", "c"], "ab"),  # the one that is complete first counts, not that begins first
    ("abcd", ["cd", "bcd"], "a"),  # both are complete at once: the longer one
    ("abab", ["abab", "ba"], "a"),
    ("one\ntwo\n\nthree", ["\n\n"], "one\ntwo"),
    ("stop", ["stop"], ""),
    ("", ["stop"], ""),
    ("nothing here", [], "nothing here"),
]


def check_stops(kind: Any) -> None:
    for text, stops, wanted in CASES:
        assert earliest_stop(text, stops) == wanted
        for pieces in ([text], list(text), [text[:3], text[3:5], text[5:]]):
            assert visible(pieces, stops, kind) == wanted, (pieces, stops)
    for pieces in chunkings("xaabaaab"):
        assert visible(pieces, ["aaab", "abb"], kind) == "xaab", pieces
        state = kind(["aaab"], [], 1000)
        so_far = ""
        for piece in shown(state, pieces):
            so_far += piece
            assert "xaab".startswith(so_far), "a part of the stop string was shown"


class HoldsNothing(StopState):
    def _release(self, text: str) -> str:
        shown, self.held = super()._release(text) + self.held, ""
        return shown


class LosesTheRest(StopState):
    def flush(self, text: str) -> str:
        return self._release(text)


class FirstListedWins(StopState):
    def _release(self, text: str) -> str:
        for stop in self.stop_strings:
            if stop in self.held + text:
                self.found_string, self.finish_reason = True, "stop"
                return (self.held + text).split(stop)[0]
        return super()._release(text)


class FirstToBeginWins(StopState):
    def _release(self, text: str) -> str:
        found = [i for stop in self.stop_strings if (i := (self.held + text).find(stop)) >= 0]
        if found:
            self.found_string, self.finish_reason = True, "stop"
            return (self.held + text)[: min(found)]
        return super()._release(text)


class HoldsTheLongestPrefixOnly(StopState):
    """Restarts the comparison after a mismatch, as a naive state machine does."""

    def _release(self, text: str) -> str:
        result = super()._release(text)
        if self.held and not any(stop.startswith(self.held[:2]) for stop in self.stop_strings):
            result, self.held = result + self.held, ""
        if self.held.startswith("aa"):
            result, self.held = result + "a", self.held[1:]
        return result


def test_stop_strings():
    check_stops(StopState)


@pytest.mark.parametrize(
    "wrong",
    [HoldsNothing, LosesTheRest, FirstListedWins, FirstToBeginWins, HoldsTheLongestPrefixOnly],
)
def test_wrong_stopping_is_noticed(wrong: Any):
    with pytest.raises(AssertionError):
        check_stops(wrong)


LETTERS = st.text("ab\u00e9", max_size=14)
STOPS = st.text("ab\u00e9", min_size=1, max_size=4)


def cut(text: str, places: set[int]) -> list[str]:
    ends = [0, *sorted(place for place in places if 0 < place < len(text)), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(ends)]


@given(LETTERS, STOPS, st.sets(st.integers(1, 13)))
def test_one_stop_string_splits_the_text(text: str, stop: str, places: set[int]):
    assert visible(cut(text, places), [stop]) == text.split(stop)[0]


@given(LETTERS, st.lists(STOPS, max_size=4), st.sets(st.integers(1, 13)))
def test_several_stop_strings_stop_at_the_first_complete_one(
    text: str, stops: list[str], places: set[int]
):
    assert visible(cut(text, places), stops) == earliest_stop(text, stops)


@given(LETTERS, st.lists(STOPS, min_size=1, max_size=3), st.sets(st.integers(1, 13)))
def test_no_more_is_held_than_might_be_a_stop(text: str, stops: list[str], places: set[int]):
    state = StopState(stops, [], 1000)
    seen = so_far = ""
    for token, piece in enumerate(cut(text, places)):
        seen += piece
        so_far += state.push(token, piece)
        if state.finish_reason:
            return
        starts = {stop[:n] for stop in stops for n in range(1, len(stop))}
        held = max((len(start) for start in starts if seen.endswith(start)), default=0)
        assert so_far == seen[: len(seen) - held]


def test_overlap():
    for text, stop in itertools.product(["", "a", "ab", "xab", "aab", "abab"], ["a", "ab", "abac"]):
        lengths = [n for n in range(1, len(stop)) if text.endswith(stop[:n])]
        assert overlap(text, stop) == max(lengths, default=0)


def test_held_text_appears_at_the_end():
    state = StopState(["own fox"], [], 2)
    assert [state.push(0, "br"), state.push(1, "own")] == ["br", ""]
    assert state.finish_reason == "length"
    assert state.flush("") == "own"


def test_the_last_text_may_complete_a_stop_string():
    state = StopState(["ab"], [], 5)
    assert state.push(0, "xa") == "x"
    assert state.flush("b and more") == ""
    assert state.finish_reason == "stop"
    assert state.flush("late") == ""


def test_a_stop_id_ends_it_without_its_text():
    state = StopState(["own"], [7, 9], 10)
    assert (state.push(1, "to"), state.finish_reason) == ("t", None)
    assert (state.push(9, "w"), state.finish_reason) == ("", "stop")
    assert state.flush("") == "o"


def test_limits_on_tokens():
    assert StopState([], [], 0).finish_reason == "length"
    one = StopState([], [], 1)
    assert one.finish_reason is None
    assert (one.push(3, "a"), one.finish_reason) == ("a", "length")
    by_id, by_string = StopState([], [3], 1), StopState(["a"], [], 1)
    assert (by_id.push(3, "a"), by_id.finish_reason) == ("", "stop")
    assert (by_string.push(3, "xa"), by_string.finish_reason) == ("x", "stop")


@pytest.mark.parametrize("stops", [[""], ["a", ""], [b"a"], [None], [3]])
def test_an_impossible_stop_string_is_refused(stops: list[Any]):
    with pytest.raises(InputError, match="is no stop string"):
        StopState(stops, [], 1)
