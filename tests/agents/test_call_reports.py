"""Faults of tool calls that users of other tools reported. Threads name the kind."""

import json

from ragrl_jax.agents.calls import call_texts
from ragrl_jax.agents.calls.turns import OWN
from ragrl_jax.agents.toolbox import schemas


def test_a_closing_mark_inside_an_argument_does_not_cut_the_call():
  """vLLM #48353: </tool_call> inside an argument ends the call."""
  arguments = dict(query="what does </tool_call> mean?")
  text = f'<tool_call>\n{{"name": "search", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
  before, (call,) = call_texts.calls(text, OWN)
  assert before == "" and json.loads(call.arguments) == arguments


def test_whole_numbers_fit_integer_arguments():
  """Models write 3.0 where an integer is wanted, and JSON knows one kind of number."""
  schema = dict(type="object", properties=dict(k=dict(type="integer")))
  assert not schemas.fault(dict(k=3.0), schema) and type(schemas.fitted(dict(k=3.0), schema)["k"]) is int
  assert schemas.fault(dict(k=3.5), schema)
