"""Checks a Hugging Face model and writes it for training: all tensors present, and in one dtype.

    ragrl import --model Qwen/Qwen2.5-3B --out models/qwen2.5-3b [--dtype bfloat16] [--adapters PEFT/]

--model is a folder, OWNER/NAME[@REVISION] on the Hugging Face hub, or a GGUF file, or a wheel or zip with one, of
Llama, Qwen2, Qwen3, Qwen3.5 or Gemma 3 (pip install 'ragrl_jax[gguf]'): its weights are dequantised, and its tokenizer
and chat template come from its metadata. With --adapters, a PEFT folder's LoRA is merged into the weights. With
--add_tokens "<retrieval> </retrieval>", each of these texts becomes a token, whose embedding is the mean of the other
embeddings. Prints a summary as one line of JSON.
"""

import contextlib
import json
import pathlib
import tempfile
from collections.abc import Iterator

import ml_dtypes
import numpy as np

from ragrl_jax.cli import commands
from ragrl_jax.models import gguf_file, hub, lora, weights
from ragrl_jax.prompting import declared, huggingface, tokenizer as tokenizer_lib
from ragrl_jax.run import saving
from ragrl_jax.store import folders

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def main() -> None:
  parser = commands.Parser(__doc__)
  parser.add_argument("--model", required=True, help="folder, OWNER/NAME[@REVISION] on the hub, or GGUF file")
  parser.add_argument("--out", required=True, help="folder to write; a run's config.model.path")
  parser.add_argument("--adapters", help="PEFT folder, or OWNER/NAME on the hub, to merge")
  parser.add_argument("--add_tokens", default="", help="new tokens, separated by spaces")
  parser.add_argument("--dtype", default="bfloat16", choices=DTYPES, help="dtype of the stored weights")
  parser.add_argument("--shard_bytes", type=int, default=5_000_000_000, help="most bytes per file")
  arguments = parser.parse_args()
  source, out = pathlib.Path(arguments.model), pathlib.Path(arguments.out)
  if not gguf_file.holds(source):
    source = hub.folder(source, "--model")
  folders.refuse_others(out)
  with _folder(source, out, DTYPES[arguments.dtype]) as folder:
    _write(arguments, folder, out)


@contextlib.contextmanager
def _folder(source: pathlib.Path, out: pathlib.Path, dtype) -> Iterator[pathlib.Path]:
  """`source`, or for a GGUF file a folder of its contents beside `out`, for as long as it is needed."""
  if not gguf_file.holds(source):
    yield source
    return
  out.parent.mkdir(parents=True, exist_ok=True)
  with gguf_file.opened(source) as file, tempfile.TemporaryDirectory(dir=out.parent, prefix=".gguf-") as temporary:
    gguf_file.write(file, temporary, dtype)
    declared.save_gguf(file.fields, file.where, temporary)
    yield pathlib.Path(temporary)


def _write(arguments, source: pathlib.Path, out: pathlib.Path) -> None:
  # How chats are rendered is a run's setting: a template that rewrites turns, as Qwen3's does, is no reason to refuse.
  tokenizer = tokenizer_lib.load_tokenizer(source, check=lambda tokenizer: None)
  new_tokens = arguments.add_tokens.split()
  whole, added = huggingface.add_tokens(source, new_tokens) if new_tokens else (None, ())
  if added and arguments.adapters:
    raise ValueError("--add_tokens with --adapters: merge the adapters first, then add tokens to the merged model.")
  rows = max(weights.config_of(source).vocab_size, *(i + 1 for i in added), 0)
  if tokenizer.vocab_size > rows:
    raise ValueError(
      f"{source}: the tokenizer has {tokenizer.vocab_size} ids, the model {rows} rows: they do not match."
    )
  options = dict(dtype=DTYPES[arguments.dtype], shard_bytes=arguments.shard_bytes)
  if arguments.adapters:
    if source.resolve() == out.resolve():
      raise ValueError(f"{out} is also the source folder: write to another one (--out).")
    adapters = hub.folder(arguments.adapters, "--adapters")
    lora.check(adapters, weights.config_of(source))
    declared.say_other_template(adapters, source)
    model, config = weights.load_pretrained(source)
    lora.load_adapters(model, adapters, base=source)
    weights.save_pretrained(model, config, out, **options)
  else:
    config = weights.copy_pretrained(source, out, added=added, **options)
  saving.copy_tokenizer(source, out)
  if whole is not None:
    whole.save_pretrained(str(out))
  if not (out / "generation_config.json").exists():
    weights.write_generation_config(out, tokenizer.eos_ids, config.bos_id)
  named = dict(model=str(out), source="@".join(hub.parts(source)).strip("@") or arguments.model, family=config.family)
  shape = dict(layers=config.num_layers, d_model=config.d_model, vocabulary=config.vocab_size)
  ids = dict(token_ids=tokenizer.vocab_size + len(set(added)), eos_ids=list(tokenizer.eos_ids))
  size = sum(file.stat().st_size for file in out.glob("*.safetensors"))
  print(json.dumps(named | shape | ids | dict(dtype=arguments.dtype, bytes=size)))
