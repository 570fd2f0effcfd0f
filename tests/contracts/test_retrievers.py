import contextlib
import json
import random
from concurrent.futures import ThreadPoolExecutor

import opensearch_server
import pytest
from served import serving

from ragrl_jax.retrieval import build_index, databases, encoders, load_index, server
from ragrl_jax.structs import Passage

WORDS = (
  "amber bridge canal délta ember forest garden harbour island jungle kettle lantern meadow needle orchard "
  "pepper quarry river saddle timber 山 река"
).split()
K = 7


def passages():
  """120 passages of a few words each. The last three copy rows 0, 1 and 2 under other ids."""
  draw = random.Random(3)
  text = lambda: " ".join(draw.choices(WORDS, k=draw.randint(3, 12)))
  rows = [Passage(f"d{i}", draw.choice(WORDS), text()) for i in range(117)]
  return rows + [Passage(f"copy{i}", rows[i].title, rows[i].text) for i in range(3)]


QUERIES = [
  "amber bridge", "délta", "山 river", "the река of the garden", "lantern lantern meadow", "pepper",
  "saddle timber quarry", "island amber kettle needle orchard",
]  # fmt: skip


def built(tmp, encoder, **settings):
  build_index(passages(), encoder, tmp / "index", progress=False, **settings)
  return tmp / "index"


def remote(tmp, stack):
  limits = server.Limits(max_topk=1000)
  (address,) = stack.enter_context(serving(load_index(built(tmp, "bm25")), limits=limits))
  return load_index(address)


def dense(search="faiss", device_dtype="float32", **settings):
  return lambda tmp, stack: load_index(built(tmp, "hashing", **settings), search=search, device_dtype=device_dtype)


def fused(tmp, stack):
  del stack
  for encoder in ("bm25", "hashing"):
    build_index(passages(), encoder, tmp / encoder, progress=False)
  (tmp / "both.json").write_text(json.dumps(dict(indexes=["bm25", "hashing"])))
  return load_index(tmp / "both.json")


def database(kind, encoder):
  """Passages in Milvus Lite, or in a server that speaks as OpenSearch does."""

  def load(tmp, stack):
    pytest.importorskip("milvus_lite" if kind == "milvus" else "opensearchpy")
    where = f"milvus:{tmp}/wiki.db/a"
    if kind != "milvus":
      where = f"{kind}:{stack.enter_context(opensearch_server.Server()).address}/a"
    made = encoder if encoder == "bm25" else encoders.HashingEncoder.fit(passages())
    databases.fill(passages(), made, where, progress=False)
    return load_index(where, encoder=None if encoder == "bm25" else made)

  return load


RETRIEVERS = {
  "bm25": lambda tmp, stack: load_index(built(tmp, "bm25")),
  "bm25 stemmed": lambda tmp, stack: load_index(built(tmp, "bm25", encoder_options=dict(stemmer="english"))),
  "flat": dense(), "flat float16": dense(dtype="float16"), "flat int8": dense(dtype="int8"),
  "HNSW": dense(factory="HNSW16", options="efSearch=64"),
  "IVF-PQ": dense(factory="IVF4,PQ8x4", options="nprobe=4", oversample=16),
  "device": dense(search="device"), "device int8": dense(search="device", device_dtype="int8"),
  "device bfloat16": dense(search="device", device_dtype="bfloat16", dtype="bfloat16"),
  "fused": fused, "remote": remote,
  "milvus full text": database("milvus", "bm25"), "milvus vectors": database("milvus", "hashing"),
  "opensearch full text": database("opensearch", "bm25"),
  "elasticsearch vectors": database("elasticsearch", "hashing"),
}  # fmt: skip


@pytest.fixture(scope="module", params=RETRIEVERS)
def retriever(request, tmp_path_factory):
  with contextlib.ExitStack() as stack:
    yield RETRIEVERS[request.param](tmp_path_factory.mktemp("retriever"), stack)


