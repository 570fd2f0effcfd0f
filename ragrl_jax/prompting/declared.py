"""What a model's folder declares about its tokenizer and about generation, as far as no tokenizer library reads it.

`save_gguf` writes such a folder from a GGUF file's metadata, by transformers.
"""

import functools
import json
import logging
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

CONFIG, JSON, SENTENCEPIECE = "tokenizer_config.json", "tokenizer.json", "tokenizer.model"
IMAGE = "<image_soft_token>"  # stands for a part of an image; Gemma 3's text models have no row for it
# Beside a SentencePiece model, these files declare BOS, added tokens and a chat template.
BESIDE = (CONFIG, "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json")
# generation_config.json's settings of sampling → the values with which they change nothing.
NEUTRAL = {
  "temperature": (1,),
  "top_p": (1,),
  "top_k": (0, -1),
  "min_p": (0,),
  "typical_p": (1,),
  "epsilon_cutoff": (0,),
  "eta_cutoff": (0,),
  "repetition_penalty": (1,),
  "no_repeat_ngram_size": (0,),
}
# What splits the text before merges. Any other value would be split in a way that the model has not seen.
# SmolLM's vocabulary has no token with two digits or with a space and a digit, so its single digits need no rule.
PLAIN = ("default", "gpt-2", "smollm")
# With these, llama.cpp puts BOS before a text if the file does not say.
WITH_BOS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken")


def read(path: pathlib.Path) -> dict[str, Any]:
  """The object in a JSON file; {} if there is no file. Raises ValueError if it holds no JSON object."""
  if not path.is_file():
    return {}
  try:
    values = json.loads(path.read_text(encoding="utf-8"))
  except json.JSONDecodeError as error:
    raise ValueError(f"{path}:{error.lineno}: not JSON ({error.msg}). Copy the model's own file there.") from None
  if not isinstance(values, dict):
    raise ValueError(
      f"{path} holds a {type(values).__name__}: it must hold an object. Copy the model's own file there."
    )
  return values


def loaded(folder: pathlib.Path, load: Callable[[], Any]) -> Any:
  """The tokenizer that `load` makes of the folder, whose added tokens have the ids that the folder's files declare.

  transformers gives new tokens the ids that follow the vocabulary, whatever these files say.

  Raises:
    ValueError: a token has another id than a file says, or a file says it in another form.
  """
  try:
    tokens = [("added_tokens.json", *pair) for pair in read(folder / "added_tokens.json").items()]
    tokens += [(CONFIG, a["content"], i) for i, a in (read(folder / CONFIG).get("added_tokens_decoder") or {}).items()]
    tokens += [(JSON, a["content"], a["id"]) for a in read(folder / JSON).get("added_tokens") or ()]
  except (AttributeError, TypeError, KeyError) as error:
    raise ValueError(
      f"{folder}: its added tokens cannot be read ({error!r}): {JSON} must have a list of tokens with content and id, "
      f"{CONFIG} an object of ids with such tokens. Copy the model's own files there."
    ) from None
  ids = (tokenizer := load()).get_vocab()
  for name, text, i in tokens:
    if str(other := ids.get(text, "none")) != str(i):
      raise ValueError(
        f"{folder / name}: the token {text!r} has the id {i}, but by all files together it has {other}: it must be the "
        f"same. Copy the model's own files there, or write the token with its id into {JSON} (both model.vocab and "
        "added_tokens)."
      )
  return tokenizer


def eos_ids(folder: pathlib.Path) -> tuple[int, ...]:
  """The EOS ids of generation_config.json, or, if it names none, of config.json.

  Raises:
    ValueError: a file names something else than ids.
  """
  for name in ("generation_config.json", "config.json"):
    values = read(folder / name)
    if isinstance(text := values.get("text_config"), dict):  # beside an image encoder, as in Qwen3.5's config.json
      values = text | {key: value for key, value in values.items() if value is not None}
    named = values.get("eos_token_id")
    ids = [] if named is None else named if isinstance(named, list) else [named]
    if not all(type(i) is int and i >= 0 for i in ids):
      raise ValueError(f"{folder / name}: eos_token_id is {named!r}: it must be an id or a list of ids.")
    if ids:
      return tuple(ids)
  return ()


def say_sampling(folder: str, ours: Mapping[str, Any]) -> None:
  """Says which sampling settings of generation_config.json are not used, since a run's own decide; "" is no folder."""
  settings = read(pathlib.Path(folder) / "generation_config.json") if folder else {}
  differ = [
    f"{name}={settings[name]!r}"
    for name, off in NEUTRAL.items()
    if settings.get(name) is not None and settings[name] not in ((ours[name],) if name in ours else off)
  ]
  if differ:
    used = ", ".join(f"{name}={ours[name]!r}" for name in ours if name in NEUTRAL)
    say_once(f"{folder}: generation_config.json has {', '.join(differ)}: not used; config.rollout has {used}.")


