import gzip
import json
import time

import pytest
import reading_world
from huggingface_hub import constants
from refusals import refused

from ragrl_jax.data import columns, readers, synthetic, writers
from ragrl_jax.run import questions
from ragrl_jax.structs import Passage

GOOD = dict(id="q1", question="Who?", answers=["Me"])


def put(path, *rows):
  text = "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows).encode()
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
  return path


def read(path, **options):
  return list(readers.read_examples(path, **options))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_what_is_written_is_read(tmp_path, name):
  world = reading_world.build(entities=60, held_out=8, years=True)
  asked = reading_world.questions(world, 12, mix={1: 1, 2: 1, "yes_no": 1, "comparison": 1}, passages=5)
  asked += synthetic.questions(world, 3, seed=1)
  writers.write_examples(tmp_path / "deep" / name, asked)
  assert read(tmp_path / "deep" / name) == asked


def test_turns_go_to_meta(tmp_path):
  asked = synthetic.questions(synthetic.build(entities=60, held_out=8), 2)
  turns = [[("model", "a <b> \u2028"), ("environment", "\n\nx")], []]
  writers.write_examples(tmp_path / "a.jsonl.gz", asked, turns=turns)
  got = read(tmp_path / "a.jsonl.gz")
  assert [e.meta["turns"] for e in got] == [[["model", "a <b> \u2028"], ["environment", "\n\nx"]], []]
  refused("one for each", writers.write_examples, tmp_path / "b.jsonl", asked, turns=turns[:1])
  assert not (tmp_path / "b.jsonl").exists()


def test_a_file_is_written_completely_or_not_at_all(tmp_path):
  def failing():
    yield Passage("1", "t", "x")
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    writers.write_passages(tmp_path / "c.jsonl.gz", failing())
  assert list(tmp_path.iterdir()) == []


def test_the_same_rows_make_the_same_file(tmp_path):
  for name in ("a.jsonl.gz", "b.jsonl.gz"):
    writers.write_passages(tmp_path / name, [Passage("1", "t", "x")])
  assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_json_arrays_and_lines(tmp_path, name):
  rows = [GOOD, dict(GOOD, id="q2")]
  for written in ([json.dumps(rows)], [json.dumps(rows, indent=2)], rows):
    assert [e.id for e in read(put(tmp_path / name, *written))] == ["q1", "q2"]


def test_empty_lines_and_byte_order_marks(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n\n  \n")
  assert [e.id for e in read(path)] == ["q1"]


def test_folders_globs_and_lists(tmp_path):
  first = put(tmp_path / "a.jsonl", GOOD)
  second = put(tmp_path / "b.jsonl.gz", GOOD)  # the same id in another file is another question
  put(tmp_path / "README.md", "x")
  assert [e.source for e in read(tmp_path)] == ["a", "b"]
  assert [e.source for e in read(f"{tmp_path}/*.jsonl*")] == ["a", "b"]
  assert [e.source for e in read(f"{second},{first}")] == ["b", "a"]
  assert [e.source for e in read(f"{first}, {second},")] == ["a", "b"]  # and nothing of the present folder
  assert [e.source for e in read(tmp_path, max_examples=1)] == ["a"]
  with pytest.raises(ValueError, match="'q1' occurs twice"):  # a list that is too long for a file's name is read
    read(",".join([str(first)] * 200))


def test_a_passage_may_have_the_id_0():
  passage = lambda name: columns.passage(dict(id=name, text="t"), "x").id
  assert (passage(0), passage("0")) == ("0", "0") and passage(None) == passage("") != "0"


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path):
  nq, triviaqa = (put(tmp_path / name / "test.jsonl", GOOD) for name in ("nq", "triviaqa"))
  assert [e.source for e in read(f"{nq},{triviaqa}")] == ["nq/test", "triviaqa/test"]
  assert [e.source for e in read(nq)] == ["test"]
  with pytest.raises(ValueError, match="occurs twice, first at"):  # one file, named in two ways
    read(f"{nq},{tmp_path}/nq/../nq/test.jsonl")
  third = put(tmp_path / "old" / "nq" / "test.jsonl", GOOD)  # where folders have the same name, too
  names = [f"{tmp_path.name}/nq/test", "old/nq/test", "triviaqa/test"]
  assert [e.source for e in read(f"{nq},{third},{triviaqa}")] == names
  with pytest.raises(ValueError, match="occurs twice, first at"):  # rows may name a source of their own
    read(f"{put(tmp_path / 'a.jsonl', dict(GOOD, source='x'))},{put(tmp_path / 'b.jsonl', dict(GOOD, source='x'))}")


