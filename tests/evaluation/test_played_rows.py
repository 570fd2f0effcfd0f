"""Steps of played agents: read as those of the same transcript, or refused, but never counted as 0."""

import dataclasses
import json
import pathlib

import played
from console import ragrl
from refusals import refused
from scripted_server import serving

from ragrl_jax import config as config_lib, recipes
from ragrl_jax.data import writers
from ragrl_jax.evaluation import foreign_transcripts, harness, played_rows
from ragrl_jax.judging import lexical
from ragrl_jax.recipes.released.agents import AGENTS
from ragrl_jax.recipes.veritas import distil, measured
from ragrl_jax.store import episodes, jsonl
from ragrl_jax.structs import Example, Passage
from ragrl_jax.testing import scripted

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLE = Example("1", "Who leads Norsk?", ("Ann Lee",), source="nq")
SCRIPT = (
  "<think> I need the leader of Norsk. </think><search> leader of Norsk </search>",
  r"<think> Ann Lee leads it. </think><answer> It is \boxed{Ann Lee} </answer>",
)
TERMS = dict(information_think=lexical.Lexical(0.5), think_search=lexical.Lexical(0.5), think_answer=lexical.SubEM())


def evaluated(out, agent="research", script=SCRIPT):
  """The folder of an evaluation of a released agent, and the played episode."""
  recipe = recipes.get("released", agent)
  episode, _ = scripted.play(recipe, EXAMPLE, list(script), [[Passage("a", "Norsk", "Ann Lee leads it.")]])
  settings = dict(recipe="released", preset=agent, switches=dict(recipe.switches))
  harness.evaluate([EXAMPLE], played.by_example(lambda example: episode), recipe, out, settings=settings)
  return episode


def test_a_played_agents_steps_are_those_of_its_scored_transcript(tmp_path):
  episode = evaluated(tmp_path / "played")
  text = "".join(segment.text for segment in episode.turns)
  (tmp_path / "t.jsonl").write_text(json.dumps(dict(id="1", transcript=text)))
  how = dict(system="research", settings={})
  scored = foreign_transcripts.score(tmp_path / "t.jsonl", [EXAMPLE], tmp_path / "scored", **how)
  read = lambda name: played_rows.read(tmp_path / name)
  found = {name: measured.measured(read(name), TERMS)["nq"] for name in ("played", "scored")}
  assert found["played"] == found["scored"] and scored["pooled"]["think_answer"] == 1.0
  assert {term: of["faithful"] for term, of in found["played"].items()} == dict.fromkeys(TERMS, 1.0)
  pairs = {name: distil.pairs(map(episodes.episode_of, read(name))) for name in ("played", "scored")}
  assert pairs["played"] == pairs["scored"] and "result>" not in pairs["played"][0].passages[0].text


def test_an_agent_that_does_not_mark_its_thoughts_is_refused(tmp_path):
  for agent in (name for name, tags in AGENTS.items() if not tags.thinks):
    evaluated(tmp_path / agent, agent, [r"<answer> \boxed{x} </answer>"])
    refused(f"agent '{agent}'.*cannot be judged", played_rows.read, tmp_path / agent)


def test_other_recipes_are_refused_by_their_settings(tmp_path):
  for number, name in enumerate(recipes.RECIPES):
    folder = tmp_path / name
    episodes.write_episodes(folder, 1, [])
    if number % 2:  # a run's folder
      config = config_lib.load(ROOT / "configs" / f"{name}.py", "")
      (folder / "config.json").write_text(config.to_json_best_effort())
    else:
      (folder / "settings.json").write_text(json.dumps(dict(recipe=name)))
    if name in ("search_r1", "veritas", "released"):
      assert list(played_rows.read(folder)) == []
    else:
      refused(f"recipe '{name}'.*--episodes", played_rows.read, folder)
  config = config_lib.load(ROOT / "configs" / "released.py", "search_o1")
  (tmp_path / "released" / "config.json").write_text(config.to_json_best_effort())
  (tmp_path / "released" / "settings.json").unlink(missing_ok=True)
  refused("agent 'search_o1'", played_rows.read, tmp_path / "released")


