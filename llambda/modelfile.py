"""One door to every kind of model: a GGUF file, or a Hugging Face folder."""

from pathlib import Path

from . import config, config_hf, gguf, safetensors, vocabulary, weights
from .config import ModelConfig
from .errors import FileAccessError, ModelFileError
from .gguf_split import part_paths
from .naming import GGUF, HUGGING_FACE
from .paths import file_error, read_json
from .tensor import Tensor
from .tensorfile import TensorFile, TensorInfo
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


def files(path: Path) -> list[Path]:
    """What a model is read from, sound or not: a file and its other parts, or a folder's files."""
    if path.is_dir():
        return [*path.glob("*.safetensors"), *path.glob("*.json")]
    return [path, *part_paths(path)]


def read_config(file: TensorFile) -> ModelConfig:
    if file.path.is_dir():
        return config_hf.from_hf(file.metadata, file.path / SETTINGS)
    return config.from_gguf(file.metadata, file.path)


def read_tokenizer(file: TensorFile) -> Tokenizer:
    if file.path.is_dir():
        path = file.path / "tokenizer.json"
        if not path.exists():
            raise FileAccessError(
                "a folder without tokenizer.json",
                where=file.path,
                fix="Fetch it from where the model is, or save the tokenizer with transformers.",
            )
        return vocabulary.from_json(path)
    return vocabulary.from_gguf(file.metadata, file.path)


def find_weights(file: TensorFile, config: ModelConfig) -> Weights[TensorInfo]:
    """Where each weight lies, with its type and size: all that is known without reading it."""
    return weights.find(file, config, HUGGING_FACE if file.path.is_dir() else GGUF)


def read_weights(file: TensorFile, config: ModelConfig) -> Weights[Tensor]:
    """The weights in the engines' order of rows. In a GGUF file q and k are copied for that."""
    if file.path.is_dir():
        return weights.from_hf(file, config)
    return weights.from_gguf(file, config)
