import dataclasses
import io
import pickle

import numpy as np
import pytest
from refusals import refused

from ragrl_jax import structs
from ragrl_jax.rollout import multihost

MODEL, ENVIRONMENT = structs.MODEL, structs.ENVIRONMENT
FOUND = (structs.Passage("p1", "Mazur", "Mazur is the river of Kel.", 2.5), structs.Passage("p2", "", "x\u2028\ud800"))
decode = lambda ids: "".join(chr(i % 0x110000) for i in ids)
segment = lambda owner, text, **rest: structs.Segment(owner, tuple(map(ord, text)), text, **rest)


def f32(*values):
  return tuple(np.float32(values).tolist())  # as samplers give them


EPISODES = [
  structs.Episode(
    (
      segment(ENVIRONMENT, "Which river?"),
      segment(MODEL, "Kel", logprobs=f32(-0.1, -1e-38, 0.0), stop="</search>"),
      segment(ENVIRONMENT, "found", query="Kel", found=FOUND),
      segment(ENVIRONMENT, "none", query="", found=()),
      structs.Segment(MODEL, (2**31 - 1, 0), "another view", f32(-0.0, float("-inf")), "eos"),
    ),
    facts={"verdicts": (1.0, None), "vectors": np.float32([[0.1, float("nan")]]), "by": {3: "x"}},
    **dict(version=3, ended="answer", prompt_index=7, sample=1, example_id="q1", starts=(3,)),
  ),
  structs.Episode((), ended="failed", failure="the index is down"),
  structs.Episode((structs.Segment(MODEL, (), ""), segment(ENVIRONMENT, "found", query="Kel", found=FOUND[:1]))),
]


def test_no_field_of_an_episode_is_forgotten():
  names = {field.name for field in dataclasses.fields(structs.Episode)}
  assert {*multihost._PLAIN, "segments", "facts", "starts"} == names


def test_every_bit_is_restored():
  found = multihost.unpack(multihost.pack(EPISODES, decode), decode)
  plain = lambda episode: dataclasses.replace(episode, facts={})
  assert [plain(one) for one in found] == [plain(one) for one in EPISODES]
  assert [repr(one) for one in found] == [repr(one) for one in EPISODES]  # facts, signs of zeros, types
  assert found[0].facts["vectors"].dtype == np.float32
  assert multihost.unpack(multihost.pack([], decode), decode) == []


def test_nothing_is_unpickled(monkeypatch):
  def refuse(*_, **__):
    raise AssertionError("unpickled")

  for module, name in ((pickle, "loads"), (pickle, "load"), (pickle, "Unpickler"), (np, "load")):
    monkeypatch.setattr(module, name, refuse)
  assert len(multihost.unpack(multihost.pack(EPISODES, decode), decode)) == 3
  refused("buffer|incorrect header|decompress", multihost.unpack, pickle.dumps(io.BytesIO), decode, error=Exception)


def texts(rng, words):
  """Token ids of a large vocabulary whose frequencies fall as those of English words."""
  return np.minimum(rng.zipf(1.2, words), 151_000)


@pytest.mark.parametrize("turns, said, searched", [(4, 150, 400), (1, 300, 0)])
def test_a_token_costs_at_most_six_bytes(turns, said, searched):
  """Long reasoning, search in several turns and short answers: 4 prompts of 300 tokens, 8 samples each."""
  rng, episodes = np.random.default_rng(0), []
  spell = lambda ids: " ".join(f"w{i}" for i in ids)
  passages = [structs.Passage(str(i), f"Title {i}", spell(texts(rng, searched // 4)), 0.5 * i) for i in range(60)]
  for prompt in range(4):
    asked = tuple(texts(rng, 300).tolist())
    for sample in range(8):
      segments = [structs.Segment(ENVIRONMENT, asked, spell(asked))]
      for turn in range(turns):
        ids = tuple(rng.integers(151_643, size=said).tolist())  # the text that is hardest to compress
        # Log-probabilities of a policy with an entropy of one nat per token.
        segments.append(structs.Segment(MODEL, ids, spell(ids), f32(*-rng.exponential(1.0, said)), "</search>"))
        if searched and turn < turns - 1:
          found = tuple(passages[i] for i in rng.choice(60, 4, replace=False))
          ids = tuple(texts(rng, searched).tolist())
          segments.append(structs.Segment(ENVIRONMENT, ids, spell(ids), query=spell(ids[:8]), found=found))
      episodes.append(structs.Episode(tuple(segments), {"verdict": 1.0}, 3, "answer", "", prompt, sample, f"q{prompt}"))
  packed = multihost.pack(episodes, spell)
  tokens = sum(episode.num_tokens for episode in episodes)
  assert multihost.unpack(packed, spell) == episodes
  assert len(packed) / tokens <= 6.0, len(packed) / tokens
