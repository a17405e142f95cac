"""What a model is, in numbers: one frozen ModelConfig, read from a file's metadata.

Whatever could change the computation and is not understood is refused, with its key and value:
an ignored setting is a model that runs and answers nonsense.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ModelFileError, UnsupportedError

ARCHITECTURE = "llama"


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding.

    dim : elements of a head that are rotated; pair i turns by position * base ** (-2i / dim)
    scaling : "none", "linear" (angles divided by factor) or "llama3" (low frequencies only)
    low_freq_factor, high_freq_factor, original_context : llama3's smooth band
    """

    dim: int
    base: float = 10000.0
    scaling: str = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True)
class ModelConfig:
    """The sizes of a llama-architecture model.

    dim : width of the residual stream       ffn_dim : width inside the feed-forward part
    n_heads, n_kv_heads : query heads, and the key/value heads they share in equal groups
    head_dim : width of one head; n_heads * head_dim need not equal dim
    context_length : positions the model was made for
    tied : whether the output head is the embedding; None leaves it to what the file holds
    attention_bias, mlp_bias : whether the projections have biases; None likewise
    """

    name: str
    n_layers: int
    dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope: RopeConfig
    tied: bool | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    architecture: str = ARCHITECTURE

    @property
    def n_groups(self) -> int:
        """Query heads that share one key/value head."""
        return self.n_heads // self.n_kv_heads


