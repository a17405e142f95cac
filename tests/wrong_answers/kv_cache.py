"""What learners answer in lesson 06, and a phrase that the explanation must hold."""

import numpy as np

from llambda.course.exercises.kv_cache import turn
from llambda.kernels.attention import attention, softmax


def store(buffer, rows, start):
    for i, row in enumerate(rows):
        buffer[:, start + i] = row


def rope_restarts(q, k, v, start, keys, values):
    store(keys, turn(k, 0), start)
    store(values, v, start)
    end = start + len(q)
    return attention(turn(q, 0), keys[:, :end], values[:, :end], start)


def keys_restart(q, k, v, start, keys, values):
    store(keys, turn(k, 0), start)
    store(values, v, start)
    end = start + len(q)
    return attention(turn(q, start), keys[:, :end], values[:, :end], start)


def queries_restart(q, k, v, start, keys, values):
    store(keys, turn(k, start), start)
    store(values, v, start)
    end = start + len(q)
    return attention(turn(q, 0), keys[:, :end], values[:, :end], start)


def mask_without_offset(q, k, v, start, keys, values):
    """A mask by hand: row i sees the keys up to i."""
    store(keys, turn(k, start), start)
    store(values, v, start)
    q, rows = turn(q, start), np.empty_like(q)
    for i in range(len(q)):
        for head in range(q.shape[1]):
            kv = head // 2
            shares = softmax(keys[kv, : i + 1] @ q[i, head] / np.float32(np.sqrt(8)))
            rows[i, head] = shares @ values[kv, : i + 1]
    return rows


def start_forgotten(q, k, v, start, keys, values):
    store(keys, turn(k, 0), start)
    store(values, v, start)
    end = start + len(q)
    return attention(turn(q, 0), keys[:, :end], values[:, :end], 0)


def twice_on_reading(q, k, v, start, keys, values):
    store(keys, turn(k, start), start)
    store(values, v, start)
    end = start + len(q)
    old = np.array([turn(keys[:, [p]].swapaxes(0, 1), p)[0] for p in range(end)])
    return attention(turn(q, start), old.swapaxes(0, 1), values[:, :end], start)


def twice_in_the_buffer(q, k, v, start, keys, values):
    store(keys, k, start)
    store(values, v, start)
    end = start + len(q)
    for p in range(end):
        keys[:, p] = turn(keys[None, :, p], p)[0]
    return attention(turn(q, start), keys[:, :end], values[:, :end], start)


def only_itself(q, k, v, start, keys, values):
    return attention(turn(q, start), turn(k, start).swapaxes(0, 1), v.swapaxes(0, 1), 0)


def only_itself_from_start(q, k, v, start, keys, values):
    store(keys, turn(k, start), start)
    store(values, v, start)
    end = start + len(q)
    return attention(turn(q, start), keys[:, start:end], values[:, start:end], start)


def reshapes(q, k, v, start, keys, values):
    end = start + len(q)
    keys[:, start:end] = turn(k, start).reshape(2, len(q), 8)
    values[:, start:end] = v.reshape(2, len(q), 8)
    return attention(turn(q, start), keys[:, :end], values[:, :end], start)


def axes_as_they_are(q, k, v, start, keys, values):
    end = start + len(q)
    keys[:, start:end] = turn(k, start)
    values[:, start:end] = v
    return attention(turn(q, start), keys[:, :end], values[:, :end], start)


def keeps_nothing(q, k, v, start, keys, values):
    all_keys = np.concatenate([keys[:, :start], turn(k, start).swapaxes(0, 1)], axis=1)
    all_values = np.concatenate([values[:, :start], v.swapaxes(0, 1)], axis=1)
    return attention(turn(q, start), all_keys, all_values, start)


def no_mask(q, k, v, start, keys, values):
    store(keys, turn(k, start), start)
    store(values, v, start)
    end = start + len(q)
    return attention(turn(q, start), keys[:, :end], values[:, :end], 1000)


def moved_on(q, k, v, start, keys, values):
    store(keys, turn(k, start + len(k)), start)
    store(values, v, start)
    end = start + len(q)
    return attention(turn(q, end), keys[:, :end], values[:, :end], start)


