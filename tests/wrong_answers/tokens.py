"""What learners answer in lesson 03, and a phrase that the explanation must hold."""

import codecs
import heapq
from itertools import pairwise

# ---------------------------------------------------------------- 03.1


def takes_the_longest(word, ranks):
    out, start = [], 0
    while start < len(word):
        end = len(word)
        while end > start + 1 and word[start:end] not in ranks:
            end -= 1
        out.append(word[start:end])
        start = end
    return out


def takes_the_first(word, ranks):
    out = list(word)
    at = 0
    while at + 1 < len(out):
        if out[at] + out[at + 1] in ranks:
            out[at] += out.pop(at + 1)
            at = 0
        else:
            at += 1
    return out


def overlaps(word, ranks):
    out = list(word)
    while True:
        joined = [a + b for a, b in pairwise(out)]
        known = [piece for piece in joined if piece in ranks]
        if not known:
            return out
        best = min(known, key=ranks.get)
        new, used_last = [], False
        for i, piece in enumerate(joined):
            if piece == best:
                new.append(piece)
                used_last = True
            else:
                if not used_last:
                    new.append(out[i])
                used_last = False
        out = new if used_last else [*new, out[-1]]


def drops_the_neighbour(word, ranks):
    out = list(word)
    while True:
        known = [a + b for a, b in pairwise(out) if a + b in ranks]
        if not known:
            return out
        best = min(known, key=lambda piece: ranks[piece])
        at = next(i for i in range(len(out)) if out[i] + out[i + 1] == best)
        out = [*out[:at], best, *out[at + 3 :]]


def from_the_right(word, ranks):
    out = list(word)
    while True:
        best = None
        for i in range(len(out) - 1, 0, -1):
            rank = ranks.get(out[i - 1] + out[i])
            if rank is not None and (best is None or rank < best[0]):
                best = rank, i
        if best is None:
            return out
        out[best[1] - 1] += out.pop(best[1])


def youngest_first(word, ranks):
    out = list(word)
    while True:
        known = {i: ranks[a + b] for i, (a, b) in enumerate(pairwise(out))
                 if a + b in ranks}  # fmt: skip
        if not known:
            return out
        at = max(known, key=known.get)
        out[at] += out.pop(at + 1)


def looks_up_pairs(word, ranks):
    out = list(word)
    while True:
        known = [i for i in range(len(out) - 1) if (out[i], out[i + 1]) in ranks]
        if not known:
            return out
        out[known[0]] += out.pop(known[0] + 1)


def zero_is_none(word, ranks):
    out = list(word)
    while True:
        known = [(rank, i) for i, (a, b) in enumerate(pairwise(out)) if (rank := ranks.get(a + b))]
        if not known:
            return out
        _, at = min(known)
        out[at] += out.pop(at + 1)


def one_merge(word, ranks):
    out = list(word)
    known = [(ranks[a + b], i) for i, (a, b) in enumerate(pairwise(out))
             if a + b in ranks]  # fmt: skip
    if known:
        at = min(known)[1]
        out[at] += out.pop(at + 1)
    return out


def merges_all_at_once(word, ranks):
    """As GPT-2's own code does it: the best piece is made wherever it can be, then look again."""
    out = list(word)
    while True:
        known = [a + b for a, b in pairwise(out) if a + b in ranks]
        if not known:
            return out
        out = make_everywhere(out, min(known, key=ranks.get))


def make_everywhere(pieces, best):
    new, at = [], 0
    while at < len(pieces):
        if "".join(pieces[at : at + 2]) == best and pieces[at] != best:
            new.append(best)
            at += 2
        else:
            new.append(pieces[at])
            at += 1
    return new


def goes_through_the_ranks_once(word, ranks):
    out = list(word)
    for piece in sorted(ranks, key=ranks.get):
        out = make_everywhere(out, piece)
    return out


def best_by(key):
    def merge(word, ranks):
        out = list(word)
        while True:
            known = [(key(a + b, ranks), i) for i, (a, b) in enumerate(pairwise(out))
                     if a + b in ranks]  # fmt: skip
            if not known:
                return out
            _, at = min(known)
            out[at] += out.pop(at + 1)

    return merge


