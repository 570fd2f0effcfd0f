"""Documents are opened around a passage, and words are found in them: in an index, behind a server, over parts."""

import asyncio
import types
from unittest import mock

import pytest
import served
from refusals import refused

from ragrl_jax.retrieval import api, build_index, load_index
from ragrl_jax.retrieval.documents import Chunks
from ragrl_jax.rollout import tools as tools_lib
from ragrl_jax.structs import Passage, ToolFailed

DOCUMENTS = [Passage(f"d{i}", f"T{i}", " ".join(f"w{i}x{n} of" for n in range(20))) for i in range(3)]
# As in wiki-18: an article is the neighbours with its title. The last article has the first one's title.
WIKI = [Passage(str(i), title, f"text-{i}’s\n of {title}") for i, title in enumerate(["A", "A", "A", "B", "", "", "A"])]


@pytest.fixture(scope="module")
def chunked(tmp_path_factory):
  folder = tmp_path_factory.mktemp("i") / "i"
  return load_index(build_index(DOCUMENTS, "bm25", folder, chunks=Chunks(8), progress=False))  # 5 passages a document


def ids(found):
  return [[passage.id for passage in passages] for passages in found]


def test_a_passage_is_opened_in_the_middle_of_those_around_it(chunked):
  assert ids(chunked.read([("d1#2", "")], 3)) == [["d1#1", "d1#2", "d1#3"]]
  first, last = ["d1#0", "d1#1", "d1#2", "d1#3"], ["d1#1", "d1#2", "d1#3", "d1#4"]
  assert ids(chunked.read([("d1#0", ""), ("d1#4", ""), ("d1#2", "")], 4)) == [first, last, last]
  assert ids(chunked.read([("d2#3", ""), ("d9#0", ""), ("d1", "")], 99)) == [[f"d2#{n}" for n in range(5)], [], []]
  (opened,) = chunked.read([("d0#0", "")], 1)
  assert opened == [Passage("d0#0", "T0", "w0x0 of w0x1 of w0x2 of w0x3 of")]


def test_words_are_found_in_the_passages_document_alone(chunked):
  found = chunked.read([("d1#0", "W1X9  of"), ("d1#0", "w2x9"), ("d1#0", "of")], 2)
  assert ids(found) == [["d1#2"], [], ["d1#0", "d1#1"]]


def test_neighbours_with_one_title_are_a_document(tmp_path):
  index = load_index(build_index(WIKI, "hashing", tmp_path / "i", progress=False))
  assert ids(index.read([("1", ""), ("3", ""), ("4", ""), ("6", "")], 9)) == [["0", "1", "2"], ["3"], ["4"], ["6"]]
  assert ids(index.read([("0", "text\u20132's of a")], 9)) == [["2"]]
  refused("must be a pair", index.read, ["0"], 3)
  refused("k=0", index.read, [("0", "")], 0)


def test_a_server_reads_as_its_index_does_and_so_do_parts(tmp_path, chunked):
  asked = [("d1#2", ""), ("d2#0", "w2x9"), ("unknown", ""), ("d0#4", "")]
  how = dict(chunks=Chunks(8), progress=False)
  parts = [load_index(build_index(DOCUMENTS, "bm25", tmp_path / f"{n}", shard=(n, 3), **how)) for n in (1, 2, 3)]

  bare = types.SimpleNamespace(search=chunked.search, describe=chunked.describe)  # it opens no documents
  with served.serving(chunked, *parts, bare) as (whole, *split, bare):
    remote = load_index(whole)
    for k in (1, 3, 9):
      assert remote.read(asked, k) == load_index(",".join(split)).read(asked, k) == chunked.read(asked, k)
    with pytest.raises(api.RetrievalFailed, match="after 1 calls: status 404: .*no documents to open"):
      load_index(bare).read(asked[:1], 1)
    refused("status 400: .*at most 100 passages", remote.read, asked, 101, error=api.RetrievalFailed)


def test_tools_open_and_find_in_batches(chunked):
  calls = []
  read = lambda asked, k: (calls.append(list(asked)), chunked.read(asked, k))[1]
  recording = types.SimpleNamespace(search=chunked.search, read=read)

  async def several():
    tools = tools_lib.RetrievalTools(recording, top_k=2)
    return await asyncio.gather(tools.open("d1#0"), tools.find("d1#0", "w1x9"), tools.open("d1#0", 1))

  opened, found, one = asyncio.run(several())
  assert [p.id for p in opened] == ["d1#0", "d1#1"] and [p.id for p in found] == ["d1#2"] and len(one) == 1
  assert sorted(map(len, calls)) == [1, 2]  # those with the same number of passages are one call

  async def fails(retriever, *words):
    return await tools_lib.RetrievalTools(retriever).find("d1#0", *words)

  refused("opens no documents", asyncio.run, fails(None, "x"))
  refused("needs words", asyncio.run, fails(recording, " "))
  with pytest.raises(ToolFailed, match="gone"):
    asyncio.run(fails(types.SimpleNamespace(read=mock.Mock(side_effect=ToolFailed("gone"))), "x"))
