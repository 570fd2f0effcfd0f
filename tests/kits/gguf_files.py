"""GGUF files for tests, from the tensors of a Hugging Face folder, stored as llama.cpp's converter does."""

import gguf
import numpy as np
import small_tokenizers

NAMES = dict(gemma3_text="gemma3", qwen3_5_text="qwen35")  # model_type → GGUF's architecture, where they differ
COUNTS = dict(  # GGUF's word → config.json's
  block_count="num_hidden_layers", context_length="max_position_embeddings", embedding_length="hidden_size",
  feed_forward_length="intermediate_size", head_count="num_attention_heads", head_count_kv="num_key_value_heads",
  layer_norm_rms_eps="rms_norm_eps", key_length="head_dim",
)  # fmt: skip
OF_DELTA = dict(
  full_attention_interval="full_attention_interval", ssm_conv_kernel="linear_conv_kernel_dim",
  ssm_state_size="linear_key_head_dim", ssm_group_count="linear_num_key_heads",
  ssm_time_step_rank="linear_num_value_heads",
)  # fmt: skip
ALPHABET = [chr(code) for code in [*range(33, 127), *range(161, 173), *range(174, 256)]]  # spells bytes
ALPHABET += [chr(256 + more) for more in range(256 - len(ALPHABET))]
PLAIN = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.merges": ["Ġ t"]}


def byte_level(**fields):
  """The metadata of a byte-level tokenizer with a merge, two control tokens and ChatML."""
  tokens = [*ALPHABET, "Ġt", "<|im_start|>", "<|im_end|>"]
  return {
    **PLAIN, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * 257 + [3, 3],
    "tokenizer.ggml.eos_token_id": 258, "tokenizer.chat_template": small_tokenizers.CHATML, **fields,
  }  # fmt: skip


def write(path, config, tensors, *, kind=None, fields=None, frequencies=None, raw=None):
  """A GGUF file of these tensors. `kind`: GGML's quantisation of the matrices; `frequencies`: rope_freqs.weight;
  `raw`: {tensor: (its bytes, its quantisation)}."""
  name = NAMES.get(config["model_type"], config["model_type"])
  writer = gguf.GGUFWriter(path, name)
  for word, key in (COUNTS | (OF_DELTA if name == "qwen35" else {})).items():
    getattr(writer, f"add_{word}")(config[key])
  writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
  rope = config.get("rope_parameters") or {}
  writer.add_rope_dimension_count(int(config["head_dim"] * rope.get("partial_rotary_factor", 1)))
  if name == "qwen35":
    writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    writer.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])
  if config.get("sliding_window"):
    writer.add_sliding_window(config["sliding_window"])
  for key, value in (byte_level() if fields is None else fields).items():
    add = {str: writer.add_string, int: writer.add_uint32, list: writer.add_array, bool: writer.add_bool}
    add[type(value)](key, value)
  names = gguf.get_tensor_name_map({v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[name], config["num_hidden_layers"])
  for tensor, values in tensors.items():
    values = _stored(config, tensor, values)
    theirs = names.get_name(tensor.replace("dt_bias", "dt_proj.bias"), try_suffixes=(".weight", ".bias"))
    if tensor in (raw or {}):
      writer.add_tensor(theirs, raw[tensor][0], raw_dtype=raw[tensor][1])
    elif kind is None or values.ndim < 2 or values.shape[-1] % 32:
      writer.add_tensor(theirs, values)
    else:
      writer.add_tensor(theirs, gguf.quantize(values, kind), raw_dtype=kind)
  if frequencies is not None:
    writer.add_tensor("rope_freqs.weight", np.asarray(frequencies, np.float32))
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


def _stored(config, name, values):
  """Llama's rows of q and k: first and second half of a head alternate. Gemma's and Qwen3.5's norms: 1 is added.

  A delta layer's value heads: the first ones of all key heads come first.
  """
  if config["model_type"] == "llama" and any(part in name for part in ("q_proj", "k_proj")):
    heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
    half = len(values) // heads // 2
    rows = [head * 2 * half + side * half + i for head in range(heads) for i in range(half) for side in (0, 1)]
    return np.ascontiguousarray(values[rows])
  if ".linear_attn." in name and not name.endswith(".norm.weight"):
    keys, heads, width = (config[f"linear_{key}"] for key in ("num_key_heads", "num_value_heads", "value_head_dim"))
    order = np.arange(heads).reshape(keys, -1).T.reshape(-1)
    if any(part in name for part in ("qkv", "conv1d", "in_proj_z", "out_proj")):
      order = (order[:, None] * width + np.arange(width)).reshape(-1)
    if "out_proj" in name:
      return np.ascontiguousarray(values[:, order])
    values = values.reshape(len(values), -1) if "conv1d" in name else values
    values = np.concatenate((values[: -len(order)], values[-len(order) :][order]))
    return -np.exp(values) if name.endswith("A_log") else values
  if config["model_type"] in ("gemma3_text", "qwen3_5_text") and "norm" in name and ".linear_attn." not in name:
    return values + 1
  return values
