"""Corpora as others release them, and documents cut into passages."""

import gzip
import json

import hypothesis
import hypothesis.strategies as st
import pyarrow
import pyarrow.parquet
import pytest
import small_tokenizers
import tokenizers
from refusals import refused

from ragrl_jax.retrieval import build_index, corpus, load_index
from ragrl_jax.retrieval.documents import Chunks, document_of
from ragrl_jax.structs import Passage

TWO = [Passage("1", "Aaron", "Aaron is a prophet."), Passage("2", "Abel", 'He said "no".\tThen left.')]


def lines(path, rows):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return path


def parquet(path, rows):
  path.parent.mkdir(parents=True, exist_ok=True)
  pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
  return path


def columns(name, **more):
  return [{name: passage.id, "title": passage.title, "text": passage.text, **more} for passage in TWO]


HALVES = columns("id")[:1], columns("id")[1:]
LAYOUTS = {
  "wiki-18": lambda at: lines(at / "w.jsonl", [dict(id=p.id, contents=f'"{p.title}"\n{p.text}') for p in TWO]),
  "wiki-18 repaired": lambda at: lines(at / "w.jsonl", columns("doc_id")),
  "TIREx": lambda at: lines(at / "w.jsonl", columns("docno", original_document={})),
  "BEIR": lambda at: lines(at / "set" / "corpus.jsonl", columns("_id", metadata={})).parent,
  "MTEB": lambda at: parquet(at / "set" / "corpus" / "test-0.parquet", columns("id")).parents[1],
  "hub": lambda at: parquet(at / "set" / "data" / "train-0.parquet", columns("docid", url="http://x")).parents[1],
  "two files": lambda at: f"{lines(at / 'a.jsonl', HALVES[0])}, {parquet(at / 'b.parquet', HALVES[1])}",
  "folder": lambda at: [lines(at / "f" / f"{name}.jsonl", half) for name, half in zip("ab", HALVES)][0].parent,
}


def tsv(at):  # DPR: the text stands in quotes, with its own quotes doubled
  quoted = [f'{p.id}\t"{p.text.replace(chr(34), chr(34) * 2)}"\t{p.title}\n' for p in TWO]
  with gzip.open(at / "psgs.tsv.gz", "wt") as file:
    file.writelines(["id\ttext\ttitle\n", *quoted])
  return at / "psgs.tsv.gz"


@pytest.mark.parametrize("layout", [*LAYOUTS.values(), tsv], ids=[*LAYOUTS, "DPR"])
def test_every_layout_gives_the_same_passages(tmp_path, layout):
  path = layout(tmp_path)
  assert list(corpus.read_passages(path)) == TWO
  assert len(corpus.places(path, [1])) == 1 and len(corpus.identity(path)["sha256"]) == 64


def test_browsecomp_plus_has_texts_without_titles(tmp_path):
  path = parquet(tmp_path / "c.parquet", [dict(docid="7", text="A page.", url="http://x")])
  assert list(corpus.read_passages(path)) == [Passage("7", "", "A page.")]


def test_faults_are_named_by_file_and_row(tmp_path):
  bad = parquet(tmp_path / "c.parquet", [dict(docid="7", text="a"), dict(docid="8", text=None)])
  refused('c.parquet: row 2: "text" must be a string', list, corpus.read_passages(bad))
  refused("no such corpus", list, corpus.read_passages(tmp_path / "nothing"), error=FileNotFoundError)
  twice = lines(tmp_path / "b.jsonl", columns("id"))
  with pytest.raises(ValueError, match=r"a.jsonl:1 and .*b.jsonl:1: the id '1' occurs twice"):
    build_index(f"{lines(tmp_path / 'a.jsonl', HALVES[0])},{twice}", "bm25", tmp_path / "i", progress=False)


def test_a_changed_file_among_several_is_another_corpus(tmp_path):
  both = ",".join(str(lines(tmp_path / f"{name}.jsonl", half)) for name, half in zip("ab", HALVES))
  build_index(both, "bm25", tmp_path / "i", progress=False)
  lines(tmp_path / "b.jsonl", [dict(id="2", text="changed")])
  refused("an index of another request .other corpus", build_index, both, "bm25", tmp_path / "i", progress=False)


