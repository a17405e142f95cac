"""What learners answer in lesson 05, and a phrase that the explanation must hold."""

import re

import numpy as np

# ---------------------------------------------------------------- 05.1


def loses_the_crossing_token(probabilities, p):
    kept, total = np.zeros(len(probabilities)), 0.0
    for token in sorted(range(len(probabilities)), key=lambda t: -probabilities[t]):
        total += probabilities[token]
        if total > p:
            break
        kept[token] = probabilities[token]
    return kept / kept.sum()


def loses_the_crossing_token_but_never_all(probabilities, p):
    order = np.argsort(probabilities)[::-1]
    keep = np.cumsum(probabilities[order]) <= p
    keep[0] = True
    kept = np.zeros_like(probabilities)
    kept[order[keep]] = probabilities[order[keep]]
    return kept / kept.sum()


def does_not_sort(probabilities, p):
    kept, total = np.zeros(len(probabilities)), 0.0
    for token, probability in enumerate(probabilities):
        kept[token] = probability
        total += probability
        if total >= p:
            break
    return kept / kept.sum()


def sorts_the_wrong_way(probabilities, p):
    kept, total = np.zeros(len(probabilities)), 0.0
    for token in np.argsort(probabilities, kind="stable"):
        kept[token] = probabilities[token]
        total += probabilities[token]
        if total >= p:
            break
    return kept / kept.sum()


def empty_at_zero(probabilities, p):
    kept, total = np.zeros(len(probabilities)), 0.0
    for token in sorted(range(len(probabilities)), key=lambda t: -probabilities[t]):
        if total >= p:
            break
        kept[token] = probabilities[token]
        total += probabilities[token]
    return kept / kept.sum()


def one_too_many(probabilities, p):
    order = np.argsort(-probabilities, kind="stable")
    kept, total = [], 0.0
    for token in order:
        kept.append(token)
        total += probabilities[token]
        if total > p:
            break
    result = np.zeros_like(probabilities)
    result[kept] = probabilities[kept]
    return result / result.sum()


def right_top_p(probabilities, p):
    result = not_renormalized(probabilities, p)
    return result / result.sum()


def not_renormalized(probabilities, p):
    result, total = np.zeros(len(probabilities)), 0.0
    for token in sorted(range(len(probabilities)), key=lambda t: -probabilities[t]):
        result[token] = probabilities[token]
        total += probabilities[token]
        if total >= p:
            return result
    return result


def not_put_back(probabilities, p):
    ranked = np.sort(probabilities)[::-1]
    ranked[np.searchsorted(np.cumsum(ranked), p) + 1 :] = 0
    return ranked / ranked.sum()


def each_token_alone(probabilities, p):
    kept = np.where(probabilities >= p, probabilities, 0)
    return kept / kept.sum()


def highest_of_equals(probabilities, p):
    return right_top_p(probabilities[::-1], p)[::-1]


def all_equals(probabilities, p):
    ranked = np.sort(probabilities)[::-1]
    last = ranked[np.searchsorted(np.cumsum(ranked), p)]
    kept = np.where(probabilities >= last, probabilities, 0)
    return kept / kept.sum()


def any_of_equals(probabilities, p):
    order = np.argsort(-probabilities)
    kept = order[: np.searchsorted(np.cumsum(probabilities[order]), p) + 1]
    result = np.zeros_like(probabilities)
    result[kept] = probabilities[kept]
    return result / result.sum()


def cuts_in_place(probabilities, p):
    probabilities[right_top_p(probabilities, p) == 0] = 0
    return probabilities / probabilities.sum()


def nothing_to_do_at_one(probabilities, p):
    return probabilities if p >= 1 else right_top_p(probabilities, p)


def ids_only(probabilities, p):
    return list(np.flatnonzero(right_top_p(probabilities, p)))


# ---------------------------------------------------------------- 05.2


def holds_nothing(pieces, stop):
    shown, text = [], ""
    for piece in pieces:
        before, text = text, text + piece
        if stop in text:
            shown.append(text[: text.index(stop)][len(before) :])
            break
        shown.append(piece)
    return shown + [""] * (len(pieces) + 1 - len(shown))


