"""Writes the tokenizer of a GGUF file's metadata as tokenizer.json and tokenizer_config.json, by transformers."""

import json
import os
from collections.abc import Mapping
from typing import Any

# What splits the text before merges. Any other value would be split in a way that the model has not seen.
# SmolLM's vocabulary has no token with two digits or with a space and a digit, so its single digits need no rule.
PLAIN = ("default", "gpt-2", "smollm")


def save(fields: Mapping[str, Any], where: str, path: str | os.PathLike) -> None:
  """Writes the tokenizer, its special tokens and its chat template into a folder.

  Args:
    fields: the file's metadata by GGUF keys.
    where: the file's path, for messages.
    path: an existing folder.

  Raises:
    ValueError: the metadata have no tokenizer, or a kind that cannot be expressed exactly.
  """
  import tokenizers
  import transformers
  from transformers.integrations import gguf as theirs
  from transformers.integrations.gguf import gguf_tokenizer_mapping as mapping

  found = {
    name: fields[f"tokenizer.{key}"]
    for key, name in theirs.GGUF_TOKENIZER_MAPPING["tokenizer"].items()
    if f"tokenizer.{key}" in fields
  }
  kind, split = found.get("tokenizer_type"), found.get("pre_tokenizer_type", "default")
  if kind not in ("gpt2", "llama") or "tokens" not in found:
    raise ValueError(f"{where}: its tokenizer is {kind!r}: it must be 'gpt2' (byte-level) or 'llama' (SentencePiece).")
  if kind == "gpt2" and split not in (*PLAIN, *mapping.GGUF_PRE_TOKENIZER_SPLITS):
    raise ValueError(f"{where}: tokenizer.ggml.pre is {split!r}, which transformers does not know.")
  backend, more = theirs.convert_gguf_tokenizer(fields["general.architecture"], found)
  contents = json.loads(backend.to_str())  # it adds texts of its own that the file may lack, such as <|endoftext|>
  contents["added_tokens"] = [token for token in contents["added_tokens"] if token["id"] < len(found["tokens"])]
  backend = tokenizers.Tokenizer.from_str(json.dumps(contents))
  special = dict(bos="bos", eos="eos", unk="unknown", pad="padding")
  ids = {f"{ours}_token": fields.get(f"tokenizer.ggml.{name}_token_id") for ours, name in special.items()}
  named = {name: found["tokens"][number] for name, number in ids.items() if number is not None}
  options = dict(add_bos_token=bool(fields.get("tokenizer.ggml.add_bos_token", kind == "llama")))
  options["add_eos_token"] = bool(fields.get("tokenizer.ggml.add_eos_token", False))
  whole = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **named, **options, **more)
  whole.chat_template = fields.get("tokenizer.chat_template")
  whole.save_pretrained(str(path))
