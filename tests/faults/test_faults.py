"""A run under a plan of faults ends like an undisturbed run. Also tests the plans, their tools and their checks."""

import random
import signal
import types

import driver
import httpx
import plans
import pytest
import record
import servers


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
  folder = tmp_path_factory.mktemp("faults")
  with driver.scene(folder / "world") as scene:
    made = [driver.undisturbed(ahead, scene, folder / f"undisturbed_{ahead}") for ahead in (0, 1)]
    for run in folder.glob("undisturbed_*/run"):
      assert '"rollback/to":2' in (run / "metrics.jsonl").read_text()  # of step 6
    yield scene, made


@pytest.mark.long  # each run starts two to sixteen processes
@pytest.mark.timeout(3600)
# 64 and 71: a tool fails while the next step is sampled beside an update
@pytest.mark.parametrize("seed", [*range(8), 64, 71])
def test_a_run_with_faults_makes_what_the_undisturbed_run_made(stage, tmp_path, seed):
  scene, undisturbed = stage
  plan = plans.draw(seed)
  outcome = driver.play(plan, scene, tmp_path, undisturbed[plan.ahead])
  assert not outcome.problem, f"{', '.join(map(str, plan.faults))}: {outcome}"


def test_a_seed_gives_one_plan_and_a_hundred_seeds_give_every_fault():
  drawn = [plans.draw(seed) for seed in range(100)]
  assert drawn == [plans.draw(seed) for seed in range(100)]
  assert {fault.kind for plan in drawn[:10] for fault in plan.faults} == set(plans.KINDS)
  every = {(kind, how) for kind, ways in plans.KINDS.items() for how in ways}
  assert {(fault.kind, fault.how) for plan in drawn for fault in plan.faults} == every


def test_tools_repeat_their_answers_and_fail_on_command():
  asked, told = dict(queries=["a", "b"], topk=1), []
  passages = [types.SimpleNamespace(id=str(n), title="", text=f"text {n}") for n in range(9)]
  # A connection for every call: a tool that failed closes its own, perhaps just when the next call begins.
  client = httpx.Client(timeout=60, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
  with servers.Tool("retriever", servers.retrieve(passages)) as tool, client:
    tool.faults = lambda name, asks: told.pop() if told else None
    ask = lambda: client.post(f"http://127.0.0.1:{tool.port}/retrieve", json=asked)
    whole = ask().json()
    assert len(whole["result"]) == 2 and whole == ask().json()

    def under(kind, how):
      told.append(plans.Fault(0, kind, how, lasts=1))
      return ask()

    assert under("outage", "status").status_code == 503
    assert len(under("half", "few").json()["result"]) == 1 and under("half", "empty").json() == {}
    for how in set(plans.GARBAGE) - {"gzip", "score", "nan"}:
      with pytest.raises((ValueError, RecursionError)):
        under("garbage", how).json()
    for kind, how in (("garbage", "gzip"), ("outage", "reset"), ("half", "cut"), ("outage", "refused")):
      with pytest.raises((httpx.TransportError, httpx.DecodingError)):
        under(kind, how)


def test_damage_is_found_and_named(tmp_path):
  for how in ("bit", "cut", "lost"):
    for step in (2, 4):
      (tmp_path / how / "checkpoints" / str(step)).mkdir(parents=True)
      (tmp_path / how / "checkpoints" / str(step) / "data").write_bytes(b"held")
    assert record.damage(tmp_path / how, how, random.Random(0))[0] == 4
    left, old = (tmp_path / how / "checkpoints" / step / "data" for step in "42")
    assert (not left.exists() if how == "lost" else left.read_bytes() != b"held") and old.read_bytes() == b"held"
  assert record.difference(dict(a="1", b="2"), dict(a="1", b="2")) == ""
  assert record.difference(dict(a="1"), dict(a="1", b="2")) == "b"


def test_an_end_is_clear_if_its_last_line_names_the_fault(tmp_path):
  plan = plans.Plan(0, 0, (plans.Fault(0, "outage", "reset", "judge"),))
  tools = {name: types.SimpleNamespace(port=1) for name in plans.TOOLS}
  run = driver.Run(plan, driver.Scene(tmp_path, tools), tmp_path)
  run.sent = [(signal.SIGTERM, True)]
  assert run.wrong(143, "") == "" and "died of" in run.wrong(-15, "")  # once the run has begun, it handles the signal
  run.sent = [(signal.SIGTERM, False)]
  assert run.wrong(-15, "") == "" and "last line" in run.wrong(-9, "")
  said = "step\n\r 10%|#\rerror: the judge gave no answer.\n\n"
  assert "names none" in run.wrong(2, said)  # no fault has occurred yet
  run.live[0].came = True
  assert run.wrong(2, said) == "" and run.wrong(0, "") == ""
  ends = (2, "error: no passages."), (1, "KeyError: 'judge'"), (1, f"Traceback …\n{said}"), (-11, said), (None, said)
  assert all(run.wrong(*end) for end in ends)
