"""The papers' table states the verdict on every claim that was run, with its interval, and says which were not run."""

import dataclasses
import types

import numpy as np
import pytest
from papers import arena, care, lear, miniature, page, veritas, when_to_search
from papers.miniature import Claim, Side


def result(arm, seed, answers):
  """A run whose answers to the test's questions are `answers`; greedy and sampled ones are the same."""
  about = dict(paper="care", arm=arm, seed=seed, steps=8, seconds=1.0, commit="c")
  keys, mean = ("held_out", "held_out, sampled"), float(np.mean(answers))
  reached, values = ({key: dict(em=of) for key in keys} for of in (mean, list(answers)))
  return about | dict(curve={"0": dict(em=0.1), "4": dict(em=mean)}, reached=reached, values=values)


def rows(*pairs):
  """{(paper, arm, seed): run} from (answers of `paper`, answers of `easy_only`), one pair per seed."""
  by_arm = [(arm, seed, its) for seed, pair in enumerate(pairs) for arm, its in zip(("paper", "easy_only"), pair)]
  return {("care", *arm_and_seed): result(*arm_and_seed, answers) for *arm_and_seed, answers in by_arm}


def ones(share, count=200):
  """`count` answers of which this share is right, spread evenly."""
  return [int(at * share) - int((at - 1) * share) for at in range(1, count + 1)]


BETTER = Claim("em", Side("paper", "em"), Side("easy_only", "em"))
BETTER_BY_3, SAME = (0.8, 0.75, 0.85), (0.5, 0.48, 0.52)  # the paper's shares of three seeds, beside .5


@pytest.mark.parametrize("shares, claim, verdict", [
  (BETTER_BY_3, dict(), "shown"), (BETTER_BY_3, dict(least=0.1), "shown"),
  (BETTER_BY_3, dict(least=0.5), "refuted here"), (BETTER_BY_3, dict(least=0.32), "not decidable"),
  (BETTER_BY_3, dict(lower=True), "refuted here"), (BETTER_BY_3, dict(lower=True, least=-0.02), "refuted here"),
  (SAME, dict(), "not decidable"), (SAME, dict(lower=True), "not decidable"), (SAME, dict(least=-0.1), "shown"),
  ((0.7, 0.55, 0.85), dict(), "not decidable"),  # .2 ± 4.3 · .15 / sqrt 3, though all three are better
])  # fmt: skip
def test_verdicts(shares, claim, verdict):
  runs, gain = rows(*((ones(share, 300), ones(0.5, 300)[::-1]) for share in shares)), shares[0] - 0.5
  found = page.judged(care.PAPER, dataclasses.replace(BETTER, **claim), runs)
  assert found["verdict"] == verdict and (found["seeds"], found["questions"]) == (3, 300)
  assert found["side"] == pytest.approx(shares[0]) and found["interval"][0] < gain < found["interval"][1]
  assert found["sampled"] == pytest.approx(gain)


def test_claims_without_runs_are_marked_and_those_that_miss_theirs_are_named():
  other = Claim("c", Side("paper", "em"), Side("no_retrieval", "em"))
  claims = (Claim("a", Side("paper", "em", step=4), BETTER.sides[1]), Claim("b", Side("paper", "em"), 0.9), other)
  of = dict(care=dataclasses.replace(care.PAPER, claims=claims)), rows((ones(0.5), ones(0.2)))
  a, b, c = page.tables(*of).splitlines()[2:]
  assert a == "| care | a | > 0 | | | | | not run | |"
  assert b == "| care | b | > 0 | 0.500 | 0.900 |  | -0.400 | 1 × 200 | one seed |" and c.endswith("| not run | |")
  assert page.summary(*of) == "3 claims: 2 not run, 1 one seed"
  claims = (BETTER, dataclasses.replace(BETTER, text="less", lower=True), Claim("x", Side("no_retrieval", "em"), 0.5))
  of = dict(care=dataclasses.replace(care.PAPER, claims=claims))
  assert page.missed(of, rows(*((ones(x), ones(0.2)) for x in (0.5, 0.6)))) == ["care: less", "care: x"]


def test_runs_of_a_seed_are_not_mixed_with_those_of_another_warm_start():
  # Seed 0 is finished, seeds 1 and 2 lack a run each. The warm start of seed 2 is here, that of seed 1 is not.
  found = rows(*[(ones(0.9), ones(0.6))] * 3)
  work = [("care", arm, seed) for seed in range(3) for arm in ("paper", "easy_only")]
  del found["care", "paper", 1], found["care", "paper", 2]
  kept = page.comparable(found, work, lambda run: run[2] == 2)
  assert set(kept) == {("care", "paper", 0), ("care", "easy_only", 0), ("care", "easy_only", 2)}


