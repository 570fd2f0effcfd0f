"""The judge's training data, its agreement with labels, and the launcher, with a lexical judge."""

import dataclasses
import json

import pytest
from console import ragrl
from refusals import refused
from scripted_server import serving

from ragrl_jax import config as config_lib, judging, recipes, settings
from ragrl_jax.data import readers
from ragrl_jax.jobs import sft
from ragrl_jax.judging import judge_api, prompts
from ragrl_jax.judging.judge_api import Cached
from ragrl_jax.prompting import passages
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.recipes.veritas import distil
from ragrl_jax.store import episodes as episodes_lib
from ragrl_jax.structs import Episode, Example, Passage
from ragrl_jax.testing import scripted

agent, judge = recipes.get("veritas", "em"), recipes.get("veritas", "reward_model")


def searched(number, thought):
  example = Example(f"q{number}", f"Question {number}?", ("x",))
  block = passages.block([Passage("1", "Oslo", f"It has {number} mayors.")])
  turns = [("model", "<search> Oslo </search>"), ("environment", block), ("model", f"{thought}<answer> x </answer>")]
  return example, Episode.from_text(agent, example, turns)


EPISODES = [searched(n, f"<think> There are {n if n % 3 else 'many'} mayors of Oslo. </think>") for n in range(12)]
PAIRS = distil.pairs(episode for _, episode in EPISODES)
ASKED = [("p", str(number)) for number in range(10)]  # pairs as judges get them


def test_pairs_are_complete_and_occur_once():
  assert [distil.asked(pair) for pair in PAIRS[:2]] == [
    ("Doc 1(Title: Oslo) It has 0 mayors.", "There are many mayors of Oslo."),
    ("Doc 1(Title: Oslo) It has 1 mayors.", "There are 1 mayors of Oslo."),
  ]
  again = distil.pairs([EPISODES[0][1], EPISODES[0][1], searched(5, "")[1]])
  assert [distil.asked(pair) for pair in again] == [distil.asked(PAIRS[0])] and again[0].source == "q0"


def test_labels_and_split():
  labelled = distil.labelled(PAIRS[:4], (1.0, None, 0.0, 0.5))
  assert [(pair.source, pair.golds) for pair in labelled] == [("q0", ("1",)), ("q2", ("0",)), ("q3", ("1",))]
  twice = [pair for pair in PAIRS for _ in range(2)]
  train, held_out = distil.split(twice, 5, seed=0)
  assert len(held_out) == 6 and len(train) == 18  # a question's pairs stay together
  assert not {pair.source for pair in train} & {pair.source for pair in held_out}
  assert distil.split(twice, 5, seed=0) == (train, held_out) != distil.split(twice, 5, seed=1)
  refused("held_out=24 of 24", distil.split, twice, 24, seed=0)


class Refuses:
  """Gives 1, and fails on some claims; the other pairs of the call are answered."""

  pace = judge_api.Pace()

  def __init__(self, *claims, killed_at=None):
    self.claims, self.killed_at, self.calls = claims, killed_at, []

  def describe(self):
    return dict(kind="refuses")

  def judge(self, pairs):
    return judge_api.each(pairs, self._verdicts)

  def _verdicts(self, pairs):
    self.calls.append(pairs)
    if self.killed_at in {claim for _, claim in pairs}:
      raise KeyboardInterrupt
    refused = [pair for pair in pairs if pair[1] in self.claims]
    if refused:
      raise judge_api.JudgeFailed("400", refused, {pair: 1.0 for pair in pairs if pair not in refused})
    return [1.0] * len(pairs)


def test_a_refused_pair_has_no_verdict_and_stops_nothing(tmp_path):
  judge, done = Refuses("2", "9"), []
  found = judge_api.verdicts(judge, [*ASKED[:3], ("p", " "), *ASKED[3:]], at_once=5, progress=done.append)
  assert found == [1.0, 1.0, None, 0.0, *[1.0] * 6, None] and done == [5, 10, 11]  # the last part, one pair, is refused
  cached = Cached(judge, tmp_path / "v")
  first, second = (judge_api.verdicts(cached, ASKED, at_once=5) for _ in range(2))
  assert first == second == [1.0, 1.0, None, *[1.0] * 6, None]
  # The refused pairs are asked again: in their parts, and together at the end.
  assert judge.calls[-3:] == [[("p", "2")], [("p", "9")], [("p", "2"), ("p", "9")]]


def test_a_pair_with_a_temporary_failure_gets_its_verdict():
  judge = Refuses("2", "7")
  recover = lambda done: done < 10 or setattr(judge, "claims", ("7",))
  found = judge_api.verdicts(judge, ASKED, at_once=5, progress=recover)
  assert found == [1.0] * 7 + [None] + [1.0] * 2 and judge.calls[-1] == [("p", "2"), ("p", "7")]


def test_a_kill_costs_one_part(tmp_path):
  judge = Refuses(killed_at="9")
  with pytest.raises(KeyboardInterrupt):
    judge_api.verdicts(Cached(judge, tmp_path / "v"), ASKED, at_once=3)
  again = Refuses()
  assert judge_api.verdicts(Cached(again, tmp_path / "v"), ASKED, at_once=3) == [1.0] * 10
  assert again.calls == [[("p", "9")]]