class Settings:
    """A file's settings, taken out one by one, so that the end shows what nobody understood.

    A setting that is None counts as absent. prefix stands before every key in messages.
    """

    def __init__(self, values: dict[str, Any], where: Path, prefix: str = ""):
        self.values = {key: value for key, value in values.items() if value is not None}
        self.where = where
        self.prefix = prefix

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def take(self, key: str, default: Any = None) -> Any:
        return self.values.pop(key, default)

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1. A list with one entry a layer must repeat one number."""
        value = self.take(key, default)
        if isinstance(value, list) and value:
            if any(entry != value[0] for entry in value):
                raise self.unsupported(key, value)
            value = value[0]
        if value is None:
            raise self.missing(key)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (whole and 1 <= value < 2**64):
            raise self.invalid(key, value, "a whole number of at least 1")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.take(key, default)
        if value is None:
            raise self.missing(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.invalid(key, value, "a number")
        if not 0 < value <= sys.float_info.max:  # false for nan, and no whole number overflows
            raise self.invalid(key, value, "a finite number above 0")
        return float(value)

    def flag(self, key: str) -> bool | None:
        """True, False, or None when the file does not say."""
        value = self.take(key)
        if value is not None and not isinstance(value, bool):
            raise self.invalid(key, value, "true or false")
        return value

    def token_ids(self, key: str) -> None:
        """One token id or some, which only a tokenizer needs: refused if they are anything else."""
        value = self.take(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(type(each) is not int for each in ids):
            raise self.invalid(key, value, "a token id or a list of them")

    def expect(self, key: str, *neutral: Any) -> None:
        """A setting that is implemented for its neutral values only, absence among them."""
        value = self.take(key)
        alike = [each for each in neutral if isinstance(value, bool) == isinstance(each, bool)]
        if value is not None and value not in alike:  # for Python, True is 1
            raise self.unsupported(key, value)

    def finish(self, ignored: Iterable[str] = ()) -> None:
        """Refuse the first setting that is left over."""
        for key in ignored:
            self.values.pop(key, None)
        for key, value in self.values.items():
            raise self.unsupported(key, value)

    def missing(self, key: str) -> ModelFileError:
        return ModelFileError(
            f"the setting {self.prefix + key!r} is missing",
            where=self.where,
            fix="Convert the model again.",
        )

    def invalid(self, key: str, value: Any, wanted: str) -> ModelFileError:
        return ModelFileError(
            f"{self.prefix}{key} is {short(value)}, where {wanted} is needed",
            where=self.where,
            fix="Convert the model again.",
        )

    def unsupported(self, key: str, value: Any) -> UnsupportedError:
        return UnsupportedError(
            f"{self.prefix}{key} = {short(value)} is not supported",
            where=self.where,
            fix="This engine runs models of the plain llama architecture.",
        )


def short(value: Any) -> str:
    """A value in words that fit on a line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def from_gguf(metadata: dict[str, Any], where: Path) -> ModelConfig:
    """ModelConfig from GGUF metadata. Raises ModelFileError or UnsupportedError."""
    architecture = metadata.get("general.architecture")
    if architecture is None:
        raise ModelFileError(
            "general.architecture is missing: this file holds no language model",
            where=where,
            fix="Give the file of a model.",
        )
    if architecture != ARCHITECTURE:
        raise UnsupportedError(
            f"architecture {short(architecture)} is not supported",
            where=where,
            fix="Use a model of the llama architecture, such as SmolLM2 or Llama 3.",
        )
    prefix = f"{architecture}."
    own = {k: v for k, v in metadata.items() if k.startswith(prefix)}
    settings = Settings(own, where)
    tokens = metadata.get("tokenizer.ggml.tokens")

    dim = settings.count(prefix + "embedding_length")
    n_heads = settings.count(prefix + "attention.head_count")
    n_kv_heads = settings.count(prefix + "attention.head_count_kv", n_heads)
    head_dim = settings.count(prefix + "attention.key_length", max(dim // n_heads, 1))
    settings.expect(prefix + "attention.value_length", head_dim)
    settings.expect(prefix + "rope.dimension_count", head_dim)
    config = ModelConfig(
        name=str(metadata.get("general.name", where.stem)),
        n_layers=settings.count(prefix + "block_count"),
        dim=dim,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        ffn_dim=settings.count(prefix + "feed_forward_length"),
        vocab_size=settings.count(
            prefix + "vocab_size", len(tokens) if isinstance(tokens, list) else None
        ),
        context_length=settings.count(prefix + "context_length"),
        norm_eps=settings.positive(prefix + "attention.layer_norm_rms_epsilon"),
        rope=rope_from_gguf(settings, prefix, head_dim),
    )
    settings.expect(prefix + "expert_count", 0)
    settings.expect(prefix + "expert_used_count", 0)
    settings.expect(prefix + "attention.causal", True)
    settings.expect(prefix + "attention.sliding_window", 0)
    settings.finish(ignored=[prefix + "tensor_data_layout"])
    return checked(config, where)


def rope_from_gguf(settings: Settings, prefix: str, head_dim: int) -> RopeConfig:
    """RoPE from GGUF keys. Llama 3's scaling is not among them: it comes as a tensor."""
    base = settings.positive(prefix + "rope.freq_base", 10000.0)
    old_factor = settings.positive(prefix + "rope.scale_linear", 1.0)
    factor = settings.positive(prefix + "rope.scaling.factor", old_factor)
    kind = settings.take(prefix + "rope.scaling.type", "none" if factor == 1.0 else "linear")
    settings.take(prefix + "rope.scaling.original_context_length")
    settings.take(prefix + "rope.scaling.finetuned")
    settings.expect(prefix + "rope.scaling.attn_factor", 1.0)
    match kind:
        case "none":
            return RopeConfig(head_dim, base)
        case "linear":
            return RopeConfig(head_dim, base, "linear", factor)
        case _:
            raise settings.unsupported(prefix + "rope.scaling.type", kind)


def checked(config: ModelConfig, where: Path) -> ModelConfig:
    """The config, if its numbers can belong together."""
    if config.n_heads % config.n_kv_heads:
        raise ModelFileError(
            f"{config.n_heads} heads cannot share {config.n_kv_heads} key/value heads equally",
            where=where,
            fix="Convert the model again.",
        )
    if config.head_dim % 2:
        raise ModelFileError(
            f"a head of {config.head_dim} elements cannot be rotated in pairs",
            where=where,
            fix="Convert the model again.",
        )
    return config