def test_runs_are_read_as_they_were_written(tmp_path, monkeypatch):
  paper, found = dataclasses.replace(care.PAPER, claims=(BETTER,)), rows(*((ones(x), ones(0.2)) for x in (0.5, 0.51)))
  page.write(dict(care=paper), found, tmp_path)
  first = (tmp_path / page.RUNS).read_bytes()
  assert page.read_rows(tmp_path / page.RUNS) == found
  assert "1 claims: 1 shown" in (tmp_path / "papers.md").read_text() and (tmp_path / "papers.png").stat().st_size
  monkeypatch.setattr(page, "figure", lambda *given: None)
  page.write(dict(care=paper), found, tmp_path)
  assert (tmp_path / page.RUNS).read_bytes() == first


@pytest.mark.parametrize("module", [care, arena, veritas, lear, when_to_search])
def test_sides_of_claims_are_arms_and_tests_and_a_short_paper_tests_one_claim_of_its_own_arm(module):
  """Its warm start has the first goal only, and a lower one; of sampled answers, if the paper says so."""
  for claim in module.PAPER.claims:
    for side in claim.sides:
      assert side.arm in (miniature.WARM, *module.PAPER.arms) and side.test in ("", *module.PAPER.tests), claim.text
    assert claim.least or claim.text, "an effect is stated before the runs"
  paper = miniature.short(module.PAPER)
  (claim,) = paper.claims
  assert {side.arm for side in claim.sides} == {"paper", miniature.WARM} and set(paper.arms) == {"paper"}
  assert {side.key(paper) for side in claim.sides} == {test + miniature.SAMPLED for test in paper.tests}
  assert paper.rl["steps"] < module.PAPER.rl["steps"]
  ((name, least),) = paper.warm.items()
  assert least <= module.PAPER.warm[name.removesuffix(miniature.SAMPLED)]


def test_an_arm_takes_the_tests_of_its_claims_only_and_ends_when_its_reward_has_stopped_rising():
  assert lear.PAPER.tests_of("paper") == ["held_out", "full", "noise_4", "noise_8"]
  assert lear.PAPER.tests_of("answers_r") == lear.PAPER.tests_of(miniature.WARM) == ["held_out"]
  rising = [0.1 * step for step in range(24)]
  assert [miniature.settled(rising + [2.3] * more) for more in (0, 15, 16)] == [False, False, True]


def test_a_goal_is_of_greedy_or_of_sampled_answers(monkeypatch):
  """A warm start ends when each goal was reached twice in a row; of sampled answers if its name says so."""
  goals = {"em": 0.9, f"em{miniature.SAMPLED}": 0.5, "cited": 0.2}
  greedy, sampled = iter([0.95] * 4), iter([0.3, 0.5, 0.4, 0.6])

  def measure(player, params, asked, step, *, sample):
    return dict(em=next(sampled if sample else greedy), cited=None if step == 25 else 0.3), {}

  def sft(config, workdir, *, evaluate, reached):
    for step in range(1, 101):
      yield evaluate(step, "model")
      assert not reached({})

  monkeypatch.setattr(miniature, "prepare", lambda config: config)
  monkeypatch.setattr(miniature.player_lib, "build", lambda config: None)
  monkeypatch.setattr(miniature.lora, "split", lambda model: (None, model))
  monkeypatch.setattr(miniature.sft, "sft", sft)
  config = types.SimpleNamespace(evaluate=types.SimpleNamespace(every=25))
  curves = miniature.supervised(config, None, [], measure, goals)
  assert curves == {"em": [0.95] * 4, f"em{miniature.SAMPLED}": [0.3, 0.5, 0.4, 0.6], "cited": [0.0, 0.3, 0.3, 0.3]}
  assert not miniature.ended(curves, goals)
  curves[f"em{miniature.SAMPLED}"].append(0.5)
  assert miniature.ended(curves, goals)


@pytest.mark.long  # four small runs
def test_seeds_of_a_short_paper_share_the_world_and_the_warm_start(monkeypatch, tmp_path):
  """The questions are their own. A second call, after a kill, finds the link."""
  monkeypatch.setattr(miniature, "make_world", lambda paper, folder, seed: folder.mkdir(parents=True, exist_ok=True))
  paper = miniature.short(lear.PAPER)
  worlds = [miniature.build(paper, seed) for seed in (0, 1)]
  asked = [paper.questions(world, seed)["held_out"] for seed, world in enumerate(worlds)]
  assert worlds[0].passages == worlds[1].passages
  assert {example.question for example in asked[0]} != {example.question for example in asked[1]}
  (tmp_path / "0" / "sft" / "model").mkdir(parents=True)
  for _ in range(2):
    assert miniature.warm_up(paper, 1, tmp_path / "1") == {}
    assert (tmp_path / "1" / "sft" / "model").resolve() == (tmp_path / "0" / "sft" / "model").resolve()
