import pathlib
import re
import shlex
import sys
import tomllib

import paper_runs
import pytest
from absl import flags
from huggingface_hub import constants
from ml_collections import config_flags

from ragrl_jax import config as config_lib, recipes
from ragrl_jax.cli import configs, main as main_lib
from ragrl_jax.evaluation import records
from ragrl_jax.evaluation.tables import commands_of, filling, papers, writing


def test_passages_of_a_question_decide_whose_row_a_played_agent_fills(tmp_path):
  checkpoint = paper_runs.model(tmp_path / "model", "qwen2.5-7b")
  played = lambda variant: paper_runs.evaluation(tmp_path / variant, f"released:{variant}", checkpoint=checkpoint)
  searched, given = played("research"), played("research,given")
  (arena,) = [row.run for row in papers.PAPERS["arena"].tables[0].rows if row.name == "ReSearch-7B"]
  veritas = {row.name: row.run for row in papers.PAPERS["veritas"].tables[1].rows}["ReSearch-7B-Instruct"]
  assert not filling.unmet(arena, given.facts) and filling.unmet(arena, searched.facts)
  assert filling.unmet(veritas, given.facts)
  found = paper_runs.cells("veritas", "Table 2", searched)
  values = {name: cells[3].value for name, cells in found.items()}
  assert values.pop("ReSearch-7B-Instruct") == 1.0 and set(values.values()) == {None}


def every_row():
  for paper in papers.PAPERS.values():
    for table in paper.tables:
      for row in table.rows:
        named = (row.name, row.run), (row.name + filling.VERSUS, row.versus)
        yield from ((paper, table, name, run) for name, run in named if run is not None)


def printed():
  """The printed commands of evaluations, each with its column, and those of trainings with None."""
  for paper, table, _, run in every_row():
    for column in (column for column in table.columns if not column.average):
      yield from ((command, column) for command in commands_of.evaluation(paper, column, run).split(" && "))
    if train := commands_of.training(paper, run):
      yield train, None


def test_every_row_finds_the_run_of_its_own_commands(tmp_path):
  """A run made by a row's commands fills that row, and of its table no other."""
  made = {}
  for number, (paper, table, name, run) in enumerate(every_row()):
    column = next(column for column in table.columns if not column.average)
    key = (run, column.sets, column.flags, paper.name)
    if (known := made.get(str(key))) is None:
      known = made[str(key)] = records.linked(_made(tmp_path / str(number), run, column))[-1]
    filled = filling.assigned(table, [known], False)
    named = [one for one, found in filled.items() if found]
    same = [one for _, of, one, other in every_row() if of is table and other == run]
    assert sorted(named) == sorted(same), f"{paper.name}, {table.name}, {name}: {named}"


def _made(folder, run, column):
  """The evaluations of a cell, the one that fills it last."""
  if run.reads is None:
    return [_evaluated(folder, run, column)]
  (extracted,) = _made(folder / "extracted", run.reads, column)
  checkpoint = paper_runs.trained(folder / "run", run.train, run.model, *run.train_flags)
  rows, data = [paper_runs.row(0)], f"{column.sets[0]}.jsonl"
  return [extracted, paper_runs.read(folder / "out", extracted, rows, checkpoint=checkpoint, data=data)]


def _evaluated(folder, run, column):
  data = f"{column.sets[0]}.jsonl"
  if run.system:
    said = dict(recipe="transcripts", system=run.system, model=run.model or None, data=data)
    return paper_runs.written(folder / "out", [paper_runs.row(0)], said)
  if run.train:
    needs = () if run.transcripts else run.needs  # transcripts need no index
    kept = [flag for flag in (*needs, *run.train_flags) if "TRAIN" not in flag]
    checkpoint = paper_runs.trained(folder / "run", run.train, run.model, *kept)
    if run.checkpoint:
      checkpoint = checkpoint / "checkpoints" / str(run.checkpoint)
  else:
    checkpoint = None if "served" in records.MODELS[run.model] else paper_runs.model(folder / "model", run.model)
  given = (*run.needs, *run.flags, *column.flags)
  judged = any("judge.kind" in flag for flag in given)
  rows = [paper_runs.row(0, evidence="yes") if run.evaluate.startswith("lear:") else paper_runs.row(0)]
  served = {} if checkpoint else dict(model=records.MODELS[run.model]["served"], endpoint=dict(url="http://x/v1"))
  of = dict(checkpoint=checkpoint, data=data, flags=given, judged=judged)
  return paper_runs.evaluation(folder / "out", run.evaluate, rows, **of, **served)


@pytest.mark.parametrize(("name", "model"), [
  ("gpt-4o", "gpt-4o"), ("gpt-4o-2024-08-06", "gpt-4o"),
  ("gpt-4o-mini", "gpt-4o-mini"), ("o1-mini", "o1-mini"),  # other models, under their own names
  ("deepseek-ai/DeepSeek-R1", "deepseek-r1"), ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
  ("Qwen2.5-7B", "qwen2.5-7b-base"), ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
])  # fmt: skip
def test_a_served_model_has_the_tables_name(tmp_path, name, model):
  served = dict(model=name, endpoint=dict(url="http://x/v1"))
  assert paper_runs.evaluation(tmp_path, "arena:direct", **served).facts["model"] == model