@pytest.mark.parametrize(("claims", "at_once"), [(map(str, range(10)), 20), (map(str, range(5, 10)), 5)])
def test_a_judge_that_is_down_stops_the_labelling(claims, at_once):
  refused("400", judge_api.verdicts, Refuses(*claims), ASKED, error=judge_api.JudgeFailed, at_once=at_once)


def test_agreement_by_hand():
  # Labels 1 1 0 0, verdicts 1 0 0 0 and one unread: p_o = 3/4, p_e = 1/2 · 1/4 + 1/2 · 3/4 = 1/2, κ = 1/2.
  labelled = distil.labelled(PAIRS[:5], (1.0, 1.0, 0.0, 0.0, 1.0))
  found = distil.agreement(labelled, (0.9, 0.1, 0.2, 0.0, None))
  assert found == pytest.approx(dict(n=4, unread=1, ones=0.5, consistency=0.75, kappa=0.5))
  refused("no verdict", distil.agreement, labelled, (None,) * 5)


def test_the_judge_is_asked_in_training_as_in_use():
  pair = distil.labelled(PAIRS[1:2], (1.0,))[0]
  assert judge.prompt.messages(pair) == prompts.get("information_think").messages(*distil.asked(pair))
  for said, right in (("1", 1.0), (" 1\n", 1.0), ("0", 0.0), ("10", 0.0), ("1 or 0", 0.0), ("", 0.0)):
    played, _ = scripted.play(judge, pair, [said])
    assert judge.score(pair, played) == {"answer": right}, said


def test_the_switch_chooses_the_wording():
  bare = recipes.get("veritas", "reward_model", judge_prompt="information_think_bare")
  (message,) = bare.prompt.messages(PAIRS[1])
  assert message["content"] == (
    "<information>Doc 1(Title: Oslo) It has 1 mayors.</information>\n\n<think> There are 1 mayors of Oslo. </think>"
  )
  played, tape = scripted.play(bare, PAIRS[1], ["1"])
  assert tape[0] == ("start", message["content"]) and played.model_text == "1"
  with pytest.raises(ValueError, match="judge_prompt='correctness'.*information_think_bare"):
    recipes.get("veritas", "reward_model", judge_prompt="correctness")  # its answer is a word


def test_only_the_digit_and_the_end_are_trained():
  pair = distil.labelled(PAIRS[:1], (0.0,))[0]
  row = dataclasses.replace(pair, meta=dict(turns=distil.transcripts([pair])[0]))
  ids, weights = sft.tokenised(judge, row, ByteTokenizer(), 0.0)
  (end,) = ByteTokenizer.eos_ids
  assert ids[-1] == end and bytes(ids[:-1]).endswith(b"Write only that digit.0")
  assert weights[-2:] == [1.0, 1.0] and sum(weights) == 2.0


def test_from_a_run_to_data_and_agreement(tmp_path):
  rows = [episodes_lib.row(*one, terms={}, weights={}, reward=0.0, outcome=0.0) for one in EPISODES]
  episodes_lib.write_episodes(tmp_path, 1, rows)
  config = config_lib.load("veritas", "smoke")
  assert config.judge.kind == "lexical"
  make = lambda *flags, **how: ragrl("make-judge-data", "--config=veritas:smoke", *flags, **how)
  said = make(f"--episodes={tmp_path}", f"--out={tmp_path}", "--held_out=4", says="").stdout
  assert "held_out.jsonl.gz: 4 pairs" in said and "0 pairs got no verdict" in said
  held_out = list(readers.read_examples(str(tmp_path / "held_out.jsonl.gz")))
  verdicts = judging.load(settings.of(config).judge).judge([distil.asked(pair) for pair in held_out])
  assert [pair.golds for pair in held_out] == [(str(int(verdict)),) for verdict in verdicts]
  assert [pair.meta["turns"] for pair in held_out] == [[["model", pair.golds[0]]] for pair in held_out]
  found = json.loads(make(f"--compare={tmp_path}/held_out.jsonl.gz", says="").stdout)
  assert (found["n"], found["consistency"], found["kappa"]) == (4, 1.0, 1.0)  # the judge compared with itself
  told = make(f"--compare={tmp_path}/held_out.jsonl.gz", "--term=think_search")
  assert told.returncode == 2 and "labels are of another term: give --term=information_think." in told.stderr
  with serving(lambda messages, number: "Yes." if number > 9 else "1") as (endpoint, _):  # no verdict on three
    asked = [f"--config.judge.{name}" for name in ("kind=llm", "model=m", "concurrency=1", f"endpoint={endpoint}")]
    told = make(f"--episodes={tmp_path}", f"--out={tmp_path}/few", "--held_out=11", *asked)
  assert told.returncode == 1 and "3 of 12 pairs got no answer" in told.stderr and "3 pairs got" in told.stdout, told
  assert sum(len([*readers.read_examples(str(file))]) for file in (tmp_path / "few").glob("*.jsonl.gz")) == 9
