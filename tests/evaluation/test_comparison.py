import dataclasses
import functools
import json

import pytest
from console import ragrl
from refusals import refused

from ragrl_jax.data import writers
from ragrl_jax.evaluation import comparison, quadrants
from ragrl_jax.store import jsonl
from ragrl_jax.structs import Example, Passage


def row(name, em, source="dev", **more):
  """A row of predictions.jsonl."""
  others = dict(f1=0.0, cover_em=0.0, outcome=None, num_searches=0, terms={})
  return dict(others, id=name, source=source, ended="answer", em=None if em is None else float(em)) | more


def rows(*right, failed=0, **terms):
  """Seven sets "s0" … of one, two … questions. `right`: the number of right answers in each set."""
  more = lambda i: dict(ended="failed" if i < failed else "answer", f1=0.5, num_searches=i, terms=terms)
  outcome = lambda i, j: None if j == 1 else float(j < right[i])
  return [row(f"q{j}", j < right[i], f"s{i}", outcome=outcome(i, j), **more(i)) for i in range(7) for j in range(i + 1)]


A, B = rows(1, 1, 1, 1, 1, 1, 1), rows(1, 2, 2, 2, 2, 2, 2, late=0.5, unknown=None)


def test_each_set_counts_once():
  sets = comparison.by_set(B)
  assert [round(means["em"], 3) for means in sets.values()] == [1, 1, 0.667, 0.5, 0.4, 0.333, 0.286]
  assert sets["s3"]["outcome"] == pytest.approx(1 / 3) and sets["s3"]["searches"] == 3  # one is unknown
  assert "terms/unknown" not in sets["s0"] and "terms/late" in sets["s0"]
  average = comparison.macro(sets)
  assert average["em"] == pytest.approx((1 + sum(2 / n for n in range(2, 8))) / 7) and average["searches"] == 3
  assert "s0" not in comparison.by_set(rows(*[1] * 7, failed=1)) and comparison.macro({}) == {}
  assert "f1" not in comparison.macro({"a": {"em": 0.0, "f1": 1.0}, "b": {"em": 1.0}})  # fewer sets would mislead


def test_systems_are_compared_over_sets():
  found = comparison.compare({"a": A, "b": B, "again": A})
  assert list(found) == ["em", "f1", "cover_em", "outcome", "searches"]  # only b has "late"
  em = found["em"]
  assert em["sets"]["s1"] == [0.5, 1.0, 0.5] and em["macro"][0] == em["macro"][2] < em["macro"][1]
  # Six sets differ, all in b's favour: the smaller rank sum is 0, so the exact p is 2 / 2^6. No difference gives p = 1.
  assert em["wilcoxon"] == [(0.0, pytest.approx(2 / 2**6)), (0.0, 1.0)]
  lines = comparison.text({"em": em}, ("a", "b", "again")).splitlines()
  assert lines[0].split() == ["em", "a", "b", "again"] and lines[2].split() == ["s1", "0.500", "1.000", "0.500"]
  assert lines[-6].startswith("macro average") and lines[-5].split()[-6:-3] == ["+0.214", "[+0.071,", "+0.357]"]
  assert lines[-4].split() == ["p,", "paired", "by", "set", "(7;", "Wilcoxon)", "0.031", "1.000"]
  assert lines[-3].split() == ["adjusted", "for", "2", "tests", "(Holm)", "0.062", "1.000"]
  # The same six differences among 28 questions: p = 2 / 2^6 again.
  assert lines[-2].split() == ["p,", "paired", "by", "question", "(28;", "permutation)", "0.031", "1.000"]
  assert len(lines) == 14 and len(set(map(len, lines))) == 1


def test_runs_of_a_system_count_once():
  """Three seeds against two: 40 questions, each right in a share of the runs."""
  ask = lambda *right: [row(i, i < number) for number in right for i in range(40)]
  low, high = ask(10, 12), ask(20, 24, 28)
  assert [len(run) for run in comparison.runs_of(high)] == [40, 40, 40]
  found = comparison.compare({"low": low, "high": high})["em"]
  assert found["sets"]["dev"] == [pytest.approx(0.275), pytest.approx(0.6)]
  # Means .25 and .3; .5, .6 and .7: sample deviations .05 / sqrt 2 and .1.
  assert found["deviations"]["dev"] == [pytest.approx(0.05 / 2**0.5), pytest.approx(0.1)]
  (difference, p), (bottom, top) = found["questions"][0], found["intervals"][0]
  assert difference == pytest.approx(0.325) and p < 0.001 and 0.1 < bottom < 0.2 and 0.45 < top < 0.55
  said = comparison.text({"em": found}, ("low", "high"))
  assert "0.275 ± 0.035   " in said and "0.600 ± 0.100" in said and "Holm" not in said
  refused("in 1 run and others in 2", comparison.runs_of, ask(10, 10)[:-1])


