"""Saves a run's model and tokenizer as a folder that config.model.path can name."""

import pathlib
import shutil
from typing import Any

from ragrl_jax.models import hub, lora, weights
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import hosts
from ragrl_jax.settings import Settings

TOKENIZER_FILES = (
  "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
  "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json", "generation_config.json",
)  # fmt: skip
NAMED_TEMPLATES = "additional_chat_templates"  # has NAME.jinja, such as tool_use, the template of messages with tools


def save(
  model: Decoder,
  shape: DecoderConfig,
  tokenizer: Any,
  config: Settings,
  out: pathlib.Path,
  dtype: Any = None,
  *,
  base: str = "",
) -> None:
  """Saves model and tokenizer as a Hugging Face folder for config.model.path.

  A model with adapters is saved as a PEFT folder for config.model.lora.path. If its base has new random weights, there
  is no folder of the base, so the adapters are merged into it.

  Args:
    tokenizer: the run's tokenizer, with the ids that end a reply.
    config: the run's settings, with the folders of model and tokenizer that the run started from.
    dtype: dtype of the stored weights, except of adapters, which are float32; unchanged by default.
    base: fingerprint of the base of adapters, see `lora.save_adapters`.
  """
  if lora.has(model) and config.model.path:
    lora.save_adapters(model, out, base=config.model.path, fingerprint=base)
  else:
    weights.save_pretrained(model, shape, out, dtype=dtype)
  if not hosts.is_first():
    return
  source = hub.folder(config.prompting.tokenizer or config.model.path, "config.model.path", part="tokenizer")
  copy_tokenizer(source, out)
  if source.is_file():
    shutil.copyfile(source, out / "tokenizer.model")
  if (out / "config.json").exists():
    weights.write_generation_config(out, (*shape.eos_ids, *tokenizer.eos_ids), shape.bos_id)


def copy_tokenizer(source: pathlib.Path, out: pathlib.Path) -> None:
  """Copies a folder's tokenizer, and removes what `out` has of an earlier model's, such as its chat template."""
  for name in TOKENIZER_FILES:
    if (source / name).is_file():
      shutil.copyfile(source / name, out / name)
    else:
      (out / name).unlink(missing_ok=True)
  shutil.rmtree(out / NAMED_TEMPLATES, ignore_errors=True)
  if (source / NAMED_TEMPLATES).is_dir():
    shutil.copytree(source / NAMED_TEMPLATES, out / NAMED_TEMPLATES)
