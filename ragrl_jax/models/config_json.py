"""Converts a decoder's config.json to our settings, and back. Refuses settings that the decoder would ignore."""

import functools
import reprlib
from collections.abc import Mapping
from typing import Any

from ragrl_jax.models import families, hf
from ragrl_jax.models.families import FULL, SLIDING, Family

LOCAL_THETA = 10_000.0  # rope_theta of Gemma 3's sliding layers, if config.json has none
PATTERN = 6  # every sixth layer of Gemma 3 attends to everything
MOST_LAYERS = 10_000
MISTRALS = 4096  # Mistral's window, if config.json has no such key; null there means no window


def pattern(layers: int, every: int = PATTERN) -> tuple[bool, ...]:
  """Which layers slide, one bool per layer: all but every `every`-th."""
  return tuple((number + 1) % every != 0 for number in range(layers))


def read(values: Mapping[str, Any], where: str) -> dict[str, Any]:
  """The fields of a `DecoderConfig` in a config.json; "rope_scaling" is (its kind or None, its settings).

  Raises:
    ValueError: a family or option that the decoder does not support, or a missing setting.
  """
  size = functools.partial(hf.whole, values, where=where)
  name = hf.required(values, "model_type", where)
  family = families.get(name, f"{where}: model_type")
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


def write(config: Any, scaling: dict[str, Any] | None) -> dict[str, Any]:
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
