"""The families of decoders: what all models of a family have in common; and a decoder's config.json, both ways.

To add a family, add a line to FAMILIES and its name to `settings/playing.py`. If no family has such a layer yet, add a
switch to `Family`, and use it in `models/layers.py` or `models/decoder.py`. CONTRIBUTING.md lists the tests.
"""

import dataclasses
import functools
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ragrl_jax.models import hf

WHERE = "ragrl_jax/models/families.py"  # where a family is added, for messages
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"  # layers, as transformers names them
SILU, GELU_TANH = "silu", "gelu_pytorch_tanh"
THETA, LOCAL_THETA = 1_000_000.0, 10_000.0  # rope_theta of Gemma 3's full and sliding layers, if config.json has none
PATTERN = 6  # every sixth layer of Gemma 3 attends to everything
ATTEND_EVERY, PARTIAL = 4, 0.25  # of Qwen3.5: every fourth layer attends, and rotates a quarter of a head
MOST_LAYERS = 10_000
MISTRALS = 4096  # Mistral's window, if config.json has no such key; null there means no window

_MLP = ("gate", "up", "down")
# Our parameter → the name of its tensor; see `models/mapping.py`. A family changes or adds names by `Family.tensors`.
TENSORS = {
  "embedding": "model.embed_tokens.weight",
  "final_norm": "model.norm.weight",
  "lm_head": "lm_head.weight",
  "layers/attention_norm": "model.layers.{}.input_layernorm.weight",
  **{f"layers/{name}": f"model.layers.{{}}.self_attn.{name}_proj.weight" for name in "qkvo"},
  **{f"layers/{name}_bias": f"model.layers.{{}}.self_attn.{name}_proj.bias" for name in "qkvo"},
  "layers/q_norm": "model.layers.{}.self_attn.q_norm.weight",
  "layers/k_norm": "model.layers.{}.self_attn.k_norm.weight",
  "layers/mlp_norm": "model.layers.{}.post_attention_layernorm.weight",
  **{f"layers/{name}": f"model.layers.{{}}.mlp.{name}_proj.weight" for name in _MLP},
  "layers/router": "model.layers.{}.mlp.gate.weight",
  **{f"layers/experts_{name}": f"model.layers.{{}}.mlp.experts.{{}}.{name}_proj.weight" for name in _MLP},
}
# The tensors that delta layers alone have. They also have the norms and the MLP of other layers, under delta/.
DELTA = {
  **{f"delta/{name}": f"model.layers.{{}}.linear_attn.in_proj_{name}.weight" for name in ("qkv", "z", "b", "a")},
  "delta/conv": "model.layers.{}.linear_attn.conv1d.weight",
  "delta/log_decay": "model.layers.{}.linear_attn.A_log",
  "delta/step_bias": "model.layers.{}.linear_attn.dt_bias",
  "delta/delta_norm": "model.layers.{}.linear_attn.norm.weight",
  "delta/out": "model.layers.{}.linear_attn.out_proj.weight",
  **{f"delta/{name}": TENSORS[f"layers/{name}"] for name in ("attention_norm", "mlp_norm", *_MLP)},
}

# A folder's name of a tensor from that above: the same; without "model.", in a model saved without its head; and beside
# an image encoder, as transformers 5 builds such a model, and as it is published.
LAYOUTS: tuple[Callable[[str], str], ...] = (
  lambda name: name,
  lambda name: name.removeprefix("model."),
  lambda name: name.replace("model.", "model.language_model.", 1),
  lambda name: f"language_model.{name}",
)
ALONE, WITHIN = LAYOUTS[0], LAYOUTS[2]
# How the names of tensors begin that are not read: of an image encoder, and of heads that draft tokens.
BESIDE = ("mtp.", "vision_tower.", "multi_modal_projector.")
BESIDE += ("model.visual.", "model.vision_tower.", "model.multi_modal_projector.")


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
    position_scale: whether a query is scaled by its position (llama_4_scaling_beta, in the settings of YaRN).
    experts: whether the MLP is a mixture of experts.
    nope: every so many layers one has no rotary positions (NoPE), if config.json does not say which; 0: all have them.
    hybrid: whether most layers are gated delta layers. The others rotate a part of each head only, and q's projection
      also gives a gate for attention's output.
    tensors: names of tensors that differ from TENSORS.
    defaults: other values of config.json that count where it is silent, as in transformers.
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
  position_scale: bool = False
  experts: bool = False
  nope: int = 0
  hybrid: bool = False
  tensors: Mapping[str, str] = dataclasses.field(default_factory=dict)
  defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def activation_key(self) -> str:
    """The key of the activation in config.json."""
    return "hidden_activation" if self.activation == GELU_TANH else "hidden_act"


