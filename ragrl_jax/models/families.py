"""The families of decoders: what all models of a family have in common. A model's config has the rest.

To add a family, add a line to FAMILIES and its name to `settings/playing.py`. If no family has such a layer yet, add a
switch to `Family`, and use it in `models/layers.py` or `models/decoder.py`. CONTRIBUTING.md lists the tests.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

WHERE = "ragrl_jax/models/families.py"  # where a family is added, for messages
FULL, SLIDING = "full_attention", "sliding_attention"  # the kinds of layers, as transformers names them
SILU, GELU_TANH = "silu", "gelu_pytorch_tanh"

# Our parameter → the name of its tensor; see `models/mapping.py`. A family changes or adds names by `Family.tensors`.
TENSORS = {
  "embedding": "model.embed_tokens.weight",
  "final_norm": "model.norm.weight",
  "lm_head": "lm_head.weight",
  "layers/attention_norm": "model.layers.{}.input_layernorm.weight",
  "layers/q": "model.layers.{}.self_attn.q_proj.weight",
  "layers/k": "model.layers.{}.self_attn.k_proj.weight",
  "layers/v": "model.layers.{}.self_attn.v_proj.weight",
  "layers/o": "model.layers.{}.self_attn.o_proj.weight",
  "layers/q_bias": "model.layers.{}.self_attn.q_proj.bias",
  "layers/k_bias": "model.layers.{}.self_attn.k_proj.bias",
  "layers/v_bias": "model.layers.{}.self_attn.v_proj.bias",
  "layers/o_bias": "model.layers.{}.self_attn.o_proj.bias",
  "layers/q_norm": "model.layers.{}.self_attn.q_norm.weight",
  "layers/k_norm": "model.layers.{}.self_attn.k_norm.weight",
  "layers/mlp_norm": "model.layers.{}.post_attention_layernorm.weight",
  "layers/gate": "model.layers.{}.mlp.gate_proj.weight",
  "layers/up": "model.layers.{}.mlp.up_proj.weight",
  "layers/down": "model.layers.{}.mlp.down_proj.weight",
  "layers/router": "model.layers.{}.mlp.gate.weight",
  "layers/experts_gate": "model.layers.{}.mlp.experts.{}.gate_proj.weight",
  "layers/experts_up": "model.layers.{}.mlp.experts.{}.up_proj.weight",
  "layers/experts_down": "model.layers.{}.mlp.experts.{}.down_proj.weight",
}


@dataclasses.dataclass(frozen=True)
class Family:
  """A family's switches. They determine its layers, and the settings that its config.json may have.

  Attributes:
    architecture: the class in transformers.
    qk_norm: whether each head of q and k has an RMSNorm before the rotation.
    attention_bias: whether q, k and v have biases. None: config.json decides, for q, k, v and o together.
    head_dim: default of config.json's head_dim; None: d_model / num_heads.
    tied: default of config.json's tie_word_embeddings.
    activation: the MLP's activation, as transformers names it.
    windows: which layers may have a sliding window: "none", "all", or "layers", those of config.json's layer_types.
    zero_norms: whether a norm's tensor is its gain - 1.
    post_norms: whether the outputs of attention and MLP are normed before they are added to the residual stream.
    scaled_embedding: whether the embedding is multiplied by √d_model.
    query_scale: whether config.json gives the divisor of the scores (query_pre_attn_scalar).
    experts: whether the MLP is a mixture of experts.
    tensors: names of tensors that differ from TENSORS.
  """

  architecture: str
  qk_norm: bool = False
  attention_bias: bool | None = None
  head_dim: int | None = None
  tied: bool = False
  activation: str = SILU
  windows: str = "none"
  zero_norms: bool = False
  post_norms: bool = False
  scaled_embedding: bool = False
  query_scale: bool = False
  experts: bool = False
  tensors: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @property
  def activation_key(self) -> str:
    """The key of the activation in config.json."""
    return "hidden_activation" if self.activation == GELU_TANH else "hidden_act"


# Our family is config.json's model_type.
FAMILIES = {
  "qwen2": Family("Qwen2ForCausalLM", attention_bias=True),
  "qwen3": Family("Qwen3ForCausalLM", qk_norm=True, head_dim=128),
  "qwen3_moe": Family("Qwen3MoeForCausalLM", qk_norm=True, experts=True),
  "llama": Family("LlamaForCausalLM"),
  "mistral": Family("MistralForCausalLM", attention_bias=False, windows="all"),
  "gemma3_text": Family(
    "Gemma3ForCausalLM",
    qk_norm=True,
    head_dim=256,
    tied=True,
    activation=GELU_TANH,
    windows="layers",
    zero_norms=True,
    post_norms=True,
    scaled_embedding=True,
    query_scale=True,
    tensors={
      "layers/attention_post_norm": "model.layers.{}.post_attention_layernorm.weight",
      "layers/mlp_norm": "model.layers.{}.pre_feedforward_layernorm.weight",
      "layers/mlp_post_norm": "model.layers.{}.post_feedforward_layernorm.weight",
    },
  ),
}


def get(name: Any, where: str) -> Family:
  """The family of this name; `where` is the file or setting that names it.

  Raises:
    ValueError: there is no such family.
  """
  if not isinstance(name, str) or name not in FAMILIES:
    raise ValueError(
      f"{where}: {name!r} is not a supported model family: it must be one of {', '.join(FAMILIES)}. To add a family, "
      f"see {WHERE} and CONTRIBUTING.md."
    )
  return FAMILIES[name]


def tensors(name: str) -> dict[str, str]:
  """Our parameter → the name of its tensor, for a family."""
  return {**TENSORS, **FAMILIES[name].tensors}