def told(retriever, answers):
  """The answers, to be compared. The scores that Milvus computes for vectors are rounded otherwise in a batch."""
  if retriever.describe()["kind"] != "milvus":
    return answers
  return [[(p.id, pytest.approx(p.score, abs=1e-5)) for p in found] for found in answers]


def test_passages_of_the_corpus_best_first_never_more_than_k_nor_than_there_are_and_others_for_other_queries(retriever):
  stored = {p.id: p for p in passages()}
  for k in (1, 3, K, 1000):
    for query, found in zip(QUERIES, retriever.search(QUERIES, k), strict=True):
      scores = [p.score for p in found]
      assert scores == sorted(scores, reverse=True) and all(isinstance(score, float) for score in scores)
      assert 1 <= len(found) <= min(k, 120) and len({p.id for p in found}) == len(found)
      assert [(p.title, p.text) for p in found] == [(stored[p.id].title, stored[p.id].text) for p in found]
      # Every word of the world is in more than K passages, so the best passage contains a word of the query.
      assert set(query.split()) & set(f"{found[0].title} {found[0].text}".split())
  assert len({found[0].id for found in retriever.search(QUERIES, K)}) >= len(QUERIES) - 2


def test_a_smaller_k_is_a_prefix(retriever):
  more, fewer = retriever.search(QUERIES, K), retriever.search(QUERIES, 3)
  if type(retriever).__name__ == "DenseRetriever" and retriever.describe()["factory"] != "Flat":
    pytest.skip("an inexact index may find more among more candidates")
  assert [found[:3] for found in more] == fewer


def test_same_query_same_answer_alone_and_in_a_batch(retriever):
  search = lambda queries: told(retriever, retriever.search(queries, K))
  together = search(QUERIES)
  assert together == search(QUERIES)
  assert together == [search([query])[0] for query in QUERIES]
  assert search(QUERIES[::-1] * 5) == together[::-1] * 5


def test_equal_scores_keep_the_order_of_the_corpus(retriever):
  if type(retriever).__name__ == "DatabaseRetriever":
    pytest.skip("equal scores are in the database's order")
  order = {p.id: i for i, p in enumerate(passages())}
  tied = [(a, b) for found in retriever.search(QUERIES, 1000) for a, b in zip(found, found[1:]) if a.score == b.score]
  assert all(order[a.id] < order[b.id] for a, b in tied)
  # The query also matches the copies. By their ranks, only passages that two indexes rank the other way round tie.
  assert len(tied) >= (1 if retriever.describe()["kind"] == "fused" else 3)


def test_no_queries_empty_ones_one_of_unknown_words_and_bad_requests(retriever):
  assert retriever.search([], K) == []
  assert retriever.search(["", " \n\t"], K) == [[], []] and retriever.search(["xyzzy"], K) == [[]]
  first, blank, last = retriever.search([QUERIES[0], "", QUERIES[1]], K)
  assert blank == [] and [first, last] == retriever.search(QUERIES[:2], K)
  wrong = [("amber bridge", K, "one string"), (["amber", 3], K, "query 1 is int")]
  for asked, k, says in (*wrong, *((QUERIES, k, "k=") for k in (0, -1, True, 2.0))):
    with pytest.raises(ValueError, match=says):
      retriever.search(asked, k)


def test_several_threads_at_once_and_it_describes_itself(retriever):
  search = lambda queries: told(retriever, retriever.search(queries, K))
  expected = search(QUERIES)
  with ThreadPoolExecutor(8) as pool:
    answers = list(pool.map(lambda i: search([QUERIES[i % len(QUERIES)]])[0], range(64)))
  assert answers == [expected[i % len(QUERIES)] for i in range(64)]
  assert retriever.describe()["kind"] in ("bm25", "dense", "fused", "remote", "milvus", "opensearch", "elasticsearch")