def test_a_single_set_is_paired_by_question():
  # Means of one set have no spread, and a test over one set always gives p = 1. So the questions are the sample.
  one = lambda right: [row(f"q{j}", j in right) for j in range(100)]
  better, shuffled = one(range(20, 80)), one(range(20, 80))[::-1]
  found = comparison.compare({"a": one(range(40, 80)), "b": better, "again": shuffled})["em"]
  assert found["wilcoxon"] == [] and found["paired"] == 100
  assert found["questions"][0] == found["questions"][1] == (pytest.approx(0.2), pytest.approx(2e-4, abs=2e-4))
  lines = comparison.text({"em": found}, ("a", "b", "again")).splitlines()
  assert lines[-2].split()[:6] == ["p,", "paired", "by", "question", "(100;", "permutation)"]
  assert "< 0.001" in lines[-2] and not any("Wilcoxon" in line or "macro" in line for line in lines)


def test_only_questions_that_all_systems_have_are_paired():
  failed = lambda v: dict(ended="failed" if v is None else "answer", f1=v, cover_em=v, outcome=v)
  rows = lambda values: [row(i, v, **failed(v)) for i, v in enumerate(values)]
  found = comparison.compare({"a": rows([1, None, 0, 1]), "b": rows([1, 1, 1, None])})["em"]
  assert found["paired"] == 2 and found["questions"] == [(0.5, 1.0)]  # a's and b's score
  alone = comparison.compare({"a": rows([1, None]), "b": rows([None, 1])})["em"]
  assert (alone["paired"], alone["questions"]) == (0, [])


def test_what_cannot_be_compared_is_refused():
  # Two evaluations of q1, before and after its golds were corrected.
  one = [dict(row, question="Where?", golds=["Rome"]) for row in A]
  two = [dict(row, golds=["Paris"]) for row in one]
  for given, says in (
    (dict(a=A), "1 evaluation"), (dict(a=A, b=rows(*[1] * 7, failed=7)), "no measure"),
    (dict(a=A, b=B[1:]), "a and b were asked different questions: 1 are only in the first, 0 only in"),
    (dict(a=one, b=two), "has .*Rome.* in the first and .*Paris.* in the second"),
  ):  # fmt: skip
    refused(says, comparison.compare, given)
  refused("different questions or golds are not compared", quadrants.crossed, one, two, "em")


def test_a_one_sided_test_says_so():
  """VERITAS, Table 2: the arm with information-think against Search-R1 and against Search-R1 with a format reward."""
  table = dict(base=(0.480, 0.638, 0.457, 0.433, 0.382, 0.196, 0.432))
  table |= dict(shaped=(0.488, 0.644, 0.469, 0.436, 0.412, 0.187, 0.403))
  table |= dict(ours=(0.486, 0.650, 0.463, 0.445, 0.423, 0.206, 0.456))
  rows = {name: [row("q", score, f"s{i}") for i, score in enumerate(scores)] for name, scores in table.items()}
  found = lambda first, **side: comparison.compare({first: rows[first], "ours": rows["ours"]}, **side)["em"]
  p = lambda first, **side: found(first, **side)["wilcoxon"][0][1]
  # Seven of seven above the first: 2 / 2^7. Of seven, -0.002 and -0.006 (tied with 0.006) are below the second.
  # The sums of the ranks below are 3.5 or less for 6 of the 2^7 patterns. So the test's side decides the paper's mark.
  got = [p("base"), *(p(name, alternative="greater") for name in ("base", "shaped")), p("shaped")]
  assert got == pytest.approx([2 / 2**7, 1 / 2**7, 6 / 2**7, 12 / 2**7]) and p("base", alternative="less") == 1.0
  said = comparison.text({"em": found("base", alternative="greater")}, ("base", "ours"), alternative="greater")
  assert "p, paired by set (7; Wilcoxon, one-sided: greater)" in said and "0.008" in said


@pytest.mark.long  # starts processes
def test_the_command(tmp_path):
  for name, some in (("a", A), ("b", B)):  # the first sets are in one folder, the others in another
    for part, sets in (("one", "s0 s1 s2"), ("two", "s3 s4 s5 s6")):
      jsonl.write(tmp_path / name / part / "predictions.jsonl", [one for one in some if one["source"] in sets.split()])
  pairs = [Example(str(i), f"Claim {i}.", ("1",), (Passage("1", "", "premise"),), source="q") for i in range(4)]
  writers.write_examples(tmp_path / "one.jsonl.gz", pairs)
  writers.write_examples(tmp_path / "two.jsonl.gz", [*pairs[1:], dataclasses.replace(pairs[0], golds=("0",))])

  say = functools.partial(ragrl, "compare")
  given = (f"--results={tmp_path}/a/*", f"--results={tmp_path}/b/*", "--measures=em")
  assert "f1" not in say(*given, says="0.031").stdout
  said = say(*given, "--alternative=greater")
  assert "0.016" in said.stdout and "one-sided: greater" in said.stdout, said.stderr
  for seed in (0, 1):  # an evaluation under two seeds
    jsonl.write(tmp_path / "c" / f"seed_{seed}" / "predictions.jsonl", (A, B)[seed])
  say(f"--results={tmp_path}/a/*", f"--results={tmp_path}/c", "--measures=em", says="0.750 ± 0.354")  # s1: .5 and 1
  said = say(f"--verdicts={tmp_path}/one.jsonl.gz", f"--verdicts={tmp_path}/two.jsonl.gz")
  assert json.loads(said.stdout) | dict(n=4, agreement=0.75) == json.loads(said.stdout), said.stderr
