"""Passages in Milvus (Milvus Lite, and over its protocol), and in OpenSearch and Elasticsearch by their requests."""

import concurrent.futures
import json
import sys
import threading
import time
import types

import hf_folders
import numpy as np
import opensearch_server
import pytest
import served
from refusals import refused

from ragrl_jax.cli import build_index as command
from ragrl_jax.retrieval import api, build_index, database_clients, databases, load_index
from ragrl_jax.run import contents
from ragrl_jax.structs import Passage

pymilvus = pytest.importorskip("pymilvus", reason="needs the extra milvus")
lite = pytest.importorskip("milvus_lite.adapter.grpc.server", reason="Milvus Lite has no package for this system")
pytest.importorskip("opensearchpy", reason="needs the extra opensearch")

pytestmark = pytest.mark.slow  # each test makes a database of its own

PASSAGES = [Passage(f"p{i}", f"Title {i % 5}", f"word{i % 4} fact{i}") for i in range(60)]
PASSAGES += [Passage("twin", PASSAGES[7].title, PASSAGES[7].text)]
QUERIES = ["fact7", "word3 fact11", "fact59", "nothing known"]


class Encoder:
  """A vector for each text, drawn from its characters."""

  on_device = False

  def __init__(self, *, normalize=True, dim=24):
    self.dim, self.settings = dim, dict(kind="drawn", normalize=normalize)

  def queries(self, texts):
    made = np.stack([np.random.default_rng(list(text.encode())).standard_normal(self.dim) for text in texts])
    made *= 1 if not self.settings["normalize"] else 1 / np.linalg.norm(made, axis=1, keepdims=True)
    return made.astype(np.float32)

  def passages(self, passages):
    return self.queries([one.title + one.text for one in passages])


@pytest.fixture(scope="module", autouse=True)
def no_pauses():
  """The client looks every ten milliseconds whether an index is made, and not every half second."""
  with pytest.MonkeyPatch.context() as patched:
    quick = vars(time) | dict(sleep=lambda seconds: time.sleep(seconds / 50))
    patched.setattr(pymilvus.client.grpc_handler, "time", types.SimpleNamespace(**quick))
    yield


@pytest.fixture
def db(tmp_path):
  return f"milvus:{tmp_path / 'wiki.db'}"


@pytest.fixture
def peer():
  with opensearch_server.Server() as server:
    yield server


def filled(where, encoder="bm25", **settings):
  databases.fill(PASSAGES, encoder, where, progress=False, **settings)
  return where


def client(db):
  return pymilvus.MilvusClient(db.removeprefix("milvus:"))


def own(db, *, metric="IP", index="FLAT", encoder=None, **more):
  """A collection "own" that another program made, with names of its own."""
  kinds, made = pymilvus.DataType, client(db)
  schema, indexes = made.create_schema(auto_id=False, enable_dynamic_field=False), made.prepare_index_params()
  schema.add_field("number", kinds.INT64, is_primary=True)
  schema.add_field("chapter", kinds.VARCHAR, max_length=100)
  schema.add_field("story", kinds.VARCHAR, max_length=100)
  schema.add_field("meaning", kinds.FLOAT_VECTOR, dim=24)
  indexes.add_index("meaning", index_type=index, metric_type=metric)
  made.create_collection("own", schema=schema, index_params=indexes)
  vectors = (encoder or Encoder()).passages(PASSAGES)
  rows = enumerate(zip(PASSAGES, vectors.tolist()))
  made.insert("own", [dict(number=i, chapter=one.title, story=one.text, meaning=v) for i, (one, v) in rows])
  return made


def same(found, expected, *, named=lambda name: name):
  """Equal ids and scores. Passages of equal score may be in another order, and the last of them others."""
  assert len(found) == len(expected)
  for ours, theirs in zip(found, expected):
    assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], abs=1e-5)
    clear = {named(one.id) for one in theirs if one.score > theirs[-1].score + 1e-4}
    assert clear == {one.id for one in ours if one.score > theirs[-1].score + 1e-4}
    assert len({one.id for one in ours}) == len(ours)


