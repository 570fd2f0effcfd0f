"""How a text becomes a vector: what an encoder's folder declares, and a family's defaults only where it is silent.

The files are those of sentence-transformers 5, with its meaning: modules.json and the folders of its modules,
sentence_bert_config.json and config_sentence_transformers.json.
"""

import dataclasses
import logging
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from ragrl_jax.models import families, hf, hub
from ragrl_jax.settings.fields import Checked, setting

POOLINGS = ("mean", "cls", "pooler", "last")
MOST_TOKENS = 8192


@dataclasses.dataclass(frozen=True)
class EncoderSettings(Checked):
  """How a text becomes a vector. An index stores these settings, since its vectors depend on all of them.

  Attributes:
    pooling: "mean" of the text's token states, "cls" the first token's state, "pooler" BERT's tanh layer on the first
      token's state, "last" the last token's state.
    normalize: divide by the L2 norm, so that inner products are cosines.
    query_prefix, passage_prefix: text put before every query and every passage.
    max_tokens: longer texts are truncated to this length, special tokens included.
    title_separator: text between a passage's title and its text.
    lower_case: texts become lower case before they are tokenized.
  """

  WHERE = "encoder settings: "
  pooling: str = setting(dataclasses.MISSING, choices=POOLINGS)
  normalize: bool = setting(dataclasses.MISSING)
  query_prefix: str = ""
  passage_prefix: str = ""
  max_tokens: int = setting(512, least=1, most=MOST_TOKENS)
  title_separator: str = "\n"
  lower_case: bool = False


INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
# Settings by family. A family is named by all words of its key. Sources: the models' cards; for E5's 256 tokens and
# DPR's CLS state, Search-R1's retrieval server and FlashRAG. GTE's models have no prefixes.
PRESETS = {
  "e5": EncoderSettings("mean", True, "query: ", "passage: ", 256),
  "e5-instruct": EncoderSettings("mean", True, f"{INSTRUCTION} ", "", 512),
  "bge": EncoderSettings("cls", True, "Represent this sentence for searching relevant passages: ", "", 512),
  "bge-zh": EncoderSettings("cls", True, "为这个句子生成表示以用于检索相关文章：", "", 512),
  "bge-m3": EncoderSettings("cls", True, "", "", 8192),
  "gte": EncoderSettings("mean", True, "", "", 512),
  "gte-modernbert": EncoderSettings("cls", True, "", "", 8192),
  "modernbert-embed": EncoderSettings("mean", True, "search_query: ", "search_document: ", 8192),
  "minilm": EncoderSettings("mean", True, "", "", 256, " "),
  # transformers calls the first token's state DPR's pooler output: its towers have no tanh layer.
  "dpr": EncoderSettings("cls", False, "", "", 256, " [SEP] "),
  "qwen3-embedding": EncoderSettings("last", True, INSTRUCTION, "", 8192),
}
FIELDS = tuple(field.name for field in dataclasses.fields(EncoderSettings))
MODES = {
  **{"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"},
  "lasttoken": "last",
}
MODULES, TRANSFORMER, PROMPTS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
TOKENIZER = "tokenizer_config.json"
TOKENS = "tokens"  # in an index: a hash of the tokenizers; older indexes lack it
EOS = "eos"  # in an index: EOS is put behind a text, as tokenizer_config.json alone asks; older indexes lack it

Sourced = tuple[Any, str]  # (a value, where it is from)


