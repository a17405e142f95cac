"""Small byte-level BPE tokenizers, made with the `tokenizers` library alone.

Nothing of llambda is used here: each pre-tokenizer is put together from the library's own parts,
the way the published tokenizer.json of GPT-2, SmolLM, Llama 3 and Qwen 2 has it.
"""

import argparse
import fractions
import inspect
import json
import random
import textwrap
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

LLAMA3 = (
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)
QWEN2 = (
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)
KINDS = ("gpt-2", "smollm", "llama-bpe", "qwen2")

BOS, EOS, IM_START, IM_END = "<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (BOS, EOS, IM_START, IM_END)
ADDED = ("ilÖveyou", "    ")  # plain text, though one token

# ---------------------------------------------------------------- texts

PIECES = [
    *("a", "b", "The", "word", "DON", "don", "x_y", "Äpfel", "straße", "日本語", "한국어", "ไทย"),
    *("'s", "'S", "'t", "'T", "'re", "'Re", "'VE", "'m", "'LL", "'ll", "'lL", "'D", "'", "''"),
    *("\u02bcs", "\u2019s", "'\u017f", "\u0149", "\ufb01", "\u0130", "ß"),
    *("1", "23", "4567", "½", "Ⅷ", "²", "٣", "४", "０", "〇", "𝟙", "\u00bc\u2460"),
    *(" ", "  ", "   ", "\t", "\n", "\n\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85"),
    *("\u00a0", "\u1680", "\u180e", "\u200b", "\u2028", "\u2029", "\u202f", "\u3000", "\ufeff"),
    *(
        "👩\u200d💻",
        "🇨🇭",
        "❤\ufe0f",
        "👍🏽",
        "🙂",
        "e\u0301",
        "o\u0323\u0308",
        "\u0301",
        "\u1112\u1161",
    ),
    *(
        "\x00",
        "\x04",
        "\x7f",
        "\u00ad",
        "\ue000",
        "\U000f0000",
        "\U0010fffd",
        "\U0010ffff",
        "\ufffd",
    ),
    *("\u0378", "\u2fe0", "\U000e0080", "\U0003ffff", "\U0001f9ff"),
    *("+", "-", "?!", "...", "==", "\\", "/*", "<|", "|>", "<", ">", "#", "·", "€", "«"),
]


def ranges(text: str) -> frozenset[int]:
    """'41-43 7A' -> {0x41, 0x42, 0x43, 0x7A}"""
    parts = (part.split("-") for part in text.split())
    return frozenset(c for part in parts for c in range(int(part[0], 16), int(part[-1], 16) + 1))


# Letters and numbers that Unicode 17 and 18 added. The `regex` module (Unicode 18) knows them,
# the library's oniguruma (Unicode 16) none of them and its Rust (Unicode 17) some, so that they
# are cut differently. test_bpe.py checks that no other character is.
YOUNG_LETTERS = ranges(
    "0558 058B-058C 088F 0C5C 0CDC 208F 209D-209F A7CE-A7CF A7D2 A7D4 A7DD A7E2 A7F1 AB6C-AB6D "
    "107BB-107BF 10940-10959 10EC5-10EC7 10ED9-10EEE 11B0A 11DB0-11DDB 11DF1 16EA0-16EB8 "
    "16EBB-16ED3 16FF2-16FF3 187F8-187FF 18CD6-18CDA 18D09-18D20 18D80-18DF2 18E00-19191 "
    "191A0-191D2 1B123-1B128 1B168 1D6A6 1DF1F-1DF24 1DF2B-1DF81 1DF90-1DF96 1DFCD-1DFFF "
    "1E6C0-1E6DE 1E6E0-1E6E2 1E6E4-1E6E5 1E6E7-1E6ED 1E6F0-1E6F4 1E6FE-1E6FF 2B73A-2B73F 2B81E "
    "2CEA2-2CEAD 323B0-33479 3D000-3FC3F"
)
YOUNG_NUMBERS = ranges("11DE0-11DE9 1246F 12475-1247F 12550-12686 16FF4-16FF6")
WITHOUT_YOUNG = dict.fromkeys(YOUNG_LETTERS | YOUNG_NUMBERS, "~")

any_text = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=20).map("".join),
    st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=["Cs"])).map("".join),
).map(lambda text: text.translate(WITHOUT_YOUNG))