@pytest.mark.parametrize("metric, normalize", [("IP", False), ("IP", True), ("COSINE", True)])
def test_a_flat_index_of_milvus_equals_brute_force(db, tmp_path, metric, normalize):
  encoder = Encoder(normalize=normalize)
  own(db, metric=metric, encoder=encoder)
  exact = load_index(build_index(PASSAGES, encoder, tmp_path / "exact", progress=False), encoder=encoder)
  found = load_index(f"{db}/own?text=story&title=chapter", encoder=encoder)
  numbers = {one.id: str(i) for i, one in enumerate(PASSAGES)}
  for k in (1, 5, 100):
    same(found.search(QUERIES, k), exact.search(QUERIES, k), named=numbers.get)
  best = found.search(["Title 2word3 fact7"], 2)[0]
  assert {(one.title, one.text) for one in best} == {("Title 2", "word3 fact7")} and best[0].score == best[1].score


@pytest.mark.parametrize("scheme", ["opensearch", "elasticsearch"])
@pytest.mark.parametrize("normalize", [False, True])
def test_vectors_of_opensearch_equal_brute_force(peer, tmp_path, scheme, normalize):
  encoder = Encoder(normalize=normalize)
  exact = load_index(build_index(PASSAGES, encoder, tmp_path / "exact", progress=False), encoder=encoder)
  where = filled(f"{scheme}:{peer.address}/wiki", encoder)
  if normalize:  # an index of cosines, as other programs make
    field = peer.indexes["wiki"].mappings["properties"]["vector"]
    field |= dict(similarity="cosine") if scheme == "elasticsearch" else dict(method=dict(space_type="cosinesimil"))
  found = load_index(where, encoder=encoder)
  assert found.describe()["metric"] == ("COSINE" if normalize else "IP")
  same(found.search(QUERIES, 7), exact.search(QUERIES, 7))


def test_full_text_of_opensearch(peer):
  first, blank, none = load_index(filled(f"opensearch:{peer.address}/wiki")).search(["fact7", " ", "unheard"], 3)
  assert {one.id for one in first} == {"p7", "twin"} and not blank and not none
  assert (first[0].title, first[0].text) == ("Title 2", "word3 fact7")
  asked = [json.loads(body.splitlines()[1])["query"] for *_, body in peer.asked if '"multi' in body]
  assert {query["multi_match"]["type"] for query in asked} == {"most_fields"}


def test_the_command_fills_a_collection_and_says_what_it_has(db, tmp_path, monkeypatch, capsys):
  corpus = tmp_path / "corpus.jsonl"
  corpus.write_text("".join(json.dumps(dict(id=p.id, title=p.title, text=p.text)) + "\n" for p in PASSAGES))
  monkeypatch.setattr(sys, "argv", ["ragrl index", "--corpus", str(corpus), "--encoder", "bm25", "--out", f"{db}/a"])
  command.main()
  said = json.loads(capsys.readouterr().out)
  assert (said["kind"], said["rows"], said["metric"], said["fields"][1]) == ("milvus", len(PASSAGES), "BM25", "title")
  assert {one.id for one in load_index(f"{db}/a").search(["fact7"], 2)[0]} == {"p7", "twin"}
  assert {one.title for one in load_index(f"{db}/a").search(["title 3"], 5)[0]} == {"Title 3"}  # titles are searched
  monkeypatch.setattr(sys, "argv", [*sys.argv, "--dtype", "int8"])
  with pytest.raises(SystemExit):
    command.main()
  assert "--dtype with a database: only an index's folder has these" in capsys.readouterr().err


def test_a_collection_knows_its_encoder_and_is_fused_with_full_text(db, tmp_path):
  words = "[PAD] [UNK] [CLS] [SEP] query: passage: title word3 fact7 fact11".split()
  folder = hf_folders.write(tmp_path / "e5-tiny", hf_folders.BERT, hf_folders.bert_shapes(hf_folders.BERT))
  filled(f"{db}/vectors", hf_folders.give_words(folder, words))
  found = load_index(f"{db}/vectors")
  assert found.describe()["encoder"] == load_index(f"{db}/vectors?encoder={folder}").describe()["encoder"]
  assert len(found.embed(["a"], "query")[0][0]) == found.encoder.dim and found.model == "e5-tiny"
  filled(f"{db}/words")
  (tmp_path / "both.json").write_text(json.dumps(dict(indexes=["milvus:wiki.db/words", "milvus:wiki.db/vectors"])))
  fused = load_index(tmp_path / "both.json", timeout_s=5.0)
  assert len(fused.describe()["parts"]) == 2 and fused.search(["word3 fact11"], 1)[0][0].id == "p11"
  folder.rename(tmp_path / "moved")
  refused("its encoder is no longer at .*e5-tiny: name it", load_index, f"{db}/vectors")


