"""Encoders against transformers and torch: random BERTs, DPR's towers, a decoder that embeds, the real MiniLM."""

import json

import hf_folders
import numpy as np
import pytest

from ragrl_jax.models import encoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

KINDS = ("Bert", "XLMRoberta", "MPNet", "ModernBert")
SENTENCES = (
  "Who wrote the novel that the film is based on?", "", "x",
  "The Rhine passes Basel, Strasbourg, Cologne and Rotterdam. " * 30,
  'naïve café, 東京; <tags> & "quotes"', "How many people live in Berlin?",
)  # fmt: skip
OF_GTE = dict(global_rope_theta=900.0, local_rope_theta=30.0, global_attn_every_n_layers=2)  # as transformers 4 writes
SMALL = dict(vocab_size=30522, num_hidden_layers=2, intermediate_size=24, initializer_range=0.3)


def batch(path, texts, **settings):
  tokenizer = transformers.AutoTokenizer.from_pretrained(path)
  return tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt", **settings)


def mean_pooled(states, mask):
  weights = mask[..., None].float()
  return (states * weights).sum(1) / weights.sum(1)


def test_minilm_sentence_embeddings():
  minilm = hf_folders.minilm()
  tokens = batch(minilm, SENTENCES, max_length=256)
  with torch.no_grad():
    states = transformers.AutoModel.from_pretrained(minilm).eval()(**tokens).last_hidden_state
  want = torch.nn.functional.normalize(mean_pooled(states, tokens["attention_mask"])).numpy()
  np.testing.assert_allclose(encoder.load_encoder(minilm).queries(SENTENCES), want, atol=1e-4)


def sizes_of(kind, **sizes):
  """The sizes as this kind of model names them; the odd layers of a ModernBERT look 2 tokens to each side."""
  if kind == "ModernBert":
    more = dict(norm_eps=sizes.pop("layer_norm_eps", 1e-5), local_attention=5, pad_token_id=0, **OF_GTE)
    biases = dict.fromkeys(("norm_bias", "mlp_bias", "attention_bias", "classifier_bias"), sizes["hidden_size"] > 8)
    return sizes | more | biases | dict(bos_token_id=0, eos_token_id=0, cls_token_id=0, sep_token_id=0)
  return sizes


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler"])
def test_random_berts(seed, pooling, tmp_path):
  draw = np.random.default_rng(seed)
  heads = int(draw.choice([1, 2, 4]))
  torch.manual_seed(seed)
  sizes = SMALL | dict(hidden_size=8 * heads, num_hidden_layers=1 + seed % 3, num_attention_heads=heads)
  sizes |= dict(intermediate_size=int(draw.choice([20, 32])), max_position_embeddings=int(draw.choice([260, 300])))
  sizes |= dict(layer_norm_eps=float(draw.choice([1e-12, 1e-6])))
  kind, longest = KINDS[seed % 4], 32 if seed < 4 else 250  # MPNet's last bucket begins 128 tokens away
  config = getattr(transformers, f"{kind}Config")(**sizes_of(kind, **sizes))
  model = getattr(transformers, f"{kind}Model")(config).eval()
  with torch.no_grad():
    for parameter in model.parameters():  # no bias is 0, no gain 1
      parameter += torch.randn(parameter.shape) * (0.2 if parameter.ndim == 1 else 0.0)
  model.save_pretrained(tmp_path)
  if kind == "ModernBert" and pooling == "cls":
    written = json.loads((tmp_path / "config.json").read_text())
    older = {name: value for name, value in written.items() if name not in ("layer_types", "rope_parameters")} | OF_GTE
    (tmp_path / "config.json").write_text(json.dumps(older))
  hf_folders.with_minilms_tokenizer(tmp_path)
  tokens = batch(tmp_path, SENTENCES, max_length=longest, return_token_type_ids=kind == "Bert")
  with torch.no_grad():
    out = model(**tokens)
  want = dict(cls=out.last_hidden_state[:, 0], pooler=getattr(out, "pooler_output", None))
  want |= dict(mean=mean_pooled(out.last_hidden_state, tokens["attention_mask"]))
  if want[pooling] is None:
    pytest.skip("no pooler")
  made = encoder.load_encoder(tmp_path, settings=dict(pooling=pooling, normalize=False, max_tokens=longest))
  np.testing.assert_allclose(made.queries(SENTENCES), want[pooling].numpy(), atol=1e-4)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_padding_token_inside_of_a_text(kind, tmp_path):
  torch.manual_seed(0)
  sizes = SMALL | dict(vocab_size=9, hidden_size=16, num_attention_heads=2, max_position_embeddings=16)
  config = getattr(transformers, f"{kind}Config")(**sizes_of(kind, **sizes) | dict(pad_token_id=1))
  model = getattr(transformers, f"{kind}Model")(config).eval()
  model.save_pretrained(tmp_path)
  hf_folders.give_words(tmp_path, "[CLS] [PAD] [SEP] [UNK] [MASK] a b c d".split())
  made = encoder.load_encoder(tmp_path, settings=dict(pooling="cls", normalize=False))
  with torch.no_grad():
    want = model(torch.tensor([[0, 5, 1, 6, 2]])).last_hidden_state[:, 0].numpy()
  np.testing.assert_allclose(made.queries(["a [PAD] b"]), want, atol=1e-4)