def settings_for(
  path: str | os.PathLike,
  chosen: str | Mapping[str, Any] | EncoderSettings | None = None,
  query_prefix: str | None = None,
) -> EncoderSettings:
  """The settings of the model in a folder. The log says where each is from, and where a given one differs.

  Args:
    chosen: all settings, some of their fields, or a preset's name. Fields that are not given are those that the folder
      declares, then those of the family that config.json, tokenizer_config.json or the folder's name names.
    query_prefix: text put before every query, whatever else is chosen.

  Raises:
    ValueError: the folder declares what is not supported, or its pooling is unknown.
  """
  if isinstance(chosen, EncoderSettings):  # an index's, for example
    return chosen if query_prefix is None else dataclasses.replace(chosen, query_prefix=query_prefix)
  given = _given(chosen) | ({} if query_prefix is None else dict(query_prefix=query_prefix))
  folder = pathlib.Path(path)
  declared = _declared(folder)
  family, source, note = _family(folder, declared)
  usual = dataclasses.asdict(PRESETS[family]) if family else {}
  fallback = dict(title_separator=" ") if (folder / MODULES).is_file() else {}
  sources: dict[str, Sourced] = {}
  for name in FIELDS:
    told, where = declared.get(name, (None, ""))
    if name in given:
      sources[name] = given[name], "given" if told in (None, given[name]) else f"given; {where} has {told!r}"
    elif name in declared:
      sources[name] = told, where if usual.get(name, told) == told else f"{where}; {family} has {usual[name]!r}"
    elif name in usual:
      sources[name] = usual[name], f"{family}, by {source}"
    elif name in fallback:
      sources[name] = fallback[name], "default"
  if missing := {"pooling", "normalize"} - sources.keys():
    raise ValueError(
      f"{folder}: this encoder's {', '.join(sorted(missing))}: unknown, since there is no {MODULES}, and neither its "
      f"files nor its name say that it is one of {', '.join(PRESETS)}. Give its settings, for example "
      '--encoder_options \'{"settings": "e5"}\' or \'{"settings": {"pooling": "mean", "normalize": true}}\'.'
    )
  if len(given) < len(FIELDS) or any(";" in where for _, where in sources.values()):
    values = ", ".join(f"{name}={value!r} ({where})" for name, (value, where) in sources.items())
    logging.warning("encoder %s: %s%s", folder, values, note)
  return EncoderSettings(**{name: value for name, (value, _) in sources.items()})


def _given(chosen: str | Mapping[str, Any] | None) -> dict[str, Any]:
  if chosen is None:
    return {}
  if isinstance(chosen, Mapping):
    if wrong := sorted(set(chosen) - set(FIELDS)):
      raise ValueError(f"encoder settings: {', '.join(wrong)} is unknown: they may have {', '.join(FIELDS)}.")
    return dict(chosen)
  if chosen not in PRESETS:
    raise ValueError(f"encoder settings {chosen!r}: it must be one of {', '.join(PRESETS)}.")
  return dataclasses.asdict(PRESETS[chosen])


def stored(settings: Mapping[str, Any]) -> EncoderSettings:
  """The settings that an index stores; what identifies model and tokenizer is left out."""
  return EncoderSettings(**_given({k: v for k, v in settings.items() if k not in ("weights", TOKENS, EOS)}))


def _read(path: pathlib.Path) -> dict[str, Any]:
  return hf.read_json(path) if path.is_file() else {}


def _family(folder: pathlib.Path, declared: Mapping[str, Sourced]) -> tuple[str, str, str]:
  """(the family's preset or "", where it is named, a remark for the log).

  The files are asked before the folder's name. A family whose pooling is not the declared one is not this model's.
  """
  config = _read(folder / "config.json")
  names = {
    "config.json": config.get("_name_or_path"),
    TOKENIZER: _read(folder / TOKENIZER).get("name_or_path"),
    "the folder's name": hub.parts(folder)[0] or folder.resolve().name,
  }
  found = []
  for where, name in names.items():
    words = set(re.split(r"[^a-z0-9]+", pathlib.PurePath(str(name or "")).name.lower()))
    if matches := [preset for preset in PRESETS if set(preset.split("-")) <= words]:
      found.append((max(matches, key=len), where))
  if config.get("model_type") == "dpr":
    found.insert(0, ("dpr", "config.json"))
  misfits = ""  # a tokenizer may be another model's
  for family, where in found:
    preset = PRESETS[family]
    differs = any(declared[name][0] != getattr(preset, name) for name in ("pooling", "normalize") if name in declared)
    # A decoder's first state has seen one token only, so the presets of encoders do not fit e5-mistral.
    decodes = config.get("model_type", "qwen3" if preset.pooling == "last" else "bert") in families.FAMILIES
    if differs or decodes != (preset.pooling == "last"):
      misfits += f"; {where} says {family}, but this model differs from it, so nothing is taken from it"
      continue
    others = sorted({other for other, _ in found} - {family}) if not misfits else []
    return family, where, misfits + (f"; not {', '.join(others)}, as its name says" if others else "")
  return "", "", misfits


