"""GGUF files for tests, from the tensors of a Hugging Face folder, stored as llama.cpp's converter does."""

import gguf
import numpy as np

NAMES = {"gemma3_text": "gemma3"}  # config.json's model_type → GGUF's architecture, where they differ
ALPHABET = [chr(code) for code in [*range(33, 127), *range(161, 173), *range(174, 256)]]  # spells bytes
ALPHABET += [chr(256 + more) for more in range(256 - len(ALPHABET))]
PLAIN = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.merges": ["Ġ t"]}


def byte_level(**fields):
  """The metadata of a byte-level tokenizer with a merge, two control tokens and ChatML."""
  tokens = [*ALPHABET, "Ġt", "<|im_start|>", "<|im_end|>"]
  template = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
  )
  return {
    **PLAIN,
    "tokenizer.ggml.tokens": tokens,
    "tokenizer.ggml.token_type": [1] * 257 + [3, 3],
    "tokenizer.ggml.eos_token_id": 258,
    "tokenizer.chat_template": template,
    **fields,
  }


def write(path, config, tensors, *, kind=None, fields=None, frequencies=None, raw=None):
  """A GGUF file of these tensors. `kind`: GGML's quantisation of the matrices; `frequencies`: rope_freqs.weight;
  `raw`: {tensor: (its bytes, its quantisation)}."""
  name = NAMES.get(config["model_type"], config["model_type"])
  writer = gguf.GGUFWriter(path, name)
  writer.add_block_count(config["num_hidden_layers"])
  writer.add_context_length(config["max_position_embeddings"])
  writer.add_embedding_length(config["hidden_size"])
  writer.add_feed_forward_length(config["intermediate_size"])
  writer.add_head_count(config["num_attention_heads"])
  writer.add_head_count_kv(config["num_key_value_heads"])
  writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
  writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
  writer.add_key_length(config["head_dim"])
  writer.add_rope_dimension_count(config["head_dim"])
  if config.get("sliding_window"):
    writer.add_sliding_window(config["sliding_window"])
  for key, value in (byte_level() if fields is None else fields).items():
    add = {str: writer.add_string, int: writer.add_uint32, list: writer.add_array, bool: writer.add_bool}
    add[type(value)](key, value)
  names = gguf.get_tensor_name_map({v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[name], config["num_hidden_layers"])
  for tensor, values in tensors.items():
    values = _stored(config, tensor, values)
    theirs = names.get_name(tensor, try_suffixes=(".weight", ".bias"))
    if tensor in (raw or {}):
      writer.add_tensor(theirs, raw[tensor][0], raw_dtype=raw[tensor][1])
    elif kind is None or values.ndim < 2:
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
  """Llama's rows of q and k: first and second half of a head alternate. Gemma's norms: 1 is added."""
  if config["model_type"] == "llama" and any(part in name for part in ("q_proj", "k_proj")):
    heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
    half = len(values) // heads // 2
    rows = [head * 2 * half + side * half + i for head in range(heads) for i in range(half) for side in (0, 1)]
    return np.ascontiguousarray(values[rows])
  if config["model_type"] == "gemma3_text" and "norm" in name:
    return values + 1
  return values