def test_a_version_in_a_files_name_belongs_to_the_source(tmp_path):
  put(tmp_path / "musique_ans_v1.0_dev.jsonl", GOOD)
  put(tmp_path / "musique_ans_v1.0_train.jsonl.gz", GOOD)
  assert [e.source for e in read(tmp_path)] == ["musique_ans_v1.0_dev", "musique_ans_v1.0_train"]
  both = [put(tmp_path / f"nq.{part}.json", GOOD) for part in ("train", "test")]
  assert [e.source for e in read(",".join(map(str, both)))] == ["nq.train", "nq.test"]


def test_both_halves_of_musique_full(tmp_path):
  row = dict(id="2hop__1_2", question="Who?", answer="Ann", paragraphs=[dict(title="T", paragraph_text="Ann.")])
  path = put(tmp_path / "musique_full_v1.0_dev.jsonl", dict(row, answerable=True), dict(row, answerable=False))
  known, unknown = read(path)
  assert (known.id, unknown.id) == ("2hop__1_2", "2hop__1_2/unanswerable")
  assert (known.meta["answerable"], unknown.meta["answerable"]) == (True, False)


def test_examples_without_their_passages_can_be_written(tmp_path):
  row = dict(GOOD, passages=[dict(id="p", title="t", text="It is me.")], supporting=[0])
  row["meta"] = dict(evidence=[[0, "It is me."]])
  (example,) = read(put(tmp_path / "a.jsonl", row))
  writers.write_examples(tmp_path / "b.jsonl", [questions.without_passages(example)])
  (again,) = read(tmp_path / "b.jsonl")
  assert (again.question, again.golds, again.passages, again.evidence) == (example.question, example.golds, (), ())


def test_max_examples_stops_reading(tmp_path):
  path = put(tmp_path / "a.jsonl", GOOD, "not json\n")
  assert len(read(path, max_examples=1)) == 1


@pytest.mark.parametrize(("row", "message"), [
  ("{not json\n", "not JSON"), ("[1, 2]\n", "a row must be a JSON object, this is a list"),
  ("null\n", "this is null"), ("true\n", "true or false"), (dict(GOOD, id="q0"), "occurs twice, first at"),
  (dict(GOOD, answers=[]), "'answers' must hold at least one answer"),
  (dict(GOOD, answers=["", "x"]), "each of them text"), (dict(GOOD, answers=[1]), "each of them text"),
  (dict(GOOD, question="  "), "'question' must be text"), (dict(GOOD, id=True), "'id' must be text or a whole number"),
  (dict(GOOD, supporting=[0]), "'supporting' holds 0"),
  (dict(GOOD, passages=[dict(text="x")], supporting=[True]), "'supporting' holds True"),
  (dict(GOOD, passages=[dict(text="x")], supporting=[-1]), "position from 0 to 0"),
  (dict(GOOD, passages={"text": "x"}), "'passages' must be a list"),
  (dict(GOOD, passages=["x"]), r"'passages\[0\]' must be an object"),
  (dict(GOOD, passages=[dict(title=3, text="x")]), "title of"),
  (dict(GOOD, passages=[dict(id=1.0, text="x")]), r"the id of 'passages\[0\]' must be text or a whole number"),
  (dict(GOOD, hops="two"), "'hops' must be a whole number"), (dict(GOOD, meta=[]), "'meta' must be an object"),
  (dict(GOOD, meta=dict(evidence=[[0, 1]])), "position, sentence"),
  (dict(GOOD, meta=dict(evidence=[[0, "x"]])), "'meta.evidence' holds 0"),
  (dict(id="q1", query="Who?"), "has an unknown layout"),
  ('{"id": "q1", "question": "\\ud800", "answers": ["x"]}\n', "not valid Unicode"),
])  # fmt: skip
def test_a_bad_row_is_refused_with_file_and_line(tmp_path, row, message):
  path = put(tmp_path / "bad.jsonl.gz", dict(GOOD, id="q0"), "\n", row)
  refused(rf"bad\.jsonl\.gz:3.*{message}", read, path)


FAULTY = [json.dumps(row) for row in (GOOD, dict(GOOD, id="q2", answers=[]))]