equals_by_alphabet = best_by(lambda piece, ranks: (ranks[piece], piece))
equals_by_table = best_by(lambda piece, ranks: (ranks[piece], list(ranks).index(piece)))
equals_by_length = best_by(lambda piece, ranks: (ranks[piece], -len(piece)))


def stops_at_a_thousand(word, ranks):
    out = list(word)
    while True:
        best, at = 1000, None
        for i in range(len(out) - 1):
            rank = ranks.get(out[i] + out[i + 1], 1000)
            if rank < best:
                best, at = rank, i
        if at is None:
            return out
        out[at] += out.pop(at + 1)


def looks_for_the_first_piece(word, ranks):
    out = list(word)
    while True:
        known = [(ranks[a + b], a) for a, b in pairwise(out) if a + b in ranks]
        if not known:
            return out
        at = out.index(min(known, key=lambda pair: pair[0])[1])
        out[at : at + 2] = ["".join(out[at : at + 2])]


def keeps_old_neighbours(word, ranks):
    """A linked list and a heap; what stands behind a merge is not told its new left neighbour."""
    pieces, heap = list(word), []
    right, left = list(range(1, len(word) + 1)), list(range(-1, len(word) - 1))

    def offer(i):
        if i >= 0 and right[i] < len(pieces):
            a, b = pieces[i], pieces[right[i]]
            if a + b in ranks:
                heapq.heappush(heap, (ranks[a + b], i, a, b))

    for i in range(len(word)):
        offer(i)
    while heap:
        _, i, a, b = heapq.heappop(heap)
        j = right[i]
        if pieces[i] == a and j < len(pieces) and pieces[j] == b:
            pieces[i], pieces[j], right[i] = a + b, "", right[j]
            offer(i)
            offer(left[i])
    return [piece for piece in pieces if piece]


def replaces_in_a_text(word, ranks):
    text = " ".join(word)
    while True:
        out = text.split()
        known = [(ranks[a + b], i) for i, (a, b) in enumerate(pairwise(out)) if a + b in ranks]
        if not known:
            return out
        _, at = min(known)
        text = text.replace(f"{out[at]} {out[at + 1]}", out[at] + out[at + 1], 1)


# ---------------------------------------------------------------- 03.2


class AtOnce:
    def push(self, data):
        return data.decode("utf-8", errors="replace")

    def flush(self):
        return ""


class AllOrNothing:
    """Holds everything back while the last character is unfinished."""

    def __init__(self):
        self.buffer = b""

    def push(self, data):
        self.buffer += data
        try:
            text = self.buffer.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                return ""
            text = self.buffer.decode(errors="replace")
        self.buffer = b""
        return text

    def flush(self):
        return self.buffer.decode(errors="replace")


class FirstErrorOnly(AllOrNothing):
    """Looks at the first broken place only, and so shows a good beginning behind it too early."""

    def push(self, data):
        self.buffer += data
        end = len(self.buffer)
        try:
            self.buffer.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                end = error.start
        text, self.buffer = self.buffer[:end].decode(errors="replace"), self.buffer[end:]
        return text


class HoldsAnyBadEnd:
    """Waits for up to three bytes at the end, even if they can never become a character."""

    def __init__(self):
        self.buffer = b""

    def push(self, data):
        self.buffer += data
        for end in range(len(self.buffer), max(len(self.buffer) - 4, -1), -1):
            try:
                text = self.buffer[:end].decode()
            except UnicodeDecodeError:
                continue
            self.buffer = self.buffer[end:]
            return text
        return self.flush()

    def flush(self):
        text, self.buffer = self.buffer.decode(errors="replace"), b""
        return text


class EatsTheNext(HoldsAnyBadEnd):
    """Takes one byte at a time, and throws the one that breaks a character in with it."""

    def push(self, data):
        text = ""
        for byte in data:
            self.buffer += bytes([byte])
            try:
                text += self.buffer.decode()
                self.buffer = b""
            except UnicodeDecodeError as error:
                if error.reason != "unexpected end of data":
                    text += self.flush()
        return text


