"""The decoder's config, for Qwen2/2.5, Qwen3 and Llama 3; they differ in a few switches only."""

from __future__ import annotations

import dataclasses
import functools
import reprlib
from collections.abc import Mapping
from typing import Any

from ragrl_jax.models import hf

# Our family (config.json's model_type) → the class in transformers.
ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """Llama 3.1's scaling of the low rotary frequencies; `original_max_position` is in tokens.

  Source: transformers, modeling_rope_utils.py, "llama3".
  """

  factor: float
  low_freq_factor: float
  high_freq_factor: float
  original_max_position: int


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """The shape of a decoder.

  Attributes:
    vocab_size: rows of the embedding; a tokenizer may have fewer ids.
    head_dim: width of one head; it may differ from d_model / num_heads.
    rope_theta: base of the rotary frequencies.
    qk_norm: whether each head of q and k has an RMSNorm before the rotation. Always true in Qwen3, else false.
    attention_bias: whether q, k and v have biases. Always true in Qwen2; in other families o then has one too.
    tied: whether the embedding is also the unembedding.
    max_position: the limit in config.json, in tokens; the decoder itself has no limit.
    eos_ids, bos_id: kept only for config.json; sampling uses the tokenizer's.
  """

  vocab_size: int
  d_model: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  d_ff: int
  rope_theta: float
  family: str = "qwen3"
  rope_scaling: RopeScaling | None = None
  qk_norm: bool = True
  attention_bias: bool = False
  tied: bool = True
  norm_eps: float = 1e-6
  max_position: int = 32768
  eos_ids: tuple[int, ...] = ()
  bos_id: int | None = None

  def __post_init__(self):
    where = "config.model.shape, or the model folder's config.json"
    if self.family not in ARCHITECTURES:
      raise ValueError(f"model family {self.family!r}: it must be one of {', '.join(ARCHITECTURES)} ({where}).")
    for name in ("vocab_size", "d_model", "num_layers", "num_heads", "num_kv_heads", "head_dim", "d_ff"):
      if getattr(self, name) < 1:
        raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1 ({where}).")
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f"{self.num_heads} query heads cannot share {self.num_kv_heads} key-value heads: num_heads must be a "
        f"multiple of num_kv_heads ({where})."
      )
    if self.head_dim % 2:
      raise ValueError(f"head_dim is {self.head_dim}: rotary positions turn pairs, so it must be even ({where}).")
    if self.rope_theta <= 0:
      raise ValueError(f"rope_theta is {self.rope_theta}: it must be above 0 ({where}).")
    if self.qk_norm != (self.family == "qwen3") or (self.family == "qwen2" and not self.attention_bias):
      raise ValueError(
        f"{self.family} with qk_norm={self.qk_norm}, attention_bias={self.attention_bias} is a model transformers "
        f"cannot load: qwen3 has q/k norm, qwen2 has attention bias and no norm, llama has no norm ({where})."
      )

  @property
  def output_bias(self) -> bool:
    """Whether attention's output projection has a bias."""
    return self.attention_bias and self.family != "qwen2"

  @classmethod
  def from_shape(cls, vocab_size: int, *, family: str, **shape: Any) -> DecoderConfig:
    """A new model's config from `config.model.shape`; the family determines biases and q/k norm.

    Raises:
      ValueError: a name that the config does not have, or sizes that do not fit each other.
    """
    known = {f.name for f in dataclasses.fields(cls)} - {"vocab_size", "family"}
    if unknown := sorted(set(shape) - known):
      raise ValueError(f"config.model.shape has {', '.join(unknown)}: it may have {', '.join(sorted(known))}.")
    implied = dict(qk_norm=family == "qwen3", attention_bias=family == "qwen2")
    return cls(vocab_size=vocab_size, family=family, **{**implied, **shape})

  @classmethod
  def from_hf(cls, values: Mapping[str, Any], where: str = "config.json") -> DecoderConfig:
    """The config from the contents of a config.json.

    Args:
      values: its contents.
      where: its path, for messages.

    Raises:
      ValueError: an architecture or option that this decoder does not support, or a missing setting.
    """
    size = functools.partial(hf.whole, values, where=where)
    family = hf.required(values, "model_type", where)
    if not isinstance(family, str) or family not in ARCHITECTURES:
      raise ValueError(
        f"{where}: model_type {family!r} is not a supported decoder: it must be one of {', '.join(ARCHITECTURES)}."
      )
    hf.refuse(values, where, hidden_act=("silu",), mlp_bias=(False,), use_sliding_window=(False,))
    kinds = values.get("layer_types") or ["full_attention"]
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
      raise ValueError(f"{where}: layer_types has {reprlib.repr(kinds)}: only full_attention is computed here.")
    theta, scaling = hf.rope(values, where)
    d_model, num_heads = size("hidden_size"), size("num_attention_heads")
    head_dim = size("head_dim", default=128 if family == "qwen3" else max(1, d_model // num_heads))
    eos = values.get("eos_token_id")
    eos = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if not all(type(i) is int for i in eos):
      raise ValueError(f"{where}: eos_token_id is {eos!r}: it must be an id or a list of ids.")
    return cls(
      vocab_size=size("vocab_size"),
      d_model=d_model,
      num_layers=size("num_hidden_layers"),
      num_heads=num_heads,
      num_kv_heads=size("num_key_value_heads", default=num_heads),
      head_dim=head_dim,
      d_ff=size("intermediate_size"),
      rope_theta=float(theta),
      family=family,
      rope_scaling=scaling and RopeScaling(**scaling),
      qk_norm=family == "qwen3",
      attention_bias=family == "qwen2" or bool(values.get("attention_bias", False)),
      tied=bool(values.get("tie_word_embeddings", False)),
      norm_eps=hf.number(values, "rms_norm_eps", where),
      max_position=size("max_position_embeddings", default=32768),
      eos_ids=tuple(eos),
      bos_id=values.get("bos_token_id"),
    )

  def to_hf(self) -> dict[str, Any]:
    """The contents of a config.json, with the rope settings in the layouts of transformers 4 and 5."""
    scaling = None
    if self.rope_scaling is not None:
      scaling = dict(
        rope_type="llama3",
        factor=self.rope_scaling.factor,
        low_freq_factor=self.rope_scaling.low_freq_factor,
        high_freq_factor=self.rope_scaling.high_freq_factor,
        original_max_position_embeddings=self.rope_scaling.original_max_position,
      )
    values = dict(
      architectures=[ARCHITECTURES[self.family]],
      model_type=self.family,
      vocab_size=self.vocab_size,
      hidden_size=self.d_model,
      num_hidden_layers=self.num_layers,
      num_attention_heads=self.num_heads,
      num_key_value_heads=self.num_kv_heads,
      head_dim=self.head_dim,
      intermediate_size=self.d_ff,
      hidden_act="silu",
      rms_norm_eps=self.norm_eps,
      tie_word_embeddings=self.tied,
      max_position_embeddings=self.max_position,
      rope_theta=self.rope_theta,
      rope_scaling=scaling,
      rope_parameters={**(scaling or dict(rope_type="default")), "rope_theta": self.rope_theta},
      bos_token_id=self.bos_id,
      eos_token_id=self.eos_ids[0] if len(self.eos_ids) == 1 else list(self.eos_ids) or None,
    )
    if self.family != "qwen2":
      values["attention_bias"] = self.attention_bias
    return values
