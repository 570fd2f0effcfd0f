"""Tools of requests to an OpenAI-compatible server, and calls in its replies, for one chat template."""

import re
from collections.abc import Mapping
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

  messages = staticmethod(formats.messages)

  def __init__(self, form: ToolFormat):
    self._form = form

  def tools(self, fields: Mapping[str, Any]) -> Tools:
    """Parses `tools`, `tool_choice` and `parallel_tool_calls` of a request.

    To force a call, the prompt ends with the beginning of a call in the template's format. The rest is sampled.

    Raises:
      Refused: one of the fields has a value that is not supported.
    """
    form, tools, choice = self._form, fields.get("tools"), fields.get("tool_choice", "auto")
    if tools and not (isinstance(tools, list) and all(map(_is_named, tools))):
      message = 'tools must be a list of {"type": "function", "function": {"name": …, "parameters": {…}}}.'
      raise Refused(400, message, param="tools")
    functions = {one["function"]["name"]: one["function"].get("parameters") for one in tools or ()}
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
    return Tools(tuple(tools), ends, forced, self._may_begin, lambda text: call_texts.calls(text, form, functions))

  def _may_begin(self, text: str) -> int:
    """Position where a call begins or may begin, or where the white space before it begins. No call is in a thought."""
    start, end = call_texts.outside(text)
    tail, thinks, opening = text[start:end], end < len(text), self._form.opening
    if not self._form.marked:
      return start if tail.lstrip().startswith(opening) or not (tail.strip() or thinks) else len(text)
    place = tail.find(opening)
    if place < 0:
      if thinks:
        return len(text)
      most = min(len(opening) - 1, len(tail))
      place = len(tail) - next((size for size in range(most, 0, -1) if opening.startswith(tail[-size:])), 0)
    return len(text[: start + place].rstrip())


def _forced_name(choice: Any, functions: Mapping[str, Any]) -> str | None:
  """The name of the function that the model must call, "" for any function, or None if it need not call one."""
  match choice:
    case "auto" | "none":
      return None
    case "required" if functions:
      return ""
    case {"function": {"name": str(name)}} if name in functions:
      return name
    case "required":
      message = "tool_choice is 'required', but there are no tools."
    case {"function": {"name": str(name)}}:
      message = f"tool_choice names the function {name!r:.80}, which tools does not have."
    case _:
      message = 'tool_choice must be \'auto\', \'none\', \'required\' or {"type": "function", "function": {"name": …}}.'
  raise Refused(400, message, param="tool_choice")


def _is_named(tool: Any) -> bool:
  match tool:
    case {"function": {"name": str(name)}}:
      return _NAME.fullmatch(name) is not None
  return False