def unfinished(held, length):
    """How many bytes at the end wait; `length` of a first byte, 0 for what is none."""
    for n in range(1, min(4, len(held)) + 1):
        first = held[-n]
        if not 0x80 <= first < 0xC0 or length(first):
            return n if n < length(first) else 0
    return 0


class ByTable(HoldsAnyBadEnd):
    """The right one, whose table and whose continuing bytes may be wrong."""

    def push(self, data):
        self.buffer += data
        end = len(self.buffer) - unfinished(self.buffer, self.length)
        text, self.buffer = self.buffer[:end].decode(errors="replace"), self.buffer[end:]
        return text

    def length(self, first):
        if first < 0xC0 or first >= 0xF8:
            return 0
        return 2 + (first >= 0xE0) + (first >= 0xF0)


class MoreThanE0(ByTable):
    def length(self, first):
        return 2 if first == 0xE0 else super().length(first)


class OnlyC3(ByTable):
    """Made for German and French."""

    def length(self, first):
        return super().length(first) if first == 0xC3 or first >= 0xE0 else 0


class UpToEE(ByTable):
    def length(self, first):
        return 4 if first == 0xEF else super().length(first)


class UpToDE(ByTable):
    def length(self, first):
        return 3 if first == 0xDF else super().length(first)


class OnlyF0(ByTable):
    def length(self, first):
        return 0 if first > 0xF0 else super().length(first)


class Rfc2279(ByTable):
    """The UTF-8 of 1998, with characters of five and six bytes."""

    def length(self, first):
        return super().length(first) or (0xF8 <= first < 0xFC) * 5 or (0xFC <= first < 0xFE) * 6


class WaitsBehind0x80(ByTable):
    """Continuing bytes are taken to begin behind 0x80."""

    def push(self, data):
        if data == b"\x80" and not self.buffer:
            self.buffer = data
            return ""
        return super().push(data)


class DelContinues(ByTable):
    """0x7F is not counted as a character of one byte."""

    def push(self, data):
        if self.buffer == b"\xe2" and data == b"\x7f":
            self.buffer += data
            return ""
        return super().push(data)


class OneForAll(ByTable):
    def flush(self):
        text, self.buffer = "\ufffd" if self.buffer else "", b""
        return text


class OneForEach(ByTable):
    def flush(self):
        text, self.buffer = "\ufffd" * len(self.buffer), b""
        return text


class GivesBytes(ByTable):
    def push(self, data):
        return super().push(data).encode()


class FlushGivesBytes(ByTable):
    def flush(self):
        return super().flush().encode()


class Yields(ByTable):
    def push(self, data):
        yield super().push(data)


class WaitsForCleanText:
    def __init__(self):
        self.buffer = b""

    def push(self, data):
        self.buffer += data
        try:
            text = self.buffer.decode()
        except UnicodeDecodeError:
            return ""
        self.buffer = b""
        return text

    def flush(self):
        return self.buffer.decode(errors="replace")


class NoFlush:
    def __init__(self):
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, data):
        return self.decoder.decode(data)


class FlushForgets(NoFlush):
    def flush(self):
        return ""


class FlushDrops(NoFlush):
    def flush(self):
        self.decoder.reset()


class Strict(NoFlush):
    def __init__(self):
        self.decoder = codecs.getincrementaldecoder("utf-8")()

    def flush(self):
        return self.decoder.decode(b"", True)


class Ignores(Strict):
    def __init__(self):
        self.decoder = codecs.getincrementaldecoder("utf-8")("ignore")


class SaysNone(Strict):
    def __init__(self):
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, data):
        return self.decoder.decode(data) or None


class Shared:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, data):
        return self.decoder.decode(data)

    def flush(self):
        return self.decoder.decode(b"", True)


# ---------------------------------------------------------------- 03.3

RIGHT = {"A": "bos twice", "B": "special from text", "C": "digits", "D": "lost space"}

