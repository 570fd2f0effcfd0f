"""`make real-model` in small: every command of it, two steps of each stage, with a tiny model and made-up rows."""

import contextlib
import io
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import time
from unittest import mock

import pytest
import towns
from real_model import run as run_lib

from ragrl_jax import config as config_lib, recipes

ROOT = pathlib.Path(__file__).parents[1]
RUN = ROOT / "benchmarks" / "real_model" / "run.py"


@pytest.fixture(scope="module")
def given(tmp_path_factory):
  return towns.make(tmp_path_factory.mktemp("given"))


def command(given, workdir, *flags):
  model, rows = given
  named = ["--smoke", "--no-gpu", "--model", model, "--data", rows, "--workdir", workdir, *flags]
  return [sys.executable, str(RUN), *map(str, named)]


def printed(*command, **how):
  """What a command prints that ends well."""
  done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=ROOT, **how)
  assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
  return done.stdout


def run(given, workdir, *flags):
  return printed(*command(given, workdir, *flags))


def results(*flags):
  words = [*map(str, (RUN.with_name("results.py"), *flags))]
  with mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(io.StringIO()) as said:
    runpy.run_path(words[0], run_name="__main__")
  return said.getvalue()


@pytest.mark.long  # twelve commands
@pytest.mark.parametrize("system", ["search_r1", "veritas"])
def test_every_stage_runs(given, tmp_path, system):
  said, out = run(given, tmp_path, "--system", system), tmp_path / system / "seed_0"
  assert (out / "rl" / "report.html").is_file() and "minutes left in all" in said
  steps = [json.loads(line)["step"] for line in (out / "rl" / "metrics.jsonl").read_text().splitlines()]
  assert max(steps) == 2
  for name in ("untrained", "sft", "rl"):
    for how in ("greedy", "sampled"):
      assert json.loads((out / f"evaluations/{name}_{how}/metrics.json").read_text())["n"] == 8
  page = results("--workdir", tmp_path, "--records", tmp_path / "records")
  assert "RL beside after demonstrations, greedy: EM" in page
  assert page == results("--records", tmp_path / "records")  # the records are enough
  (record,) = (tmp_path / "records").iterdir()
  known = json.loads(record.read_text())
  assert known["run"]["steps"] == 2 and len(known["questions"]["rl_greedy"]["em"]) == 8


@pytest.mark.long  # seven commands
def test_the_untrained_model_is_prompted(given, tmp_path):
  run(given, tmp_path, "--system=untrained")
  page = results("--workdir", tmp_path, "--records", tmp_path / "records")
  rows = [line.split(" | ")[:2] for line in page.splitlines() if line.startswith("| ") and "questions" not in line]
  assert rows == [[f"| {method}", "8"] for method in ("closed_book", "given", "ircot", "rag")]


