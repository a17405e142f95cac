"""A GGUF file in another storage format: the work behind `llambda quantize`."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from . import gguf
from .encode import ENCODERS, encode
from .errors import InputError, ModelFileError, UnsupportedError
from .gguf_split import SPLIT_KEYS
from .gguf_write import Entry, write
from .paths import refuse_inputs, require_space
from .quants import BY_NAME, Bytes, decode
from .tensor import F32, DType, Tensor, count_bytes
from .tensorfile import TensorFile

# general.file_type, llama.cpp's number for what most of a file is stored as
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "BF16": 32}
Progress = Callable[[int, int], None]  # tensors so far, tensors in all


def quantize(
    source: Path, target: Path, kind: str, progress: Progress = lambda done, total: None
) -> None:
    """Write a copy of a GGUF file with its matrices stored as `kind`.

    Vectors (norms, biases) are stored as F32, and so is a matrix whose rows the format's blocks do
    not divide. Raises what `gguf.open` raises, InputError, and ResourceError when the disk is full.
    """
    if kind not in FILE_TYPES:
        raise InputError(f"unknown type {kind!r}", fix=f"Choose one of {', '.join(ENCODERS)}.")
    dtype = BY_NAME[kind].dtype
    if source.is_dir():
        raise InputError(
            "a folder, and only GGUF files are converted",
            where=source,
            fix="Make a .gguf of it first, with llama.cpp's convert_hf_to_gguf.py.",
        )
    with gguf.open(source) as file:
        refuse_inputs(target, file.maps)
        metadata = {k: v for k, v in file.metadata.items() if k not in SPLIT_KEYS}
        metadata |= {"general.file_type": FILE_TYPES[kind], "general.quantization_version": 2}
        names = list(file)

        def entry(i: int, name: str) -> Entry:
            stored = stored_as(file, name, dtype)

            def data() -> Bytes:
                progress(i, len(names))
                return encode_tensor(file[name], stored, name, source)

            return Entry(name, stored, file.infos[name].shape, data)

        entries = [entry(i, name) for i, name in enumerate(names)]
        size = sum(count_bytes(entry.shape, entry.dtype) for entry in entries)
        require_space(target.absolute().parent, size, "write to another disk")
        write(target, metadata, entries)
    progress(len(names), len(names))


def stored_as(file: TensorFile, name: str, dtype: DType) -> DType:
    """The format that a tensor gets: vectors and rows that do not fit stay F32."""
    shape = file.infos[name].shape
    return dtype if len(shape) >= 2 and shape[-1] % dtype.block == 0 else F32


def encode_tensor(tensor: Tensor, dtype: DType, name: str, source: Path) -> Bytes:
    """The tensor's bytes in another format, or its own bytes if it has that format already."""
    if tensor.dtype == dtype:
        return tensor.blocks()
    values = decode(tensor, name)
    if not np.isfinite(values).all():
        raise ModelFileError(
            f"tensor {name!r} holds values that are no finite numbers",
            where=source,
            fix="The file is damaged: fetch it again.",
        )
    stored = encode(values, dtype)
    again = Tensor(stored, dtype, tensor.shape)
    if not np.isfinite(decode(again, name)).all():
        raise UnsupportedError(
            f"tensor {name!r} has values too large for {dtype}",
            where=source,
            fix="Choose BF16 or F32.",
        )
    return stored
