"""A model's vocabulary out of its files: a GGUF's metadata, or a tokenizer.json.

Both must be byte-level BPE, the kind that GPT-2 began and Llama 3, SmolLM and Qwen use.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from .bpe import LLAMA3, QWEN2, glyph_bytes
from .errors import ModelFileError, UnsupportedError
from .paths import read_json
from .tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # GGUF's token types

# Texts of control tokens that end an answer in the models of this family.
END_TEXTS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|end|>",
        "</s>",
    }
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
    if pre not in PRE_TOKENIZERS:
        raise UnsupportedError(
            f"tokenizer.ggml.pre = {pre!r} is not supported",
            where=where,
            fix=f"Known are {', '.join(PRE_TOKENIZERS)}; a guess would give wrong tokens.",
        )
    tokens: list[str] = string_list(metadata, "tokenizer.ggml.tokens", where)
    types = metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise ModelFileError("tokenizer.ggml.token_type does not fit the tokens", where=where)
    merges = [split_merge(m, where) for m in string_list(metadata, "tokenizer.ggml.merges", where)]

    library = build_library(tokens, merges, pre, where)
    control = [i for i, kind in enumerate(types) if kind in (CONTROL, UNKNOWN)]
    added = [i for i, kind in enumerate(types) if kind == USER_DEFINED]
    library.add_special_tokens([AddedToken(tokens[i], normalized=False) for i in control])
    library.add_tokens([AddedToken(tokens[i], normalized=False) for i in added])

    def token_id(name: str) -> int | None:
        value = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if value is not None and not (isinstance(value, int) and 0 <= value < len(tokens)):
            raise ModelFileError(f"{name}_token_id = {value!r} is no token", where=where)
        return value

    bos, eos = token_id("bos"), token_id("eos")
    whole = {*control, *added}
    return Tokenizer(
        library,
        vocab=[t.encode() if i in whole else glyphs_to_bytes(t) for i, t in enumerate(tokens)],
        special_ids=control,
        bos_id=bos,
        eos_id=eos,
        adds_bos=bos is not None and bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        stop_ids={i for i in (eos, token_id("eot"), token_id("eom")) if i is not None}
        | {i for i in control if tokens[i] in END_TEXTS},
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def string_list(metadata: dict[str, Any], key: str, where: Path) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise ModelFileError(f"{key} is missing or not a list of strings", where=where)
    return value


def split_merge(merge: str, where: Path) -> tuple[str, str]:
    """'a b' -> ('a', 'b')"""
    left, blank, right = merge.partition(" ")
    if not (left and blank and right) or " " in right:
        raise ModelFileError(f"{merge!r} in tokenizer.ggml.merges is not a pair", where=where)
    return left, right


def build_library(
    tokens: list[str], merges: list[tuple[str, str]], pre: str, where: Path
) -> tokenizers.Tokenizer:
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ModelFileError("tokenizer.ggml.tokens names a token twice", where=where)
    try:
        bpe = models.BPE(vocab, merges, ignore_merges=pre == "llama-bpe")
    except Exception as error:  # the library raises bare Exceptions
        raise ModelFileError(
            f"the vocabulary does not fit together: {error}", where=where
        ) from error
    library = tokenizers.Tokenizer(bpe)
    library.pre_tokenizer = PRE_TOKENIZERS[pre]()
    if pre == "qwen2":
        library.normalizer = normalizers.NFC()
    return library


def from_json(path: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder, given its tokenizer.json.

    tokenizer_config.json and generation_config.json beside it, where they exist, name the special
    tokens, the ends of an answer and the chat template.
    """
    data = read_json(path)
    kinds = set(component_types(data))
    model = data.get("model", {}).get("type")
    if model != "BPE" or "ByteLevel" not in kinds:
        raise UnsupportedError(
            f"a {model!r} tokenizer made of {', '.join(sorted(kinds))} is not supported",
            where=path,
            fix="Use a model with a byte-level BPE vocabulary, such as Llama 3 or SmolLM.",
        )
    try:
        library = tokenizers.Tokenizer.from_str(json.dumps(data))
    except Exception as error:  # the library raises bare Exceptions
        raise ModelFileError(f"not a usable tokenizer: {error}", where=path) from error
    config = read_json(path.with_name("tokenizer_config.json"), optional=True)
    generation = read_json(path.with_name("generation_config.json"), optional=True)
    added = library.get_added_tokens_decoder()
    by_text = library.get_vocab(with_added_tokens=True)
    vocab = [b""] * (max(by_text.values(), default=-1) + 1)
    for text, i in by_text.items():
        vocab[i] = text.encode() if i in added else glyphs_to_bytes(text)
    special = {i for i, token in added.items() if token.special}

    def named(key: str) -> int | None:
        token = config.get(key)
        return by_text.get(token["content"] if isinstance(token, dict) else str(token))

    first = library.encode("", add_special_tokens=True).ids[:1]  # what the post-processor adds
    bos = first[0] if first else named("bos_token")
    eos = named("eos_token")
    ends = generation.get("eos_token_id", [])
    return Tokenizer(
        library,
        vocab,
        special_ids=special,
        bos_id=bos,
        eos_id=eos,
        adds_bos=bool(first),
        stop_ids={i for i in (eos, *(ends if isinstance(ends, list) else [ends])) if i is not None}
        | {i for i in special if vocab[i].decode() in END_TEXTS},
        chat_template=find_template(path, config),
    )


def find_template(path: Path, config: dict[str, Any]) -> str | None:
    """The chat template: a file of its own in newer folders, a setting in older ones."""
    file = path.with_name("chat_template.jinja")
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several named ones
        template = next((t["template"] for t in template if t.get("name") == "default"), None)
    return template


def component_types(data: Any) -> Iterator[str]:
    """The `type` of every component of a tokenizer.json but the vocabulary's own entries."""
    if isinstance(data, dict):
        if isinstance(data.get("type"), str):
            yield data["type"]
        for key, value in data.items():
            if key not in ("vocab", "merges", "added_tokens"):
                yield from component_types(value)
    elif isinstance(data, list):
        for entry in data:
            yield from component_types(entry)
