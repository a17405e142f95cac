"""Stand-ins whose every step is known, and a small random model in a file.

The engine answers what a script says, the tokenizer spells what it is told to, so that what a
generation makes of them can be said exactly. The file is written by the `gguf` package.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers

from llambda.engines.base import Engine, State, Trace, check_call
from llambda.generate import Generation
from llambda.sampling import Sampling
from llambda.tokenizer import Tokenizer

Answer = Callable[[list[int]], np.ndarray]  # all ids so far -> logits [vocab_size]

GREEDY = Sampling(temperature=0)

# ---------------------------------------------------------------- stand-ins


class ScriptedEngine(Engine):
    """An engine whose logits are a function of the ids so far; it keeps a record of its calls."""

    name = "scripted"

    def __init__(self, answer: Answer, vocab_size: int, threads: int = 3):
        self.answer = answer
        self.config: Any = SimpleNamespace(vocab_size=vocab_size, context_length=10**6)
        self.threads = threads
        self.calls: list[tuple[int, list[int]]] = []  # (position, ids)

    @staticmethod
    def weight_bytes(weights: Any) -> int:
        return 0

    def new_state(self, context: int) -> State:
        return State(self, context)

    def forward(
        self,
        state: State,
        ids: Sequence[int],
        all_logits: bool = False,
        trace: Trace | None = None,
    ) -> np.ndarray:
        check_call(self, state, ids)
        assert not all_logits and trace is None
        self.calls.append((state.length, list(ids)))
        logits = self.answer([*state.ids, *ids])
        state.ids += ids
        return logits


def saying(tokens: Sequence[int], vocab_size: int, prompt_tokens: int = 1) -> Answer:
    """Logits that say these tokens, one after the other; the last one over and over."""

    def answer(ids: list[int]) -> np.ndarray:
        logits = np.zeros(vocab_size, np.float32)
        logits[tokens[min(len(ids) - prompt_tokens, len(tokens) - 1)]] = 9
        return logits

    return answer


def spelling(
    vocab: Iterable[str | bytes], special_ids: Iterable[int] = (), stop_ids: Iterable[int] = ()
) -> Tokenizer:
    """A tokenizer whose token i is vocab[i]."""
    library = tokenizers.Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    texts = [text.encode() if isinstance(text, str) else text for text in vocab]
    return Tokenizer(
        library,
        texts,
        special_ids=special_ids,
        bos_id=None,
        eos_id=None,
        adds_bos=False,
        stop_ids=stop_ids,
        chat_template=None,
    )


def scripted(
    vocab: Sequence[str | bytes],
    tokens: Sequence[int],
    *,
    prompt: Sequence[int] = (0,),
    stop_ids: Iterable[int] = (),
    special_ids: Iterable[int] = (),
    sampling: Sampling = GREEDY,
    max_tokens: int | None = None,
    stop: Sequence[str] = (),
    context: int = 1000,
    **more: Any,
) -> Generation:
    """A generation that draws exactly these tokens, as many as there are unless told otherwise."""
    engine = ScriptedEngine(saying(tokens, len(vocab), len(prompt)), len(vocab))
    limit = len(tokens) if max_tokens is None else max_tokens
    tokenizer = spelling(vocab, special_ids, stop_ids)
    return Generation(engine, tokenizer, prompt, sampling, limit, stop, context, **more)


# ---------------------------------------------------------------- a small model in a file

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
GLYPHS = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("o", "n")]
TOKENS = [END, START, STOP, *GLYPHS, *("".join(pair) for pair in MERGES)]
SPARE = 3  # rows of the embedding that no token has
SIZES = {
    "context_length": 64,
    "embedding_length": 16,
    "block_count": 2,
    "feed_forward_length": 20,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 6,
    "attention.value_length": 6,
    "rope.dimension_count": 6,
    "vocab_size": len(TOKENS) + SPARE,
}
NORM_EPS = 1e-5


def small_tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights: heads * head_dim is not the width, and there are fewer k and v heads."""
    source = np.random.default_rng(seed)
    dim, ffn, q, kv, rows = 16, 20, 24, 12, SIZES["vocab_size"]
    matrices = {"attn_q": (q, dim), "attn_k": (kv, dim), "attn_v": (kv, dim)}
    matrices |= {"attn_output": (dim, q)}
    matrices |= {"ffn_gate": (ffn, dim), "ffn_up": (ffn, dim), "ffn_down": (dim, ffn)}

    def matrix(shape: tuple[int, int]) -> np.ndarray:
        return source.normal(0, 1.5 / shape[1] ** 0.5, shape).astype(np.float32)

    def norm() -> np.ndarray:
        return source.uniform(0.5, 1.5, dim).astype(np.float32)

    tensors = {"token_embd.weight": matrix((rows, dim)), "output_norm.weight": norm()}
    tensors["output.weight"] = matrix((rows, dim))
    for i in range(2):
        layer = {name: matrix(shape) for name, shape in matrices.items()}
        layer |= {"attn_norm": norm(), "ffn_norm": norm()}
        tensors |= {f"blk.{i}.{name}.weight": array for name, array in layer.items()}
    return tensors


def write_small(
    path: Path,
    *,
    architecture: str = "llama",
    sizes: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
    kinds: dict[str, gguf.GGMLQuantizationType] | None = None,
    extra: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> Path:
    """The small model as a GGUF file. `kinds` replaces tensors by zeros of that storage type."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("small")
    for key, size in (SIZES | (sizes or {})).items():
        writer.add_uint32(f"{architecture}.{key}", size)
    writer.add_layer_norm_rms_eps(NORM_EPS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    control = gguf.TokenType.CONTROL
    normal = gguf.TokenType.NORMAL
    writer.add_token_types([control if t in (END, START, STOP) else normal for t in TOKENS])
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_eos_token_id(TOKENS.index(END))
    extra(writer)
    for name, array in (small_tensors() if tensors is None else tensors).items():
        if kind := (kinds or {}).get(name):
            block, nbytes = gguf.GGML_QUANT_SIZES[kind]
            rows = np.zeros((array.shape[0], -(-array.shape[1] // block) * nbytes), np.uint8)
            writer.add_tensor(name, rows, raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