# Gemma 3's settings that a config.json may leave out; that of 4B has few. Source: transformers, Gemma3TextConfig.
GEMMA = dict(vocab_size=262_208, num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=131_072)
GEMMA |= dict(rms_norm_eps=1e-6, query_pre_attn_scalar=256, sliding_window=4096, bos_token_id=2, eos_token_id=1)
SMOLLM3 = dict(num_key_value_heads=4, rms_norm_eps=1e-6, bos_token_id=128_000, eos_token_id=128_001)
MINISTRAL = dict(num_key_value_heads=8, rms_norm_eps=1e-5, max_position_embeddings=262_144, sliding_window=None)
MINISTRAL |= dict(bos_token_id=1, eos_token_id=2)
# Our family is config.json's model_type.
FAMILIES = {
  "qwen2": Family("Qwen2ForCausalLM", attention_bias=True),
  "qwen3": Family("Qwen3ForCausalLM", qk_norm=True, head_dim=128),
  "qwen3_moe": Family("Qwen3MoeForCausalLM", qk_norm=True, experts=True),
  "llama": Family("LlamaForCausalLM"),
  "smollm3": Family("SmolLM3ForCausalLM", tied=True, nope=4, defaults=SMOLLM3),
  "mistral": Family("MistralForCausalLM", attention_bias=False, windows="all"),
  "ministral3": Family(
    "Ministral3ForCausalLM", attention_bias=False, head_dim=128, windows="all", position_scale=True, defaults=MINISTRAL
  ),
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
    defaults=GEMMA,
  ),
  "qwen3_5_text": Family(
    "Qwen3_5ForCausalLM", qk_norm=True, attention_bias=False, head_dim=256, zero_norms=True, hybrid=True
  ),
}
# model_type of a model with an image encoder, of which the text part is read alone → (that part's, if text_config does
# not say; the names of its tensors in the causal model that transformers, and so PEFT, loads).
WITH_IMAGES = {"qwen3_5": ("qwen3_5_text", ALONE), "gemma3": ("gemma3_text", WITHIN), "mistral3": ("mistral", WITHIN)}


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


def tensors(config: Any) -> dict[str, str | tuple[str, ...]]:
  """Our parameter → the name of its tensor, or of those of all layers (`models/mapping.py`). For a DecoderConfig."""
  if not config.traits.hybrid:
    return {**TENSORS, **config.traits.tensors}
  numbers = numbers_of(config.num_layers, config.attend_every)
  each = lambda name, template: tuple(template.format(number) for number in numbers[name.partition("/")[0]])
  return {name: each(name, text) if text.count("{}") == 1 else text for name, text in {**TENSORS, **DELTA}.items()}


def rows(config: Any) -> dict[str, np.ndarray]:
  """Our parameter → the row of its tensors of which each entry of its last axis is. Others have the tensors' order.

  A delta layer's tensor has the queries of all heads, their keys, and the values. Here a key head's queries, its keys
  and the values of its value heads follow each other, so that "tensor" can split the heads.
  """
  if not config.traits.hybrid:
    return {}
  c = config
  keys = np.arange(c.delta_key_heads * c.delta_key_dim)
  values = np.arange(c.delta_value_heads * c.delta_value_dim)
  parts = keys, len(keys) + keys, 2 * len(keys) + values
  order = np.concatenate([part.reshape(c.delta_key_heads, -1) for part in parts], axis=1).reshape(-1)
  return dict.fromkeys(("delta/qkv", "delta/qkv_lora_b", "delta/conv"), order)


def numbers_of(layers: int, attend_every: int) -> dict[str, list[int]]:
  """The numbers of a hybrid's layers that attend ("layers"), and of its delta layers ("delta")."""
  attends = pattern(layers, attend_every)
  return {
    name: [i for i in range(layers) if attends[i] is delta] for name, delta in (("layers", False), ("delta", True))
  }


def pattern(layers: int, every: int = PATTERN) -> tuple[bool, ...]:
  """Which layers slide, or have rotary positions, one bool per layer: all but every `every`-th."""
  return tuple((number + 1) % every != 0 for number in range(layers))


