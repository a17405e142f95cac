"""load(): a name or a file -> a Model that generates."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from . import chat, modelfile
from .batching import MAX_RUNNING, PROMPT_TOKENS, Batch
from .cache import cache_bytes, check_positions
from .config import ModelConfig
from .engines import RUNGS, rung
from .engines.base import Engine, State, check_ids
from .errors import (
    ContextError,
    FileAccessError,
    InputError,
    ResourceError,
    UnsupportedError,
    quoted,
)
from .eventlog import EventLog
from .fetch import KNOWN
from .generate import Generation
from .machine import available_memory, default_threads
from .paths import data_dir, file_error
from .quants import DECODED
from .sampling import Sampling
from .tensor import Tensor
from .tensorfile import TensorFile, TensorInfo
from .threads import check_threads
from .tokenizer import Tokenizer
from .weights import Weights

DEFAULT_CONTEXT = 4096  # positions, or the model's own context if that is shorter
DEFAULT_MAX_TOKENS = 64


class Model:
    """A loaded model: its config, its tokenizer, an engine, and the weights as stored.

    Any number of Python threads may share one. Use it as a context manager, or call `close()`.
    """

    def __init__(
        self,
        file: TensorFile,
        config: ModelConfig,
        tokenizer: Tokenizer,
        engine: Engine,
        context: int,
        load_s: float,
    ):
        self.config = config
        self.tokenizer = tokenizer
        self.engine = engine
        self.context = context
        self.load_s = load_s
        self._file = file
        self._open = True

    @property
    def weights(self) -> Weights[Tensor]:
        """As stored, read out of the file anew each time: the engine has its own."""
        self._check_open()
        return modelfile.read_weights(self._file, self.config)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        temperature: float = Sampling.temperature,
        top_k: int = Sampling.top_k,
        top_p: float = Sampling.top_p,
        min_p: float = Sampling.min_p,
        repeat_penalty: float = Sampling.repeat_penalty,
        seed: int | None = None,
        stop: Sequence[str] = (),
        parse_special: bool = False,
        log: EventLog | None = None,
        state: State | None = None,
    ) -> Generation:
        """Continue a prompt, given as text or as token ids. See `Sampling` for the settings.

        parse_special lets the text name special tokens: only for text that is not a user's. A
        state that holds the beginning of the prompt already saves evaluating it again.
        Raises InputError or ContextError; the work itself is done as the Generation is read.
        """
        self._check_open()
        ids = self.tokenizer.encode(prompt, parse_special) if isinstance(prompt, str) else prompt
        sampling = Sampling(temperature, top_k, top_p, min_p, repeat_penalty, seed)
        return Generation(
            self.engine,
            self.tokenizer,
            ids,
            sampling,
            max_tokens,
            stop,
            self.context,
            self.load_s,
            log,
            state,
        )

    def chat(self, messages: Sequence[chat.Message], **settings: Any) -> Generation:
        """Answer the last of some messages, {"role": ..., "content": ...}, by the model's template.

        Takes the settings of `generate`. Special tokens come from the template alone.
        """
        return self.generate(chat.encode(self.tokenizer, messages), **settings)

    def batch(
        self,
        max_running: int = MAX_RUNNING,
        prompt_tokens: int = PROMPT_TOKENS,
        log: EventLog | None = None,
    ) -> Batch:
        """Room for answers that are made together; see `Batch`."""
        self._check_open()
        return Batch(self.engine, self.tokenizer, self.context, max_running, prompt_tokens, log)

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits after each of the ids: float32 [n, vocab_size]."""
        self._check_open()
        ids = check_ids(ids, self.config.vocab_size)
        state = self.engine.new_state(min(max(len(ids), 1), self.context))
        return self.engine.forward(state, ids, all_logits=True)

    def close(self) -> None:
        """Let go of the file and the threads. Harmless when called twice."""
        self._open = False
        self.engine.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if not self._open:
            raise InputError("the model was closed", fix="Load it again.")


