"""Questions in CSV, Parquet and saved data sets, and the training files of Search-R1 and verl as they are."""

import csv
import datetime
import decimal
import json

import pyarrow
import pyarrow.parquet
import pytest
import saved_rows
from refusals import refused

from ragrl_jax.data import layouts, readers, writers
from ragrl_jax.structs import Example, Passage

PROMPT = "Answer the given question. Question: in tags. Question: who wrote it?\n"
VERL = dict(
  data_source="nq", prompt=[dict(role="system", content="Be brief."), dict(role="user", content=PROMPT)],
  ability="fact-reasoning", reward_model=dict(style="rule", ground_truth=dict(target=["Ann", "A. Lee"])),
  extra_info=dict(split="train", index=7),
)  # fmt: skip


def parquet(path, rows):
  pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
  return path


def read(path):
  return list(readers.read_examples(path))


def test_plain_values_are_read_like_rows(tmp_path):
  passages = (Passage("p", "T", "It is Rome."),)
  asked = [
    Example("1", "Where?", ("Rome", "Roma"), passages, (0,), "mine", 1, ((0, "It is Rome."),), dict(kind="a")),
    Example("a-2", "Who?", ("Ann",), source="a"),
  ]
  rows = [writers.to_row(example) for example in asked]
  rows[1] |= dict(id="", hops="", answers="Ann")  # without an id: the file's name and the row's number
  with open(tmp_path / "a.csv", "w", newline="") as file:
    out = csv.DictWriter(file, fieldnames=rows[0])
    out.writeheader()
    out.writerows({k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in row.items()} for row in rows)
  first, second = read(tmp_path / "a.csv")
  assert (first, second.id, second.golds, second.hops, second.passages) == (asked[0], "a-1", ("Ann",), None, ())


def test_values_that_json_lacks_are_written_as_texts(tmp_path):
  row = dict(id="1", question="Who?", answers=["Ann"], day=datetime.date(2020, 1, 2), price=decimal.Decimal("1.50"))
  half = Example("2", "Who?", ("Ann",), meta=dict(half="\ud800"))  # of a pair, which UTF-8 lacks
  writers.write_examples(tmp_path / "a.jsonl", [*read(parquet(tmp_path / "a.parquet", [row])), half])
  assert [example.meta for example in read(tmp_path / "a.jsonl")] == [dict(day="2020-01-02", price="1.50"), half.meta]


def test_a_file_of_search_r1_has_sets_with_the_same_ids(tmp_path):
  more = dict(id="train_0", question="Who wrote it?", golden_answers=["Ann"], metadata=None)
  context = dict(title=["Book"], sentences=[["Ann wrote it."]])
  known = dict(context=context, supporting_facts=dict(title=["Book"], sent_id=[0]))
  rows = [{**VERL, **more}, {**VERL, **more, "data_source": "hotpotqa", "metadata": known}]
  nq, hotpotqa = read(parquet(tmp_path / "train.parquet", rows))
  assert (nq.source, hotpotqa.source) == ("nq", "hotpotqa")
  assert all((e.id, e.question, e.golds) == ("train_0", "Who wrote it?", ("Ann",)) for e in (nq, hotpotqa))
  assert (nq.passages, hotpotqa.passages[0].text, hotpotqa.supporting) == ((), "Ann wrote it.", (0,))
  assert nq.meta == dict(extra_info=dict(split="train", index=7))  # CARE would take a prompt for its own


def test_a_file_of_verl(tmp_path):
  second = {**VERL, "extra_info": dict(split="train", index=8, question="Who?")}
  third = {**VERL, "prompt": [dict(role="user", content="Who is it?")], "extra_info": dict(split="test", index=None)}
  found = read(parquet(tmp_path / "v.parquet", [VERL, second, third]))
  assert [e.id for e in found] == ["train_7", "train_8", "v-2"]
  assert [e.question for e in found] == ["who wrote it?", "Who?", "Who is it?"]
  assert {e.golds for e in found} == {("Ann", "A. Lee")} and {e.source for e in found} == {"nq"}


@pytest.mark.parametrize("truth", ["72", ["72"], dict(target="72"), dict(target=["72"])])
def test_ground_truths_of_verl(truth):
  row = {**VERL, "reward_model": dict(ground_truth=truth)}
  as_text = {name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in row.items()}
  for one in (row, as_text):
    assert layouts.example(one, identity="a-0", source="a").golds == ("72",)


@pytest.mark.parametrize(("change", "said"), [
  (dict(reward_model=dict(ground_truth="")), "'reward_model.ground_truth' must hold at least one answer"),
  (dict(reward_model=None), "'reward_model.ground_truth' must hold at least one answer"),
  (dict(reward_model="[1"), "'reward_model' is text, but not JSON"),
  (dict(prompt=[dict(role="system", content="x")]), "'content' must be text"),
  (dict(prompt="who?"), "'prompt' is text, but not JSON"), (dict(extra_info=[1]), "'extra_info' must be an object"),
])  # fmt: skip
def test_faults_of_verls_rows(tmp_path, change, said):
  (tmp_path / "a.jsonl").write_text(json.dumps({**VERL, **change}) + "\n")
  refused(f"a.jsonl:1: {said}", read, tmp_path / "a.jsonl")


def test_hidden_files_are_no_questions_and_packed_ones_are_said(tmp_path, caplog):
  (tmp_path / "a.csv").write_text("question,answer\nWho?,Ann\n")
  (tmp_path / "._a.csv").write_bytes(b"\0\5\x16\7")  # as macOS leaves them
  (tmp_path / "a.csv.zip").touch()  # it lies there unpacked
  assert [(e.source, e.golds) for e in read(tmp_path)] == [("a", ("Ann",))] and not caplog.text
  (tmp_path / "b.csv.xz").touch()
  assert len(list(read(tmp_path))) == 1 and f"{tmp_path}: left out: b.csv.xz: .jsonl, .json, .csv or" in caplog.text


def test_a_saved_data_set_is_one_source(tmp_path):
  rows = [dict(question=f"{name}?", answer=name) for name in "ab"]
  folder = saved_rows.save(tmp_path / "mine" / "train", rows, shards=2)
  assert [(e.id, e.source) for e in read(folder)] == [("train-0", "train"), ("train-1", "train")]
  readers.check(str(folder), "config.data.train")
  (tmp_path / "mine" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
  refused("it holds the splits train, test: name one of them", read, tmp_path / "mine")


@pytest.mark.slow  # the datasets library takes two seconds to import
@pytest.mark.parametrize("fault", ["saved", "mixed"])
def test_folders_that_the_datasets_library_refuses(tmp_path, monkeypatch, fault):
  import datasets

  monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
  if fault == "saved":
    datasets.Dataset.from_list([dict(question="Q?", answer="x")]).save_to_disk(tmp_path / "set")
  else:
    (tmp_path / "set").mkdir()
    for number, row in enumerate((dict(question="Q?", answer="x"), dict(more=1))):
      parquet(tmp_path / "set" / f"train-{number}.parquet", [row])
  with pytest.raises(ValueError, match="it cannot be loaded by the datasets library .*Name its files") as error:
    read(f"hf:{tmp_path}/set//train")
  assert "\n" not in str(error.value)
