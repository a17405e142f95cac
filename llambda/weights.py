"""Names -> a Weights struct. Every tensor of a file is used, and every needed one is there.

Both are checked, because a forgotten bias or a misspelt name gives a model that runs and answers
nonsense. The rows of q and k are brought into one order here, whatever the file's.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from .config import ModelConfig
from .errors import ModelFileError
from .tensor import Tensor
from .tensorfile import TensorFile

T = TypeVar("T")
U = TypeVar("U")


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

        def once(weight: T) -> U:
            if id(weight) not in made:
                made[id(weight)] = function(weight)
            return made[id(weight)]

        def optional(weight: T | None) -> U | None:
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


def stored_bytes(weights: Weights[Tensor]) -> int:
    """What all weights take as the file stores them."""
    return sum(tensor.nbytes for tensor in weights.unique())


def float32_bytes(weights: Weights[Tensor]) -> int:
    """What all weights take as float32."""
    return sum(4 * tensor.size for tensor in weights.unique())


Shape = tuple[int, ...]


@dataclass(frozen=True)
class Naming:
    """How a file format calls the weights.

    layer : what stands before a layer's weights, with its number in place of {}
    suffixes : the rest of the name, by field of Layer
    pairs : whether the rows of q and k that rotate together are neighbours
    ignored : endings of tensors that hold nothing a model needs
    """

    embed: str
    final_norm: str
    head: str
    rope_factors: str | None
    layer: str
    suffixes: dict[str, str]
    pairs: bool
    ignored: tuple[str, ...] = ()


def _with_biases(matrices: dict[str, str], norms: dict[str, str]) -> dict[str, str]:
    weights = {field: f"{name}.weight" for field, name in (matrices | norms).items()}
    return weights | {f"{field}_bias": f"{name}.bias" for field, name in matrices.items()}


GGUF = Naming(
    embed="token_embd.weight",
    final_norm="output_norm.weight",
    head="output.weight",
    rope_factors="rope_freqs.weight",
    layer="blk.{}.",
    suffixes=_with_biases(
        matrices={
            "q": "attn_q",
            "k": "attn_k",
            "v": "attn_v",
            "o": "attn_output",
            "gate": "ffn_gate",
            "up": "ffn_up",
            "down": "ffn_down",
        },
        norms={"attn_norm": "attn_norm", "ffn_norm": "ffn_norm"},
    ),
    pairs=True,
)
HUGGING_FACE = Naming(
    embed="model.embed_tokens.weight",
    final_norm="model.norm.weight",
    head="lm_head.weight",
    rope_factors=None,
    layer="model.layers.{}.",
    suffixes=_with_biases(
        matrices={
            "q": "self_attn.q_proj",
            "k": "self_attn.k_proj",
            "v": "self_attn.v_proj",
            "o": "self_attn.o_proj",
            "gate": "mlp.gate_proj",
            "up": "mlp.up_proj",
            "down": "mlp.down_proj",
        },
        norms={"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"},
    ),
    pairs=False,
    ignored=("rotary_emb.inv_freq",),  # older files keep these derived numbers
)


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
    """A file's tensors, taken off one by one, so that the end shows what was left."""

    def __init__(self, file: TensorFile):
        self.file = file
        self.left = dict.fromkeys(file)

    def take(self, name: str, shape: Shape) -> Tensor:
        """The named tensor, which must be there and have this shape."""
        if name not in self.left:
            raise ModelFileError(
                f"tensor {name!r} is missing",
                where=self.file.path,
                fix="The file is incomplete or of another architecture: fetch or convert it again.",
            )
        del self.left[name]
        found = self.file.infos[name].shape
        if found != shape:
            raise ModelFileError(
                f"tensor {name!r} has shape {list(found)}, and the settings need {list(shape)}",
                where=self.file.path,
                fix="Convert the model again.",
            )
        return self.file[name]

    def take_if(self, wanted: bool | None, name: str, shape: Shape) -> Tensor | None:
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


def collect(file: TensorFile, config: ModelConfig, naming: Naming) -> Weights[Tensor]:
    """Weights over the file's map. Where rows need another order, q and k are copied into it.

    Raises ModelFileError for a tensor that is missing, left over or of another shape.
    """
    shelf = Shelf(file)
    embed = shelf.take(naming.embed, (config.vocab_size, config.dim))
    head_wanted = True if config.tied is False else None  # a head that is there is used
    head = shelf.take_if(head_wanted, naming.head, (config.vocab_size, config.dim))
    factors = None
    if naming.rope_factors is not None:
        factors = shelf.take_if(None, naming.rope_factors, (config.rope.dim // 2,))
    weights = Weights(
        embed=embed,
        layers=tuple(take_layer(shelf, config, naming, i) for i in range(config.n_layers)),
        final_norm=shelf.take(naming.final_norm, (config.dim,)),
        head=embed if head is None else head,
        rope_factors=factors,
    )
    shelf.finish(naming.ignored)
    return weights


def take_layer(shelf: Shelf, config: ModelConfig, naming: Naming, i: int) -> Layer[Tensor]:
    found: dict[str, Any] = {}
    for part, shape in layer_shapes(config).items():
        name = naming.layer.format(i) + naming.suffixes[part]
        wanted: bool | None = True
        if part.endswith("_bias"):
            in_mlp = part in ("gate_bias", "up_bias", "down_bias")
            wanted = config.mlp_bias if in_mlp else config.attention_bias
        found[part] = shelf.take_if(wanted, name, shape)
    if naming.pairs:
        for part, heads in (("q", config.n_heads), ("k", config.n_kv_heads)):
            for rows in (part, f"{part}_bias"):
                if found[rows] is not None:
                    found[rows] = halves_from_pairs(found[rows], heads)
    return Layer(**found)


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