def load(
    source: str | Path,
    engine: str | None = None,
    threads: int | None = None,
    context: int | None = None,
    cache: str = "f32",
) -> Model:
    """Load a model.

    Parameters
    ----------
    source : "tiny", the name of a fetched model ("smollm2"), the path of a .gguf file or
        of a Hugging Face folder
    engine : a rung's name; None is the best there is
    threads : None is the physical cores this process may use
    context : positions to have room for; None is the model's own, 4096 at most
    cache : the numbers that keys and values are kept as: "f32", or where an engine has it "f16",
        which halves the memory

    Raises a kind of LlambdaError that says what is wrong and what to do.
    """
    begin = time.perf_counter()
    kind = rung(engine)
    check_cache(kind, cache)
    threads = chosen_threads(threads)
    path = resolve(source)
    file = modelfile.open(path)
    try:
        config, tokenizer, found = understand(file)
        context = check_context(config, context)
        check_memory(kind.weight_bytes(found) + cache_bytes(config, context, cache), path)
        plan = kind(config, modelfile.read_weights(file, config), threads, cache)
        file.forget_pages()
    except BaseException:
        file.close()
        raise
    return Model(file, config, tokenizer, plan, context, time.perf_counter() - begin)


def understand(file: TensorFile) -> tuple[ModelConfig, Tokenizer, Weights[TensorInfo]]:
    """What a model file holds, its weights unread. Refuses what no engine here could run."""
    config = modelfile.read_config(file)
    tokenizer = modelfile.read_tokenizer(file)
    if len(tokenizer.vocab) > config.vocab_size:
        raise UnsupportedError(
            f"{len(tokenizer.vocab):,} tokens for {config.vocab_size:,} embeddings",
            where=file.path,
            fix="Convert the model again.",
        )
    decodable = [form.name for form in DECODED]
    for info in file.infos.values():
        if info.kind not in decodable:
            raise UnsupportedError(
                f"tensor {info.name!r} is stored as {info.kind}, which no engine here can decode",
                where=info.path,
                fix=f"Use a file in one of {', '.join(decodable)}.",
            )
    return config, tokenizer, modelfile.find_weights(file, config)


def resolve(source: str | Path) -> Path:
    """The file that a name or a path means."""
    wanted = f"a .gguf file, a model's folder, or one of: tiny, {', '.join(KNOWN)}"
    if not isinstance(source, str | Path) or source == "":
        what = "the model's name is empty" if source == "" else f"{quoted(source)} names no model"
        raise InputError(what, fix=f"Give {wanted}.")
    if source == "tiny":
        return data_dir() / "tiny.gguf"
    if source in KNOWN:
        model = KNOWN[str(source)]
        if not model.is_here:
            raise FileAccessError(
                f"the model {source} has not been fetched", fix=f"Run: llambda fetch {source}"
            )
        return model.path
    path = Path(os.path.expanduser(source))  # leaves a user that does not exist as it is
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise FileAccessError(
            "no such file, and no model of that name",
            where=source,
            fix=f"Give {wanted}.",
        ) from None
    except (OSError, ValueError) as error:
        raise file_error(error, path) from error
    return path


def check_cache(kind: type[Engine], cache: str) -> None:
    if cache not in kind.caches:
        able = [rung.name for rung in RUNGS.values() if cache in rung.caches]
        raise InputError(
            f"the engine {kind.name!r} has no cache of {cache!r}",
            fix=f"Choose {' or '.join(kind.caches)}"
            + (f", or the engine {' or '.join(able)}." if able else "."),
        )


def chosen_threads(threads: int | None) -> int:
    """None is the physical cores that this process may use."""
    return default_threads() if threads is None else check_threads(threads)


def check_context(config: ModelConfig, context: int | None) -> int:
    """The context to use, if the model allows it."""
    if context is None:
        return min(config.context_length, DEFAULT_CONTEXT)
    check_positions(context)
    if context > config.context_length:
        raise ContextError(
            f"a context of {context:,} is more than the model's {config.context_length:,}",
            fix="Ask for less.",
        )
    return int(context)


def check_memory(needed: int, path: Path) -> None:
    """Refuse what would not fit, instead of being ended by the system half way."""
    free = available_memory()
    if needed > free:
        raise ResourceError(
            f"weights and cache take {needed / 1e6:,.0f} MB of memory, and {free / 1e6:,.0f} MB "
            "are free",
            where=path,
            fix="Close other programs, ask for a smaller context, or take a smaller model.",
        )