WRONG = {
    "03.1": [
        ("longest match", takes_the_longest, "longest match"),
        ("leftmost pair", takes_the_first, "leftmost pair"),
        ("overlap in aaaaa", overlaps, "overlap"),
        ("a neighbour is lost", drops_the_neighbour, "lost or doubled"),
        ("the last among equals", from_the_right, "the last one is taken"),
        ("highest rank", youngest_first, "highest rank goes first"),
        ("pairs looked up", looks_up_pairs, "not (a, b)"),
        ("rank 0 is false", zero_is_none, "rank 0 is passed over"),
        ("one merge only", one_merge, "only one merge"),
        ("all at once", merges_all_at_once, "wherever it can be, all at once"),
        ("one way through the ranks", goes_through_the_ranks_once, "gone through once"),
        ("equals by alphabet", equals_by_alphabet, "the alphabet decides"),
        ("equals by the table", equals_by_table, "stands first in ranks"),
        ("equals by length", equals_by_length, "the longer one"),
        ("ranks end at 1000", stops_at_a_thousand, "a high rank"),
        ("place of the first piece", looks_for_the_first_piece, "first of its two pieces"),
        ("neighbours forgotten", keeps_old_neighbours, "on its left and on its right"),
        ("replaced in a text", replaces_in_a_text, "end of a longer piece"),
        ("no function", ["a", "bc"], "a function is wanted"),
    ],
    "03.2": [
        ("replacement at once", AtOnce, "too early: the last bytes"),
        ("the first error only", FirstErrorOnly, "too early behind a stray byte"),
        ("all or nothing", AllOrNothing, "too much is held back"),
        ("a bad end held", HoldsAnyBadEnd, "U+FFFD too late"),
        ("the next beginning eaten", EatsTheNext, "may begin the next"),
        ("waits for clean text", WaitsForCleanText, "stalls"),
        ("flush is not there", NoFlush, "flush is missing"),
        ("flush gives nothing", FlushForgets, "no flush of the end"),
        ("flush gives None", FlushDrops, "no flush: it returns None"),
        ("an error for a stray byte", Strict, "UnicodeDecodeError"),
        ("a stray byte ignored", Ignores, "was dropped"),
        ("None for no text", SaysNone, "an empty string"),
        ("state in the class", Shared, "share"),
        ("more than 0xE0", MoreThanE0, "0xe0 begins a character of 3"),
        ("only 0xC3", OnlyC3, "0xc2 begins a character of 2"),
        ("up to 0xEE", UpToEE, "0xef begins a character of 3"),
        ("up to 0xDE", UpToDE, "0xdf begins a character of 2"),
        ("only 0xF0", OnlyF0, "0xf1 begins a character of 4"),
        ("0x7F continues", DelContinues, "0x7f is a character by itself"),
        ("five bytes", Rfc2279, "0xf8 begins no character"),
        ("0x80 alone waits", WaitsBehind0x80, "0x80 begins no character"),
        ("one U+FFFD for all", OneForAll, "flush makes one U+FFFD of all"),
        ("one U+FFFD a byte", OneForEach, "one U+FFFD of every byte"),
        ("push gives bytes", GivesBytes, "push returns bytes"),
        ("flush gives bytes", FlushGivesBytes, "flush returns bytes"),
        ("push yields", Yields, "push returns generator"),
        ("a function", lambda data: data.decode(), "a class is wanted"),
    ],
    "03.3": [
        ("special blamed for double BOS", {**RIGHT, "A": "special from text"}, "A: the text does"),
        ("double BOS blamed for special", {**RIGHT, "B": "bos twice"}, "B: read the text again"),
        ("digits seen as right", {**RIGHT, "C": "nothing"}, "C: not all is well"),
        ("digits seen as lost space", {**RIGHT, "C": "lost space"}, "C: decode the pieces"),
        ("lost space seen as right", {**RIGHT, "D": "nothing"}, "D: not all is well"),
        ("lost space seen as digits", {**RIGHT, "D": "digits"}, "D: there is not a digit"),
        ("BOS blamed for a lost space", {**RIGHT, "D": "bos twice"}, "D: look at the beginning"),
        ("one missing", {key: RIGHT[key] for key in "ABC"}, "D is missing"),
        ("one open", {**RIGHT, "B": ...}, "no answer yet for B"),
        ("another word", {**RIGHT, "A": "BOS"}, "choose one of"),
    ],
}
