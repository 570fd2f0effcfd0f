"""Episodes in the flat form, and as ATIF trajectories by the rules of version 1.7."""

import json

import fake_run
import pytest
from console import ragrl

from ragrl_jax import recipes, structs
from ragrl_jax.report import interchange
from ragrl_jax.store import episodes, jsonl


def fields(required, **optional):
  """name → (type, whether it is required)."""
  kinds = {True: required, False: optional}
  return {name: (kind, must) for must, named in kinds.items() for name, kind in named.items()}


# The fields of ATIF 1.7, as Harbor's models have them. No others are allowed.
METRICS = fields({}, prompt_tokens=int, completion_tokens=int, cached_tokens=int, cost_usd=float,
                 prompt_token_ids=[int], completion_token_ids=[int], logprobs=[float], extra=dict)  # fmt: skip
CALL = fields(dict(tool_call_id=str, function_name=str, arguments=dict), extra=dict)
RESULT = fields({}, source_call_id=str, content=str, subagent_trajectory_ref=[dict], extra=dict)
STEP = fields(dict(step_id=int, source=str, message=str), timestamp=str, model_name=str, reasoning_effort=str,
              reasoning_content=str, tool_calls=[CALL], observation=fields(dict(results=[RESULT])), metrics=METRICS,
              is_copied_context=bool, llm_call_count=int, extra=dict)  # fmt: skip
AGENT = fields(dict(name=str, version=str), model_name=str, tool_definitions=[dict], extra=dict)
TOTALS = fields({}, total_prompt_tokens=int, total_completion_tokens=int, total_cached_tokens=int, total_cost_usd=float,
                total_steps=int, extra=dict)  # fmt: skip
TRAJECTORY = fields(dict(schema_version=str, agent=AGENT, steps=[STEP]), session_id=str, trajectory_id=str, notes=str,
                    final_metrics=TOTALS, continued_trajectory_ref=str, extra=dict,
                    subagent_trajectories=[dict])  # fmt: skip
OF_AGENTS = {"model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics"}


def has(value, kind, where):
  """The value has the type; a dict of fields is an object with these fields, [kind] a list."""
  if isinstance(kind, dict):
    assert isinstance(value, dict) and value.keys() <= kind.keys(), f"{where}: {value.keys() - kind.keys()}"
    for name, (inner, required) in kind.items():
      assert name in value or not required, f"{where}.{name} is missing"
      if name in value:
        has(value[name], inner, f"{where}.{name}")
  elif isinstance(kind, list):
    assert isinstance(value, list), where
    for number, item in enumerate(value):
      has(item, kind[0], f"{where}[{number}]")
  else:
    number = kind is float and isinstance(value, int)
    assert (isinstance(value, kind) or number) and (kind is bool or not isinstance(value, bool)), f"{where}={value!r}"


def check(trajectory):
  """ATIF's rules between the fields, after `has`."""
  has(trajectory, TRAJECTORY, "trajectory")
  assert trajectory["schema_version"] == "ATIF-v1.7" and trajectory["steps"]
  assert [step["step_id"] for step in trajectory["steps"]] == list(range(1, len(trajectory["steps"]) + 1))
  for step in trajectory["steps"]:
    assert step["source"] == "agent" or step["source"] in ("system", "user") and not OF_AGENTS & step.keys(), step
    calls = [call["tool_call_id"] for call in step.get("tool_calls", ())]
    for result in step.get("observation", {"results": ()})["results"]:
      assert result.get("source_call_id") in (None, *calls)
  others = trajectory.get("subagent_trajectories", [])
  assert len({one["trajectory_id"] for one in others} - {""}) == len(others)
  for one in others:
    check(one)


def test_the_check_refuses_what_is_wrong():
  good = dict(schema_version="ATIF-v1.7", agent=dict(name="a", version="1"))
  asked = dict(step_id=1, source="user", message="Q")
  check(good | dict(steps=[asked]))
  odd = [dict(step_id=2), dict(reasoning_content="x"), dict(odd=1), dict(message=1)]
  odd.append(dict(observation=dict(results=[dict(source_call_id="1")])))
  odd.append(dict(source="agent", metrics=dict(logprobs=[None])))
  for steps in ([], *([asked | one] for one in odd)):
    with pytest.raises(AssertionError):
      check(good | dict(steps=steps))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """The folder of a made-up run: two steps with 24 episodes each."""
  return fake_run.make(tmp_path_factory.mktemp("runs") / "a", steps=6, logged_every=6)


def exported(folder, out, form):
  """The rows that `ragrl export-traces` writes."""
  done = ragrl("export-traces", f"--workdir={folder}", f"--format={form}", f"--out={out}", says="")
  # A raw U+2028 in a row would break its line here, but not for jsonl.read.
  rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
  assert json.loads(done.stdout) == dict(episodes=len(rows), format=form, file=str(out))
  return rows


