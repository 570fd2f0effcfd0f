"""Reads a Hugging Face folder's JSON files. Refuses missing settings, and settings that this library would ignore."""

import dataclasses
import functools
import json
import logging
import math
import os
import pathlib
import reprlib
from collections.abc import Collection, Mapping
from typing import Any

from ragrl_jax.store import jsonl


def read_json(path: pathlib.Path, kind: type = dict) -> Any:
  """The object (or list, by `kind`) in a JSON file.

  Raises:
    ValueError: the file is missing or not JSON, or its value is of another kind.
  """
  try:
    values = json.loads(path.read_text(encoding="utf-8"))
  except FileNotFoundError as error:
    raise ValueError(f"{path} is missing: {path.parent} must be a model folder in Hugging Face's format.") from error
  except OSError as error:
    raise ValueError(f"{path} cannot be read ({error.strerror}): it must be a file of a model folder.") from error
  except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, a number too long; or nested too deep
    raise ValueError(f"{path} is not JSON ({error}): fetch or export the model folder again.") from error
  if not isinstance(values, kind):
    raise ValueError(f"{path} holds a {type(values).__name__}: it must hold a {kind.__name__}.")
  return values


def write_json(path: str | os.PathLike, values: Mapping[str, Any]) -> None:
  """Writes a model folder's JSON file; a killed call leaves the old one as it was."""
  jsonl.write_text(path, json.dumps(values, indent=2) + "\n")


def required(values: Mapping[str, Any], key: str, where: str) -> Any:
  """values[key]. Raises a ValueError that names the file and the key if it is missing or null."""
  if values.get(key) is None:
    raise ValueError(f"{where}: {key} is missing: add it as the model's authors published it.")
  return values[key]