@pytest.mark.long  # twelve commands, some of them twice
def test_a_killed_run_goes_on_where_it_stopped(given, tmp_path):
  began = subprocess.Popen(
    command(given, tmp_path, "--system=care"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
    start_new_session=True,
  )  # fmt: skip
  metrics = tmp_path / "care" / "seed_0" / "rl" / "metrics.jsonl"
  try:
    while began.poll() is None and not metrics.is_file():  # it has the row of step 0, before the first step
      time.sleep(0.1)
    assert began.poll() is None
  finally:
    os.killpg(began.pid, signal.SIGKILL)
    began.communicate()
  said = run(given, tmp_path, "--system=care")
  assert "fine-tune: done before" in said and "reinforcement learning; some" in said
  assert "left in all" not in run(given, tmp_path, "--system=care")


def test_a_stage_that_another_command_did_is_refused(tmp_path, capfd):
  stage = lambda size, name: run_lib.Stage(name, [sys.executable, "-c", "print('ran')", size], tmp_path / name)
  small, full = [stage("8", "questions")], [stage("600", "other"), stage("600", "questions")]
  assert run_lib.play(small, False) == run_lib.play(small, False) == 0
  assert capfd.readouterr().out.count("ran\n") == 1
  assert run_lib.play(full, False) == 2
  said = capfd.readouterr()
  assert not said.out and " 8\nand now it is\n" in said.err and " 600\nName another --workdir" in said.err
  (tmp_path / "questions").write_text('{"seconds": 1.0}')  # of a version that did not record the command
  assert run_lib.play(full, False) == 0


def test_both_stages_of_when_to_search_are_played():
  plan = [sys.executable, str(RUN), "--list", "--system=when_to_search", "--model=M"]
  for flags, says in ((["--no-gpu"], "--config.steps=14 --config.switches.stage_two_from=9"), (["--gpu"], None)):
    (line,) = (line for line in printed(*plan, *flags).splitlines() if line.startswith("ragrl train"))
    assert says in line if says else "stage_two_from" not in line  # the config's own
  config = config_lib.load("small:when_to_search,exact,ngrams")
  recipe = recipes.get(config.recipe, config.preset, **config.switches)
  assert recipe.cut_short(config.steps) == {} and recipe.cut_short(config.switches.stage_two_from - 1)


def test_the_minutes_left_follow_the_steps_the_questions_and_the_system():
  def minutes(*flags):
    with mock.patch.object(sys, "argv", [str(RUN), "--no-gpu", "--workdir=nowhere", *flags]):
      return run_lib.left(run_lib.stages(run_lib.arguments()), False)

  hour = minutes()
  assert 50 < hour < 60 and minutes("--steps=28") > hour + 30 and minutes("--questions=300") > hour + 13
  assert minutes("--system=veritas") > hour + 90


def test_the_page_prints_the_commands_as_they_are_run():
  """docs/first_real_run.md has each command of the hour's run, in its order."""
  listed = printed(sys.executable, RUN, "--list", "--no-gpu", env=os.environ | dict(RAGRL_DATA=str(ROOT / "nowhere")))
  page = (ROOT / "docs" / "first_real_run.md").read_text(encoding="utf-8").replace(" \\\n  ", " ")
  places = [page.index(line) for line in listed.splitlines()]
  assert len(places) == 14 and places == sorted(places)


def test_the_page_prints_the_recorded_runs(tmp_path):
  """docs/real_model.md is what results.py prints; means and paired differences are those of the questions."""
  text = results()
  assert text.strip() in (ROOT / "docs" / "real_model.md").read_text(encoding="utf-8")
  table = text.partition("\n\n")[0]
  assert table.count("\n") > 2 and table in (ROOT / "README.md").read_text(encoding="utf-8")

  def questions(em):
    columns = dict.fromkeys(("source", "cover_em", "outcome", "num_searches"), [0] * len(em))
    return columns | dict(source=[""] * 4, id=[*"abcd"], ended=["answer"] * 4, em=em, f1=em, found_answer=[1, 1, 0, 0])

  right = dict(untrained=[0, 0, 0, 0], sft=[1, 0, 0, 0], rl=[1, 1, 1, 0])
  known = dict(
    system="arena", name="arena", commit="", jax="", devices="1 x cpu", steps=2, episodes=16, played=32, minutes=1
  )
  for seed in range(2):
    record = dict(run=known | dict(seed=seed), curves=dict(entropy=[(1, 0.25), (2, 0.75)]), shown=None)
    record |= dict(evaluations={}, questions={})
    for state, em in right.items():
      mean = sum(em) / 4
      for how in ("greedy", "sampled"):
        record["evaluations"][f"{state}_{how}"] = dict(n=4, em=mean, f1=mean, answered=1, response_tokens=9)
        record["questions"][f"{state}_{how}"] = questions(em)
    (tmp_path / f"arena_{seed}.json").write_text(json.dumps(record))
  text = results("--records", tmp_path)
  assert "2 seeds, 4 test questions, 2 steps of RL (16 episodes of 32 played), 1 x cpu" in text
  assert "found an answer, greedy: untrained 0.000, after demonstrations 0.500, after RL 1.000." in text
  assert "kept), first → last step: entropy of a token 0.25 → 0.75 and 0.25 → 0.75." in text
  assert "| after RL | 0.750 | 0.750 | 0.750 | 0.750 | 1.000 | 1.000 | 9 |" in text
  assert "- RL beside after demonstrations, greedy: EM +0.500 [" in text
  assert "| arena | 4 | 0.250, 0.250 | 0.750, 0.750 | +0.500 [+0.000, +1.000], +0.500 [" in text

  rag = tmp_path / "out" / "untrained" / "seed_0" / "evaluations" / "rag"
  rag.mkdir(parents=True)
  (rag / "metrics.json").write_text(json.dumps(dict(n=4, em=0.25, f1=0.25, searches=1, response_tokens=9)))
  replies = (dict(has_gold=True), None), (dict(has_gold=False), None), (None, True), (None, False)
  rows = [dict(unanswered=reply, cover_em=float(bool(covered))) for reply, covered in replies]
  (rag / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  assert "| rag | 4 | 0.250 | 0.250 | 0.500 | 1.00 |" in results("--workdir", tmp_path / "out", "--records", tmp_path)
