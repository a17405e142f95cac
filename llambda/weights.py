"""Names -> a Weights struct. Every tensor of a file is used, and every needed one is there.

Both are checked, because a forgotten bias or a misspelt name gives a model that runs and answers
nonsense. That looks at names and shapes alone; a second step reads the numbers, and brings the
rows of q and k into one order, whatever the file's.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Protocol, TypeVar

from .config import ModelConfig
from .errors import ModelFileError
from .naming import GGUF, HUGGING_FACE, Naming
from .tensor import Tensor
from .tensorfile import TensorFile, TensorInfo

T = TypeVar("T", covariant=True)  # so that Weights[Tensor] are Weights[Sized] too
U = TypeVar("U")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layer(Generic[T]):
    """One decoder block's weights. A matrix [out, in] maps a row x [in] to x @ matrix.T [out].

    Row order of q and k is Hugging Face's: rotation pairs element i of a head with i + head_dim/2.
    """

    attn_norm: T  # [dim]
    q: T  # [n_heads * head_dim, dim]
    k: T  # [n_kv_heads * head_dim, dim]
    v: T  # [n_kv_heads * head_dim, dim]
    o: T  # [dim, n_heads * head_dim]
    ffn_norm: T  # [dim]
    gate: T  # [ffn_dim, dim]
    up: T  # [ffn_dim, dim]
    down: T  # [dim, ffn_dim]
    q_bias: T | None = None
    k_bias: T | None = None
    v_bias: T | None = None
    o_bias: T | None = None
    gate_bias: T | None = None
    up_bias: T | None = None
    down_bias: T | None = None


@dataclass(frozen=True)
class Weights(Generic[T]):
    """All weights of a model. In a tied model, head is the very object that embed is.

    rope_factors, where a file has them, divide the head_dim / 2 rotation frequencies.
    """

    embed: T  # [vocab_size, dim]
    layers: tuple[Layer[T], ...]
    final_norm: T  # [dim]
    head: T  # [vocab_size, dim]
    rope_factors: T | None = None  # [head_dim / 2]

    def unique(self) -> list[T]:
        """Every weight once, also one that serves twice."""
        found: list[T] = []
        self.map(found.append)
        return found

    def map(self, function: Callable[[T], U]) -> "Weights[U]":
        """The same struct with the function's value in place of every weight, each made once."""
        made: dict[int, U] = {}

        def once(weight: Any) -> U:
            if id(weight) not in made:
                made[id(weight)] = function(weight)
            return made[id(weight)]

        def optional(weight: Any) -> U | None:
            return None if weight is None else once(weight)

        layers = [
            {f.name: optional(getattr(layer, f.name)) for f in fields(layer)}
            for layer in self.layers
        ]
        return Weights(
            embed=once(self.embed),
            layers=tuple(Layer(**layer) for layer in layers),  # type: ignore[arg-type]
            final_norm=once(self.final_norm),
            head=once(self.head),
            rope_factors=optional(self.rope_factors),
        )


class Sized(Protocol):
    """A weight's size, which a Tensor tells, and a file's table of contents too.

    nbytes is None for a storage type that this package does not know, and that no engine runs.
    """

    @property
    def shape(self) -> Shape: ...

    @property
    def nbytes(self) -> int | None: ...


def stored_bytes(weights: Weights[Sized]) -> int:
    """What all weights take as the file stores them."""
    return sum(weight.nbytes or 0 for weight in weights.unique())


def float32_bytes(weights: Weights[Sized]) -> int:
    """What all weights take as float32."""
    return sum(4 * math.prod(weight.shape) for weight in weights.unique())


def layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    """The shape each weight of a layer must have."""
    q_dim = config.n_heads * config.head_dim
    kv_dim = config.n_kv_heads * config.head_dim
    return {
        "attn_norm": (config.dim,),
        "q": (q_dim, config.dim),
        "k": (kv_dim, config.dim),
        "v": (kv_dim, config.dim),
        "o": (config.dim, q_dim),
        "ffn_norm": (config.dim,),
        "gate": (config.ffn_dim, config.dim),
        "up": (config.ffn_dim, config.dim),
        "down": (config.dim, config.ffn_dim),
        "q_bias": (q_dim,),
        "k_bias": (kv_dim,),
        "v_bias": (kv_dim,),
        "o_bias": (config.dim,),
        "gate_bias": (config.ffn_dim,),
        "up_bias": (config.ffn_dim,),
        "down_bias": (config.dim,),
    }