def keys_not_turned(q, k, v, start, keys, values):
    store(keys, k, start)
    store(values, v, start)
    end = start + len(q)
    return attention(turn(q, start), keys[:, :end], values[:, :end], start)


def queries_not_turned(q, k, v, start, keys, values):
    store(keys, turn(k, start), start)
    store(values, v, start)
    end = start + len(q)
    return attention(q, keys[:, :end], values[:, :end], start)


def no_rope(q, k, v, start, keys, values):
    store(keys, k, start)
    store(values, v, start)
    end = start + len(q)
    return attention(q, keys[:, :end], values[:, :end], start)


def values_turned(q, k, v, start, keys, values):
    store(keys, turn(k, start), start)
    store(values, turn(v, start), start)
    end = start + len(q)
    return attention(turn(q, start), keys[:, :end], values[:, :end], start)


def keeps_it_elsewhere():
    """A list of all keys and values so far, emptied when a text begins."""
    past = []

    def attend(q, k, v, start, keys, values):
        if start == 0:
            past.clear()
        past.append((turn(k, start), v))
        all_keys, all_values = map(np.concatenate, zip(*past, strict=True))
        return attention(turn(q, start), all_keys.swapaxes(0, 1), all_values.swapaxes(0, 1), start)

    return attend


def squeezes(q, k, v, start, keys, values):
    """The rows of a single id without their first axis."""
    store(keys, turn(k, start), start)
    store(values, v, start)
    end = start + len(q)
    return attention(turn(q, start), keys[:, :end], values[:, :end], start).squeeze()


def one_late(q, k, v, start, keys, values):
    """Some other mistake: the rows land one position too far."""
    store(keys, turn(k, start), start + 1)
    store(values, v, start + 1)
    end = start + len(q)
    return attention(turn(q, start), keys[:, :end], values[:, :end], start)


def returns_nothing(q, k, v, start, keys, values):
    store(keys, turn(k, start), start)
    store(values, v, start)


def evaluates_what_is_left(engine, state, ids):
    common = 0
    while common < min(state.length, len(ids)) and state.ids[common] == ids[common]:
        common += 1
    state.truncate(common)
    return engine.forward(state, ids[common:])


def returns_old_logits(engine, state, ids):
    if state.ids[: len(ids)] == ids:
        state.truncate(len(ids))
        return np.zeros(27, np.float32)  # whatever is left from before
    return never_cuts(engine, state, ids)


def never_cuts(engine, state, ids):
    common = 0
    while common < min(state.length, len(ids) - 1) and state.ids[common] == ids[common]:
        common += 1
    return engine.forward(state, ids[common:])


def compares_lengths(engine, state, ids):
    state.truncate(min(state.length, len(ids) - 1))
    return engine.forward(state, ids[state.length :])


def makes_its_own_state(engine, state, ids):
    return engine.forward(engine.new_state(16), ids)


def begins_anew(engine, state, ids):
    state.truncate(0)
    return engine.forward(state, ids)


def reuses_whole_prefixes_only(engine, state, ids):
    whole = state.ids == ids[: state.length] and state.length < len(ids)
    state.truncate(state.length if whole else 0)
    return engine.forward(state, ids[state.length :])


def prefix(fits, state, ids):
    """How many ids are kept, while fits(what is held, what is asked for, place)."""
    common = 0
    while common < min(state.length, len(ids) - 1) and fits(state.ids, ids, common):
        common += 1
    return common


def reuse_where(fits, logits=lambda engine, state, ids: engine.forward(state, ids)):
    def reuse(engine, state, ids):
        common = prefix(fits, state, ids)
        state.truncate(common)
        return logits(engine, state, ids[common:])

    return reuse


def equal(held, ids, i):
    return held[i] == ids[i]


def somewhere(held, ids, i):
    return ids[i] in held


def found_at(held, ids, i):
    return ids[i] in held and held.index(ids[i]) == i


def all_logits(engine, state, ids):
    return engine.forward(state, ids, all_logits=True)


