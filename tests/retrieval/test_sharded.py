"""A corpus in parts: together the parts answer as one index; one part that is missing is a failed search."""

import contextlib
import types
from unittest import mock

import pytest
import served
from refusals import refused

from ragrl_jax.chat import client
from ragrl_jax.retrieval import api, build_index, load_index
from ragrl_jax.retrieval.fusion import ShardedRetriever
from ragrl_jax.retrieval.remote import RemoteRetriever
from ragrl_jax.structs import Passage

# Every word's frequency differs between the parts: "rare" is in the first passages only, "late" in the last.
WORDS = ["rare"] * 5 + [""] * 26 + ["late"] * 10
TEXT = "word{} {} fact{} ".format
PASSAGES = [Passage(f"p{i}", f"Title {i % 7}", TEXT(i % 4, w, i % 9) * (i % 3 + 1)) for i, w in enumerate(WORDS)]
QUERIES = ["word1 fact3", "rare word2", "late Title 3", "fact8 word0 rare late", "", "nothing"]


def parts(tmp_path, encoder, of=3):
  made = lambda n: build_index(PASSAGES, encoder, tmp_path / f"{encoder}{n}", shard=(n, of), progress=False)
  return [load_index(made(number)) for number in range(1, of + 1)]


@pytest.mark.parametrize("encoder", ["bm25", "hashing"])
def test_the_parts_answer_as_one_index(tmp_path, encoder):
  whole = load_index(build_index(PASSAGES, encoder, tmp_path / "whole", progress=False))
  split = parts(tmp_path, encoder)
  assert [part.describe()["rows"] for part in split] == [13, 14, 14]
  with served.serving(*split) as addresses:
    together = load_index(",".join(addresses[::-1]))  # in any order
    for k in (1, 5, 100):
      assert together.search(QUERIES, k) == whole.search(QUERIES, k)
    assert [part["server"]["retriever"]["shard"]["number"] for part in together.describe()["parts"]] == [1, 2, 3]


def test_a_part_from_a_file_has_its_lines(tmp_path):
  file = tmp_path / "c.jsonl"
  rows = [f'{{"id": "{i}", "text": "word{i}"}}\n\n' for i in range(7)]
  file.write_text("".join(rows))
  index = load_index(build_index(file, "bm25", tmp_path / "i", shard=(2, 2), progress=False))
  found = index.search([f"word{i}" for i in range(7)], 1)
  assert [[one.id for one in passages] for passages in found] == [[], [], [], ["3"], ["4"], ["5"], ["6"]]
  file.write_text("".join([*rows, rows[6]]))
  with pytest.raises(ValueError, match=r"c.jsonl:13 and .*c.jsonl:15: the id '6' occurs twice"):
    build_index(file, "bm25", tmp_path / "j", shard=(2, 2), progress=False)
  refused("shard=3/2", build_index, file, "bm25", tmp_path / "j", shard=(3, 2), progress=False)
  refused("only 8 passages", build_index, file, "bm25", tmp_path / "k", shard=(3, 9), progress=False)


def test_a_missing_part_or_one_of_another_corpus_is_refused(tmp_path):
  first, second, third = parts(tmp_path, "bm25")
  other = load_index(build_index(PASSAGES[1:], "bm25", tmp_path / "other", shard=(2, 3), progress=False))
  whole = load_index(build_index(PASSAGES, "bm25", tmp_path / "whole", progress=False))
  scores = dict(encoder_options=dict(k1=2.0), progress=False)
  k1 = load_index(build_index(PASSAGES, "bm25", tmp_path / "k1", shard=(2, 3), **scores))
  with served.serving(first, second, third, other, whole, k1) as at:
    for chosen in ((0, 1), (0, 1, 1), (0, 3, 2), (0, 1, 2, 4), (0, 5, 2)):
      refused("part 1 of 3 of .* each once", load_index, ",".join(at[i] for i in chosen))


def test_a_part_that_is_down_is_waited_for_and_then_named(tmp_path):
  split, said = parts(tmp_path, "bm25", of=2), []
  with served.serving(split[0]) as first, contextlib.ExitStack() as stack:
    second = stack.enter_context(served.serving(split[1]))
    settings = dict(timeout_s=60.0, retries=0, backoff_s=0.01, wait_s=0.6, say=said.append)
    together = ShardedRetriever([RemoteRetriever(address, **settings) for address in (*first, *second)])
    assert together.search(["fact1"], 2)[0]
    stack.close()
    with pytest.raises(api.RetrievalFailed, match=f"at {second[0]} after .*nobody answered for 0.6 s") as failed:
      together.search(["fact1"], 2)
  assert failed.value.queries == ("fact1",)  # so its episode is masked
  assert len(said) == 1 and f"{second[0]} does not answer" in said[0] and "waiting" in said[0]


def test_a_part_without_scores_or_that_panics_ends_the_search():
  bad = types.SimpleNamespace(name="http://bad", describe=lambda: dict(kind="remote", server={}))
  bad.search = mock.Mock(return_value=[[Passage("1", "", "x", None)]])
  refused("http://bad returns no scores", ShardedRetriever([bad, bad]).search, ["q"], 1, error=api.RetrievalFailed)
  panic = type("PanicException", (BaseException,), {})  # as Rust's libraries raise it
  bad.search = mock.Mock(side_effect=panic("in the tokenizer"))
  refused("in the tokenizer", client.daemon(ShardedRetriever([bad, bad]).search, ["q"], 1).result, 60, error=panic)


def test_the_client_sends_its_token(tmp_path):
  index = load_index(build_index(PASSAGES, "bm25", tmp_path / "i", progress=False))
  with served.serving(index, key="k3y") as (address,):
    assert load_index(address, key="k3y").search(["fact1"], 2) == index.search(["fact1"], 2)
    with pytest.raises(api.RetrievalFailed, match="refuses the token, or wants one: config.retrieval.key_variable"):
      load_index(address)
