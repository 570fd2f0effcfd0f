"""One description for every decoder: Qwen2/2.5, Qwen3 and Llama 3 differ in a few switches only."""

from __future__ import annotations

import dataclasses
from typing import Any

# What each family switches on. The names on the right are those of Hugging Face's config.json.
ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """Llama 3.1's stretching of the slow rotary frequencies; positions are counted in tokens.

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
    vocab_size: rows of the embedding; a tokenizer may know fewer ids.
    head_dim: width of one head; need not be d_model / num_heads.
    qk_norm: RMSNorm over each head of q and k, before the rotation (Qwen3).
    attention_bias: biases on q, k, v (Qwen2). `output_bias`: on o as well (Llama and Qwen3 with attention_bias).
    tied: the embedding is also the unembedding.
    max_position: what config.json promises; the decoder itself has no limit.
    eos_ids, bos_id: kept for config.json; the tokenizer is what decides.
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
  qk_norm: bool = False
  attention_bias: bool = False
  output_bias: bool = False
  tied: bool = True
  norm_eps: float = 1e-6
  max_position: int = 32768
  eos_ids: tuple[int, ...] = ()
  bos_id: int | None = None

  def __post_init__(self):
    if self.family not in ARCHITECTURES:
      raise ValueError(
        f"model family {self.family!r}: it must be one of {', '.join(ARCHITECTURES)} (config.model.shape.family).")
    for name in ("vocab_size", "d_model", "num_layers", "num_heads", "num_kv_heads", "head_dim", "d_ff"):
      if getattr(self, name) < 1:
        raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1 (config.model.shape.{name}).")
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f"{self.num_heads} query heads cannot share {self.num_kv_heads} key-value heads: num_heads must be a "
        "multiple of num_kv_heads (config.model.shape).")
    if self.head_dim % 2:
      raise ValueError(
        f"head_dim is {self.head_dim}: rotary positions turn pairs, so it must be even (config.model.shape.head_dim).")
    if self.rope_theta <= 0:
      raise ValueError(f"rope_theta is {self.rope_theta}: it must be above 0 (config.model.shape.rope_theta).")

  @classmethod
  def from_shape(cls, vocab_size: int, *, family: str, **shape: Any) -> DecoderConfig:
    """A new model's config from `config.model.shape`; the family decides on biases and q/k norm.

    Raises:
      ValueError: a name the config does not have, or sizes that do not fit each other.
    """
    known = {f.name for f in dataclasses.fields(cls)} - {"vocab_size", "family"}
    if unknown := sorted(set(shape) - known):
      raise ValueError(f"config.model.shape has {', '.join(unknown)}: it may have {', '.join(sorted(known))}.")
    implied = dict(qk_norm=family == "qwen3", attention_bias=family == "qwen2")
    return cls(vocab_size=vocab_size, family=family, **{**implied, **shape})