def test_passages_without_a_vector_are_refused():
  refused("zip", database_clients.Milvus.insert, None, PASSAGES[:2], np.zeros((1, 3)))


@pytest.mark.parametrize("kind", ["milvus", "opensearch"])
def test_a_killed_filling_goes_on(db, peer, kind, monkeypatch):
  where = f"{db}/wiki" if kind == "milvus" else f"opensearch:{peer.address}/wiki"
  cls = dict(milvus=database_clients.Milvus, opensearch=database_clients.OpenSearch)[kind]
  insert, sizes = cls.insert, []

  def once(self, passages, vectors):
    if len(sizes) == 2:
      insert(self, passages[1::2], vectors)  # a batch that was cut in two
      raise KeyboardInterrupt
    sizes.append(len(passages))
    insert(self, passages, vectors)

  monkeypatch.setattr(cls, "insert", once)
  with pytest.raises(KeyboardInterrupt):
    filled(where, batch=20)
  refused("wiki: 50 of 61 passages: run the same `ragrl index` command to continue", load_index, where)
  monkeypatch.setattr(cls, "insert", lambda self, *given: (sizes.append(len(given[0])), insert(self, *given)))
  filled(where, batch=20, overwrite=kind == "milvus")
  assert sizes == [20, 20, 20, 1] and load_index(where).describe()["rows"] == 61
  filled(where)  # it is full
  with pytest.raises(ValueError, match="exists, with other contents: name another, or replace it"):
    databases.fill(PASSAGES[:9], "bm25", where, progress=False)
  databases.fill(PASSAGES[:9], "bm25", where, progress=False, overwrite=True)
  assert sum(sizes) == 70 and load_index(where).describe()["rows"] == 9


@pytest.mark.parametrize("kind", ["milvus", "opensearch"])
def test_changed_contents_are_told_from_the_same_ones(db, peer, kind, tmp_path):
  where = filled(f"{db}/wiki" if kind == "milvus" else f"opensearch:{peer.address}/wiki")
  before = contents.of_retriever(load_index(where))
  assert contents.of_retriever(load_index(where)) == before
  row = dict(id="p3", title="Title 3", text="changed")
  if kind == "milvus":
    assert contents.of_retriever(load_index(filled(f"milvus:{tmp_path / 'other.db'}/pages"))) == before
    client(db).upsert("wiki", [row | dict(contents="changed")])
  else:
    peer.indexes["wiki"].put("p3", row)
  after = contents.of_retriever(load_index(where))
  assert after != before and load_index(where).describe()["rows"] == 61


def test_fields_are_found_and_said(db, caplog):
  made = client(db)
  # A passage in the fields of another program, and in Search-R1's form.
  for name, passage in dict(quick=dict(page_content="body", name="T"), wiki18=dict(contents='"T"\nbody')).items():
    made.create_collection(name, dimension=24, metric_type="IP", auto_id=False)  # only id and vector are declared
    made.insert(name, [dict(id=4, vector=Encoder().queries(["a"])[0].tolist(), **passage)])
    found = load_index(f"{db}/{name}", encoder=Encoder())
    assert found.search(["a"], 1)[0] == [Passage("4", "T", "body", pytest.approx(1.0))]
  assert "its fields are {'id': 'id', 'title': 'name', 'text': 'page_content', 'vector': 'vector'}. Name" in caplog.text


