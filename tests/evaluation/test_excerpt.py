import json

import pytest

from ragrl_jax.evaluation import excerpt
from ragrl_jax.store import episodes


def row(index, sample, text="hello", step=1):
  return {
      "step": step, "prompt_index": index, "sample": sample, "version": 0, "id": f"q{index}", "question": "Who?",
      "golds": ["me"], "source": "", "hops": None, "gold_ids": ["g"], "ended": "answer", "failure": "",
      "reward": 0.123456, "outcome": 1, "advantage": 0.5, "facts": {},
      "terms": {"answer": 1.0, "format": None}, "weights": {"answer": 1.0},
      "segments": [
          {"owner": "environment", "text": "prompt", "ids": [1, 2]},
          {"owner": "model", "text": text, "ids": [3], "logprobs": [-0.123456], "stop": "</search>", "pieces": [text]},
          {"owner": "environment", "text": "…", "ids": [4], "query": "q", "found": [
              {"id": "g", "title": "t", "text": "x", "score": None},
              {"id": "h", "title": "t", "text": "x", "score": 1}]}]}


def write(folder, steps, groups=3, samples=2, **more):
  for step in steps:
    episodes.write_episodes(folder, step, [row(g, s, step=step, **more) for g in range(groups) for s in range(samples)])


def test_a_small_log_is_taken_whole(tmp_path):
  write(tmp_path, [1, 5], groups=3)
  got = excerpt.excerpt(tmp_path)
  assert (got["logged"], got["taken"]) == (2, 12)
  assert [(s["step"], s["in_file"], len(s["groups"])) for s in got["steps"]] == [(1, 3, 3), (5, 3, 3)]


def test_steps_are_spread_with_first_and_last(tmp_path):
  write(tmp_path, range(1, 101), groups=2)
  got = excerpt.excerpt(tmp_path)
  steps = [s["step"] for s in got["steps"]]
  assert len(steps) == excerpt.MAX_STEPS and steps[0] == 1 and steps[-1] == 100 and got["logged"] == 100
  gaps = [b - a for a, b in zip(steps, steps[1:])]
  assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("limits", [{"max_episodes": 8}, {"max_bytes": 4_000}])
def test_limits_hold_and_every_step_has_its_turn(tmp_path, limits):
  write(tmp_path, [1, 2, 3], groups=5)
  got = excerpt.excerpt(tmp_path, **limits)
  assert got["taken"] <= limits.get("max_episodes", 99)
  assert len(json.dumps(got["steps"])) < 1.6 * limits.get("max_bytes", 1e9)
  taken = [len(s["groups"]) for s in got["steps"]]
  assert len(taken) == 3 and max(taken) - min(taken) <= 1
  assert all(len(group["samples"]) == 2 for s in got["steps"] for group in s["groups"])  # groups stay whole


def test_one_group_is_taken_however_big(tmp_path):
  write(tmp_path, [1], groups=4, text="x" * 10_000)
  got = excerpt.excerpt(tmp_path, max_bytes=100)
  assert got["taken"] == 2 and got["steps"][0]["in_file"] == 4


def test_no_log(tmp_path):
  assert excerpt.excerpt(tmp_path) == {"steps": [], "logged": 0, "taken": 0}


def test_what_a_sample_keeps():
  sample = excerpt.compact(row(0, 1))
  said, seen = sample["segments"]  # the prompt stands in the group, once
  assert said == {"owner": "model", "tokens": 1, "stop": "</search>", "pieces": ["hello"], "logprobs": [-0.123]}
  assert [p["gold"] for p in seen["found"]] == [True, False] and seen["verdict"] == "gold"
  assert sample["reward"] == 0.123 and sample["terms"] == {"answer": 1.0, "format": None}
