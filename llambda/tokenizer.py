"""Text <-> token ids, by the `tokenizers` library. Lesson 03.

Special tokens such as <|im_start|> are never parsed out of text unless asked for, because text may
come from a user; and the beginning-of-sequence token stands in front exactly once, where the
model wants it. `vocabulary.py` makes a Tokenizer out of a model's files.
"""

import codecs
from collections.abc import Iterable

import tokenizers

from .errors import InputError


class Tokenizer:
    """A model's vocabulary, and the ways between text and ids.

    vocab : the bytes that each id stands for; for a special token, its name
    special_ids : ids that are signals, not text
    bos_id, eos_id : beginning and end of a sequence, or None
    adds_bos : whether a prompt begins with bos_id unless told otherwise
    stop_ids : ids that end an answer
    chat_template : the model's own Jinja template, or None
    """

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        vocab: list[bytes],
        special_ids: Iterable[int],
        bos_id: int | None,
        eos_id: int | None,
        adds_bos: bool,
        stop_ids: Iterable[int],
        chat_template: str | None,
    ):
        self.vocab = vocab
        self.special_ids = frozenset(special_ids)
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.adds_bos = adds_bos
        self.stop_ids = frozenset(stop_ids)
        self.chat_template = chat_template
        self._parsing = library
        self._plain = tokenizers.Tokenizer.from_str(library.to_str())
        self._plain.encode_special_tokens = True

    def encode(
        self, text: str, parse_special: bool = False, add_bos: bool | None = None
    ) -> list[int]:
        """Token ids of the text.

        parse_special turns the names of special tokens into those tokens: for templates, never
        for text from a user. add_bos=None follows the model; the token is not doubled.
        """
        library = self._parsing if parse_special else self._plain
        try:
            ids: list[int] = library.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeError) as error:
            raise InputError(
                "the text is not valid Unicode", fix="Check its encoding; UTF-8 is expected."
            ) from error
        if self.adds_bos if add_bos is None else add_bos:
            if self.bos_id is None:
                raise InputError("this model has no beginning-of-sequence token to add")
            if ids[:1] != [self.bos_id]:
                return [self.bos_id, *ids]
        return ids

    def name_of(self, token: int | None) -> str:
        """A special token's name, as templates write it; empty for None."""
        return "" if token is None else self.vocab[token].decode("utf-8", "replace")

    def special_names(self) -> list[str]:
        """The names of all special tokens."""
        return sorted(self.name_of(token) for token in self.special_ids)

    def token_bytes(self, token: int, special: bool = False) -> bytes:
        """What one id adds to the text: special tokens nothing, unless they are asked for.

        Ids beyond the vocabulary (a model may have spare rows) are nothing too.
        """
        if not 0 <= token < len(self.vocab) or (token in self.special_ids and not special):
            return b""
        return self.vocab[token]

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """The text of the ids. Bytes that are not UTF-8 become U+FFFD."""
        data = b"".join(self.token_bytes(token, special) for token in ids)
        return data.decode("utf-8", "replace")

    def stream(self, special: bool = False) -> "TextStream":
        return TextStream(self, special)


class TextStream:
    """Decodes ids one at a time: no piece ever shows half a character.

    All pieces and the flush together are exactly what `Tokenizer.decode` gives for all ids.
    """

    def __init__(self, tokenizer: Tokenizer, special: bool = False):
        self.tokenizer = tokenizer
        self.special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that this id completes; empty while a character is unfinished."""
        return self._decoder.decode(self.tokenizer.token_bytes(token, self.special))

    def flush(self) -> str:
        """The end: an unfinished character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)
