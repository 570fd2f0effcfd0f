"""Encoders against transformers and torch: random BERTs, DPR's towers, a decoder that embeds, the real MiniLM."""

import hf_folders
import numpy as np
import pytest

from ragrl_jax.models import encoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

SENTENCES = (
  "Who wrote the novel that the film is based on?", "", "x",
  "The Rhine passes Basel, Strasbourg, Cologne and Rotterdam. " * 30,
  'naïve café, 東京; <tags> & "quotes"', "How many people live in Berlin?",
)  # fmt: skip
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


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler"])
def test_random_berts(seed, pooling, tmp_path):
  draw = np.random.default_rng(seed)
  heads = int(draw.choice([1, 2, 4]))
  torch.manual_seed(seed)
  sizes = SMALL | dict(hidden_size=8 * heads, num_hidden_layers=1 + seed % 3, num_attention_heads=heads)
  sizes |= dict(intermediate_size=int(draw.choice([20, 32])), max_position_embeddings=int(draw.choice([40, 128])))
  sizes |= dict(layer_norm_eps=float(draw.choice([1e-12, 1e-6])))
  kind = "XLMRoberta" if seed % 2 else "Bert"
  config = getattr(transformers, f"{kind}Config")
  model = getattr(transformers, f"{kind}Model")(config(**sizes)).eval()
  model.save_pretrained(tmp_path)
  hf_folders.with_minilms_tokenizer(tmp_path)
  tokens = batch(tmp_path, SENTENCES, max_length=32)
  with torch.no_grad():
    out = model(**tokens)
  want = dict(cls=out.last_hidden_state[:, 0], pooler=out.pooler_output)
  want |= dict(mean=mean_pooled(out.last_hidden_state, tokens["attention_mask"]))
  made = encoder.load_encoder(tmp_path, settings=dict(pooling=pooling, normalize=False, max_tokens=32))
  np.testing.assert_allclose(made.queries(SENTENCES), want[pooling].numpy(), atol=1e-4)


def test_robertas_padding_token_inside_of_a_text(tmp_path):
  torch.manual_seed(0)
  sizes = SMALL | dict(vocab_size=9, hidden_size=16, num_attention_heads=2, max_position_embeddings=16, pad_token_id=1)
  model = transformers.XLMRobertaModel(transformers.XLMRobertaConfig(**sizes)).eval()
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