class Shelf:
    """A file's table of contents, taken off one by one, so that the end shows what was left."""

    def __init__(self, file: TensorFile):
        self.file = file
        self.left = dict.fromkeys(file)

    def take(self, name: str, shape: Shape) -> TensorInfo:
        """The named tensor, which must be there and have this shape."""
        if name not in self.left:
            raise ModelFileError(
                f"tensor {name!r} is missing",
                where=self.file.path,
                fix="The file is incomplete or of another architecture: fetch or convert it again.",
            )
        del self.left[name]
        info = self.file.infos[name]
        found = info.shape
        if found != shape:
            raise ModelFileError(
                f"tensor {name!r} has shape {list(found)}, and the settings need {list(shape)}",
                where=self.file.path,
                fix="Convert the model again.",
            )
        return info

    def take_if(self, wanted: bool | None, name: str, shape: Shape) -> TensorInfo | None:
        """An optional tensor: wanted or not by the config, or (None) as the file has it."""
        present = name in self.left if wanted is None else wanted
        return self.take(name, shape) if present else None

    def finish(self, ignored: tuple[str, ...]) -> None:
        """Refuse the first tensor that nobody took."""
        unused = [name for name in self.left if not name.endswith(ignored)]
        if unused:
            raise ModelFileError(
                f"tensor {unused[0]!r} has no place in a llama model of these settings",
                where=self.file.path,
                fix="The model has a part that this engine does not implement.",
            )


def find(file: TensorFile, config: ModelConfig, naming: Naming) -> Weights[TensorInfo]:
    """Where each weight lies in the file. Reads none of them.

    Raises ModelFileError for a tensor that is missing, left over or of another shape.
    """
    shelf = Shelf(file)
    embed = shelf.take(naming.embed, (config.vocab_size, config.dim))
    head_wanted = True if config.tied is False else None  # a head that is there is used
    head = shelf.take_if(head_wanted, naming.head, (config.vocab_size, config.dim))
    factors = None
    if naming.rope_factors is not None:
        factors = shelf.take_if(None, naming.rope_factors, (config.rope.dim // 2,))
    found = Weights(
        embed=embed,
        layers=tuple(find_layer(shelf, config, naming, i) for i in range(config.n_layers)),
        final_norm=shelf.take(naming.final_norm, (config.dim,)),
        head=embed if head is None else head,
        rope_factors=factors,
    )
    shelf.finish(naming.ignored)
    return found


def find_layer(shelf: Shelf, config: ModelConfig, naming: Naming, i: int) -> Layer[TensorInfo]:
    found: dict[str, Any] = {}
    for part, shape in layer_shapes(config).items():
        name = naming.layer.format(i) + naming.suffixes[part]
        wanted: bool | None = True
        if part.endswith("_bias"):
            in_mlp = part in ("gate_bias", "up_bias", "down_bias")
            wanted = config.mlp_bias if in_mlp else config.attention_bias
        found[part] = shelf.take_if(wanted, name, shape)
    return Layer(**found)


def collect(file: TensorFile, config: ModelConfig, naming: Naming) -> Weights[Tensor]:
    """Weights over the file's map. Where rows need another order, q and k are copied into it.

    Raises what `find` raises.
    """
    weights = find(file, config, naming).map(lambda info: file[info.name])
    if not naming.pairs:
        return weights
    return replace(weights, layers=tuple(in_halves(layer, config) for layer in weights.layers))


def in_halves(layer: Layer[Tensor], config: ModelConfig) -> Layer[Tensor]:
    """A layer of a GGUF file, with the rows of q and k in Hugging Face's order."""
    heads = {"q": config.n_heads, "k": config.n_kv_heads}
    heads |= {f"{part}_bias": count for part, count in heads.items()}
    rows = {part: getattr(layer, part) for part in heads}
    return replace(
        layer,
        **{
            part: halves_from_pairs(rows, heads[part])
            for part, rows in rows.items()
            if rows is not None
        },
    )


def from_gguf(file: TensorFile, config: ModelConfig) -> Weights[Tensor]:
    """The weights of a GGUF file."""
    return collect(file, config, GGUF)


def from_hf(file: TensorFile, config: ModelConfig) -> Weights[Tensor]:
    """The weights of a Hugging Face folder's safetensors."""
    return collect(file, config, HUGGING_FACE)


def halves_from_pairs(weight: Tensor, n_heads: int) -> Tensor:
    """Rows of q or k from GGUF's order to Hugging Face's.

    GGUF stores the two rows that rotate together side by side (2i, 2i + 1); Hugging Face half a
    head apart (i, i + head_dim/2). Seen as [n_heads, head_dim/2, 2, ...], the one is the other
    with the two middle axes exchanged: two strides change places, and one copy straightens them.
    """
    rows, *rest = weight.shape
    pairs = weight.reshape(n_heads, rows // n_heads // 2, 2, *rest)
    halves = pairs.transpose(0, 2, 1, *range(3, pairs.ndim))
    return halves.reshape(*weight.shape)
