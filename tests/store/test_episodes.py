import dataclasses
import json

import numpy as np
import pytest
from refusals import refused

from ragrl_jax import structs
from ragrl_jax.core.metrics import searches
from ragrl_jax.store import episodes

MODEL, ENVIRONMENT = structs.MODEL, structs.ENVIRONMENT
FOUND = (structs.Passage("p1", "Mazur", "Mazur is the river of Kel.", 2.5), structs.Passage("p2", "", "x</script>"))
PASSAGES = (structs.Passage("p1", "Mazur", "…"), structs.Passage("p9", "", "…"))
ABOUT = dict(supporting=(0,), source="world", hops=1)
EXAMPLE = structs.Example("q1", "Which river?", ("Mazur", "the Mazur"), PASSAGES, **ABOUT)


def f32(*values):
  return tuple(np.float32(values).tolist())  # as samplers give them


EPISODE = structs.Episode(
  (
    structs.Segment(ENVIRONMENT, (1, 2, 3), "Which river?"),
    structs.Segment(MODEL, (4, 5), "<search>Kel</search>", f32(-0.1, -2.3), "</search>"),
    structs.Segment(ENVIRONMENT, (6,), "<information>…</information>", query="Kel", found=FOUND),
    structs.Segment(ENVIRONMENT, (7,), "one more try"),
    structs.Segment(MODEL, (8, 9, 10), "<answer>Mazur</answer>", f32(-0.5, 0.0, -1e-9), "</answer>"),
  ),
  facts={"verdict": 0.5, "vectors": np.float32([[0.1, 0.2]])},
  **dict(version=3, ended="answer", prompt_index=7, sample=1, example_id="q1"),
)
SCORED = dict(terms={"answer": 1.0, "format": None}, weights={"answer": 1.0, "format": 0.2}, reward=None, outcome=1)


class Bytes:
  """A tokenizer of bytes: an id is its byte, and 256 is EOS."""

  control_names = {256: "<|end|>"}

  def token_bytes(self, token):
    return b"" if token == 256 else bytes([token])

  def decode(self, ids):
    return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")


def logged(path, **given):
  row = episodes.row(EXAMPLE, EPISODE, step=12, **(SCORED | given))
  return episodes.read_episodes(episodes.write_episodes(path, 12, [row]))[0]


def test_a_row_describes_the_whole_episode_and_restores_it(tmp_path):
  row = logged(tmp_path)
  about = dict(step=12, prompt_index=7, sample=1, version=3, id="q1", question="Which river?", gold_ids=["p1"], hops=1)
  about |= dict(golds=["Mazur", "the Mazur"], reward=None, outcome=1, advantage=None)
  about |= dict(terms={"answer": 1.0, "format": None}, facts={"verdict": 0.5, "vectors": [[0.1, 0.2]]})
  assert row.items() >= about.items() and row["weights"]["format"] == 0.2
  prompt, said, seen, notice, answer = row["segments"]
  assert prompt == {"owner": ENVIRONMENT, "text": "Which river?", "ids": [1, 2, 3]}
  text, stop = "<search>Kel</search>", "</search>"
  assert said == dict(owner=MODEL, text=text, ids=[4, 5], logprobs=[-0.1, -2.3], stop=stop)
  assert seen["query"] == "Kel" and [p["id"] for p in seen["found"]] == ["p1", "p2"]
  assert "found" not in notice and answer["logprobs"] == [-0.5, 0.0, -1e-9]
  back = episodes.episode_of(row)
  facts = {"verdict": 0.5, "vectors": [[0.1, 0.2]]}  # JSON has no arrays
  np.testing.assert_array_equal(back.segments[1].logprobs, EPISODE.segments[1].logprobs)
  assert dataclasses.replace(back, facts={}) == dataclasses.replace(EPISODE, facts={}) and back.facts == facts
  assert back.num_searches == 1


def test_a_record_restores_the_episode_to_the_bit():
  vectors = np.float32([[0.1, 1 / 3]])
  facts = {"verdict": 0.1 + 0.2, "vectors": vectors, "pairs": ((1, None), (2, True)), "said": {"who": ["a", "b"]}}
  episode = dataclasses.replace(EPISODE, facts=facts, ended="failed", failure="no \ud800 index")
  saved = json.loads(json.dumps(episodes.record(episode)))
  back = episodes.of_record(saved)
  found = back.facts.pop("vectors")
  assert found.dtype == np.float32 and found.tobytes() == vectors.tobytes() and found.shape == (1, 2)
  assert dataclasses.replace(episode, facts={k: v for k, v in facts.items() if k != "vectors"}) == back


@pytest.mark.parametrize("seed", range(5))
def test_every_float32_log_probability_is_restored(seed):
  bits = np.random.default_rng(seed).integers(0, 2**31, 500, dtype=np.int64).astype(np.int32)
  values = -bits.view(np.float32)
  values = values[np.isfinite(values)]
  said = structs.Segment(MODEL, tuple(range(len(values))), "x", tuple(values.tolist()), "eos")
  episode = structs.Episode((structs.Segment(ENVIRONMENT, (1,), "?"), said))
  assert episodes.of_record(json.loads(json.dumps(episodes.record(episode)))) == episode


