"""Finds the format of the tool calls of a model's own chat template, by rendering an example.

Templates show the tools to the model, and render the calls that it has made. These formats of a call are known:

    JSON     Qwen 2.5 and 3, Hermes   <tool_call>\\n{"name": "f", "arguments": {"x": 1}}\\n</tool_call>
    JSON     Llama 3                  {"name": "f", "parameters": {"x": 1}}
    TAGGED   Llama 3's own tools      <function=f>{"x": 1}</function>
    XML      Qwen3-Coder              <tool_call>\\n<function=f>\\n<parameter=x>\\n1\\n</parameter>\\n</function>…

`call_texts` parses the calls of a model's turn.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.prompting.chat import Templated
from ragrl_jax.prompting.tokenizer import Tokenizer

JSON, TAGGED, XML = "json", "tagged", "xml"
CLOSINGS = ("</tool_call>", "</function>")  # closing marks of a call, in the formats that have one
_NAME, _KEY, _VALUE = "probe_name", "probe_key", "probe_value"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_SCHEMA = {"type": "object", "properties": {_KEY: {"type": "string"}}}
_TOOL = {"type": "function", "function": {"name": _NAME, "description": "A probe.", "parameters": _SCHEMA}}
_READ = json.JSONDecoder()
_CLOSING = re.compile(r"\s*(</[^<>|]+>)")
_PARAMETER = re.compile(rf"\s*<parameter={_KEY}>\s*{_VALUE}\s*</parameter>\s*")


@dataclasses.dataclass(frozen=True)
class ToolFormat:
  """The format of a call in the model's turn: `begin`, the call, `end`.

  Attributes:
    begin, end: the marks around a call, without white space; empty if there are none.
    arguments: the key of the arguments in a JSON call, where the function's key is "name"; else empty.
    kind: JSON, TAGGED or XML, see above.
    head: the text of a turn with one call before the function's name; empty if the name does not come first.
    middle: the text between the function's name and its arguments.
    lenient: whether a JSON call's arguments may also be a text of JSON, an empty text or null.
  """

  begin: str
  end: str
  arguments: str
  kind: str = JSON
  head: str = ""
  middle: str = ""
  lenient: bool = False

  @property
  def marked(self) -> bool:
    """Whether calls may follow text. Without marks a reply is either calls only or text only."""
    return bool(self.begin) or self.kind != JSON

  @property
  def opening(self) -> str:
    """The text with which a call begins."""
    return self.begin or ("{" if self.kind == JSON else _FUNCTION)

  @property
  def closing(self) -> str:
    """The text with which a call ends; empty if there is no mark."""
    return self.end or ("" if self.kind == JSON else _FUNCTION_END)

  def forced(self, name: str = "") -> str:
    """The beginning of a turn that must continue as a call: of this function, or of any if `name` is "".

    Raises:
      ValueError: calls of this format do not begin with the function's name.
    """
    if not self.head:
      raise ValueError("in this model's chat template a call does not begin with the function's name.")
    return self.head + name + self.middle if name else self.head


def format_of(tokenizer: Tokenizer) -> ToolFormat | None:
  """The format of calls in the tokenizer's chat template; None without a template, or if the format is unknown."""
  if not isinstance(tokenizer, Templated) or tokenizer.markers != "template":
    return None
  question = [{"role": "user", "content": "A question?"}]
  call = {"type": "function", "id": "call_1", "function": {"name": _NAME, "arguments": {_KEY: _VALUE}}}
  reply: Any = {"role": "assistant", "content": "", "tool_calls": [call]}
  render: Any = tokenizer.template
  try:
    before = render(question, open_turn=True, tools=[_TOOL])
    after = render([*question, reply], open_turn=False, tools=[_TOOL])
  except ValueError:  # the template refuses calls
    return None
  if not after.startswith(before):
    return None
  turn = after[len(before) :]
  control = tuple(getattr(tokenizer, "control", ()))
  return _in_tags(turn, control) if f"{_FUNCTION}{_NAME}>" in turn else _in_json(turn, control)


def _in_json(turn: str, control: Sequence[str]) -> ToolFormat | None:
  """The format of a turn with a call as a JSON object."""
  for start in (place for place, sign in enumerate(turn) if sign == "{"):
    try:
      value, end = _READ.raw_decode(turn, start)
    except ValueError:
      continue
    names = [name for name, one in value.items() if one == {_KEY: _VALUE}]
    if value.get("name") == _NAME and names:
      mark = _end_mark(turn[end:], control)
      if mark is None:  # the object is a part of something else, such as a list
        continue
      name, key_at = turn.index(_NAME, start), turn.index(_KEY, start)
      # {"name": "f", "arguments": {"x" …: `key_at` is at x, and the arguments begin with the brace before it
      first = turn.rindex("{", start, key_at)
      opens = (turn[:name], turn[name + len(_NAME) : first]) if name < first else ("", "")
      return ToolFormat(_begin_mark(turn[:start]), mark, names[0], JSON, *opens)
  return None


def _in_tags(turn: str, control: Sequence[str]) -> ToolFormat | None:
  """The format of a turn with a call between <function=NAME> and </function>."""
  start = turn.index(f"{_FUNCTION}{_NAME}>")
  name = start + len(_FUNCTION)
  body, closed, rest = turn[name + len(_NAME) + 1 :].partition(_FUNCTION_END)
  mark = _end_mark(rest, control)
  if not closed or mark is None:
    return None
  if _PARAMETER.fullmatch(body):
    kind, first = XML, "<"
  else:
    try:
      kind, first = TAGGED, "{"
      if json.loads(body) != {_KEY: _VALUE}:
        return None
    except ValueError:
      return None
  return ToolFormat(_begin_mark(turn[:start]), mark, "", kind, turn[:name], ">" + body[: body.index(first)])


def _begin_mark(before: str) -> str:
  words = before.split()
  return words[-1] if words else ""


def _end_mark(rest: str, control: Sequence[str]) -> str | None:
  """The mark after a call, "" for none; None if something else follows."""
  closing = _CLOSING.match(rest)
  mark = "" if closing is None else closing[1]
  for token in control:
    rest = rest.replace(token, "")
  return mark if rest.strip() == mark else None


def messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """Converts messages from the form of servers to that of templates: arguments of calls from JSON text to objects.

  Raises:
    ValueError: the arguments of a call are not a JSON object.
  """
  changed = lambda calls: dict(tool_calls=[_for_template(call) for call in calls]) if calls else {}
  return [{**message, **changed(message.get("tool_calls"))} for message in messages]


def _for_template(call: Any) -> dict[str, Any]:
  match call:
    case {"function": {"name": str(name), "arguments": str(text)}}:
      try:
        arguments = json.loads(text)
      except ValueError:
        arguments = None
      if isinstance(arguments, dict):
        return {**call, "type": "function", "function": {"name": name, "arguments": arguments}}
  raise ValueError(
    'a tool call must be {"type": "function", "function": {"name": …, "arguments": "{…}"}}, with JSON in "arguments".'
  )
