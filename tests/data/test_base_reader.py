"""The base reader: its first weights copy, its lessons fit, its measure counts whole replies, its goals end a stage."""

import random

import base_reader
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from papers import lessons, primed
from refusals import refused

from ragrl_jax.data import world
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.prompting import sentencepiece

VOCAB = 960


def decoder(seed=0, first=True, **shape):
  config = DecoderConfig.from_shape(VOCAB, **(primed.SHAPE | shape))
  model = Decoder(config, rngs=nnx.Rngs(params=seed))
  if first:
    primed.prime(model, config, seed)
  return model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> sentencepiece.SentencePieceTokenizer:
  return base_reader.tokenizer(tmp_path_factory.mktemp("words") / "tokenizer.model")


@pytest.mark.slow  # a forward pass over long texts
def test_first_weights_repeat_what_they_never_saw():
  """Of forty random tokens, said twice, the second time nearly all are the likeliest after those before them."""
  rng = np.random.default_rng(0)
  tokens = np.stack([np.tile(rng.choice(VOCAB, 40, replace=False), 2) for _ in range(4)])
  run = nnx.jit(lambda model: jnp.argmax(model(jnp.asarray(tokens)), -1))
  share = lambda model: float((run(model)[:, 40:-1] == tokens[:, 41:]).mean())
  assert share(decoder()) > 0.9 and share(decoder(first=False)) < 0.05


def test_other_shapes_are_refused():
  for shape in (dict(head_dim=32), dict(family="llama")):
    refused("attention biases and", decoder, **shape)


def test_a_step_has_lessons_for_one_block(tokenizer):
  stage = base_reader.STAGES[-1]
  first, second = (base_reader.drawn(stage, tokenizer, step) for step in (0, 1))
  assert first == base_reader.drawn(stage, tokenizer, 0) != second
  tokens = [len(ids) for ids, _ in first]
  assert 0.8 < sum(tokens) / (base_reader.ROWS * base_reader.LENGTH) <= 1 and max(tokens) <= base_reader.LENGTH


def test_replies_alone_are_trained(tokenizer):
  lesson = lessons.draw(base_reader.STAGES[0].course, random.Random(0))
  ids, weights = base_reader.transcript(tokenizer, lesson)
  trained = [token for token, weight in zip(ids, weights) if weight]
  assert tokenizer.decode(trained) == "".join(text for owner, text in lesson.turns if owner == "model")
  assert trained.count(tokenizer.eos_ids[0]) == len(lesson.kinds)


def test_a_syllable_is_one_piece(tokenizer):
  """Nearly always: a piece may hold two syllables of a name that the tokenizer's lines repeat."""
  names = world.draw_names(random.Random(0), world.syllables(base_reader.SYLLABLES), 1000)
  assert sum(len(tokenizer.encode(f" {name}.")) == len(name) // 3 + 1 for name in names) > 980


@pytest.mark.slow  # samples replies
def test_a_measure_counts_whole_replies(tokenizer, monkeypatch):
  """A model that writes only EOS has nothing right; the counted kinds are those of the course."""
  monkeypatch.setattr(base_reader, "MEASURED", 8)
  config = DecoderConfig.from_shape(tokenizer.vocab_size, **primed.SHAPE)
  found = base_reader.measurer(base_reader.STAGES[0], tokenizer)(Decoder(config, rngs=nnx.Rngs(params=0)))
  assert found == {1: 0.0, lessons.STEPS: 0.0}


def test_a_missing_base_says_what_to_run(tmp_path):
  refused("make base", base_reader.model, tmp_path, error=FileNotFoundError)