def test_quotes_of_tab_separated_values(tmp_path):
  # In quotes are values that begin and end with one, with two for each inside; all other quotes are the text's own.
  raw = 'id\ttitle\ttext\r\n1\t"Heroes" is a song\t"a ""b"" \t c"\r\n2\t\tsay "x"\r\n3\t"T\t12" disc\n4\t""\t"""q"""\n'
  (tmp_path / "q.tsv").write_bytes(raw.encode())
  found = [(one.title, one.text) for one in corpus.read_passages(tmp_path / "q.tsv")]
  assert found == [('"Heroes" is a song', 'a "b" \t c'), ("", 'say "x"'), ('"T', '12" disc'), ("", '"q"')]
  lines(tmp_path / "c.jsonl", [dict(id="1", contents='"T"\r\nthe text\r\n')])
  assert list(corpus.read_passages(tmp_path / "c.jsonl")) == [Passage("1", "T", "the text\r\n")]


def test_chunks_of_scripts_without_spaces():
  cut = lambda text: [p.text for p in Chunks(3).cut([Passage("d", "", text)])]
  assert cut("東京は首都。NHK now") == ["東京は", "首都。NHK", "now"]
  assert cut("ก\u0e34นข้าว x") == ["ก\u0e34นข\u0e49", "าว x"]  # marks stay with their letters


def test_chunks_by_hand():
  # Five words in pieces of three that share one: a b c, c d e. A piece "e" alone would have nothing new.
  documents = [Passage("d", "T", " a b\nc  d e "), Passage("#1", "", ""), Passage("f", "", "x")]
  cut = [Passage("d#0", "T", "a b\nc"), Passage("d#1", "T", "c  d e"), Passage("#1#0", "", ""), Passage("f#0", "", "x")]
  assert list(Chunks(3, overlap=1).cut(documents)) == cut
  assert document_of("d#1") == ("d", 1) and document_of("#1#0") == ("#1", 0)
  assert document_of("plain") == ("plain", None) and document_of("C#") == ("C#", None)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(st.lists(st.sampled_from("abcdé山")).map(" ".join), st.integers(1, 7), st.integers(0, 6))
def test_chunks_cover_every_token_with_the_overlap(text, tokens, overlap):
  hypothesis.assume(overlap < tokens)
  words, pieces = (text.split(), [p.text.split() for p in Chunks(tokens, overlap).cut([Passage("d", "", text)])])
  assert all(len(piece) <= tokens for piece in pieces)
  assert pieces[0] + [word for piece in pieces[1:] for word in piece[overlap:]] == words
  assert all(before[-overlap:] == after[:overlap] for before, after in zip(pieces, pieces[1:]) if overlap)


def test_chunks_of_a_models_tokens(tmp_path):
  pieces = ["[UNK]", *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh")]
  vocabulary = {piece: number for number, piece in enumerate(pieces)}
  made = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
  made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  made.enable_truncation(3)  # must not cut documents
  (tmp_path / "model").mkdir()
  made.save(str(tmp_path / "model" / "tokenizer.json"))
  cut = Chunks(3, 0, str(tmp_path / "model"))
  assert [p.text for p in cut.cut([Passage("d", "", "abcd ef gh")])] == ["abc", "d ef", "gh"]  # a letter is a token
  refused("'words' or a folder with a tokenizer.json", Chunks, 3, 0, str(tmp_path))
  refused("overlap less than tokens", Chunks, 3, 3)


def test_characters_of_several_tokens_stay_whole(tmp_path):
  # Without merges, byte-level BPE has a token a byte: three for 山, two for é, each with the whole character's place.
  small_tokenizers.bare_bytes(tmp_path)
  cut = lambda text, *sizes: [p.text for p in Chunks(*sizes, str(tmp_path)).cut([Passage("d", "", text)])]
  assert cut("ab山éc", 4, 0) == ["ab", "山", "éc"]  # two bytes are free behind "ab", but not three
  assert cut("山山", 2, 1) == ["山", "山"]  # longer than a piece may be
  assert cut("aé山", 5, 2) == ["aé", "é山"]


def test_an_index_of_chunks_and_its_parts(tmp_path):
  documents = lines(tmp_path / "d.jsonl", [dict(id=f"d{i}", title="", text=f"word{i} common " * 6) for i in range(4)])
  cut = Chunks(4, 2)
  index = load_index(build_index(documents, "bm25", tmp_path / "i", chunks=cut, progress=False))
  assert len({p.id for p in index.search(["word2"], 99)[0]}) == 5 and index.describe()["rows"] == 20
  half = load_index(build_index(documents, "bm25", tmp_path / "half", chunks=cut, shard=(2, 2), progress=False))
  assert half.search(["word2"], 2) == index.search(["word2"], 2)
  with pytest.raises(ValueError, match="another request .other chunks"):
    build_index(documents, "bm25", tmp_path / "i", chunks=Chunks(4, 1), progress=False)