def test_advantages_of_tokens_are_in_their_segments(tmp_path):
  # One number where all tokens have it. The mean over tokens is (0.5 + 0.5 + 7 + 8 + 9) / 5 = 5.
  row = logged(tmp_path, advantages=[np.float32([0.5, 0.5]), np.float32([7, 8, 9])])
  assert [s.get("advantages") for s in row["segments"]] == [None, 0.5, None, None, [7, 8, 9]]
  assert row["advantage"] == pytest.approx(5.0)
  refused(r"of \[2, 2\] tokens for model segments of \[2, 3\]", logged, tmp_path, advantages=[np.zeros(2), np.zeros(2)])
  row = logged(tmp_path)
  assert row["advantage"] is None and not any("advantages" in s for s in row["segments"])


def test_pieces_join_to_the_text():
  ids = [*"a é→".encode(), 256]
  got = episodes.pieces(Bytes(), ids)
  # é has two bytes and → three. A character is in the piece of its last byte; EOS is empty.
  assert got == ["a", " ", "", "é", "", "", "→", ""]
  broken = [*"é".encode()[:1], 256]
  assert "".join(episodes.pieces(Bytes(), broken)) == Bytes().decode(broken) == "\ufffd"
  assert episodes.pieces(Bytes(), []) == []
  for seed in range(20):
    ids = np.random.default_rng(seed).integers(100, 257, 50).tolist()
    assert "".join(episodes.pieces(Bytes(), ids)) == Bytes().decode(ids)


def test_control_tokens_are_named_with_their_position():
  # Control tokens are not in the text. Without their names, chat roles would look like words, and text that spells a
  # control token would look like the token.
  ids = (256, *"a é".encode(), 256, 256, *b"<|end|>")
  segment = structs.Segment(ENVIRONMENT, ids, Bytes().decode(ids))
  told = episodes.row(EXAMPLE, structs.Episode((segment,)), **SCORED, tokenizer=Bytes())["segments"][0]
  assert told["control"] == [(0, 0, "<|end|>"), (5, 3, "<|end|>"), (6, 3, "<|end|>")] and told["text"] == "a é<|end|>"
  assert episodes.parts(told) == ["", "<|end|>", "a é", "<|end|>", "", "<|end|>", "<|end|>"]
  plain = episodes.row(EXAMPLE, EPISODE, **SCORED, tokenizer=Bytes())["segments"][0]
  assert "control" not in plain and episodes.parts(plain) == ["Which river?"]


@pytest.mark.parametrize("meta, want", [
  ({}, ["p1"]), ({"gold_ids": (5, "x")}, ["5", "x"]), ({"gold_ids": []}, []),
  ({"gold_ids": None}, ["p1"]), ({"gold_passages": [{"title": "T"}]}, ["p1"]),
])  # fmt: skip
def test_gold_ids(meta, want):
  assert episodes.gold_ids(dataclasses.replace(EXAMPLE, meta=meta), structs.Episode(())) == want
  assert episodes.gold_ids(dataclasses.replace(EXAMPLE, supporting=()), structs.Episode(())) is None


def test_a_gold_article_is_gold_under_the_ids_of_a_dump():
  """A paragraph's own id is a hash of its question's; what a dump calls the article is found by its title."""
  tower = structs.Passage("hash", "The Tower", "It stands in Paris. It is tall.")
  own = (tower, structs.Passage("h2", "Oslo", "A city."))
  example = structs.Example("1", "Where?", ("Paris",), own, supporting=(0,))
  dump = structs.Passage("771", "Tower", "100 words of it"), structs.Passage("772", "Lyon", "A city.")
  segment = lambda **search: structs.Segment(ENVIRONMENT, (), "", **search)
  episode = structs.Episode((segment(), segment(query="tower", found=dump), segment(query="lyon", found=dump[1:])))
  golds = episodes.gold_ids(example, episode)
  assert golds == ["hash", "771"]
  assert searches.wasted_searches(episodes.searched(episode), golds) == 1
  bare = dataclasses.replace(example, passages=(), supporting=(), meta={episodes.GOLDS: own[:1]})
  assert episodes.gold_ids(bare, episode) == golds


def test_a_gold_document_is_gold_in_the_passages_that_were_cut_from_it():
  cut = tuple(structs.Passage(name, "", "") for name in ("5#12", "15#0", "5#2"))
  found = structs.Segment(ENVIRONMENT, (), "", query="q", found=cut)
  example = dataclasses.replace(EXAMPLE, meta=dict(gold_ids=[5, "x"]))
  episode = structs.Episode((structs.Segment(ENVIRONMENT, (), ""), found, found))
  golds = episodes.gold_ids(example, episode)
  assert golds == ["5", "x", "5#12", "5#2"] and searches.wasted_searches(episodes.searched(episode), golds) == 1


def test_steps_come_in_order_and_later_ones_can_be_removed(tmp_path):
  assert episodes.steps(tmp_path) == {}
  for step in (10, 9, 1_000_000, 100):
    episodes.write_episodes(tmp_path, step, [{"step": step}])
  (tmp_path / "episodes" / "step_notes.jsonl").write_text("not ours")
  assert list(episodes.steps(tmp_path)) == [9, 10, 100, 1_000_000]
  episodes.cut(tmp_path, 10)
  assert list(episodes.steps(tmp_path)) == [9, 10]
  episodes.cut(tmp_path, None)
  assert episodes.steps(tmp_path) == {}
  assert (tmp_path / "episodes" / "step_notes.jsonl").exists()
