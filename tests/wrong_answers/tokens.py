"""What learners answer in lesson 03, and a phrase that the explanation must hold."""

import codecs
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
        ("the last among equals", from_the_right, "The leftmost goes first"),
        ("highest rank", youngest_first, "highest rank goes first"),
        ("pairs looked up", looks_up_pairs, "not (a, b)"),
        ("rank 0 is false", zero_is_none, "rank 0 is passed over"),
        ("one merge only", one_merge, "only one merge"),
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