def test_every_episode_becomes_a_valid_trajectory_with_its_tokens_and_a_flat_row(folder, tmp_path):
  found, flats = (exported(folder, tmp_path / "traces.jsonl", form) for form in ("atif", "jsonl"))
  kept = list(episodes.read_folder(folder))
  assert len(found) == len(kept) == 48 and len({one["trajectory_id"] for one in found}) == 48
  for trajectory, flat, row in zip(found, flats, kept, strict=True):
    check(trajectory)
    episode = episodes.episode_of(row)
    said = [segment for segment in episode.segments if segment.owner == structs.MODEL]
    steps = [step for step in trajectory["steps"] if step["source"] == "agent"]
    for step, segment in zip(steps, said, strict=True):
      metrics = step["metrics"]
      assert metrics["completion_token_ids"] == list(segment.ids)
      assert metrics["logprobs"] == pytest.approx(segment.logprobs) and step["llm_call_count"] == 1
      before = episode.segments[: episode.segments.index(segment)]
      assert metrics["prompt_token_ids"] == [i for one in before for i in one.ids]
    calls = [call["arguments"]["query"] for step in steps for call in step.get("tool_calls", ())]
    told = [m["query"] for m in flat["messages"] if m["role"] == "tool"]
    assert calls == told == [search.query for search in episode.searches]
    totals = trajectory["final_metrics"]
    assert totals["total_completion_tokens"] == episode.num_model_tokens and totals["extra"]["reward"] == row["reward"]
    assert trajectory["extra"]["facts"] == row["facts"] and trajectory["session_id"] == "a"
    roles = ["assistant" if segment["owner"] == "model" else "tool" for segment in row["segments"][1:]]
    assert [m["role"] for m in flat["messages"]] == ["user", *roles]
    same = {name: row[name] for name in ("reward", "terms", "id", "step")} | dict(verdicts=row["facts"], run="a")
    assert flat | same == flat
  assert sum(message["role"] == "tool" for flat in flats for message in flat["messages"]) > 20
  step = found[0]["steps"][1]
  assert step["reasoning_content"].startswith("I ") and not step["message"].startswith("<think>")
  assert flats[0]["messages"][0]["content"].startswith("<|im_start|>user\nAnswer the question.")
  assert any(flat["verdicts"] for flat in flats)


def test_an_evaluations_episodes_have_texts_only_and_several_conversations_are_kept_apart(tmp_path):
  example = structs.Example("q 1", "Where?", ("Rome",))
  turns = [("model", "<search>the capital</search>"), ("environment", "a notice"), ("model", "<answer>Rome</answer>")]
  episode = structs.Episode.from_text(recipes.get("search_r1"), example, turns)
  second = structs.Segment(structs.ENVIRONMENT, (1, 2), "Again")
  last = structs.Segment(structs.MODEL, (3,), "No", (-0.5,), "eos")
  split = structs.Episode((*episode.segments, second, last), starts=(4,), ended="eos")
  settings = {"recipe": "search_r1", "preset": "paper", "checkpoint": "/data/me/out/run/checkpoints/40"}
  (tmp_path / "settings.json").write_text(json.dumps(settings))
  jsonl.write(tmp_path / episodes.PLAYED, [episodes.played(example, episode)])
  assert interchange.write(tmp_path, "atif", tmp_path / "out.jsonl") == 1
  (found,) = jsonl.read(tmp_path / "out.jsonl")
  check(found)
  assert found["agent"]["model_name"] == "checkpoints/40" and found["agent"]["name"] == "search_r1"
  assert [step["source"] for step in found["steps"]] == ["user", "agent", "agent"] and "/home" not in json.dumps(found)
  assert found["steps"][1]["observation"]["results"][0]["content"] == "a notice"
  assert all("metrics" not in step for step in found["steps"])

  row = episodes.row(example, split, terms={"answer": None}, weights={}, reward=None, outcome=None)
  about = interchange.described(tmp_path)
  check(found := interchange.atif(row, about))
  (other,) = found["subagent_trajectories"]
  assert [step["message"] for step in other["steps"]] == ["Again", "No"] and len(found["steps"]) == 3
  assert episodes.episode_of(episodes.played(example, split)).starts == (4,)  # an evaluation's row, too
  assert other["steps"][1]["metrics"]["prompt_token_ids"] == [1, 2]
  assert [m["conversation"] for m in interchange.flat(row, about)["messages"]] == [0, 0, 0, 0, 1, 1]


def test_the_episodes_themselves_are_not_overwritten_and_a_folder_without_any_is_named(folder, tmp_path):
  file = next(iter(episodes.steps(folder).values()))
  before, new = file.read_bytes(), tmp_path / "traces.jsonl"
  for given, out, says in ((folder, file, f"--out={file}: this file is read, too"), (tmp_path, new, "has no episodes")):
    done = ragrl("export-traces", f"--workdir={given}", "--format=jsonl", f"--out={out}")
    assert done.returncode == 2 and says in done.stderr
  assert file.read_bytes() == before and not new.exists()
