"""Calls broken at random: what is read as a call is one by an independent reading, and everything else says why."""

import json
import random
import re

import pytest
from small_tokenizers import with_tools

from ragrl_jax.agents.calls import call_texts, formats
from ragrl_jax.agents.calls.call_texts import Malformed

CASES = 1000
SIGNS = '{}[]"\\,:<>/ \n0e-.tfn\u00e9\U0001f600'
PIECES = ("<tool_call>", "</tool_call>", '"name"', '"arguments"', '"parameters"', "<function=f>", "</function>", "null")
QWEN = '<tool_call>\n{"name": "find", "arguments": {"query": "a \\"b\\"", "k": 3}}\n</tool_call>'
SEEDS = {
  "qwen": ("So:\n" + QWEN, f"{QWEN}\n{QWEN}"),
  "llama": ('{"name": "find", "parameters": {"query": "a", "k": [3, {}]}}', '{"name": "f"}; {"name": "g"}'),
  "coder": ("<tool_call>\n<function=find>\n<parameter=query>\na\n</parameter>\n</function>\n</tool_call>",),
}


def broken(text, rng):
  """The text after one to four random changes."""
  for _ in range(rng.randint(1, 4)):
    at, kind = rng.randrange(len(text) + 1), rng.randrange(5)
    end = min(len(text), at + rng.choice((1, 1, 1, 5, 20)))
    if kind == 0:
      text = text[:at] + text[end:]
    elif kind == 1:
      text = text[:at] + rng.choice(SIGNS) + text[at:]
    elif kind == 2:
      text = text[:at] + text[at:end] * 2 + text[end:]
    elif kind == 3:
      text = text[:at] + rng.choice(PIECES) + text[at:]
    else:
      text = text[:at] if rng.random() < 0.3 else text[:at] + rng.choice(SIGNS) + text[at + 1 :]
  return text


def objects(text):
  """The JSON objects that a text consists of, with white space and semicolons between them; None if it is not so."""
  found = []
  while text.strip("; \n\t"):
    text = text.lstrip("; \n\t")
    for end in (i + 1 for i, sign in enumerate(text) if sign == "}"):
      try:
        found.append(json.loads(text[:end]))
        break
      except ValueError:
        continue
    else:
      return None
    text = text[end:]
  return found


def expected(name, text):
  """[(function, arguments)] by another way of reading; None if it is no sequence of calls."""
  if name == "llama":
    bodies, key = [text], "parameters"
  else:
    whole = re.fullmatch(r"(.*?)((?:\s*<tool_call>(?:(?!<tool_call>).)*?</tool_call>)+)\s*.*", text, re.DOTALL)
    bodies, key = re.findall(r"<tool_call>(.*?)</tool_call>", whole[2], re.DOTALL) if whole else [], "arguments"
  calls = []
  for body in bodies:
    if (found := objects(body)) is None:
      return None
    for one in found:
      if not isinstance(one, dict) or not isinstance(one.get(key, {}), dict):
        return None
      calls.append((one.get("name"), one.get(key, {})))
  return calls


@pytest.mark.parametrize("name", SEEDS)
def test_random_changes_of_calls(name):
  form, rng = formats.format_of(with_tools(name)), random.Random(0)  # any seed: the cases must be the same at every run
  counts = dict(calls=0, text=0, malformed=0, compared=0)
  for _ in range(CASES):
    text = broken(rng.choice(SEEDS[name]), rng)
    try:
      before, made, after = call_texts.read(text, form)
    except Malformed as error:
      counts["malformed"] += 1
      assert str(error) and call_texts.calls(text, form) == (text, [])
      continue
    counts["calls" if made else "text"] += 1
    assert text.startswith(before) and text.endswith(after)
    if not made:
      assert form.closing == "" or form.closing not in text, text  # nothing that was meant as a call is passed over
      assert form.opening not in text or name == "llama", text
    elif name == "coder":
      assert all(f"<function={one.name}>" in text for one in made)
    elif name == "llama" or text.count("<tool_call>") == text.count("</tool_call>") == len(made):  # none in a string
      counts["compared"] += 1
      assert [(one.name, json.loads(one.arguments)) for one in made] == expected(name, text), text
  assert counts["calls"] > 25 and counts["malformed"] > 250, counts
  assert name == "coder" or counts["compared"] > 0.9 * counts["calls"], counts
