"""The families of decoders: what all models of a family have in common; and a decoder's config.json, both ways.

To add a family, add a line to FAMILIES and its name to `settings/playing.py`. If no family has such a layer yet, add a
switch to `Family`, and use it in `models/layers.py` or `models/decoder.py`. CONTRIBUTING.md lists the tests.
"""

import dataclasses
import functools
import reprlib
from collections.abc import Mapping
from typing import Any

from ragrl_jax.models import hf

WHERE = "ragrl_jax/models/families.py"  # where a family is added, for messages
FULL, SLIDING = "full_attention", "sliding_attention"  # the kinds of layers, as transformers names them
SILU, GELU_TANH = "silu", "gelu_pytorch_tanh"
LOCAL_THETA = 10_000.0  # rope_theta of Gemma 3's sliding layers, if config.json has none
PATTERN = 6  # every sixth layer of Gemma 3 attends to everything
MOST_LAYERS = 10_000
MISTRALS = 4096  # Mistral's window, if config.json has no such key; null there means no window

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


def pattern(layers: int, every: int = PATTERN) -> tuple[bool, ...]:
  """Which layers slide, one bool per layer: all but every `every`-th."""
  return tuple((number + 1) % every != 0 for number in range(layers))


def read_config(values: Mapping[str, Any], where: str) -> dict[str, Any]:
  """The fields of a `DecoderConfig` in a config.json; "rope_scaling" is (its kind or None, its settings).

  Raises:
    ValueError: a family or option that the decoder does not support, or a missing setting.
  """
  size = functools.partial(hf.whole, values, where=where)
  name = hf.required(values, "model_type", where)
  family = get(name, f"{where}: model_type")
  hf.refuse(
    values, where, mlp_bias=(False,), use_sliding_window=(False,), **{family.activation_key: (family.activation,)}
  )
  hf.refuse(values, where, attn_logit_softcapping=(None,), final_logit_softcapping=(None,))
  hf.refuse(values, where, use_bidirectional_attention=(False,), is_causal=(True,))
  _refuse_unknown(values, family, where)
  d_model, num_heads, num_layers = size("hidden_size"), size("num_attention_heads"), size("num_hidden_layers")
  eos = values.get("eos_token_id")
  eos = [] if eos is None else eos if isinstance(eos, list) else [eos]
  if not all(type(i) is int for i in eos):
    raise ValueError(f"{where}: eos_token_id is {eos!r}: it must be an id or a list of ids.")
  bias = family.attention_bias
  if bias is False:
    hf.refuse(values, where, attention_bias=(False,))
  return dict(
    vocab_size=size("vocab_size"),
    d_model=d_model,
    num_layers=num_layers,
    num_heads=num_heads,
    num_kv_heads=size("num_key_value_heads", default=num_heads),
    head_dim=size("head_dim", default=family.head_dim or max(1, d_model // num_heads)),
    family=name,
    qk_norm=family.qk_norm,
    attention_bias=bool(values.get("attention_bias", False)) if bias is None else bias,
    tied=bool(values.get("tie_word_embeddings", family.tied)),
    norm_eps=hf.number(values, "rms_norm_eps", where),
    max_position=size("max_position_embeddings", default=32768),
    eos_ids=tuple(eos),
    bos_id=values.get("bos_token_id"),
    **_mlp(values, family, where),
    **_attention(values, family, num_layers, where),
  )


# Settings that are read, or refused, in this module or in `hf.rope`.
KNOWN = hf.HARMLESS | set(
  "vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim intermediate_size "
  "rms_norm_eps tie_word_embeddings max_position_embeddings rope_theta rope_scaling rope_parameters layer_types "
  "hidden_act hidden_activation attention_bias mlp_bias is_causal partial_rotary_factor use_sliding_window".split()
)
_OF_WINDOWS = {"sliding_window", "max_window_layers"}
_OF_GEMMA = set(
  "sliding_window_pattern rope_local_base_freq query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping "
  "use_bidirectional_attention".split()
)
_OF_EXPERTS = set(
  "moe_intermediate_size num_experts num_local_experts num_experts_per_tok norm_topk_prob decoder_sparse_step "
  "mlp_only_layers router_aux_loss_coef output_router_logits".split()
)


def _refuse_unknown(values, family: Family, where: str) -> None:
  known = set(KNOWN)
  if family.windows != "none" or "Qwen" in family.architecture:  # Qwen's windows are off by use_sliding_window
    known |= _OF_WINDOWS
  known |= (_OF_GEMMA if family.windows == "layers" else set()) | (_OF_EXPERTS if family.experts else set())
  hf.refuse_unknown(values, where, known)


def _mlp(values, family: Family, where: str) -> dict[str, Any]:
  """d_ff, and the experts' settings."""
  if not family.experts:
    return dict(d_ff=hf.whole(values, "intermediate_size", where))
  hf.refuse(values, where, decoder_sparse_step=(1,), mlp_only_layers=([],))  # all layers have the same parameters
  size = functools.partial(hf.whole, values, where=where)
  return dict(
    d_ff=size("moe_intermediate_size"),
    num_experts=size("num_experts") if values.get("num_local_experts") is None else size("num_local_experts"),
    experts_per_token=size("num_experts_per_tok"),
    normalize_experts=bool(values.get("norm_topk_prob", False)),
  )


def _attention(values, family: Family, layers: int, where: str) -> dict[str, Any]:
  """The settings of windows and of rotary positions."""
  kinds = values.get("layer_types")
  if family.windows != "none" and layers > MOST_LAYERS:  # before anything of that size is allocated
    raise ValueError(f"{where}: num_hidden_layers is {layers}: it must be at most {MOST_LAYERS} in this family.")
  if family.windows != "layers":
    if kinds and (not isinstance(kinds, list) or any(kind != FULL for kind in kinds)):
      raise ValueError(f"{where}: layer_types has {reprlib.repr(kinds)}: only {FULL} is supported.")
    window = None
    if family.windows == "all" and values.get("sliding_window", MISTRALS) is not None:
      window = hf.whole(values, "sliding_window", where, default=MISTRALS)
    theta, *scaling = hf.rope(values, where)
    return dict(rope_theta=theta, rope_scaling=tuple(scaling), window=window)
  every = hf.whole(values, "sliding_window_pattern", where, default=PATTERN)
  if kinds is None:
    kinds = [SLIDING if slides else FULL for slides in pattern(layers, every)]
  if not isinstance(kinds, list) or len(kinds) != layers or set(kinds) - {FULL, SLIDING}:
    raise ValueError(
      f"{where}: layer_types has {reprlib.repr(kinds)}: it must have {FULL} or {SLIDING} for each of {layers} layers."
    )
  slides = tuple(kind == SLIDING for kind in kinds)
  theta, local, *scaling = hf.two_ropes(values, where, local=LOCAL_THETA)
  query_scale, head_dim = hf.number(values, "query_pre_attn_scalar", where), values.get("head_dim", family.head_dim)
  found = dict(
    rope_theta=theta, rope_scaling=tuple(scaling), query_scale=None if query_scale == head_dim else query_scale
  )
  if any(slides):
    found |= dict(window=hf.whole(values, "sliding_window", where), sliding=slides, local_rope_theta=local)
  return found


def write_config(config: Any, scaling: dict[str, Any] | None) -> dict[str, Any]:
  """The contents of a config.json from a `DecoderConfig`; `scaling` is its rope's, as transformers names it."""
  c, family = config, config.traits
  rope = {**(scaling or dict(rope_type="default")), "rope_theta": c.rope_theta}
  values = dict(
    architectures=[family.architecture],
    model_type=c.family,
    vocab_size=c.vocab_size,
    hidden_size=c.d_model,
    num_hidden_layers=c.num_layers,
    num_attention_heads=c.num_heads,
    num_key_value_heads=c.num_kv_heads,
    head_dim=c.head_dim,
    intermediate_size=c.d_ff,  # unused in a mixture: every layer has experts
    rms_norm_eps=c.norm_eps,
    tie_word_embeddings=c.tied,
    max_position_embeddings=c.max_position,
    rope_theta=c.rope_theta,
    rope_scaling=scaling,
    rope_parameters=rope,
    bos_token_id=c.bos_id,
    eos_token_id=c.eos_ids[0] if len(c.eos_ids) == 1 else list(c.eos_ids) or None,
  )
  values[family.activation_key] = family.activation
  if family.attention_bias is None:
    values["attention_bias"] = c.attention_bias
  if family.windows == "all":
    values["sliding_window"] = c.window
  if family.windows == "layers":
    local, scale = c.local_rope_theta or LOCAL_THETA, c.query_scale or c.head_dim
    values |= dict(
      sliding_window=c.window or c.max_position,  # without a window no layer slides
      layer_types=[SLIDING if each else FULL for each in c.sliding or (c.window is not None,) * c.num_layers],
      rope_local_base_freq=local,
      rope_parameters={FULL: rope, SLIDING: dict(rope_type="default", rope_theta=local)},
      query_pre_attn_scalar=int(scale) if scale == int(scale) else scale,  # transformers asks for a whole number
    )
  if family.experts:
    values |= dict(
      moe_intermediate_size=c.d_ff,
      num_experts=c.num_experts,
      num_experts_per_tok=c.experts_per_token,
      norm_topk_prob=c.normalize_experts,
      decoder_sparse_step=1,
      mlp_only_layers=[],
    )
  return values
