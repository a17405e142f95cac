"""What the weights are called: the names of both file formats."""

from dataclasses import dataclass


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