def _declared(folder: pathlib.Path) -> dict[str, Sourced]:
  """Field → (value, file) for what the folder's files declare."""
  transformer, length = _read(folder / TRANSFORMER), _read(folder / TRANSFORMER).get("max_seq_length")
  sources: dict[str, Sourced] = _prompts(folder / PROMPTS)
  if transformer:
    sources["lower_case"] = bool(transformer.get("do_lower_case", False)), TRANSFORMER
  where = TRANSFORMER
  if length is None:
    length, where = longest(folder), TOKENIZER
  if length is not None:
    if not isinstance(length, int | float) or length < 1:
      raise ValueError(f"{folder / where}: the longest text is {length!r}: it must be a number of tokens.")
    sources["max_tokens"] = min(int(length), MOST_TOKENS), where
  if (folder / MODULES).is_file():
    found = modules(folder)
    sources["pooling"] = _pooling(found[1][1] / "config.json"), MODULES
    cosine = sources.pop("similarity", ("", ""))[0] == "cosine"
    sources["normalize"] = found[-1][0] == "Normalize" or cosine, MODULES if not cosine else PROMPTS
  sources.pop("similarity", None)
  return sources


def longest(folder: pathlib.Path) -> int | None:
  """The longest text of a folder's tokenizer, in tokens; None if it names none (transformers writes 1e30 then)."""
  length = _read(folder / TOKENIZER).get("model_max_length")
  return int(length) if isinstance(length, int | float) and 1 <= length < 1e9 else None


def modules(folder: pathlib.Path) -> list[tuple[str, pathlib.Path]]:
  """(kind, folder) of each module that modules.json lists: Transformer, Pooling, any number of Dense, Normalize or not.

  Raises:
    ValueError: other modules, or another order.
  """
  path, found = folder / MODULES, []
  for module in hf.read_json(path, list):
    if (
      not isinstance(module, dict) or not isinstance(module.get("type"), str) or not isinstance(module.get("path"), str)
    ):
      raise ValueError(f"{path}: each module must have a type and a path, and {module!r:.80} has not.")
    package, _, kind = module["type"].rpartition(".")
    if not package.startswith("sentence_transformers") or kind not in ("Transformer", "Pooling", "Dense", "Normalize"):
      raise ValueError(f"{path}: the module {module['type']} is not supported.")
    found.append((kind, folder / module["path"]))
  kinds = " ".join(kind for kind, _ in found)
  if not re.fullmatch("Transformer Pooling( Dense)*( Normalize)?", kinds) or found[0][1] != folder:
    raise ValueError(
      f"{path} lists {kinds}: it must list a Transformer module whose path is '', a Pooling module, Dense modules or "
      "none, and a Normalize module or none, in this order."
    )
  return found


def _pooling(path: pathlib.Path) -> str:
  modes = hf.read_json(path)
  if not modes.get("include_prompt", True):
    raise ValueError(f"{path}: include_prompt=false is not supported: here a prompt's tokens are always pooled.")
  on = [key for key, value in modes.items() if key.startswith("pooling_mode_") and value]
  if mode := modes.get("pooling_mode"):  # the layout of later versions
    on = mode if isinstance(mode, list) else [mode]
  return " and ".join(MODES.get(mode, str(mode)) for mode in on) or "nothing"


def _prompts(path: pathlib.Path) -> dict[str, Sourced]:
  """query_prefix, passage_prefix and "similarity" of config_sentence_transformers.json, as far as it has them."""
  values = _read(path)
  hf.refuse(values, str(path), model_type=("SentenceTransformer",), similarity_fn_name=("cosine", "dot", "dot_product"))
  known = {"__version__", "model_type", "similarity_fn_name", "prompts", "default_prompt_name"}
  hf.refuse_unknown(values, str(path), known)
  prompts, usual = values.get("prompts"), values.get("default_prompt_name")
  prompts = {} if prompts is None else prompts
  if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
    raise ValueError(f"{path}: prompts is {prompts!r:.80}: it must be an object of texts.")
  if usual is not None and usual not in prompts:
    raise ValueError(f"{path}: default_prompt_name is {usual!r}: it must be one of prompts ({', '.join(prompts)}).")
  sources: dict[str, Sourced] = {}
  if values.get("prompts") is not None:
    for field, names in (("query_prefix", ("query",)), ("passage_prefix", ("document", "passage", "corpus"))):
      name = next((name for name in names if name in prompts), usual)
      sources[field] = prompts.get(name, ""), path.name
  if values.get("similarity_fn_name"):
    sources["similarity"] = values["similarity_fn_name"], path.name
  return sources