def say_other_template(adapters: str | os.PathLike, folder: str | os.PathLike) -> None:
  """Says if a folder of adapters has another chat template than `folder`, whose template is used.

  Trainers that change the template, or give one to a base model, save it beside the adapters.
  """
  theirs, ours = map(_template, map(pathlib.Path, (adapters, folder)))
  if theirs not in (None, ours):
    say_once(
      f"{adapters}: these adapters have a chat template that is not the one of {folder}, which is used: prompts may "
      "not be those of their training. To use theirs, copy it into the tokenizer's folder (config.prompting.tokenizer, "
      "or that of --model)."
    )


def say_unused_template(folder: str | os.PathLike) -> None:
  """Says if a folder of a model that was trained without a chat template has one, copied from its base's."""
  if _template(pathlib.Path(folder)) is not None:
    say_once(
      f"{folder}: its chat template is the base's, but the run had config.prompting.markers='own' or chat=False: "
      "prompts that other programs write with the template are not those of the training."
    )


def _template(folder: pathlib.Path) -> str | None:
  """The chat template of a folder, the default one of several; None if it has none."""
  file = folder / "chat_template.jinja"
  template = file.read_text(encoding="utf-8") if file.is_file() else read(folder / CONFIG).get("chat_template")
  if isinstance(template, list):  # an older form, which transformers now stores as files
    template = next((one["template"] for one in template if one["name"] == "default"), None)
  return template or processors_template(folder)


def processors_template(folder: pathlib.Path) -> str | None:
  """The chat template that a model with an image encoder may have apart from its tokenizer; None if it has none."""
  return read(folder / "chat_template.json").get("chat_template")


@functools.lru_cache(maxsize=1024)
def say_once(message: str) -> None:
  """Logs a message, once in a process."""
  logging.warning("%s", message)


def save_gguf(fields: Mapping[str, Any], where: str, path: str | os.PathLike) -> None:
  """Writes the tokenizer, its special tokens and its chat templates into a folder.

  Args:
    fields: the file's metadata by GGUF keys.
    path: an existing folder.

  Raises:
    ValueError: the metadata have no tokenizer, or a kind that cannot be expressed exactly.
  """
  import tokenizers
  import transformers
  from transformers.integrations import gguf
  from transformers.integrations.gguf import gguf_tokenizer_mapping as mapping

  entries = {
    name: fields[f"tokenizer.{key}"]
    for key, name in gguf.GGUF_TOKENIZER_MAPPING["tokenizer"].items()
    if f"tokenizer.{key}" in fields
  }
  kind, split = entries.get("tokenizer_type"), entries.get("pre_tokenizer_type")
  if kind not in ("gpt2", "llama") or "tokens" not in entries:
    raise ValueError(f"{where}: its tokenizer is {kind!r}: it must be 'gpt2' (byte-level) or 'llama' (SentencePiece).")
  if kind == "gpt2" and split not in (*PLAIN, *mapping.GGUF_PRE_TOKENIZER_SPLITS):
    raise ValueError(f"{where}: tokenizer.ggml.pre is {split!r}, which transformers does not know.")
  backend, more = gguf.convert_gguf_tokenizer(fields["general.architecture"], entries)
  contents = json.loads(backend.to_str())  # it adds texts of its own that the file may lack, such as <|endoftext|>
  contents["added_tokens"] = [token for token in contents["added_tokens"] if token["id"] < len(entries["tokens"])]
  backend = tokenizers.Tokenizer.from_str(json.dumps(contents))
  special = dict(bos="bos", eos="eos", unk="unknown", pad="padding")
  ids = {f"{ending}_token": fields.get(f"tokenizer.ggml.{name}_token_id") for ending, name in special.items()}
  special_tokens = {name: entries["tokens"][number] for name, number in ids.items() if number is not None}
  first = kind == "llama" or split in WITH_BOS
  options = dict(add_bos_token=bool(fields.get("tokenizer.ggml.add_bos_token", first)))
  options["add_eos_token"] = bool(fields.get("tokenizer.ggml.add_eos_token", False))
  tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special_tokens, **options, **more)
  default, begins = fields.get("tokenizer.chat_template"), "tokenizer.chat_template."
  named = {key.removeprefix(begins): text for key, text in fields.items() if key.startswith(begins)}
  named = {name: text for name, text in named.items() if name.isidentifier()}  # each becomes a file of this name
  tokenizer.chat_template = {"default": default, **named} if default and named else default
  tokenizer.save_pretrained(str(path))
