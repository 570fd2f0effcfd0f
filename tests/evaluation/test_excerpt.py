import pytest

from ragrl_jax.report import excerpt
from ragrl_jax.store import episodes


def row(index, sample, text="hello", step=1):
  return {
    "step": step, "prompt_index": index, "sample": sample, "version": 0, "id": f"q{index}", "question": "Who?",
    "golds": ["me"], "source": "", "hops": None, "gold_ids": ["g"], "ended": "answer", "failure": "",
    "reward": 0.123456, "outcome": 1, "advantage": 0.5, "facts": {}, "terms": {"answer": 1.0, "format": None},
    "weights": {"answer": 1.0},
    "segments": [
      {"owner": "environment", "text": "prompt", "ids": [1, 2]},
      {"owner": "model", "text": text, "ids": [3], "logprobs": [-0.123456], "stop": "</search>", "pieces": [text]},
      {"owner": "environment", "text": "…", "ids": [4], "query": "q",
       "found": [{"id": "g", "title": "t", "text": "x", "score": None},
                 {"id": "h", "title": "t", "text": "x", "score": 1}]},
    ],
  }  # fmt: skip


def write(folder, steps, groups=3, samples=2, **more):
  for step in steps:
    episodes.write_episodes(folder, step, [row(g, s, step=step, **more) for g in range(groups) for s in range(samples)])


def held(step):
  return [group["prompt_index"] for group in step["groups"] if group["samples"] is not None]


def test_a_small_log_is_taken_completely_and_an_empty_one_has_nothing(tmp_path):
  assert excerpt.excerpt(tmp_path) == {"steps": [], "logged": 0, "episodes": 0, "taken": 0}
  write(tmp_path, [1, 5], groups=3)
  got = excerpt.excerpt(tmp_path)
  assert (got["logged"], got["episodes"], got["taken"]) == (2, 12, 12)
  steps = [(s["step"], s["file"], s["episodes"], held(s)) for s in got["steps"]]
  assert steps == [(step, f"episodes/step_00000{step}.jsonl", 6, [0, 1, 2]) for step in (1, 5)]


def test_steps_are_evenly_spaced_and_include_first_and_last(tmp_path):
  write(tmp_path, range(1, 101), groups=2)
  got = excerpt.excerpt(tmp_path)
  steps = [s["step"] for s in got["steps"]]
  assert len(steps) == excerpt.MAX_STEPS and steps[0] == 1 and steps[-1] == 100 and got["logged"] == 100
  gaps = [b - a for a, b in zip(steps, steps[1:])]
  assert max(gaps) - min(gaps) <= 1


def test_the_last_step_comes_first_and_every_other_step_gets_a_share(tmp_path):
  write(tmp_path, [1, 2, 3], groups=8)
  one = excerpt._read(tmp_path / "episodes" / "step_000001.jsonl", 10**6)[0].size
  got = excerpt.excerpt(tmp_path, max_bytes=int(12.5 * one))
  # The last step gets half the room, six groups. The other steps get one group each, then a second, then a third.
  taken = [len(held(s)) for s in got["steps"]]
  assert 12 <= sum(taken) <= 13 and taken[2] == max(taken) >= 6 and abs(taken[0] - taken[1]) <= 1 and min(taken) >= 2
  assert got["taken"] == 2 * sum(taken) and got["episodes"] == 48
  for step in got["steps"]:  # of the other steps, the groups that the list shows
    assert len(step["groups"]) == 8 and held(step) == [*range(len(held(step)))]
    left = step["groups"][-1]
    assert (left["question"], left["golds"], left["count"], left["right"]) == ("Who?", ["me"], 2, 2)
    assert left["kinds"] == [("right", "answer")] and left["prompt"] is None and left["reward"] == 0.123


def test_means_cover_the_whole_file_and_one_group_is_taken_however_large(tmp_path):
  rows = [row(g, s) | {"reward": float(g), "outcome": g % 2} for g in range(8) for s in range(2)]
  rows[0] |= {"reward": None, "outcome": None, "ended": "failed"}
  episodes.write_episodes(tmp_path, 1, rows)
  (step,) = excerpt.excerpt(tmp_path, max_bytes=10)["steps"]
  assert step["taken"] == 2 and step["reward"] == pytest.approx(56 / 15, abs=0.01) and step["outcome"] == 0.533
  assert len(step["groups"]) == 8
  first = step["groups"][0]
  assert (first["reward"], first["spread"], first["right"], first["count"]) == (0.0, 0.0, 0, 2)
  assert first["kinds"] == [("unscored", "failed"), ("wrong", "answer")]


def test_the_fields_of_a_sample_and_control_tokens():
  sample = excerpt.compact(row(0, 1))
  said, seen = sample["segments"]  # the group holds the prompt once
  assert said == {"owner": "model", "tokens": 1, "stop": "</search>", "pieces": ["hello"], "logprobs": [-0.123]}
  assert [p["gold"] for p in seen["found"]] == [True, False] and seen["verdict"] == "gold"
  assert sample["reward"] == 0.123 and sample["terms"] == {"answer": 1.0, "format": None}
  # A search before the prompt has a verdict of its own.
  logged = row(0, 1)
  logged["segments"][0] |= dict(query="first", found=[dict(id="g", title="t", text="x", score=None)])
  logged["segments"][2]["found"] = [dict(id="h", title="t", text="x", score=1)]
  assert excerpt.compact(logged)["segments"][1]["verdict"] == "no gold"
  for own, want in ((0.123456, 0.123), ([0.123456, -2.0], [0.123, -2.0])):  # of a turn, or of its tokens
    logged["segments"][1]["advantages"] = own
    assert excerpt.compact(logged)["segments"][0]["advantages"] == want
  # Control tokens differ from text that spells them.
  logged["segments"][1]["control"] = [(0, 5, "<|im_end|>")]
  logged["segments"][2] |= {"text": "a<|x|>b", "control": [(0, 0, "<|x|>"), (9, 7, "<|y|>")]}
  said, seen = excerpt.compact(logged)["segments"]
  assert said["control"] == {0: "<|im_end|>"} and seen["parts"] == ["", "<|x|>", "a<|x|>b", "<|y|>", ""]


def test_an_episode_that_failed_before_its_prompt(tmp_path):
  failed = row(0, 0) | dict(segments=[], ended="failed", reward=None, outcome=None, advantage=None)
  episodes.write_episodes(tmp_path, 1, [failed, row(0, 1)])
  (group,) = excerpt.excerpt(tmp_path)["steps"][0]["groups"]
  assert group["prompt"]["text"] == "prompt" and [one["segments"] == [] for one in group["samples"]] == [True, False]