def test_the_commands_ask_about_each_term_in_its_own_words(tmp_path):
  """With the config of another recipe, whose judge has one prompt."""
  evaluated(tmp_path / "out")
  evaluated(tmp_path / "silent", "r1_searcher", [r"<answer> \boxed{x} </answer>"])
  with serving(lambda messages, n: "1") as (endpoint, server):
    judge = dict(kind="llm", model="m", endpoint=endpoint)
    flags = [f"--config.judge.{field}={value}" for field, value in judge.items()]
    say = lambda name, *given: ragrl(name, "--config=search_r1:smoke", *flags, *given)
    said = say("faithfulness", f"--episodes={tmp_path}/out")
    assert said.stdout.splitlines()[1].split() == ["nq", "1.000", "(1)", "1.000", "(1)", "1.000", "(1)"], said.stderr
    thought, query = (body["messages"][-1]["content"] for body in server.asked)
    assert "Does this reasoning take the retrieved information into account?" in thought
    assert "Is the query clearly based on the reasoning, and does it follow from it?" in query
    assert "HTTP Request" not in said.stderr and "PyTorch" not in said.stderr
    pairs = distil.pairs(map(episodes.episode_of, played_rows.read(tmp_path / "out")), "think_search")
    labelled = [dataclasses.replace(pair, golds=("1",)) for pair in pairs]
    writers.write_examples(tmp_path / "pairs.jsonl", labelled)
    said = say("make-judge-data", "--term=think_search", f"--compare={tmp_path}/pairs.jsonl")
    assert json.loads(said.stdout)["consistency"] == 1.0, said.stderr
    assert server.asked[2]["messages"] == server.asked[1]["messages"]
  evaluated(tmp_path / "bare", script=[r"<answer> \boxed{x} </answer>"])
  for folder, says in (("bare", "have no pair of the term information_think"), ("silent", "agent 'r1_searcher'")):
    said = say("make-judge-data", f"--episodes={tmp_path}/{folder}", f"--sheet={tmp_path}/sheet.csv")
    assert (said.returncode, said.stdout) == (2, "") and says in said.stderr and not (tmp_path / "sheet.csv").exists()
  said = say("faithfulness", f"--episodes={tmp_path}/*")
  assert said.returncode == 2 and "agent 'r1_searcher'" in said.stderr and said.stdout == ""


def test_only_folders_of_one_system_are_pooled(tmp_path):
  """The recorded settings decide, not the names: weights, switches and retriever, but not the questions or seeds."""

  def folder(name, *ids, **settings):
    jsonl.write(tmp_path / name / "episodes.jsonl", (dict(source="nq", id=one) for one in ids))
    (tmp_path / name / "metrics.json").write_text(json.dumps(dict(settings=settings)))
    return tmp_path / name

  how = dict(recipe="search_r1", weights="a", sampling="greedy", retrieval=dict(top_k=3))
  nq, hotpot = folder("x/nq", "1", data="nq", **how), folder("y/hotpot", "2", data="hotpotqa", **how)
  other = folder("x/hotpot", "2", data="hotpotqa", **how | dict(weights="b"))
  wider = folder("x/wider", "3", data="nq", **how | dict(retrieval=dict(top_k=5)))
  unknown = [folder(f"score_{name}", "1", data="nq", recipe="transcripts", system="desa", model=None) for name in "ab"]
  drawn = [folder(f"seed_{n}", "1", **how | dict(sampling=dict(temperature=1.0, seed=n))) for n in range(2)]
  given = [nq, hotpot, other, wider, *unknown, *drawn]
  assert played_rows.systems(given) == [[nq, hotpot], [other], [wider], *([one] for one in unknown), drawn]
  again = folder("x/again", "1", data="nq", **how)
  refused("nq and .*again have answers of one system to the same question '1'", played_rows.systems, [nq, again])
  twice = folder("seed_0_again", "1", **how | dict(sampling=dict(temperature=1.0, seed=0)))
  refused("seed_0 and .*again have answers", played_rows.systems, [*drawn, twice])
  (again / "metrics.json").rename(again / "settings.json")
  refused("again: this evaluation has not ended", played_rows.systems, [again])
