"""One door to every kind of model: a GGUF file, or a Hugging Face folder."""

from pathlib import Path

from . import config, config_hf, gguf, safetensors, vocabulary, weights
from .config import ModelConfig
from .errors import ModelFileError
from .paths import file_error, read_json
from .tensor import Tensor
from .tensorfile import TensorFile
from .tokenizer import Tokenizer
from .weights import Weights

SETTINGS = "config.json"


def open(path: Path) -> TensorFile:
    """The tensors and the metadata; in a Hugging Face folder the latter are config.json's."""
    try:
        is_folder = path.is_dir()
        if is_folder and not (path / SETTINGS).is_file():
            raise ModelFileError(
                f"a folder without {SETTINGS}", where=path, fix="Give a model's folder or a .gguf."
            )
    except OSError as error:
        raise file_error(error, path) from error
    if is_folder:
        settings = read_json(path / SETTINGS)
        file = safetensors.open(path)
        return TensorFile(path, settings, file.infos, file.maps, "Hugging Face folder")
    if path.suffix == ".safetensors":
        raise ModelFileError(
            "weights without their settings",
            where=path,
            fix=f"Give the folder that holds it and its {SETTINGS}.",
        )
    return gguf.open(path)


def read_config(file: TensorFile) -> ModelConfig:
    if file.path.is_dir():
        return config_hf.from_hf(file.metadata, file.path / SETTINGS)
    return config.from_gguf(file.metadata, file.path)


def read_tokenizer(file: TensorFile) -> Tokenizer:
    if file.path.is_dir():
        return vocabulary.from_json(file.path / "tokenizer.json")
    return vocabulary.from_gguf(file.metadata, file.path)


def read_weights(file: TensorFile, config: ModelConfig) -> Weights[Tensor]:
    if file.path.is_dir():
        return weights.from_hf(file, config)
    return weights.from_gguf(file, config)