def read_config(values: Mapping[str, Any], where: str, *, embeds: bool = False) -> dict[str, Any]:
  """The fields of a `DecoderConfig` in a config.json; `embeds`: of a model that may attend to later tokens, too.

  Raises:
    ValueError: a family or option that the decoder does not support, or a missing setting.
  """
  values = _text_part(values, where)
  name = hf.required(values, "model_type", where)
  family = get(name, f"{where}: model_type")
  values = {**family.defaults, **values}
  size = functools.partial(hf.whole, values, where=where)
  hf.refuse(
    values, where, mlp_bias=(False,), use_sliding_window=(False,), **{family.activation_key: (family.activation,)}
  )
  hf.refuse(values, where, attn_logit_softcapping=(None,), final_logit_softcapping=(None,))
  hf.refuse(values, where, use_bidirectional_attention=(False, True)[: 1 + embeds], is_causal=(True,))
  _refuse_unknown(values, family, where)
  if "Classification" in str(values.get("architectures")):
    raise ValueError(
      f"{where}: architectures is {values['architectures']}: its head gives scores and no text. Name a model that "
      f"writes, as {family.architecture}."
    )
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


def _text_part(values: Mapping[str, Any], where: str) -> Mapping[str, Any]:
  """The config of the text part, if a config.json is that of a model with an image encoder; else the whole."""
  kind = values.get("model_type")
  if not isinstance(kind, str) or kind not in WITH_IMAGES:
    return values
  text = hf.required(values, "text_config", where)
  if not isinstance(text, dict):
    raise ValueError(f"{where}: text_config is {reprlib.repr(text)}: it must be an object.")
  of_both = "architectures tie_word_embeddings quantization_config bos_token_id eos_token_id".split()
  outside = {key: values[key] for key in of_both if values.get(key) is not None}
  return {"model_type": WITH_IMAGES[kind][0], **text, **outside}


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
_OF_NOPE = {"no_rope_layers", "no_rope_layer_interval"}
_OF_EXPERTS = set(
  "moe_intermediate_size num_experts num_local_experts num_experts_per_tok norm_topk_prob decoder_sparse_step "
  "mlp_only_layers router_aux_loss_coef output_router_logits use_qk_norm".split()  # its value is not read, as there
)

_OF_DELTA = {  # our field → its key in config.json
  "delta_key_heads": "linear_num_key_heads",
  "delta_value_heads": "linear_num_value_heads",
  "delta_key_dim": "linear_key_head_dim",
  "delta_value_dim": "linear_value_head_dim",
  "delta_conv": "linear_conv_kernel_dim",
}
_OF_HYBRIDS = set(_OF_DELTA.values()) | set(
  "full_attention_interval attn_output_gate output_gate_type mamba_ssm_dtype language_model_only mlp_only_layers "
  "mtp_num_hidden_layers mtp_use_dedicated_embeddings".split()  # mtp: heads for drafts, which are not read
)
_OF_GRIDS = {"mrope_section", "mrope_interleaved"}  # of an image's rotary positions; all equal the token's in a text