@cache
def fixed_texts() -> tuple[str, ...]:
    """Documentation, source code, long words and shuffled oddities: the same on every run."""
    rng = random.Random(0)
    shuffled = ("".join(rng.choices(PIECES, k=200)) for _ in range(20))
    documents = [topics[name] for name in sorted(topics)[:12]]
    sources = [inspect.getsource(module) for module in (argparse, fractions)]
    long = ["a", "ab", "é", "🙂", "1", "½", " ", "\n", " \n", "\t ", "\r\n", "'s", "\u0301", "!?"]
    return ("", *shuffled, *documents, *sources, *(piece * 3000 for piece in long))


# ---------------------------------------------------------------- tokenizers


def pre_tokenizer(kind: str) -> pre_tokenizers.PreTokenizer:
    """How text is cut before merging, by GGUF's name for it."""
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
    if kind == "gpt-2":
        return gpt2
    if kind == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    pattern = {"llama-bpe": LLAMA3, "qwen2": QWEN2}[kind]
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
        ]
    )


def finish(library: Tokenizer, kind: str) -> Tokenizer:
    """Give a bare model everything around it."""
    library.pre_tokenizer = pre_tokenizer(kind)
    library.decoder = decoders.ByteLevel()
    if kind == "qwen2":
        library.normalizer = normalizers.NFC()
    return library


@cache
def trained_json(kind: str) -> str:
    library = finish(Tokenizer(models.BPE(ignore_merges=kind == "llama-bpe")), kind)
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = [inspect.getsource(textwrap), *(topics[name] for name in sorted(topics)[12:20])]
    library.train_from_iterator([*text, " ".join(PIECES) * 3, "3333 + 777 = 4110 " * 9], trainer)
    return library.to_str()


def trained(kind: str) -> Tokenizer:
    """A tokenizer learned from a little text: all bytes, some merges, nothing special."""
    return Tokenizer.from_str(trained_json(kind))


def with_special(kind: str) -> Tokenizer:
    """The same with special tokens, and two added tokens that are plain text."""
    library = trained(kind)
    library.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL])
    library.add_tokens([AddedToken(name, normalized=False) for name in ADDED])
    return library


def assembled(
    tokens: list[str],
    merges: list[tuple[str, str]],
    kind: str = "gpt-2",
    ignore_merges: bool = False,
) -> Tokenizer:
    """A tokenizer from a vocabulary and merges given by hand."""
    vocab = {token: i for i, token in enumerate(tokens)}
    return finish(Tokenizer(models.BPE(vocab, merges, ignore_merges=ignore_merges)), kind)


def alphabet() -> list[str]:
    """The 256 characters that stand for bytes, in the library's order."""
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def tokens_and_merges(library: Tokenizer) -> tuple[list[str], list[tuple[str, str]]]:
    """What a byte-level BPE is made of, out of its JSON; added tokens are left out."""
    model = json.loads(library.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tokens, [(left, right) for left, right in model["merges"]]


# ---------------------------------------------------------------- files


def gguf_metadata(library: Tokenizer, kind: str, **changes: Any) -> dict[str, Any]:
    """The metadata that a GGUF file holds for this tokenizer; a change of None removes a key."""
    tokens, merges = tokens_and_merges(library)
    added = library.get_added_tokens_decoder()
    tokens += [added[i].content for i in sorted(added) if added[i].content not in tokens]
    types = [1] * len(tokens)
    for i, token in added.items():
        types[i] = 3 if token.special else 4
    metadata = {
        "model": "gpt2",
        "pre": kind,
        "tokens": tokens,
        "token_type": types,
        "merges": [" ".join(pair) for pair in merges],
        **{
            f"{name}_token_id": library.token_to_id(text)
            for name, text in (("bos", BOS), ("eos", EOS))
            if text in tokens
        },
        **changes,
    }
    return {f"tokenizer.ggml.{k}": v for k, v in metadata.items() if v is not None}


def write_folder(folder: Path, tokenizer: Tokenizer | dict[str, Any], **files: Any) -> Path:
    """A Hugging Face folder with this tokenizer; returns the path of tokenizer.json.

    files : config, tokenizer_config, generation_config as objects; a string is written as it is
    """
    folder.mkdir(exist_ok=True)
    data = json.loads(tokenizer.to_str()) if isinstance(tokenizer, Tokenizer) else tokenizer
    for name, content in {"tokenizer": data, **files}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return folder / "tokenizer.json"