def each_piece_alone(pieces, stop):
    shown = []
    for piece in pieces:
        if stop in piece:
            shown.append(piece.split(stop)[0])
            break
        shown.append(piece)
    return shown + [""] * (len(pieces) + 1 - len(shown))


def begins_anew(pieces, stop):
    """Letter by letter, and after a letter that does not fit from the stop string's first."""
    shown, fits, over = [], 0, False
    for piece in pieces:
        out = ""
        for letter in piece:
            if over:
                continue
            if letter == stop[fits]:
                fits += 1
                over = fits == len(stop)
            else:
                out += stop[:fits] + letter
                fits = 0
        shown.append(out)
    return [*shown, "" if over else stop[:fits]]


def up_to_the_last(pieces, stop):
    shown, held, over = [], "", False
    for piece in pieces:
        text = "" if over else held + piece
        over = over or stop in text
        if over:
            shown.append(text[: text.rfind(stop)] if stop in text else "")
            held = ""
            continue
        keep = max(n for n in range(len(stop)) if text.endswith(stop[:n]))
        shown.append(text[: len(text) - keep])
        held = text[len(text) - keep :]
    return [*shown, held]


def with_mistake(at_the_end=True, with_stop=False, before=True, goes_on=False):
    """A right answer, but for what is asked for."""

    def show_pieces(pieces, stop):
        shown, held = [], ""
        for number, piece in enumerate(pieces, 1):
            text = held + piece
            if stop in text:
                head, tail = text.split(stop, 1)
                shown.append((head if before else "") + (stop if with_stop else ""))
                if goes_on:
                    return [*shown[:-1], head + tail, *pieces[number:], ""]
                return shown + [""] * (len(pieces) + 1 - len(shown))
            keep = 0
            for n in range(1, len(stop)):
                if text.endswith(stop[:n]):
                    keep = n
            held = text[len(text) - keep :]
            shown.append(text[: len(text) - keep])
        return [*shown, held if at_the_end else ""]

    return show_pieces


def always_holds_as_much(pieces, stop):
    shown, held = [], ""
    for piece in pieces:
        text = held + piece
        if stop in text:
            shown.append(text.split(stop)[0])
            return shown + [""] * (len(pieces) + 1 - len(shown))
        cut = max(0, len(text) - len(stop) + 1)
        shown.append(text[:cut])
        held = text[cut:]
    return [*shown, held]


def end_of(text, stop):
    """How much of the text's end may belong to a stop string."""
    return max(n for n in range(len(stop)) if text.endswith(stop[:n]))


def loses_what_is_disproved(pieces, stop):
    shown, held = [], ""
    for piece in pieces:
        text = held + piece
        if stop in text:
            shown.append(text.split(stop)[0])
            return shown + [""] * (len(pieces) + 1 - len(shown))
        keep = end_of(text, stop)
        shown.append(text[:-keep] if keep else piece)
        held = text[-keep:] if keep else ""
    return [*shown, held]


def piece_alone_first(with_held):
    """Searches the piece, and held text and piece together only if nothing is found."""

    def show_pieces(pieces, stop):
        shown, held = [], ""
        for piece in pieces:
            text = held + piece
            if stop in piece:
                shown.append((held if with_held else "") + piece.split(stop)[0])
            elif stop in text:
                shown.append(text.split(stop)[0])
            else:
                keep = end_of(text, stop)
                shown.append(text[: len(text) - keep])
                held = text[len(text) - keep :]
                continue
            return shown + [""] * (len(pieces) + 1 - len(shown))
        return [*shown, held]

    return show_pieces


def as_a_pattern(pieces, stop):
    shown, held = [], ""
    for piece in pieces:
        text = held + piece
        if found := re.search(stop, text):
            shown.append(text[: found.start()])
            return shown + [""] * (len(pieces) + 1 - len(shown))
        keep = end_of(text, stop)
        shown.append(text[: len(text) - keep])
        held = text[len(text) - keep :]
    return [*shown, held]


def skips_empty_pieces(pieces, stop):
    return with_mistake()([piece for piece in pieces if piece], stop)


def one_text(pieces, stop):
    return "".join(pieces).split(stop)[0]


