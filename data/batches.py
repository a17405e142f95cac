"""From documents to training windows: the tokenizer, and which stretches of text are drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from corpus import BOS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

VOCAB = 1024
TOPIC_SHARE = 0.7  # of all windows; the topics are a quarter of the text
KINDS = (0.25, 0.4, 0.35)  # shares of windows at the start of a document, paragraph, sentence


def train_tokenizer(documents: list[str]) -> Tokenizer:
    """A byte-level BPE vocabulary of 1024: BOS, the 256 bytes, and 767 merges.

    The pre-tokenizer is SmolLM's, digits one by one and then GPT-2's splitting, so that a
    runtime that knows ``smollm`` splits text in the same way.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[BOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A $B:1",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    return tokenizer


@dataclass
class Source:
    """Documents as one row of token ids, each beginning with BOS, and where windows start."""

    ids: np.ndarray  # [N]
    opening: np.ndarray  # [N], the token instead if a window starts here: no space before it
    starts: tuple[np.ndarray, ...]  # positions where documents, paragraphs, sentences begin

    @classmethod
    def encode(cls, tokenizer: Tokenizer, documents: list[str]) -> Source:
        """Tokenize; the post-processor puts BOS in front of each document."""
        rows = [encoding.ids for encoding in tokenizer.encode_batch(documents)]
        ids = np.concatenate([np.array(row, dtype=np.int64) for row in rows])
        document = np.flatnonzero(ids[:-1] == 0) + 1

        tokens = [tokenizer.id_to_token(i) for i in range(VOCAB)]
        newline = tokenizer.token_to_id("Ċ")
        blank = np.array([token[0] in "ĊĠ" for token in tokens])
        gap = (ids[:-2] == newline) & (ids[1:-1] == newline)
        paragraph = np.flatnonzero(gap & ~blank[ids[2:]]) + 2

        # A sentence begins after a full stop with a space and a capital. The space is the
        # first letter of its token ("ĠThe"); a prompt has none, so the window opens with "The".
        stop = np.array([token.endswith(".") for token in tokens])
        capital = np.array([token[0] == "Ġ" and token[1:2].isupper() for token in tokens])
        bare = [tokenizer.token_to_id(token.removeprefix("Ġ") or token) for token in tokens]
        bare = np.array([i if b is None else b for i, b in enumerate(bare)])
        begins = stop[ids[:-1]] & capital[ids[1:]] & (bare[ids[1:]] != ids[1:])
        sentence = np.flatnonzero(begins) + 1

        opening = ids.copy()
        opening[sentence] = bare[ids[sentence]]
        return cls(ids, opening, (document, paragraph, sentence))


def draw_batch(
    sources: tuple[Source, Source], rows: int, window: int, seed: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """The training windows of one step: inputs and targets, each [rows, window].

    Every window is BOS followed by text from the start of a document, paragraph or
    sentence, because that is what the model meets when it is given a prompt. The random
    numbers depend on the seed and step alone, so a continued run draws the same windows.
    """
    random = np.random.default_rng(seed)
    targets = np.empty((rows, window), dtype=np.int64)
    for row in range(rows):
        source = sources[0] if random.random() < TOPIC_SHARE else sources[1]
        start = random.choice(source.starts[random.choice(len(KINDS), p=KINDS)])
        targets[row] = source.ids.take(np.arange(start, start + window), mode="wrap")
        targets[row, 0] = source.opening[start]
    inputs = np.concatenate((np.zeros((rows, 1), np.int64), targets[:, :-1]), axis=1)
    return torch.from_numpy(inputs), torch.from_numpy(targets)
