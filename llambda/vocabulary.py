"""A model's vocabulary out of its files: a GGUF's metadata, or a tokenizer.json.

Both must be byte-level BPE, the kind that GPT-2 began and Llama 3, SmolLM and Qwen use.
"""

import json
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from .bpe import LLAMA3, QWEN2, glyph_bytes
from .config import short
from .entries import (
    AGAIN,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    check_each,
    checked_flag,
    checked_id,
    checked_template,
    damaged,
    is_number,
    is_type,
    split_merge,
    string_list,
)
from .errors import ModelFileError, UnsupportedError
from .paths import file_error, read_json
from .tokenizer import Tokenizer

OTHERS = "Use a model with a byte-level BPE vocabulary, such as Llama 3 or SmolLM."
MAX_VOCAB = 1 << 24  # far above any model's; a file that claims more is broken

# Texts of control tokens that end an answer in the models of this family.
END_TEXTS = frozenset(
    "<|im_end|> <|endoftext|> <|eot_id|> <|eom_id|> <|end_of_text|> <|end|> </s>".split()
)


def _by_pattern(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


# GGUF's tokenizer.ggml.pre -> how text is cut into words before merging.
PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": lambda: _by_pattern(LLAMA3),
    "qwen2": lambda: _by_pattern(QWEN2),
}


def glyphs_to_bytes(token: str) -> bytes:
    """A vocabulary entry's bytes. An entry that is not spelled in byte glyphs is taken as text."""
    table = glyph_bytes()
    if all(glyph in table for glyph in token):
        return bytes(table[glyph] for glyph in token)
    return token.encode()


