"""Malformed rows of every layout: each is read, or refused with file and line; none ends with another error."""

import copy
import json
import random

import pytest
import test_layouts as good
from refusals import refused

from ragrl_jax.data import layouts, readers

ODD = (5, -1, True, None, "", "x", "[", "[5]", "{}", 1e400, [], [5], [[]], [[5, 5]], [None], {}, {"title": 5}, "\ud800")
PARAGRAPHS = [dict(idx=0, title="Rome", paragraph_text="Rome is old.", is_supporting=True)]
STEPS = [dict(question="Where?", answer="Rome", paragraph_support_idx=0)]
ROWS = (
  *good.HOTPOTS.values(),
  dict(question="Q?", answers=["x"], passages=[dict(id="a", title="T", text="t")], supporting=[0], hops=1),
  dict(question="Q?", answers=["x"], passages=[dict(text="t")], meta=dict(evidence=[[0, "t"]])),
  dict(question="Q?", golden_answers=[0], choices=["a", "b"], metadata={}),
  dict(question="Q?", golden_answers=["a"], metadata=dict(context=good.HOTPOT["context"], supporting_facts=good.FACTS)),
  dict(id="2", question="Q?", answer="x", answer_aliases=["y"], paragraphs=PARAGRAPHS, question_decomposition=STEPS),
  dict(question="Q?", passage="A text.", answers_spans=dict(spans=["A"], types=["span"]), query_id="1"),
  dict(query="q", query_id=1, answers=["x"], query_type="NUMERIC",
       passages=dict(passage_text=["a"], is_selected=[1], url=["u"])),
  dict(query_id="1", query="q", answer="x", evidence_docs=[dict(docid="1")], gold_docs=[dict(docid="1")]),
  good.LONGBENCH, dict(question="Q?", answer="x", context="One text."), dict(prompt="A whole prompt", answer="x"),
  dict(question="Q?", answer=["x"]),
)  # fmt: skip


def places(value, path=()):
  """The paths of all values inside, the value itself left out."""
  inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
  for name, one in inner:
    yield (*path, name)
    yield from places(one, (*path, name))


def broken(row, rng):
  """A copy of the row in which one or two values are odd."""
  row = copy.deepcopy(row)
  for _ in range(rng.choice((1, 1, 2))):
    *path, last = rng.choice(list(places(row)))
    inside = row
    for name in path:
      inside = inside[name]
    inside[last] = copy.deepcopy(rng.choice(ODD))
  return row


def test_odd_values_anywhere_are_read_or_refused():
  rng, refused = random.Random(0), 0
  for number in range(3000):
    row = broken(ROWS[number % len(ROWS)], rng)
    try:
      layouts.example(row, identity="set-0", source="set")
    except ValueError as error:
      refused += 1
      assert str(error)
    except Exception as error:
      raise AssertionError(f"{type(error).__name__} ({error}) for the row {json.dumps(row)}") from error
  assert 500 < refused < 2900  # many are refused, and some odd values mean nothing


@pytest.mark.parametrize(("line", "said"), [
  (json.dumps(dict(good.HOTPOT, context=[5])), r"'context\[0\]' must be a title and a list"),
  (json.dumps(dict(good.HOTPOT, supporting_facts=[5])), "'supporting_facts' must be a list"),
  (f'{{"question": "Q?", "answer": "x", "n": {"9" * 5000}}}', "not JSON.*4300 digits"),
  ('{"question": "Q?", "answer": "x", "answer": "y"}', "the name 'answer' occurs twice"),
  ('{"question": "Q?", "answer": "x", "meta": ' + "[" * 100_000, "not JSON"),
])  # fmt: skip
def test_the_file_and_the_line_are_named(tmp_path, line, said):
  lines = [json.dumps(dict(question="Q?", answer="x")), line]
  (tmp_path / "set.jsonl").write_text("\n".join(lines))
  refused(f"set.jsonl:2: .*{said}", list, readers.read_examples(tmp_path / "set.jsonl"))
  (tmp_path / "set.json").write_text("[" + ",\n".join(lines) + "]")
  refused(rf"set.json:2 \(row 2\): .*{said}", list, readers.read_examples(tmp_path / "set.json"))