def test_fields_within_fields_are_found(peer):
  inner = dict(source=dict(type="keyword"), title=dict(type="text"))
  properties = dict(text=dict(type="text"), metadata=dict(properties=inner))
  peer.indexes["docs"] = opensearch_server.Index(dict(mappings=dict(properties=properties)))
  peer.indexes["docs"].put("x", dict(text=["a story", "in parts"], metadata=dict(source="s9", title="T")))
  found = load_index(f"opensearch:{peer.address}/docs?title=metadata.title&id=metadata.source")
  assert found.search(["story"], 1)[0][0] == Passage("s9", "T", "a story\nin parts", 0.25)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
  """A database with the collection "own" and another. Tests only read it."""
  db = f"milvus:{tmp_path_factory.mktemp('two') / 'wiki.db'}"
  own(db, metric="COSINE").create_collection("other", dimension=4)
  return db


@pytest.mark.parametrize("options, encoder, says", [
  ("", None, "own: it has no BM25 function, so only vectors can be searched: name their encoder"),
  ("", Encoder(), "own: name the field of text: add text=NAME, one of chapter, story"),
  ("?text=body", Encoder(), "own: no field 'body' for text=…: it has chapter, story"),
  ("?text=story&vector=v", Encoder(), "own: no field 'v' for vector=…: it has meaning"),
  ("?text=story", Encoder(dim=16), "own: meaning has 24 dimensions, but the encoder makes 16"),
  ("?text=story", Encoder(normalize=False), "own: meaning is indexed with the metric COSINE, but this encoder ranks"),
  ("?text=story&ef=many", Encoder(), "own: ef=many: it must be a whole number"),
  ("?txt=story", Encoder(), "unknown option 'txt': use encoder, id, text"),
])  # fmt: skip
def test_what_does_not_fit_is_named(two, options, encoder, says):
  refused(says.replace("(", r"\("), load_index, f"{two}/own{options}", encoder=encoder)


def test_other_places_are_named(db, peer, tmp_path):
  for where, says in (
    (f"{db}/own", f"{db}/own: there is no /.*wiki.db: name another file, or fill it"),
    ("milvus:localhost:19530/wiki", "a database's address is milvus:FILE.db/COLLECTION or milvus:http"),
    ("opensearch:wiki", r"a database's address is opensearch:http\(s\)://HOST:PORT/NAME"),
    (f"opensearch:{peer.address}/wiki", "/wiki: no such collection. There are: none"),
  ):
    refused(says, load_index, where)
  filled(f"{db}/b")
  filled(f"{db}/a")
  refused(r"/a: it has no field that can be its vector", load_index, f"{db}/a", encoder=Encoder())
  refused(r"wiki.db: no such collection. There are: a, b", load_index, db)
  refused("wiki.db: name the collection too", databases.fill, PASSAGES, "bm25", db)
  for encoder, options in (("hashing", {}), ("bm25", dict(k1=2.0))):
    with pytest.raises(ValueError, match="in a database use bm25 without options, or a model"):
      databases.fill(PASSAGES, encoder, f"{db}/c", encoder_options=options)
  refused("leave out search and options", load_index, f"{db}/a", options="nprobe=3")
  own(db, metric="L2")
  refused("metric L2, but", load_index, f"{db}/own?title=chapter&text=story", encoder=Encoder())


def test_a_missing_extra_is_named(db, monkeypatch):
  monkeypatch.setitem(sys.modules, "pymilvus", None)
  monkeypatch.setitem(sys.modules, "opensearchpy", None)
  for where, extra in (("milvus:http://h/a", "milvus"), ("elasticsearch:http://h/a", "opensearch")):
    refused(rf"needs an extra: pip install 'ragrl_jax\[{extra}\]'", load_index, where)


def test_a_server_that_is_down_is_named():
  with served.nobody() as address:
    for scheme in ("milvus", "opensearch"):
      with pytest.raises(api.RetrievalFailed, match=f"{scheme}:{address}/a gives no answer .*start it, or correct"):
        load_index(f"{scheme}:{address}/a", timeout_s=0.5, key="me:s3cret")


