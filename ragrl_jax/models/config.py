"""The config of the decoder, for all of its families (`models/families.py`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from ragrl_jax.models import families, hf
from ragrl_jax.models.families import Family
from ragrl_jax.models.hf import RopeScaling, Scaling, YarnScaling

WHERE = "config.model.shape, or the model folder's config.json"
DELTA = ("delta_key_heads", "delta_value_heads", "delta_key_dim", "delta_value_dim", "delta_conv")
EVERYTHING = 2**30  # the window of a layer without one: more tokens than any row has


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """The shape of a decoder.

  Attributes:
    vocab_size: rows of the embedding; a tokenizer may have fewer ids.
    head_dim: width of one head; it may differ from d_model / num_heads.
    d_ff: width of the MLP; in a mixture, of one expert.
    rope_theta: base of the rotary frequencies.
    qk_norm: whether each head of q and k has an RMSNorm before the rotation; the family decides.
    attention_bias: whether q, k and v have biases. Always true in Qwen2; in other families o then has one too.
    tied: whether the embedding is also the unembedding.
    max_position: the limit in config.json, in tokens; the decoder itself has no limit.
    eos_ids, bos_id: kept only for config.json; sampling uses the tokenizer's.
    window: tokens that a sliding layer attends to, the token itself included; None: no layer slides.
    bidirectional: whether tokens also attend to later ones, in a sliding layer to window - 1 of them. Only an encoder
      may be so.
    sliding: which layers slide, one bool per layer; empty: all, if there is a window.
    local_rope_theta: rope_theta of Gemma's sliding layers, which have no scaling; None: there are none.
    nope: which layers have no rotary positions (NoPE), one bool per layer; empty: none.
    query_scale: scores are divided by its square root; None: head_dim.
    num_experts: experts per layer; 0: the MLP is not a mixture.
    experts_per_token: number of experts that compute a token.
    normalize_experts: whether the weights of a token's experts are divided by their sum.
    attend_every: in a hybrid, every so many layers one attends; the others are gated delta layers (`models/delta.py`).
      1 in other families.
    rotary_dim: features of a head that are rotated, the first ones; None: all.
    delta_key_heads, delta_value_heads: heads of a delta layer's queries and keys, and of its values and state.
    delta_key_dim, delta_value_dim: width of such a head.
    delta_conv: tokens that a delta layer's convolution covers, the token itself included.
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
  rope_scaling: Scaling = None
  qk_norm: bool = True
  attention_bias: bool = False
  tied: bool = True
  norm_eps: float = 1e-6
  max_position: int = 32768
  eos_ids: tuple[int, ...] = ()
  bos_id: int | None = None
  window: int | None = None
  bidirectional: bool = False
  sliding: tuple[bool, ...] = ()
  local_rope_theta: float | None = None
  nope: tuple[bool, ...] = ()
  query_scale: float | None = None
  num_experts: int = 0
  experts_per_token: int = 0
  normalize_experts: bool = True
  attend_every: int = 1
  rotary_dim: int | None = None
  delta_key_heads: int = 0
  delta_value_heads: int = 0
  delta_key_dim: int = 0
  delta_value_dim: int = 0
  delta_conv: int = 0

  def __post_init__(self):
    families.get(self.family, f"model family ({WHERE})")
    for name in ("vocab_size", "d_model", "num_layers", "num_heads", "num_kv_heads", "head_dim", "d_ff"):
      if getattr(self, name) < 1:
        raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1 ({WHERE}).")
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f"{self.num_heads} query heads cannot share {self.num_kv_heads} key-value heads: num_heads must be a "
        f"multiple of num_kv_heads ({WHERE})."
      )
    if self.head_dim % 2 or self.rotated % 2 or not 2 <= self.rotated <= self.head_dim:
      raise ValueError(
        f"head_dim is {self.head_dim}, of which {self.rotated} are rotated: rotary positions rotate pairs, so both "
        f"must be even ({WHERE})."
      )
    for name in ("rope_theta", "local_rope_theta", "query_scale"):
      if (value := getattr(self, name)) is not None and value <= 0:
        raise ValueError(f"{name} is {value}: it must be above 0 ({WHERE}).")
    self._check_family()
    self._check_windows()
    if self.num_experts and not 1 <= self.experts_per_token <= self.num_experts:
      raise ValueError(
        f"experts_per_token is {self.experts_per_token}: it must be 1 to the {self.num_experts} experts ({WHERE})."
      )

  def _check_family(self) -> None:
    """Refuses settings that the family does not have, since transformers could not load such a model."""
    f = self.traits
    if self.qk_norm != f.qk_norm or f.attention_bias not in (None, self.attention_bias):
      bias = {True: "has", False: "has no", None: "may have"}[f.attention_bias]
      raise ValueError(
        f"{self.family} with qk_norm={self.qk_norm}, attention_bias={self.attention_bias} is a model transformers "
        f"cannot load: {self.family} has {'' if f.qk_norm else 'no '}q/k norm, and {bias} attention bias ({WHERE})."
      )
    if bool(self.num_experts) != f.experts:
      raise ValueError(
        f"{self.family} with num_experts={self.num_experts}: it must be {'at least 1' if f.experts else '0'} ({WHERE})."
      )
    if self.query_scale is not None and not f.query_scale:
      raise ValueError(f"query_scale is {self.query_scale}: {self.family} has none; leave it out ({WHERE}).")
    if self.nope and (not f.nope or len(self.nope) != self.num_layers):
      raise ValueError(
        f"nope={self.nope}: it needs one value for each of {self.num_layers} layers, and a family with such layers "
        f"({WHERE})."
      )
    if bool(getattr(self.rope_scaling, "llama_4_scaling_beta", None)) != f.position_scale:
      raise ValueError(
        f"rope_scaling is {self.rope_scaling}: in {self.family} llama_4_scaling_beta {'is needed' * f.position_scale}"
        f"{'has no effect: leave it out' * (not f.position_scale)} ({WHERE})."
      )
    sizes = {name: getattr(self, name) for name in DELTA}
    if not f.hybrid:
      if self.attend_every != 1 or any(sizes.values()) or self.rotary_dim is not None:
        raise ValueError(
          f"{self.family} has neither delta layers ({sizes}) nor a rotary_dim: leave them out ({WHERE})."
        )
    elif self.attend_every < 2 or self.num_layers % self.attend_every or min(sizes.values()) < 1:
      raise ValueError(
        f"{self.family} with num_layers={self.num_layers}, attend_every={self.attend_every}, {sizes}: attend_every "
        f"must be at least 2 and divide num_layers, and the others be at least 1 ({WHERE})."
      )
    elif self.delta_value_heads % self.delta_key_heads:
      raise ValueError(
        f"{self.delta_value_heads} value heads cannot share {self.delta_key_heads} key heads of a delta layer: "
        f"delta_value_heads must be a multiple of delta_key_heads ({WHERE})."
      )

  def _check_windows(self) -> None:
    allowed = self.traits.windows
    if self.window is not None and (allowed == "none" or self.window < 1):
      raise ValueError(
        f"window is {self.window}: {self.family} has "
        f"{'no sliding window' if allowed == 'none' else 'windows of at least 1 token'} ({WHERE})."
      )
    if self.sliding and (allowed != "layers" or len(self.sliding) != self.num_layers or self.window is None):
      raise ValueError(
        f"sliding={self.sliding} with window={self.window}: it needs one value for each of {self.num_layers} layers, "
        f"a family whose layers differ, and a window ({WHERE})."
      )
    if (self.local_rope_theta is not None) != (allowed == "layers" and self.window is not None):
      raise ValueError(
        f"local_rope_theta is {self.local_rope_theta}: only sliding layers of gemma3_text have one ({WHERE})."
      )

  @property
  def traits(self) -> Family:
    """What all models of its family have in common."""
    return families.FAMILIES[self.family]

  @property
  def places(self) -> list[tuple[str, int]]:
    """Of each layer, the stack of the decoder that holds it, "layers" or "delta", and its number in the stack."""
    numbers = families.numbers_of(self.num_layers, self.attend_every)
    return [place for _, place in sorted((i, (name, n)) for name, all in numbers.items() for n, i in enumerate(all))]

  @property
  def attending(self) -> int:
    """Number of layers that attend; all others are delta layers."""
    return self.num_layers // self.attend_every

  @property
  def rotated(self) -> int:
    """Features of a head that are rotated."""
    return self.rotary_dim or self.head_dim

  @property
  def delta_channels(self) -> int:
    """Width of a delta layer's queries, keys and values together, which its convolution mixes over time."""
    return 2 * self.delta_key_heads * self.delta_key_dim + self.delta_value_heads * self.delta_value_dim

  @property
  def parts(self) -> dict[str, int]:
    """What "tensor" must divide besides attention's heads, for `rules.check_parts`."""
    return dict(experts=self.num_experts, delta_heads=self.delta_key_heads)

  @property
  def attention_matrices(self) -> int:
    """Parameters of the matrices of a layer's attention: of queries, keys, values and output, and a hybrid's gates."""
    return self.d_model * self.head_dim * ((3 if self.traits.hybrid else 2) * self.num_heads + 2 * self.num_kv_heads)

  @property
  def delta_matrices(self) -> int:
    """Parameters of the matrices of a delta layer's mixer."""
    heads = self.delta_value_heads
    return self.d_model * (self.delta_channels + 2 * heads * self.delta_value_dim + 2 * heads)

  @property
  def output_bias(self) -> bool:
    """Whether attention's output projection has a bias."""
    return self.attention_bias and self.traits.attention_bias is None

  @property
  def reach(self) -> int:
    """Number of positions that the model was made for, in tokens, after the scaling of its rope."""
    scaling = self.rope_scaling
    # Published folders count after scaling, as Llama 3.2's 131,072. One that a user stretched still has the old number.
    # YaRN's factor is the ratio of the two; Qwen3's old number, 40,960, is above the original 32,768.
    after = isinstance(scaling, RopeScaling) and self.max_position > scaling.original_max_position_embeddings
    if isinstance(scaling, RopeScaling | YarnScaling) and not after:
      return max(self.max_position, int(scaling.factor * scaling.original_max_position_embeddings))
    return self.max_position

  @property
  def windows(self) -> tuple[int, ...]:
    """The number of tokens that each layer attends to: its window, or EVERYTHING."""
    slides = self.sliding or (self.window is not None,) * self.num_layers
    return tuple(self.window if each and self.window is not None else EVERYTHING for each in slides)

  @property
  def ropes(self) -> tuple[tuple[float, Scaling], ...]:
    """(base, scaling) of each layer's rotary frequencies."""
    plain, local = (self.rope_theta, self.rope_scaling), (self.local_rope_theta, None)
    if any(self.nope):
      none = (self.rope_theta, hf.LinearScaling(math.inf))  # no angle at any position
      return tuple(none if each else plain for each in self.nope)
    return tuple(plain if local[0] is None or window == EVERYTHING else local for window in self.windows)

  @classmethod
  def from_shape(cls, vocab_size: int, *, family: str, **shape: Any) -> DecoderConfig:
    """A new model's config from `config.model.shape`; the family determines biases, q/k norm and the layers' kinds.

    Raises:
      ValueError: a name that the config does not have, or sizes that do not fit each other.
    """
    known = {f.name for f in dataclasses.fields(cls)} - {"vocab_size", "family", "bidirectional"}
    if unknown := sorted(set(shape) - known):
      raise ValueError(f"config.model.shape has {', '.join(unknown)}: it may have {', '.join(sorted(known))}.")
    traits = families.get(family, "config.model.shape.family")
    implied: dict[str, Any] = dict(qk_norm=traits.qk_norm, attention_bias=bool(traits.attention_bias))
    if traits.windows == "layers" and shape.get("window") is not None:
      layers = shape.get("num_layers", 0)
      implied |= dict(sliding=families.pattern(layers), local_rope_theta=families.LOCAL_THETA)
    if traits.nope:
      implied["nope"] = tuple(not each for each in families.pattern(shape.get("num_layers", 0), traits.nope))
    if traits.hybrid:
      implied["attend_every"] = families.ATTEND_EVERY
    for name in shape.keys() & {"sliding", "nope", "eos_ids"}:  # a config's tuples may come as lists
      shape[name] = tuple(shape[name])
    if isinstance(scaling := shape.get("rope_scaling"), Mapping):
      shape["rope_scaling"] = hf.rope(dict(rope_theta=1.0, rope_scaling=scaling), "config.model.shape")[1]
    return cls(vocab_size=vocab_size, family=family, **{**implied, **shape})

  @classmethod
  def from_hf(cls, values: Mapping[str, Any], where: str = "config.json", *, embeds: bool = False) -> DecoderConfig:
    """The config from the contents of a config.json; `embeds`: see `bidirectional`.

    Raises:
      ValueError: an architecture or option that this decoder does not support, or a missing setting.
    """
    return cls(**families.read_config(values, where, embeds=embeds))

  def to_hf(self) -> dict[str, Any]:
    """The contents of a config.json."""
    return families.write_config(self)
