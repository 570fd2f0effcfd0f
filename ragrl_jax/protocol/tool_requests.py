"""Parses the tools of a chat request, and the request's choice whether the model must call one."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from ragrl_jax.prompting.tool_calls import ToolFormat
from ragrl_jax.protocol.http_answer import Refused

_NAME = re.compile(r"[\w.-]{1,128}")


@dataclasses.dataclass(frozen=True)
class Tools:
  """The tools of a request; see `requests.Asked` for `functions`, `ends` and `forced`.

  Attributes:
    shown: the tools in the template's form; empty if there are none.
  """

  shown: tuple[Any, ...] = ()
  functions: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
  ends: tuple[str, ...] = ()
  forced: str = ""


NONE = Tools()


def read(said: Mapping[str, Any], form: ToolFormat | None) -> Tools:
  """Parses `tools`, `tool_choice` and `parallel_tool_calls`.

  To force a call, the prompt ends with the beginning of a call in the template's format. The rest is sampled.

  Args:
    said: the request.
    form: format of the chat template's tool calls; None if the template has none.

  Raises:
    Refused: one of the fields has a value that is not supported.
  """
  tools, choice = said.get("tools"), said.get("tool_choice", "auto")
  named = lambda one: isinstance(one, dict) and isinstance(one.get("function"), dict) and _is_name(one["function"])
  if tools and not (isinstance(tools, list) and all(map(named, tools))):
    message = 'tools must be a list of {"type": "function", "function": {"name": …, "parameters": {…}}}.'
    raise Refused(400, message, param="tools")
  functions = {one["function"]["name"]: _schema(one["function"]) for one in tools or ()}
  name = _chosen(choice, functions)
  if not tools or choice == "none":
    return NONE
  if form is None:
    raise Refused(400, "this model's chat template has no known format of tool calls: leave out tools.", param="tools")
  single = name or said.get("parallel_tool_calls") is False
  ends = (form.closing,) if single and form.closing else ()
  if name is None:
    return Tools(tuple(tools), functions, ends)
  name = name or (next(iter(functions)) if len(functions) == 1 else "")
  try:
    return Tools(tuple(tools), functions, ends, form.forced(name))
  except ValueError as error:
    raise Refused(400, f"tool_choice: {error} So no call can be forced.", param="tool_choice") from None


def _chosen(choice: Any, functions: Mapping[str, Any]) -> str | None:
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