def whole(values: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
  """values[key], a whole number from 1; `default` if it is missing or null.

  Raises:
    ValueError: it is missing and there is no default, or it is not such a number.
  """
  value = required(values, key, where) if default is None else values.get(key)
  if value is None:
    return default
  if type(value) is not int or not 1 <= value < 2**31:
    raise ValueError(f"{where}: {key} is {reprlib.repr(value)}: it must be a whole number from 1 to {2**31 - 1}.")
  return value


def number(values: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
  """values[key] as a float; `default` if it is missing or null. Raises a ValueError as `whole` does."""
  value = required(values, key, where) if default is None else values.get(key)
  if value is None:
    return default
  if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
    raise ValueError(f"{where}: {key} is {reprlib.repr(value)}: it must be a number.")
  return float(value)


def refuse(values: Mapping[str, Any], where: str, **allowed: tuple) -> None:
  """Raises a ValueError if a setting is given and its value is not one of the supported ones."""
  for key, choices in allowed.items():
    if key in values and values[key] is not None and values[key] not in choices:
      raise ValueError(f"{where}: {key} is {values[key]!r}: only {' or '.join(map(repr, choices))} is supported.")


# Settings of config.json that no model's outputs depend on, as written by transformers 4 and 5, and the ids that
# tokenizers have too. Settings of generation are those of `generate`, which is not used here. is_llama_config
# is a note of SmolLM2's trainer, sbert_ce_default_activation_function one of sentence-transformers about rerankers,
# whose scores here are logits; max_sequence_length is in conversions of the first Llama.
HARMLESS = frozenset(
  "architectures model_type transformers_version torch_dtype dtype name_or_path tokenizer_class use_cache return_dict "
  "output_hidden_states output_attentions output_past torchscript use_bfloat16 tf_legacy_loss xla_device "
  "attn_implementation cache_implementation chunk_size_feed_forward gradient_checkpointing initializer_range "
  "initializer_factor pretraining_tp finetuning_task task_specific_params problem_type id2label label2id num_labels "
  "classifier_dropout attention_dropout hidden_dropout hidden_dropout_prob attention_probs_dropout_prob dropout_rate "
  "bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id unk_token_id decoder_start_token_id "
  "max_length min_length max_new_tokens do_sample early_stopping num_beams num_beam_groups diversity_penalty "
  "temperature top_k top_p typical_p min_p repetition_penalty length_penalty no_repeat_ngram_size "
  "encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores return_dict_in_generate prefix "
  "forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens "
  "begin_suppress_tokens unsloth_version unsloth_fixed model_name sentence_transformers transformers.js_config "
  "is_llama_config sbert_ce_default_activation_function max_sequence_length".split()
)


def refuse_unknown(values: Mapping[str, Any], where: str, known: Collection[str]) -> None:
  """Raises a ValueError for a setting that is on, and neither known nor harmless: it may change what a model computes.

  Null, false, 0 and empty values are off. Names that begin with "_" are transformers' own notes.
  """
  if values.get("quantization_config"):
    raise ValueError(
      f"{where}: it has a quantization_config: quantised weights are not read. Name the model of which they were made."
    )
  for key, value in values.items():
    if value and key not in known and not key.startswith("_"):
      raise ValueError(
        f"{where}: {key} is {reprlib.repr(value)}: this setting is not supported, and it may change what the model "
        "computes. If it does not, remove it from the file."
      )


@dataclasses.dataclass(frozen=True)
class LinearScaling:
  """All rotary frequencies are divided by `factor`. Source: transformers, modeling_rope_utils.py, "linear"."""

  factor: float

  kind = "linear"  # its rope_type in config.json, where the fields have the same names


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """Llama 3.1's scaling of the low rotary frequencies; `original_max_position_embeddings` is in tokens.

  Source: transformers, modeling_rope_utils.py, "llama3".
  """

  factor: float
  low_freq_factor: float
  high_freq_factor: float
  original_max_position_embeddings: int

  kind = "llama3"


@dataclasses.dataclass(frozen=True)
class YarnScaling:
  """YaRN: the low rotary frequencies are divided by `factor`, and cos and sin are multiplied by `attention_factor`.

  Attributes:
    original_max_position_embeddings: tokens that the model was made for before.
    beta_fast, beta_slow: a frequency with more turns than beta_fast in those tokens is kept; with fewer than beta_slow,
      divided; between the two, the result is interpolated.
    truncate: whether the two bounds are rounded to whole pairs.
    attention_factor: None: what follows from `factor`, mscale and mscale_all_dim; attn_factor, which transformers does
      not read, multiplies that, as in vLLM.
    llama_4_scaling_beta: Ministral 3's; see `layers.Angles.scaled`.

  Source: Peng et al. (arXiv 2309.00071); transformers, modeling_rope_utils.py, "yarn".
  """

  factor: float
  original_max_position_embeddings: int
  beta_fast: float = 32.0
  beta_slow: float = 1.0
  truncate: bool = True
  attention_factor: float | None = None
  attn_factor: float | None = None
  mscale: float | None = None
  mscale_all_dim: float | None = None
  llama_4_scaling_beta: float | None = None

  kind = "yarn"

  def __post_init__(self):
    if self.attention_factor is None:
      of = lambda scale: 0.1 * scale * math.log(max(self.factor, 1.0)) + 1.0
      both = self.mscale and self.mscale_all_dim
      factor = of(self.mscale) / of(self.mscale_all_dim) if both else of(1.0)
      object.__setattr__(self, "attention_factor", factor * (self.attn_factor or 1.0))


Scaling = RopeScaling | LinearScaling | YarnScaling | None
_SCALINGS = {"default": None, **{scaling.kind: scaling for scaling in (LinearScaling, RopeScaling, YarnScaling)}}
# max_position_embeddings is unread there, and equal to that at the top.
_ROPE = set(
  "rope_type type rope_theta partial_rotary_factor original_max_position_embeddings max_position_embeddings".split()
)


def rope(values: Mapping[str, Any], where: str) -> tuple[float, Scaling]:
  """(theta, the scaling or None) from either layout of config.json.

  transformers 5 writes `rope_parameters` {rope_theta, rope_type, …}. Earlier versions write `rope_theta` at the top and
  `rope_scaling`, which is null or {rope_type or type, …}.

  Raises:
    ValueError: theta is missing, the two layouts disagree, or the scaling is none of `Scaling`.
  """
  new, old = values.get("rope_parameters") or {}, values.get("rope_scaling") or {}
  for key, layout in (("rope_parameters", new), ("rope_scaling", old)):
    if not isinstance(layout, dict):
      raise ValueError(f"{where}: {key} is {layout!r}: it must be an object or null.")
  thetas = {
    number(layout, "rope_theta", where) for layout in (new, old, values) if layout.get("rope_theta") is not None
  }
  if not thetas:
    raise ValueError(
      f"{where}: no rope_theta, neither at the top nor in rope_parameters. A guess would change every position: add it "
      "as the model's authors published it (10000 for Llama 2 and its descendants)."
    )
  if len(thetas) > 1:
    raise ValueError(f"{where}: rope_theta is {' and '.join(map(str, sorted(thetas)))}: keep the right one.")
  conflicting = [
    {"type": layout.get("rope_type", layout.get("type", "default"))}
    | {name: value for name, value in layout.items() if name not in ("rope_type", "type", "rope_theta")}
    for layout in (new, old)
    if layout
  ]
  if len(conflicting) == 2 and conflicting[0] != conflicting[1]:
    raise ValueError(f"{where}: rope_parameters and rope_scaling disagree: keep the right one.")
  settings = new or old
  kind = settings.get("rope_type", settings.get("type", "default"))
  if settings.get("type", kind) != kind:
    raise ValueError(f"{where}: rope scaling has rope_type {kind!r} and type {settings['type']!r}: keep the right one.")
  for layout in (values, settings):
    refuse(layout, where, partial_rotary_factor=(1,))
  if kind not in _SCALINGS:
    raise ValueError(f"{where}: rope_type {kind!r}: only {', '.join(map(repr, _SCALINGS))} are supported.")
  scaling = _SCALINGS[kind]
  where, found, fields = f"{where}, rope scaling", {}, dataclasses.fields(scaling) if scaling else ()
  for field in fields:
    name, read = field.name, whole if field.type is int else number
    if field.type is bool:
      found[name] = bool(settings.get(name, field.default))
    elif field.default is dataclasses.MISSING or settings.get(name) is not None:
      found[name] = read(settings, name, where)
      if found[name] <= 0:
        raise ValueError(f"{where}: {name} is {found[name]}: it must be above 0.")
  refuse_unknown(settings, where, _ROPE.union(field.name for field in fields))
  if found.get("attn_factor") and "attention_factor" not in found:
    _say_attn_factor(where, scaling(**found).attention_factor)
  return thetas.pop(), scaling and scaling(**found)


@functools.cache
def _say_attn_factor(where: str, factor: float) -> None:
  logging.warning(
    "%s: attn_factor multiplies YaRN's own factor, as in vLLM; transformers does not read it. cos and sin are "
    "multiplied by %.6g, and an export says so as attention_factor.",
    where,
    factor,
  )


def two_ropes(values: Mapping[str, Any], where: str, *, theta: float, local: float) -> tuple[float, float, Scaling]:
  """(theta, theta of sliding layers, the scaling or None) from either layout of config.json.

  transformers 5 writes `rope_parameters` {full_attention: …, sliding_attention: …}. Earlier versions write the settings
  of full attention as `rope` describes, and the theta of sliding layers as `rope_local_base_freq`.

  Args:
    theta, local: theta of full and of sliding layers, if config.json has none.

  Raises:
    ValueError: as `rope`, or the sliding layers have a scaling.
  """
  new = values.get("rope_parameters") or {}
  parts = [new.get(kind, {}) if isinstance(new, dict) else None for kind in ("full_attention", "sliding_attention")]
  if not all(isinstance(part, dict) for part in parts) or (new and not any(parts)):
    raise ValueError(
      f"{where}: rope_parameters is {reprlib.repr(new)}: it must have an object for full_attention and one for "
      "sliding_attention."
    )
  full, sliding = parts
  given = dict(rope_theta=theta) if full.get("rope_theta") is None else {}
  theta, scaling = rope({**given, **values, "rope_parameters": full}, where)
  refuse({**(values.get("rope_scaling") or {}), **full}, where, truncate=(True,))  # unread there
  base = values.get("rope_local_base_freq", None if sliding.get("rope_theta") is not None else local)
  slid, unwanted = rope(dict(rope_parameters=sliding, rope_theta=base), f"{where}, sliding_attention")
  if unwanted is not None:
    raise ValueError(f"{where}: sliding_attention has rope_type {unwanted.kind!r}: only 'default' is supported.")
  return theta, slid, scaling
