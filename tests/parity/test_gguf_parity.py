"""GGUF files against transformers' own loader: logits of small models of every family, and ids of 1,000 texts."""

import gguf_files
import hf_folders
import jax.numpy as jnp
import numpy as np
import pytest
import small_tokenizers

from ragrl_jax.models import gguf_file, weights
from ragrl_jax.prompting import declared, huggingface

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")
pytestmark = pytest.mark.parity

WORDS = [
  "The capital of France is Paris, isn't it? 1,234.5 (2024)\n\n  x\ty".split(" "),
  "Столица Франции — Париж, не так ли? ёж".split(" "), list("日本の首都はどこですか。東京、中国"),
  "عاصمة فرنسا هي باريس أليس كذلك؟ ١٢٣".split(" "), "फ़्रांस की राजधानी पेरिस है क्या? १२३".split(" "),
]  # fmt: skip
KINDS = (None, "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")


def texts(number=1000):
  """Texts of one to twelve words of one of five scripts, some with another script's words among them."""
  draw = np.random.default_rng(0)
  for i in range(number):
    words = WORDS[i % 5] + (WORDS[int(draw.integers(5))] if i % 3 == 0 else [])
    yield " ".join(draw.choice(words, int(draw.integers(1, 13))))


CASES = [("llama", kind) for kind in KINDS]
CASES += [(name, kind) for name in ("qwen2", "qwen3", "gemma3_text") for kind in KINDS[::3]]
CASES += [("qwen3_5_text", kind) for kind in (None, "Q8_0", "Q4_0")]  # its loader there takes no Q5_0


@pytest.mark.parametrize("family, kind", CASES)
def test_logits(tmp_path, family, kind):
  config = hf_folders.DECODERS[family] | dict(rope_scaling=None, rope_parameters=None, rope_theta=1000.0)
  config |= dict(vocab_size=259, hidden_size=64, intermediate_size=96, num_attention_heads=2, num_key_value_heads=1)
  config |= dict(query_pre_attn_scalar=256)  # transformers' default, which a file cannot change there
  config |= dict(head_dim=dict(gemma3_text=256, qwen3=128).get(family, 32))  # as transformers' defaults
  if family == "qwen3_5_text":
    config["rope_parameters"] = dict(
      rope_type="default", rope_theta=1000.0, partial_rotary_factor=0.5, mrope_section=[3, 3, 2], mrope_interleaved=True
    )
    config |= dict(linear_key_head_dim=16, linear_value_head_dim=16)
  shapes = hf_folders.decoder_shapes(config)
  tensors = {name: hf_folders.tensor(name, shape) for name, shape in shapes.items()}
  tensors["model.embed_tokens.weight"] /= 4  # logits of about 1
  kind = kind and gguf.GGMLQuantizationType[kind]
  path = gguf_files.write(tmp_path / "m.gguf", config, tensors, kind=kind)
  theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
  with gguf_file.opened(path) as file:
    gguf_file.write(file, tmp_path / "out", np.float32)
  model, _ = weights.load_pretrained(tmp_path / "out")
  tokens = np.random.default_rng(0).integers(0, 259, (2, 9))
  with torch.no_grad():
    want = theirs(torch.tensor(tokens)).logits.numpy()
  np.testing.assert_allclose(model(jnp.asarray(tokens)), want, atol=1e-4)


@pytest.mark.parametrize("split", ("qwen2", "llama-bpe", "smollm"))  # as distilled models have: another model's split
def test_ids_of_qwens_tokenizer(tmp_path, split):
  pieces = small_tokenizers.qwen_vocabulary()[:20_000]
  spelling = dict(zip([*range(33, 127), *range(161, 173), *range(174, 256)], gguf_files.ALPHABET))
  spelling |= dict(zip([byte for byte in range(256) if byte not in spelling], gguf_files.ALPHABET[len(spelling) :]))
  tokens = ["".join(spelling[byte] for byte in piece) for piece in pieces]
  known, merges = set(tokens), []
  for token in tokens:  # a token's halves in the order of ids: a list of merges that has this vocabulary
    merges += [f"{token[:at]} {token[at:]}" for at in range(1, len(token)) if {token[:at], token[at:]} <= known][:1]
  told = dict(pre=split, tokens=[*tokens, "<|im_start|>", "<|im_end|>"], token_type=[1] * len(tokens) + [3, 3])
  told |= dict(merges=merges, eos_token_id=len(tokens) + 1)
  fields = gguf_files.byte_level(**{f"tokenizer.ggml.{name}": value for name, value in told.items()})
  config = hf_folders.DECODERS["qwen2"]
  path = gguf_files.write(tmp_path / "m.gguf", config, {}, fields=fields)
  same_ids(tmp_path, path)


def test_ids_of_a_sentencepiece_tokenizer(tmp_path):
  tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
  letters = sorted({letter for words in WORDS for word in words for letter in word} - {"\n", "\t"})
  pairs = sorted({word[:2] for words in WORDS for word in words if len(word) > 1})
  tokens += ["▁", *letters, *(pair for pair in pairs if pair not in letters), *(f"▁{letter}" for letter in letters)]
  fields = {
    "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
    "tokenizer.ggml.scores": [-float(i) for i in range(len(tokens))],
    "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259), "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0,
  }  # fmt: skip
  path = gguf_files.write(tmp_path / "m.gguf", hf_folders.DECODERS["llama"], {}, fields=fields)
  same_ids(tmp_path, path)


def same_ids(tmp_path, path):
  with gguf_file.opened(path) as file:
    (tmp_path / "out").mkdir()
    declared.save_gguf(file.fields, file.where, tmp_path / "out")
    gguf_file.write(file, tmp_path / "out", np.float32)  # with config.json, whose model_type must not matter
  want = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
  whole = huggingface.load_whole(tmp_path / "out")
  for text in texts():
    assert whole.encode(text) == want.encode(text), text
