"""Rerankers against transformers and torch: cross-encoders and ColBERT with random weights."""

import string

import hf_folders
import numpy as np
import pytest

from ragrl_jax.models import scorers
from ragrl_jax.structs import Passage

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

QUERY = "Who wrote the novel that the film is based on?"
TEXTS = (
  "The novel was written by Mario Puzo; the film is of 1972.", "x", 'naïve café, 東京; <tags> & "quotes"',
  "The Rhine passes Basel, Strasbourg, Cologne and Rotterdam. " * 20,
)  # fmt: skip


def config(seed, kind="Bert"):
  draw = np.random.default_rng(seed)
  heads = int(draw.choice([1, 2, 4]))
  sizes = dict(vocab_size=30522, hidden_size=8 * heads, num_hidden_layers=1 + seed % 3, num_attention_heads=heads)
  places = 128 if kind == "Bert" else 130  # MPNet's first position is 2
  more = dict(intermediate_size=24, max_position_embeddings=places, initializer_range=0.3, num_labels=1)
  if kind == "ModernBert":
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
    more |= ids | dict(local_attention=8, classifier_pooling=("cls", "mean")[seed // 4], classifier_bias=seed > 4)
  return getattr(transformers, f"{kind}Config")(**sizes, **more)


def with_tokenizer(path):
  return transformers.AutoTokenizer.from_pretrained(hf_folders.with_minilms_tokenizer(path))


@pytest.mark.parametrize("seed", range(8))
def test_cross_encoders(seed, tmp_path):
  torch.manual_seed(seed)
  kind = ("Bert", "XLMRoberta", "MPNet", "ModernBert")[seed % 4]
  model = getattr(transformers, f"{kind}ForSequenceClassification")(config(seed, kind)).eval()
  model.save_pretrained(tmp_path)
  tokenizer = with_tokenizer(tmp_path)
  types = seed % 4 < 2  # the others have no token types
  how = dict(padding=True, truncation=True, max_length=64, return_tensors="pt", return_token_type_ids=types)
  tokens = tokenizer([QUERY] * len(TEXTS), list(TEXTS), **how)
  with torch.no_grad():
    want = model(**tokens).logits[:, 0].numpy()
  ours = scorers.load_scorer(tmp_path, "cross-encoder", max_tokens=64)
  got = ours.scores([(QUERY, Passage(str(i), "", text)) for i, text in enumerate(TEXTS)])
  np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_colbert(seed, tmp_path):
  """ColBERT's arithmetic over transformers' BertModel: masks fill the query, and nothing attends to them."""
  torch.manual_seed(seed)
  model = transformers.BertModel(config(seed), add_pooling_layer=False).eval()
  linear = torch.nn.Linear(model.config.hidden_size, 5, bias=False)
  state = {f"bert.{name}": value.contiguous() for name, value in model.state_dict().items()}
  from safetensors.torch import save_file

  save_file(state | {"linear.weight": linear.weight.detach()}, tmp_path / "model.safetensors")
  model.config.save_pretrained(tmp_path)
  tokenizer = with_tokenizer(tmp_path)
  mark = {kind: tokenizer.convert_tokens_to_ids(f"[unused{i}]") for i, kind in enumerate(("query", "passage"))}

  def vectors(ids, mask):
    with torch.no_grad():
      states = model(torch.tensor([ids]), attention_mask=torch.tensor([mask])).last_hidden_state
      return torch.nn.functional.normalize(linear(states), dim=-1)[0]

  def ids_of(text, kind, most):
    # A full stop keeps the mark's place, and the text is cut with it.
    ids = tokenizer(". " + text, truncation=True, max_length=most)["input_ids"]
    return [ids[0], mark[kind], *ids[2:]]

  ids = ids_of(QUERY, "query", 32)
  fill = 32 - len(ids)
  query = vectors(ids + [tokenizer.mask_token_id] * fill, [1] * len(ids) + [0] * fill)
  punctuation = {tokenizer.convert_tokens_to_ids(one) for one in string.punctuation}
  want = []
  for text in TEXTS:
    ids = ids_of(text, "passage", 128)
    kept = [i for i, one in enumerate(ids) if one not in punctuation]
    want.append(float((query @ vectors(ids, [1] * len(ids))[kept].T).max(dim=1).values.sum()))
  ours = scorers.load_scorer(tmp_path, "late-interaction")
  got = ours.scores([(QUERY, Passage(str(i), "", text)) for i, text in enumerate(TEXTS)])
  np.testing.assert_allclose(got, want, atol=1e-3)  # 32 cosines are summed