def logits_before_the_last(engine, state, ids):
    return engine.forward(state, ids, all_logits=True)[0]


def writes_ids(engine, state, ids):
    state.truncate(0)
    state.ids.extend(ids[:-1])
    return engine.forward(state, ids[-1:])


def takes_ids_off(engine, state, ids):
    common = 0
    while common < state.length and len(ids) > 1 and state.ids[common] == ids[0]:
        ids.pop(0)
        common += 1
    state.truncate(common)
    return engine.forward(state, ids)


def sets_ids(engine, state, ids):
    logits = reuse_where(equal)(engine, state, ids)
    state.ids = ids
    return logits


def gives_no_logits(engine, state, ids):
    state.truncate(0)
    engine.forward(state, ids)


WRONG = {
    "06.1": [
        ("RoPE restarts", rope_restarts, "by that angle. In calls"),
        ("RoPE of the keys restarts", keys_restart, "(Here it is the keys.)"),
        ("RoPE of the queries restarts", queries_restart, "(Here it is the queries.)"),
        ("mask without offset", mask_without_offset, "the mask has no offset"),
        ("start forgotten", start_forgotten, "forgotten twice"),
        ("rotated twice, on reading", twice_on_reading, "again when they are read"),
        ("rotated twice, in the buffer", twice_in_the_buffer, "the whole buffer again"),
        ("the past is not read", only_itself, "looks only at itself"),
        ("the past is not read, mask from start", only_itself_from_start, "from position 0 on"),
        ("heads reshaped to the front", reshapes, "a reshape mixes"),
        ("axes as they are", axes_as_they_are, "swap the two axes"),
        ("nothing is kept", keeps_nothing, "nothing is kept"),
        ("no mask", no_mask, "nothing is masked"),
        ("position moved on too early", moved_on, "has moved on before"),
        ("keys not turned", keys_not_turned, "the keys are not"),
        ("queries not turned", queries_not_turned, "the queries are not"),
        ("no RoPE", no_rope, "nothing is rotated"),
        ("values turned", values_turned, "values are rotated"),
        ("something else", one_late, "needed three times"),
        ("nothing returned", returns_nothing, "not None"),
        ("kept elsewhere", keeps_it_elsewhere(), "two texts that take turns"),
        ("an axis lost", squeezes, "not shape [4, 8]"),
    ],
    "06.2": [
        ("query heads", 138_240, "has only 3 heads"),
        ("V forgotten", 23_040, "values are forgotten"),
        ("query heads and V forgotten", 69_120, "only one of keys and values"),
        ("numbers for bytes", 11_520, "each takes four bytes"),
        ("one layer", 1_536, "one layer"),
        ("bits", 368_640, "bits"),
        ("kilobytes", 46.08, "in kilobytes"),
        ("KiB", 45, "in KiB"),
        ("rounded", 46_500, "a rounded figure"),
    ],
    "06.3": [
        ("nothing evaluated", evaluates_what_is_left, "no id is left"),
        ("nothing evaluated, old logits", returns_old_logits, "nothing is evaluated"),
        ("length not cut", never_cuts, "length is not cut"),
        ("lengths for ids", compares_lengths, "taken for a new one"),
        ("a state of its own", makes_its_own_state, "the given state now holds"),
        ("no reuse", begins_anew, "ABCDE was evaluated"),
        ("reuse of whole prefixes only", reuses_whole_prefixes_only, "but ABC was evaluated"),
        ("nothing returned", gives_no_logits, "nothing is returned"),
        ("ids that are held somewhere", reuse_where(somewhere), "in another order"),
        ("the first place of an id", reuse_where(found_at), "but AC was evaluated"),
        ("all logits", reuse_where(equal, all_logits), "logits after every id"),
        ("the first logits", reuse_where(equal, logits_before_the_last), "are not the logits"),
        ("ids written, not evaluated", writes_ids, "where DE is new"),
        ("ids taken off the list", takes_ids_off, "belongs to the caller"),
        ("the caller's list kept", sets_ids, "the very list"),
    ],
}