def nothing_for_the_end(pieces, stop):
    return with_mistake()(pieces, stop)[:-1]


# ---------------------------------------------------------------- 05.4

RIGHT_CAUSES = {
    "nightly test": "unset",
    "two visitors": "shared",
    "two programs": "order",
    "two machines": "last bits",
}

WRONG = {
    "05.1": [
        ("crossing token lost", loses_the_crossing_token, "crosses p is lost"),
        ("crossing lost, never all", loses_the_crossing_token_but_never_all, "is not enough"),
        ("unsorted", does_not_sort, "unsorted"),
        ("sorted upwards", sorts_the_wrong_way, "least probable"),
        ("p = 0 empty", empty_at_zero, "p = 0 leaves nothing"),
        ("one too many", one_too_many, "one token too many"),
        ("not renormalized", not_renormalized, "no longer add up to 1"),
        ("each token alone", each_token_alone, "by itself"),
        ("in sorted order", not_put_back, "place of its id"),
        ("the highest of equals", highest_of_equals, "highest id"),
        ("all equals", all_equals, "as probable as the last one needed"),
        ("any of equals", any_of_equals, "kind='stable'. Of np.array"),
        ("in place", cuts_in_place, "is changed, and whoever called"),
        ("the same array", nothing_to_do_at_one, "the very array"),
        ("ids", ids_only, "an array of 3 probabilities is wanted"),
        ("no function", 0.9, "not callable"),
    ],
    "05.2": [
        ("prefix leaked", holds_nothing, "before it is complete"),
        ("tail lost", with_mistake(at_the_end=False), "the tail is lost"),
        ("each piece alone", each_piece_alone, "spread over several pieces"),
        ("begins anew", begins_anew, "still open"),
        ("the stop string shown", with_mistake(with_stop=True), "itself is shown"),
        ("text before it lost", with_mistake(before=False), "text before the stop string is lost"),
        ("up to the last", up_to_the_last, "at the last stop string"),
        ("goes on", with_mistake(goes_on=True), "stands after the stop string"),
        ("always holds as much", always_holds_as_much, "too late"),
        ("lost when disproved", loses_what_is_disproved, "When the next piece disproves it"),
        ("lost before the stop", piece_alone_first(False), "does not begin in it"),
        ("the piece alone first", piece_alone_first(True), "the new piece is searched alone"),
        ("a pattern", as_a_pattern, "text and no pattern"),
        ("empty pieces skipped", skips_empty_pieces, "An empty piece is a piece as well"),
        ("one text", one_text, "a list of strings is wanted"),
        ("nothing for the end", nothing_for_the_end, "one for the end. show_pieces"),
    ],
    "05.3": [
        ("each position once", 110, "each position once"),
        ("100 x 100", 10_000, "equally long"),
        ("one too many in each row", 6050, "one too many in each row"),
        ("one row too many", 6060, "one step too many"),
        ("all as long as the last", 11_000, "as long as the text in the end"),
        ("the prompt only", 1000, "the new tokens are forgotten"),
        ("without the prompt", 5050, "the prompt is forgotten"),
        ("the prompt token by token", 5995, "in one call"),
        ("n²/2 and the prompt", 6000, "half of 100 times 100. They add"),
        ("n²/2", 5000, "is an estimate"),
        ("off by a little", 5951, "a count comes out exactly"),
    ],
    "05.4": [
        ("seed 0 not seen", RIGHT_CAUSES | {"nightly test": "last bits"}, "What is special"),
        ("seed 0 blamed for a shared rng", RIGHT_CAUSES | {"two visitors": "unset"}, "is used"),
        ("continued for shared", RIGHT_CAUSES | {"two visitors": "continued"}, "take turns"),
        ("bits for shared", RIGHT_CAUSES | {"two visitors": "last bits"}, "themselves differ"),
        ("bits for order", RIGHT_CAUSES | {"two programs": "last bits"}, "logits are the same"),
        ("shared for bits", RIGHT_CAUSES | {"two machines": "shared"}, "random numbers are the"),
        ("order for bits", RIGHT_CAUSES | {"two machines": "order"}, "before token 212"),
    ],
}