def _refuse_unknown(values, family: Family, where: str) -> None:
  known = set(KNOWN)
  if family.windows != "none" or family.nope or "Qwen" in family.architecture:  # off in Qwen by use_sliding_window
    known |= _OF_WINDOWS
  known |= (_OF_GEMMA if family.windows == "layers" else set()) | (_OF_EXPERTS if family.experts else set())
  known |= (_OF_HYBRIDS if family.hybrid else set()) | (_OF_NOPE if family.nope else set())
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
  if family.hybrid:
    return _hybrid(values, family, layers, where)
  if (family.windows != "none" or family.nope) and layers > MOST_LAYERS:  # before anything of that size is allocated
    raise ValueError(f"{where}: num_hidden_layers is {layers}: it must be at most {MOST_LAYERS} in this family.")
  if family.windows != "layers":
    if kinds and (not isinstance(kinds, list) or any(kind != FULL for kind in kinds)):
      raise ValueError(f"{where}: layer_types has {reprlib.repr(kinds)}: only {FULL} is supported.")
    window = None  # also if layer_types says that every layer attends to everything
    if family.windows == "all" and not kinds and values.get("sliding_window", MISTRALS) is not None:
      window = hf.whole(values, "sliding_window", where, default=MISTRALS)
    theta, scaling = hf.rope(values, where)
    return dict(rope_theta=theta, rope_scaling=scaling, window=window, nope=_nope(values, family, layers, where))
  every = hf.whole(values, "sliding_window_pattern", where, default=PATTERN)
  if kinds is None:
    kinds = [SLIDING if slides else FULL for slides in pattern(layers, every)]
  if not isinstance(kinds, list) or len(kinds) != layers or set(kinds) - {FULL, SLIDING}:
    raise ValueError(
      f"{where}: layer_types has {reprlib.repr(kinds)}: it must have {FULL} or {SLIDING} for each of {layers} layers."
    )
  slides = tuple(kind == SLIDING for kind in kinds)
  theta, local, scaling = hf.two_ropes(values, where, theta=THETA, local=LOCAL_THETA)
  query_scale, head_dim = hf.number(values, "query_pre_attn_scalar", where), values.get("head_dim", family.head_dim)
  found = dict(rope_theta=theta, rope_scaling=scaling, query_scale=None if query_scale == head_dim else query_scale)
  if any(slides):
    found |= dict(window=hf.whole(values, "sliding_window", where), sliding=slides, local_rope_theta=local)
  if values.get("use_bidirectional_attention"):  # config.json counts both sides, as transformers reads and writes it
    found |= dict(bidirectional=True, **(dict(window=found["window"] // 2 + 1) if any(slides) else {}))
  return found


def _nope(values, family: Family, layers: int, where: str) -> tuple[bool, ...]:
  """Which layers have no rotary positions; empty: none."""
  if not family.nope:
    return ()
  rotated = values.get("no_rope_layers")
  if rotated is None:
    rotated = pattern(layers, hf.whole(values, "no_rope_layer_interval", where, default=family.nope))
  elif not isinstance(rotated, list) or len(rotated) < layers or any(each not in (0, 1) for each in rotated):
    raise ValueError(
      f"{where}: no_rope_layers is {reprlib.repr(rotated)}: it must have 1 (rotary positions) or 0 (none) for each of "
      f"{layers} layers."
    )
  return tuple(not each for each in rotated[:layers])


def _hybrid(values, family: Family, layers: int, where: str) -> dict[str, Any]:
  """Which layers attend, the sizes of the others, and the settings of rotary positions."""
  hf.refuse(values, where, attn_output_gate=(True,), output_gate_type=("swish", SILU), mlp_only_layers=([],))
  every, kinds = hf.whole(values, "full_attention_interval", where, default=ATTEND_EVERY), values.get("layer_types")
  if isinstance(kinds, list) and FULL in kinds:
    every = kinds.index(FULL) + 1
  if layers > MOST_LAYERS or (kinds and kinds != [LINEAR if delta else FULL for delta in pattern(layers, every)]):
    raise ValueError(
      f"{where}: layer_types has {reprlib.repr(kinds)}: every so many of at most {MOST_LAYERS} layers must be {FULL}, "
      f"and the others {LINEAR}."
    )
  values, partial = dict(values), hf.number(values, "partial_rotary_factor", where, default=PARTIAL)
  for name in ("rope_parameters", "rope_scaling"):
    if isinstance(given := values.get(name), dict):
      partial = hf.number(given, "partial_rotary_factor", where, default=partial)
      values[name] = {k: v for k, v in given.items() if k not in _OF_GRIDS | {"partial_rotary_factor"}}
  values.pop("partial_rotary_factor", None)
  theta, scaling = hf.rope(values, where)
  head_dim = hf.whole(values, "head_dim", where, default=family.head_dim)
  sizes = {name: hf.whole(values, key, where) for name, key in _OF_DELTA.items()}
  return dict(rope_theta=theta, rope_scaling=scaling, attend_every=every, rotary_dim=int(head_dim * partial), **sizes)


def write_config(config: Any) -> dict[str, Any]:
  """The contents of a config.json from a `DecoderConfig`, with its rope in the layouts of transformers 4 and 5."""
  c, family = config, config.traits
  given = dataclasses.asdict(c.rope_scaling) if c.rope_scaling else {}
  scaling = c.rope_scaling and {"rope_type": c.rope_scaling.kind, **{k: v for k, v in given.items() if v is not None}}
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
    pad_token_id=None,  # transformers' default may lie beyond the vocabulary, or be a token
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
  if family.nope:
    values["no_rope_layers"] = [int(not each) for each in c.nope or (False,) * c.num_layers]
  if family.hybrid:
    partial = c.rotated / c.head_dim
    values |= dict(
      layer_types=[LINEAR if delta else FULL for delta in pattern(c.num_layers, c.attend_every)],
      full_attention_interval=c.attend_every,
      attn_output_gate=True,
      partial_rotary_factor=partial,
      rope_parameters={**rope, "partial_rotary_factor": partial},
      **{key: getattr(c, name) for name, key in _OF_DELTA.items()},
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