def test_an_outage_of_opensearch_is_waited_for(peer):
  where, said, away = filled(f"opensearch:{peer.address}/wiki"), [], threading.Event()
  how = dict(timeout_s=5.0, retries=0, backoff_s=0.01)
  impatient = load_index(where, **how)
  found = load_index(where, wait_s=60.0, say=lambda text: (said.append(text), away.set()), **how)
  before, port, indexes = found.search(["fact7"], 2), peer.server_port, peer.indexes
  peer.server_close()
  with pytest.raises(api.RetrievalFailed, match="no passages for 'fact7' from opensearch:.*/wiki after 1 calls: "):
    impatient.search(["fact7"], 2)
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    search = pool.submit(found.search, ["fact7"], 2)
    assert away.wait(60)
    with opensearch_server.Server(port, indexes):
      assert search.result(60) == before
  assert "does not answer" in said[0] and "answers again" in said[-1]


def test_an_outage_of_milvus_is_waited_for(db, tmp_path):
  said, away = [], threading.Event()
  server, data, port = lite.start_server_in_thread(str(tmp_path / "served"))
  where = filled(f"milvus:http://127.0.0.1:{port}/wiki")
  found = load_index(where, timeout_s=1.0, wait_s=60.0, say=lambda text: (said.append(text), away.set()))
  before = found.search(["fact7"], 2)
  assert {one.id for one in before[0]} == {"p7", "twin"} and found.describe()["type"] == "SPARSE_INVERTED_INDEX"
  server.stop(0).wait()
  data.close()
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    search = pool.submit(found.search, ["fact7"], 2)
    assert away.wait(60)
    server, data, _ = lite.start_server_in_thread(str(tmp_path / "served"), port=port)
    try:
      assert search.result(60) == before
    finally:
      found.close()
      server.stop(0).wait()
      data.close()
  assert "does not answer" in said[0] and "answers again" in said[-1]


def test_errors_of_opensearch_are_retried_or_told(peer):
  where = filled(f"opensearch:{peer.address}/wiki")
  found = load_index(where, timeout_s=5.0, retries=2, backoff_s=0.01)
  expected = found.search(["fact7"], 2)
  peer.script = [503, 429]
  assert found.search(["fact7"], 2) == expected
  peer.script = [400]
  refused("after 1 calls: status 400: so_it_goes", found.search, ["fact7"], 2, error=api.RetrievalFailed)
  part = dict(status=200, timed_out=False, _shards=dict(total=2, successful=1, failed=1), hits=dict(hits=[]))
  peer.script = [lambda handler: dict(took=1, responses=[part])] * 3
  refused("after 3 calls: a part of the index did not answer", found.search, ["fact7"], 2, error=api.RetrievalFailed)
  peer.script = [lambda handler: time.sleep(30)]
  start = time.monotonic()
  with pytest.raises(api.RetrievalFailed, match="after 1 calls: .*timed out"):
    load_index(where, timeout_s=0.3, retries=0).search(["fact7"], 2)
  assert time.monotonic() - start < 20


def test_queries_are_sent_in_batches(peer):
  found = load_index(filled(f"opensearch:{peer.address}/wiki"), batch=3)
  answers = found.search([f"fact{i}" for i in range(7)], 1)
  assert [one[0].id in (f"p{i}", "twin") for i, one in enumerate(answers)] == [True] * 7
  assert [len(body.splitlines()) for _, path, _, body in peer.asked if path.endswith("_msearch")] == [6, 6, 2]


def test_a_token_is_sent_and_never_shown(peer):
  filled(f"opensearch:{peer.address}/wiki")
  for scheme, key, sent in (
    ("opensearch", "me:s3cret", "Basic bWU6czNjcmV0"), ("opensearch", "t0ken", "Bearer t0ken"),
    ("elasticsearch", "t0ken", "ApiKey t0ken"),
  ):  # fmt: skip
    found = load_index(f"{scheme}:{peer.address}/wiki", key=key)
    found.search(["fact7"], 1)
    headers = {name.lower(): value for name, value in peer.asked[-1][2].items()}
    assert headers["authorization"] == sent and "t0ken" not in str(found.describe())
  inside = load_index(f"opensearch:{peer.address.replace('//', '//me:s3cret@')}/wiki")
  inside.search(["fact7"], 1)
  assert "s3cret" not in str(inside.describe())
