"""llama.cpp with the face of a rung, to be put beside them. Lesson 11.

It comes through llama-cpp-python's low-level interface, which hands C functions through as they
are: what is measured is llama.cpp with its own defaults, a cache of float16 among them.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from .config import ModelConfig
from .engines.base import Engine, Floats, State, Trace, check_call
from .errors import InputError, MissingPackageError, ModelFileError, ResourceError
from .weights import Sized, Weights, stored_bytes

BATCH = 512  # tokens that llama.cpp takes at once
KV_NUMBERS = "f16"  # in its cache


@cache
def library() -> Any:
    """The C functions, told to keep quiet. Raises MissingPackageError where there are none."""
    try:
        functions: Any = import_module("llama_cpp.llama_cpp")
    except (ImportError, OSError, RuntimeError) as error:  # it, or its C library
        raise MissingPackageError(
            "llama-cpp-python, which brings llama.cpp, is not installed",
            fix="pip install llama-cpp-python, or: make bench",
        ) from error
    functions.quiet = functions.llama_log_callback(lambda level, text, data: None)
    functions.llama_log_set(functions.quiet, None)
    functions.llama_backend_init()
    return functions


class LlamaCpp(Engine):
    """llama.cpp over a GGUF file. It has no trace.

    There is one sequence at a time: a new state ends the one before.
    Raises MissingPackageError, and ModelFileError for a file that llama.cpp does not take.
    """

    name = "llama.cpp"

    def __init__(self, config: ModelConfig, path: Path, threads: int = 1):
        self.config = config
        self.threads = threads
        self._lib = lib = library()
        settings = lib.llama_model_default_params()
        self._model = lib.llama_model_load_from_file(str(path).encode(), settings)
        if not self._model:
            raise ModelFileError("llama.cpp cannot load this file", where=path)
        self._context: Any = None
        self._room = 0
        self._state: State | None = None

    @staticmethod
    def weight_bytes(weights: Weights[Sized]) -> int:
        """As stored."""
        return stored_bytes(weights)

    def new_state(self, context: int) -> State:
        if context > self._room:
            self._make_context(context)
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
        self._state = State(self, context)
        return self._state

    def forward(
        self,
        state: State,
        ids: Sequence[int],
        all_logits: bool = False,
        trace: Trace | None = None,
    ) -> Floats:
        ids = check_call(self, state, ids)
        assert trace is None
        if state is not self._state:
            raise InputError("llama.cpp has one state here, the newest")
        memory = self._lib.llama_get_memory(self._context)
        self._lib.llama_memory_seq_rm(memory, -1, state.length, -1)
        if all_logits:
            logits = np.stack([self._decode([token]).copy() for token in ids])
        else:
            for first in range(0, len(ids), BATCH):
                logits = self._decode(ids[first : first + BATCH])
        state.ids += ids
        return logits

    def close(self) -> None:
        if self._context:
            self._lib.llama_free(self._context)
        if self._model:
            self._lib.llama_model_free(self._model)
        self._context = self._model = self._state = None

    def _make_context(self, context: int) -> None:
        lib = self._lib
        if self._context:
            lib.llama_free(self._context)
        settings = lib.llama_context_default_params()
        settings.n_ctx, settings.n_batch = context, BATCH
        settings.n_threads = settings.n_threads_batch = self.threads
        self._context = lib.llama_init_from_model(self._model, settings)
        if not self._context:
            raise ResourceError(f"llama.cpp has no memory for {context:,} positions")
        self._room = context

    def _decode(self, ids: Sequence[int]) -> Floats:
        """The last id's logits, valid until the next call."""
        lib, tokens = self._lib, (ctypes.c_int32 * len(ids))(*ids)
        status = lib.llama_decode(self._context, lib.llama_batch_get_one(tokens, len(ids)))
        if status != 0:
            raise ResourceError(f"llama.cpp could not evaluate {len(ids)} tokens ({status})")
        first = lib.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(first, (self.config.vocab_size,))