def from_gguf(metadata: dict[str, Any], where: Path) -> Tokenizer:
    """The tokenizer in a GGUF file's metadata. Raises ModelFileError or UnsupportedError."""
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise UnsupportedError(
            f"tokenizer.ggml.model = {model!r} is not supported",
            where=where,
            fix="Use a model with a byte-level BPE vocabulary (gpt2), such as Llama 3 or SmolLM.",
        )
    pre = metadata.get("tokenizer.ggml.pre")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise UnsupportedError(
            f"tokenizer.ggml.pre = {pre!r} is not supported",
            where=where,
            fix=f"Known are {', '.join(PRE_TOKENIZERS)}; a guess would give wrong tokens.",
        )
    tokens: list[str] = string_list(metadata, "tokenizer.ggml.tokens", where)
    types = metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    check_each(types, "tokenizer.ggml.token_type", is_type, "a token type from 1 to 6", where)
    scores = metadata.get("tokenizer.ggml.scores", [0.0] * len(tokens))  # of no use to BPE
    check_each(scores, "tokenizer.ggml.scores", is_number, "a number", where)
    for key, values in (("token_type", types), ("scores", scores)):
        if len(values) != len(tokens):
            raise ModelFileError(
                f"tokenizer.ggml.{key} does not fit the tokens: {len(values):,} entries "
                f"for {len(tokens):,}",
                where=where,
                fix=AGAIN,
            )
    merges = [split_merge(m, where) for m in string_list(metadata, "tokenizer.ggml.merges", where)]

    library = build_library(tokens, merges, pre, where)
    control = [i for i, kind in enumerate(types) if kind in (CONTROL, UNKNOWN)]
    added = [i for i, kind in enumerate(types) if kind == USER_DEFINED]
    library.add_special_tokens([AddedToken(tokens[i], normalized=False) for i in control])
    library.add_tokens([AddedToken(tokens[i], normalized=False) for i in added])

    def token_id(name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        return checked_id(metadata.get(key), len(tokens), key, where)

    def token_bytes(token: str, kind: int) -> bytes:
        if kind == UNUSED:  # a name that fills a spare row, such as [PAD7]
            return b""
        whole = kind in (CONTROL, UNKNOWN, USER_DEFINED)
        return token.encode() if whole else glyphs_to_bytes(token)

    bos, eos = token_id("bos"), token_id("eos")
    # Llama 3's files may leave add_bos_token out: llama.cpp takes their pre-tokenizer for a yes.
    adds_bos = checked_flag(metadata, "tokenizer.ggml.add_bos_token", pre == "llama-bpe", where)
    checked_flag(metadata, "tokenizer.ggml.add_eos_token", False, where)  # prompts are continued
    return Tokenizer(
        library,
        vocab=[token_bytes(token, kind) for token, kind in zip(tokens, types, strict=True)],
        special_ids=control,
        bos_id=bos,
        eos_id=eos,
        adds_bos=adds_bos and bos is not None,
        stop_ids={i for i in (eos, token_id("eot"), token_id("eom")) if i is not None}
        | {i for i in control if tokens[i] in END_TEXTS},
        chat_template=checked_template(metadata.get("tokenizer.chat_template"), where),
    )


def build_library(
    tokens: list[str], merges: list[tuple[str, str]], pre: str, where: Path
) -> tokenizers.Tokenizer:
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise damaged("tokenizer.ggml.tokens names a token twice", where)
    missing = {p for left, right in merges for p in (left, right, left + right)} - vocab.keys()
    if missing:
        what = f"{min(missing)!r}, of a merge, is out of vocabulary"
        raise damaged(f"the vocabulary does not fit together: {what}", where)
    try:
        bpe = models.BPE(vocab, merges, ignore_merges=pre == "llama-bpe")
    except Exception as error:  # the library raises bare Exceptions
        raise damaged(f"the vocabulary does not fit together: {error}", where) from error
    library = tokenizers.Tokenizer(bpe)
    library.pre_tokenizer = PRE_TOKENIZERS[pre]()
    if pre == "qwen2":
        library.normalizer = normalizers.NFC()
    return library


def from_json(path: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder, given its tokenizer.json.

    The other settings beside it, where they exist, name the special tokens, the ends of an answer
    and the chat template. What the post-processor puts in front of a text belongs to a prompt;
    what it puts behind does not, for a prompt is to be continued.
    """
    library = load_library(path)
    settings = path.with_name("tokenizer_config.json")
    config = read_json(settings, optional=True)
    for flag in ("add_bos_token", "add_eos_token"):  # the post-processor says what is done
        checked_flag(config, flag, False, settings)

    added = library.get_added_tokens_decoder()
    by_text = library.get_vocab(with_added_tokens=True)
    vocab = [b""] * (max(by_text.values(), default=-1) + 1)
    for text, i in by_text.items():
        vocab[i] = text.encode() if i in added else glyphs_to_bytes(text)
    special = {i for i, token in added.items() if token.special}

    def named(key: str) -> int | None:
        token = config.get(key)
        text = token.get("content") if isinstance(token, dict) else token
        if token is not None and not isinstance(text, str):
            raise ModelFileError(f"{key} = {short(token)} is no token", where=settings, fix=AGAIN)
        return None if text is None else by_text.get(text)

    front = prompt_start(library, path)
    eos = named("eos_token")
    stops = {eos, *find_ends(path, len(vocab))}
    return Tokenizer(
        library,
        vocab,
        special_ids=special,
        bos_id=front[0] if front else named("bos_token"),
        eos_id=eos,
        adds_bos=bool(front),
        stop_ids={i for i in stops if i is not None}
        | {i for i in special if vocab[i].decode() in END_TEXTS},
        chat_template=find_template(path, config),
    )


def load_library(path: Path) -> tokenizers.Tokenizer:
    """A tokenizer.json in the library, if it is byte-level BPE and holds together."""
    data = read_json(path)
    model = data.get("model")
    if not isinstance(model, dict):
        raise damaged("not a tokenizer: it has no model", path)
    kind = model.get("type", "BPE" if "merges" in model else None)  # old files do not say
    splitters = sorted(set(component_types(data.get("pre_tokenizer"))))
    if kind != "BPE" or "ByteLevel" not in splitters:
        raise UnsupportedError(
            f"a {kind!r} tokenizer that cuts text by {splitters} is not supported",
            where=path,
            fix=OTHERS,
        )
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise UnsupportedError(
                f"model.{key} = {short(model[key])} is not supported", where=path, fix=OTHERS
            )
    try:
        library = tokenizers.Tokenizer.from_str(json.dumps(data))
    except Exception as error:  # the library raises bare Exceptions
        raise damaged(f"not a usable tokenizer: {error}", path) from error
    library.no_truncation()  # the settings of whoever saved the file, not the model's
    library.no_padding()

    by_text = library.get_vocab(with_added_tokens=True)
    ids = set(by_text.values())
    if len(ids) < len(by_text) or max(ids, default=0) >= MAX_VOCAB:
        raise damaged("token ids are used twice or out of range", path)
    for token in data.get("added_tokens") or []:  # the library would renumber them
        if by_text.get(token["content"]) != token["id"]:
            raise damaged(f"added token {token['content']!r} cannot have id {token['id']}", path)
    return library


def prompt_start(library: tokenizers.Tokenizer, where: Path) -> list[int]:
    """The id that the post-processor puts in front of a text, if any."""
    try:
        encoding = library.encode("a", add_special_tokens=True)
    except BaseException as error:  # the library may panic, which is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        raise damaged(f"not a usable tokenizer: {error}", where) from error
    marked = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
    front = [i for i, mark in takewhile(lambda pair: pair[1], marked)]
    if len(front) > 1:
        raise UnsupportedError(
            f"prompts begin with {len(front)} special tokens", where=where, fix=OTHERS
        )
    return front


def find_ends(path: Path, size: int) -> list[int | None]:
    """Ends of an answer: those of generation_config.json, or where it is missing, config.json's."""
    file = path.with_name("generation_config.json")
    if not file.exists():
        file = path.with_name("config.json")
    ends = read_json(file, optional=True).get("eos_token_id")
    found = ends if isinstance(ends, list) else [ends]
    return [checked_id(i, size, "eos_token_id", file) for i in found]


def find_template(path: Path, config: dict[str, Any]) -> str | None:
    """The chat template: a file of its own in newer folders, a setting in older ones."""
    file = path.with_name("chat_template.jinja")
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except OSError as error:
            raise file_error(error, file) from error
        except UnicodeError as error:
            raise damaged(f"not UTF-8: {error}", file) from error
    template = config.get("chat_template")
    if isinstance(template, list):  # several named ones
        named = [t for t in template if isinstance(t, dict) and t.get("name") == "default"]
        template = named[0].get("template") if named else None
    return checked_template(template, path.with_name("tokenizer_config.json"))


def component_types(component: Any) -> Iterator[str]:
    """The `type` of a component of a tokenizer.json, and of those inside it."""
    if isinstance(component, dict):
        if isinstance(component.get("type"), str):
            yield component["type"]
        yield from component_types(list(component.values()))
    elif isinstance(component, list):
        for entry in component:
            yield from component_types(entry)
