"""Faithfulness of kept episodes, by hand, and the command on an evaluation's folder."""

import csv
import json

import played
import pytest
from console import ragrl

from ragrl_jax import recipes
from ragrl_jax.evaluation import harness
from ragrl_jax.judging import lexical
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.veritas import measured
from ragrl_jax.store import episodes
from ragrl_jax.structs import Episode, Example, Passage
from ragrl_jax.testing import scripted

RESULTS = ("environment", passages.block([Passage("1", "Oslo", "Harald III founded it.")]))
SEARCH = ("model", "<think> the founder of Oslo </think><search> Oslo founder </search>")
READ = ("model", "<think> Oslo was founded by Harald III. </think><answer> Harald III </answer>")
MUSE = ("model", "<think> I know nothing. </think><answer> no </answer>")
BARE = ("model", "<answer> no </answer>")
TURNS = dict(read=[SEARCH, RESULTS, READ], skipped=[SEARCH, RESULTS, BARE], never=[MUSE], silent=[])


def rows():
  recipe = recipes.get("search_r1")
  for name, source in (("read", "nq"), ("skipped", "nq"), ("never", "nq"), ("silent", "pop"), ("never", "pop")):
    example = Example(name, "Who?", ("x",), source=source)
    yield episodes.played(example, Episode.from_text(recipe, example, TURNS[name]))


def counted(found):
  """The measures without the verdicts themselves."""
  return {
    name: {term: {k: v for k, v in of.items() if k not in ("verdicts", "questions")} for term, of in s.items()}
    for name, s in found.items()
  }


def measures(faithful, **counts):
  """Measures in which the other numbers are 0."""
  return dict.fromkeys("pairs incomplete judged unjudged left_out without".split(), 0) | counts | {"faithful": faithful}


def test_faithfulness_by_hand():
  found = counted(measured.measured(rows(), dict(information_think=lexical.Lexical(0.5), think_answer=lexical.SubEM())))
  # nq: two results, one without a thought behind it; answers in "founded by Harald III", after "the founder of Oslo",
  # and in the letters of "know nothing". pop: nobody searched, and one of two answered.
  assert found["nq"] == dict(
    information_think=measures(0.5, pairs=2, incomplete=1, judged=1, without=1),
    think_answer=measures(pytest.approx(2 / 3), pairs=3, judged=3),
  )
  last = measures(1.0, pairs=1, judged=1, without=1)
  assert found["pop"] == dict(information_think=measures(None, without=2), think_answer=last)
  assert measured.macro(found) == dict(information_think=None, think_answer=pytest.approx(5 / 6))
  words = measured.measured(rows(), dict(think_answer=lexical.SubEM(words=True)))
  assert words["nq"]["think_answer"]["faithful"] == pytest.approx(1 / 3)
  failed = [dict(row, ended="failed") for row in rows()]
  assert measured.measured(failed, dict(think_answer=lexical.SubEM())) == {}  # they are left out


def test_a_pair_without_a_verdict_is_in_no_mean():
  class Refuses(lexical.Lexical):
    def judge(self, pairs):
      return [None] * len(pairs)

  found = counted(measured.measured(rows(), dict(information_think=Refuses())))
  # Of two episodes with results, one lacks its verdict; the other has no thought behind them. Alone it would make .0 of
  # what may be .5, so without any verdict nothing is known.
  seen = measures(None, pairs=1, incomplete=1, unjudged=1, left_out=1, without=1)
  assert found["nq"]["information_think"] == seen
  turns = [SEARCH, RESULTS, ("model", "<search> a </search>"), RESULTS, READ]  # no thought about the first results
  recipe, example = recipes.get("search_r1"), Example("both", "Who?", ("x",), source="nq")
  one = [episodes.played(example, Episode.from_text(recipe, example, turns))]
  # Its incomplete pair alone would make .0 of what may be .5: nothing is known, so nothing is counted.
  found = counted(measured.measured(one, dict(information_think=Refuses())))
  assert found["nq"]["information_think"] == measures(None, unjudged=1, left_out=1)


def test_the_commands(tmp_path):
  """evaluate's folder → table of faithfulness; → pairs and a blank sheet → agreement of a judge and a person."""
  recipe, examples = recipes.get("search_r1"), [Example(name, "Who?", ("x",), source="nq") for name in TURNS]
  play = played.by_example(lambda example: Episode.from_text(recipe, example, TURNS[example.id]))
  harness.evaluate(examples, play, recipe, tmp_path / "out", settings={})

  say = lambda *words: ragrl(*words, says="").stdout
  config = "--config=veritas:smoke"
  said = say("faithfulness", config, f"--episodes={tmp_path}/out", f"--out={tmp_path}/f.json")
  assert said.splitlines()[1].split() == ["nq", "0.500", "(2)", "1.000", "(2)", "0.667", "(3)"]
  assert said.splitlines()[-1] == "6 pairs judged, 0 without a verdict" and "HTTP" not in said
  written = json.loads((tmp_path / "f.json").read_text())
  (system,) = written["systems"]
  assert written["judges"]["think_answer"] == dict(kind="sub_em") and system["macro"]["think_search"] == 1.0
  assert [*system["folders"]] == [f"{tmp_path}/out"] and len(system["sets"]["nq"]["think_answer"]["verdicts"]) == 3

  sheet = tmp_path / "sheet.csv"
  say("make-judge-data", config, "--term=think_answer", f"--episodes={tmp_path}/out", f"--sheet={sheet}")
  with open(sheet, encoding="utf-8-sig", newline="") as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == 3 and not any(row["label"] for row in rows)
  with open(tmp_path / "b.csv", "w", newline="") as file:
    out = csv.DictWriter(file, rows[0].keys())
    out.writeheader()
    out.writerows(dict(row, label=str(int(row["claim"] != "no"))) for row in rows)
  (tmp_path / "a.csv").write_text((tmp_path / "b.csv").read_text().replace("no,0", "no,1"))
  said = json.loads(say("compare", f"--verdicts={tmp_path}/a.csv", f"--verdicts={tmp_path}/b.csv"))
  assert said["n"] == 3 and len(said["pairs"]) == 1 and "fleiss_kappa_interval" in said


@pytest.mark.parametrize("name", ["search_r1", "veritas"])
def test_nested_answers_are_read_as_in_play(tmp_path, name):
  """Search-R1's code (preset `repo`) takes "x <answer> Oslo", other presets "Oslo"."""
  said = "<think> It is Oslo. </think><answer>x <answer> Oslo </answer>"
  example = Example("1", "Where?", ("x",), source="nq")
  paper, repo = ("em_ta", "em_ta,repo") if name == "veritas" else ("paper", "repo")
  for preset, read, faithful in ((paper, "Oslo", 1.0), (repo, "x <answer> Oslo", 0.0)):
    recipe = recipes.get(name, preset)
    episode, _ = scripted.play(recipe, example, [said], [])
    found = measured.measured([episodes.played(example, episode)], dict(think_answer=lexical.SubEM()))
    assert recipe.parser.answer(said) == read and found["nq"]["think_answer"]["faithful"] == faithful
    assert name == "search_r1" or recipe.pooled(example, episode)["think_answer"] == (faithful, 1)