def test_the_commands_parse(monkeypatch):
  """Every printed command: its subcommand, config, settings and data set are there."""
  others = {"score", "recall", "faithfulness", "make-judge-data", "make-rejection-sft", "make-lear-generator"}
  others, parsed = others | {f"make-{name}-sft" for name in ("lear", "care", "arena")}, set()
  made = (of.made for _, table, _, run in every_row() for of in (run, *table.columns))
  first = dict.fromkeys(command for line in made if line for command in line.split(" && "))
  for command, column in (first | dict(printed())).items():
    words = shlex.split(command)
    assert words[0] == "ragrl" and words[1] in main_lib.COMMANDS
    given = dict(word.removeprefix("--").partition("=")[::2] for word in words[2:])
    if column is not None and words[1] not in ("faithfulness", "make-judge-data", "sft"):
      name = given["data"]
      assert records.set_of(name.rpartition("/")[2]) or records.set_of(name) == column.sets[0], command
    settings = tuple(word for word in words[2:] if word.startswith("--config"))
    if words[1] in others or settings in parsed:
      continue
    parsed.add(settings)
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=values, lock_config=True)
    argv = configs.with_paths(["ragrl", *settings], ["config"])
    monkeypatch.setattr(sys, "argv", argv)
    values(argv)
    config = values.config
    recipe = recipes.get(config.recipe, config.preset, **config.switches.to_dict())
    assert recipe.name == config.recipe, command
    if words[1] != "sft":  # settings without which it cannot run
      assert config.retrieval.index or not recipe.searches or recipe.needs_passages, command
      assert config.retrieval.query_encoder or not recipe.encodes, command
  assert len(parsed) > 50


def test_the_commands_name_public_models_or_say_what_a_folder_is():
  assert all("hub" in of or "served" in of for of in records.MODELS.values())
  for paper in papers.PAPERS.values():
    for one in filling.fill(paper, []):
      notes = writing.notes_of(paper, one)
      printed = " ".join(note for title in writing.COMMANDS for note in notes.get(title, []))
      said = {note.partition(":")[0] for note in notes.get("Folders in the commands", [])}
      assert set(re.findall(r"[A-Z_]+_FOLDER", printed)) == said, one.table.name


def test_an_evaluation_of_a_hub_name_has_the_model_in_the_cache(tmp_path, monkeypatch):
  commit, cache = "ab" * 20, tmp_path / "cache"
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
  name = f"Qwen/Qwen2.5-7B@main@{commit}"
  assert paper_runs.evaluation(tmp_path / "out", "arena:direct", checkpoint=name).facts["model"] is None
  paper_runs.model(cache / "models--Qwen--Qwen2.5-7B" / "snapshots" / commit, "qwen2.5-7b-base")
  assert records.read(tmp_path / "out").facts["model"] == "qwen2.5-7b-base"


def test_transcripts_are_made_by_a_printed_command():
  """Every fine-tuning reads a file, in a folder that a command of the listing writes."""
  every = {str(run): run for *_, one in every_row() for run in (one, one.reads) if run}.values()
  tuned = [run for run in every if "sft" in run.train.split(":")[-1]]
  assert len(tuned) > 10
  for run in tuned:
    (out,) = re.findall(r"--out=(\S+)", run.made.rpartition(" && ")[2])
    assert run.transcripts in (out, f"{out}/{run.transcripts.rpartition('/')[2]}"), run.made
    data = dict(word.removeprefix("--").partition("=")[::2] for word in shlex.split(run.made))["data"]
    train = run.train.partition(":")[0]
    known = config_lib.load(train).data.train
    assert all(part.partition("~")[0] in known for part in data.split(",")) or train == "care", data


def test_every_run_fills_a_row():
  """A run that no row names, or columns that no table names, would be dead text."""
  words, names = set(), set()
  for name in papers.PAPERS:
    text = pathlib.Path(papers.__file__).with_name(f"{name}.toml").read_text(encoding="utf-8")
    words |= set(re.findall(r"(?:\| |versus=)(\w+)", text))  # VERITAS's tables have Search-R1's rows, too
    words |= set(re.findall(r'(?:like|reads) = "(\w+)"', text))
    file = tomllib.loads(text)
    names |= file["runs"].keys()
    assert {table["like"] for table in file["tables"].values() if "like" in table} == file.get("columns", {}).keys()
    assert name == "search_r1" or all(f"{{{text_name}}}" in text for text_name in file["texts"])
  assert not names - words


def test_no_two_commands_write_into_one_folder():
  places = {}
  for command, _ in printed():
    places.setdefault(re.search(r"--(?:out|workdir)=(\S+)", command)[1], set()).add(command)
  assert {len(commands) for commands in places.values()} == {1} and len(places) > 800