def test_dpr_towers(tmp_path):
  made, sizes = {}, SMALL | dict(hidden_size=16, num_attention_heads=2, max_position_embeddings=64)
  towers = {"dpr-question": transformers.DPRQuestionEncoder, "dpr-passage": transformers.DPRContextEncoder}
  for seed, (name, kind) in enumerate(towers.items()):
    torch.manual_seed(seed)
    made[name] = kind(transformers.DPRConfig(**sizes)).eval()
    made[name].save_pretrained(tmp_path / name)
    hf_folders.with_minilms_tokenizer(tmp_path / name)
  ours = encoder.load_encoder(tmp_path / "dpr-question", passage_path=tmp_path / "dpr-passage")
  for name, kind in (("dpr-question", "query"), ("dpr-passage", "passage")):
    with torch.no_grad():
      want = made[name](**batch(tmp_path / name, SENTENCES, max_length=64)).pooler_output.numpy()
    np.testing.assert_allclose(ours.embed_texts(SENTENCES, kind), want, atol=1e-4)


def test_a_decoder_that_embeds(tmp_path):
  torch.manual_seed(0)
  heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8)
  config = transformers.Qwen3Config(**SMALL, **heads, hidden_size=16, max_position_embeddings=128)
  model = transformers.Qwen3Model(config).eval()
  path = tmp_path / "qwen3-embedding"
  model.save_pretrained(path)  # without a head, names start one level lower
  hf_folders.with_minilms_tokenizer(path)
  ours = encoder.load_encoder(path)
  prefix = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
  for kind, texts in (("query", [prefix + text for text in SENTENCES]), ("passage", SENTENCES)):
    tokens = batch(path, texts, max_length=128)
    with torch.no_grad():
      states = model(tokens["input_ids"], attention_mask=tokens["attention_mask"]).last_hidden_state
    last = tokens["attention_mask"].sum(1) - 1
    want = torch.nn.functional.normalize(states[torch.arange(len(texts)), last]).numpy()
    np.testing.assert_allclose(ours.embed_texts(SENTENCES, kind), want, atol=1e-4)


@pytest.mark.parametrize("window", [6, 300])  # shorter and longer than the texts
def test_a_bidirectional_gemma_with_dense_modules(window, tmp_path):
  torch.manual_seed(window)
  heads = dict(num_attention_heads=3, num_key_value_heads=1, head_dim=8, query_pre_attn_scalar=12)
  layers = dict(sliding_window=window, sliding_window_pattern=2, use_bidirectional_attention=True)
  config = transformers.Gemma3TextConfig(**SMALL | heads | layers, hidden_size=24, max_position_embeddings=128)
  model = transformers.Gemma3TextModel(config).eval().requires_grad_(False)
  model.save_pretrained(tmp_path)
  assert json.loads((tmp_path / "config.json").read_text())["sliding_window"] == window  # not its half
  hf_folders.with_minilms_tokenizer(tmp_path)
  hf_folders.give_dense(tmp_path, ((24, 40, False), (40, 10, True)))
  tokens = batch(tmp_path, SENTENCES, max_length=128, return_token_type_ids=False)
  pooled = mean_pooled(model(**tokens).last_hidden_state, tokens["attention_mask"]).numpy()
  want = pooled @ hf_folders.tensor("linear.weight", (40, 24)).T @ hf_folders.tensor("linear.weight", (10, 40)).T
  want = np.tanh(want + hf_folders.tensor("linear.bias", (10,)))
  made = encoder.load_encoder(tmp_path)
  np.testing.assert_allclose(made.queries(SENTENCES), want / np.linalg.norm(want, axis=1, keepdims=True), atol=1e-4)
  assert made.dim == 10 and len(made.settings["weights"].split("-")) == 3
