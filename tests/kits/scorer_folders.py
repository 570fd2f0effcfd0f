"""Folders of small random scorers: a cross-encoder and a ColBERT, with a tokenizer of a few words."""

import json

import hf_folders

MARKS = "[PAD] [UNK] [CLS] [SEP] [MASK] [unused0] [unused1]".split()
WORDS = [*MARKS, *". , a b c d the rhine flows through cologne word3 fact".split()]


def cross_encoder(folder):
  """A BERT with a pooler and one label."""
  shapes = hf_folders.bert_shapes(hf_folders.BERT, "bert.")
  d = hf_folders.BERT["hidden_size"]
  return _write(folder, shapes | {"classifier.weight": (1, d), "classifier.bias": (1,)})


def colbert(folder, dim=6, **told):
  """A BERT with `linear.weight`, and artifact.metadata with what is `told`."""
  shapes = hf_folders.bert_shapes(hf_folders.BERT, "bert.")
  shapes = {name: shape for name, shape in shapes.items() if "pooler" not in name}
  _write(folder, shapes | {"linear.weight": (dim, hf_folders.BERT["hidden_size"])})
  (folder / "artifact.metadata").write_text(json.dumps(told))
  return folder


def _write(folder, shapes):
  hf_folders.write(folder, hf_folders.BERT, shapes)
  return hf_folders.give_words(folder, WORDS)