@pytest.mark.parametrize(("text", "message"), [
  (f"[{FAULTY[0]}, {FAULTY[1]}]", r"a\.json:1 \(row 2\).*at least one answer"),
  (f"[\n{FAULTY[0]}\n,\n\n\n{FAULTY[1]}\n]", r"a\.json:6 \(row 2\)"),
  (f"[{FAULTY[0]} {FAULTY[0]}]", "row 1.*after a row"), (f"[{FAULTY[0]},", "row 2.*not JSON"),
  (f"[{FAULTY[0]}]\n[{json.dumps(dict(GOOD, id='q2'))}]", "after the array's ']' there must be nothing"),
])  # fmt: skip
def test_a_bad_row_of_an_array(tmp_path, text, message):
  refused(message, read, put(tmp_path / "a.json", text))


LINE = json.dumps(GOOD).encode()
WHOLE = gzip.compress("".join(json.dumps(dict(GOOD, id=str(i))) + "\n" for i in range(2000)).encode(), mtime=0)
BROKEN = {
  "cut.jsonl.gz": (WHOLE[: len(WHOLE) // 2], r"cut\.jsonl\.gz:\d+: the compressed file is broken"),
  "plain.jsonl.gz": (LINE, "compressed file is broken"),
  "latin.jsonl": (LINE + b"\n\xff\n", r"latin\.jsonl:2: not UTF-8"),
  "deep.jsonl": (b"[" * 200_000 + b"\n", r"deep\.jsonl:1: not JSON"), "empty.jsonl": (b"\n", "no questions"),
  "a.xlsx": (b"x", "convert the file"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(tmp_path, name):
  content, said = BROKEN[name]
  (tmp_path / name).write_bytes(content)
  refused(said, read, tmp_path / name)


def test_missing_files_are_refused(tmp_path):
  for name, said in (("/a.jsonl", "no such file"), ("/*.jsonl", "no file matches"), ("", "holds none of")):
    refused(said, read, f"{tmp_path}{name}", error=FileNotFoundError)
  refused("config.data.train", read, "")
  refused("max_examples=-1", read, tmp_path / "a.jsonl", max_examples=-1)


@pytest.mark.parametrize("path", ["hf:squad", "hf:", "hf:a/b", "hf:owner/name/"])
def test_names_on_the_hub(path):
  refused("hf:NAME/SUBSET/SPLIT", read, path)


@pytest.mark.slow  # the datasets library takes two seconds to import
def test_a_hub_without_an_answer_is_asked_once(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
  monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
  began = time.monotonic()
  with pytest.raises(ValueError, match=r"hub \(no answer: .*Connection refused; and the cache has none\). Name a file"):
    read("hf:owner/no_such_set//train")
  assert time.monotonic() - began < 10 and not constants.HF_HUB_OFFLINE
  assert capsys.readouterr().err == "hf:owner/no_such_set//train: asks http://127.0.0.1:1\n"
  put(tmp_path / "set" / "train.jsonl", "{}")
  for there in ("set", "set/train.jsonl"):
    refused(f"{there} is here: name it without hf:", read, f"hf:{tmp_path}/{there}")


@pytest.mark.slow  # the datasets library takes two seconds to import
def test_a_dataset_of_the_datasets_library(tmp_path, monkeypatch):
  monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
  import datasets

  monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
  folder = tmp_path / "mini"
  row = lambda i, *golds: dict(id=f"t{i}", question=f"Q{i}?", golden_answers=golds, metadata=dict(level="hard"))
  put(folder / "train.jsonl", *(row(i, f"a{i}", "b") for i in (0, 1)))
  got = read(f"hf:{folder}//train")
  hard = dict(level="hard")
  assert [e.golds for e in got] == [("a0", "b"), ("a1", "b")]
  assert [(e.id, e.source, e.meta) for e in got] == [("t0", "mini", hard), ("t1", "mini", hard)]
  refused("nothing", read, f"hf:{folder}//nothing")
  assert [e.source for e in read(f"hf:{folder}/default/train")] == ["mini/default"] * 2  # a subset has its own ids
  put(folder / "train.jsonl", *(row(i, "a") for i in range(1000)))
  drawn = read(f"hf:{folder}//train~100")
  assert len({e.id for e in drawn}) == 100 and drawn == read(f"hf:{folder}//train~100")
  assert sum(int(e.id[1:]) < 500 for e in drawn) in range(35, 66)  # drawn from the whole data set
  for path, words in ((f"hf:{folder}//train~1001", "it has 1000 rows"), (f"hf:{folder}//train~x", "number of rows")):
    refused(words, read, path)
