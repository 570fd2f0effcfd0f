"""Tools of requests to an OpenAI-compatible server, and calls in its replies, for one chat template."""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.agents.calls import call_texts, formats
from ragrl_jax.agents.calls.formats import ToolFormat
from ragrl_jax.prompting.tokenizer import Tokenizer
from ragrl_jax.protocol.http_answer import Refused
from ragrl_jax.protocol.requests import Tools

_NAME = re.compile(r"[\w.-]{1,128}")


def reader(tokenizer: Tokenizer) -> "Reader | None":
  """Reads tools and calls for this tokenizer; None without a template, or if the format of its calls is unknown."""
  form = formats.format_of(tokenizer)
  return None if form is None else Reader(form)


class Reader:
  """Reads tools and calls of requests (`protocol.requests.ToolReader`). `form`: the format of the template's calls."""

  def __init__(self, form: ToolFormat):
    self._form = form

  def tools(self, fields: Mapping[str, Any]) -> Tools:
    """Parses `tools`, `tool_choice` and `parallel_tool_calls` of a request.

    To force a call, the prompt ends with the beginning of a call in the template's format. The rest is sampled.

    Raises:
      Refused: one of the fields has a value that is not supported.
    """
    form, tools, choice = self._form, fields.get("tools"), fields.get("tool_choice", "auto")
    named = lambda one: isinstance(one, dict) and isinstance(one.get("function"), dict) and _is_name(one["function"])
    if tools and not (isinstance(tools, list) and all(map(named, tools))):
      message = 'tools must be a list of {"type": "function", "function": {"name": …, "parameters": {…}}}.'
      raise Refused(400, message, param="tools")
    functions = {one["function"]["name"]: _schema(one["function"]) for one in tools or ()}
    name = _forced_name(choice, functions)
    if not tools or choice == "none":
      return Tools()
    single = name or fields.get("parallel_tool_calls") is False
    forced = ""
    if name is not None:
      try:
        forced = form.forced(name or (next(iter(functions)) if len(functions) == 1 else ""))
      except ValueError as error:
        raise Refused(400, f"tool_choice: {error} So no call can be forced.", param="tool_choice") from None
    ends = (form.closing,) if single and form.closing else ()
    begin = functools.partial(_may_begin, form=form)
    return Tools(tuple(tools), ends, forced, begin, lambda text: call_texts.calls(text, form, functions))

  def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """See `formats.messages`."""
    return formats.messages(messages)


def _may_begin(text: str, form: ToolFormat) -> int:
  """Position where a call begins or may begin, or where the white space before it begins. No call is in a thought."""
  start, end = call_texts.outside(text)
  tail, thinks = text[start:end], end < len(text)
  if not form.marked:
    if tail.lstrip().startswith(form.opening) or not (tail.strip() or thinks):
      return start
    return len(text)
  place = tail.find(form.opening)
  if place < 0:
    if thinks:
      return len(text)
    most = min(len(form.opening) - 1, len(tail))
    size = next((length for length in range(most, 0, -1) if form.opening.startswith(tail[-length:])), 0)
    place = len(tail) - size
  return len(text[: start + place].rstrip())


def _forced_name(choice: Any, functions: Mapping[str, Any]) -> str | None:
  """The name of the function that the model must call, "" for any function, or None if it need not call one."""
  if choice in ("auto", "none"):
    return None
  name = ""
  if choice != "required":
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
      message = 'tool_choice must be \'auto\', \'none\', \'required\' or {"type": "function", "function": {"name": …}}.'
      raise Refused(400, message, param="tool_choice")
  if name not in functions if name else not functions:
    has = (
      f"names the function {name!r:.80}, which tools does not have" if name else "is 'required', but there are no tools"
    )
    raise Refused(400, f"tool_choice {has}.", param="tool_choice")
  return name


def _is_name(function: Mapping[str, Any]) -> bool:
  return isinstance(function.get("name"), str) and _NAME.fullmatch(function["name"]) is not None


def _schema(function: Mapping[str, Any]) -> Mapping[str, Any]:
  schema = function.get("parameters")
  return schema if isinstance(schema, dict) else {}
