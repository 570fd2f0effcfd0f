"""Finds tool calls in what a model says, strictly: what is no call in the template's format stays text."""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from ragrl_jax.prompting.tool_calls import JSON, TAGGED, ToolFormat

_READ = json.JSONDecoder()
_FUNCTION = re.compile(r"\s*<function=([^<>\s]+)>(.*?)</function>\s*", re.DOTALL)
# A value ends where another parameter, or the end of the call, follows. One line break on each side is the format's.
_PARAMETER = re.compile(r"\s*<parameter=([^<>\s]+)>\n?(.*?)\n?</parameter>(?=\s*(?:<parameter=|\Z))\s*", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class ToolCall:
  """One call: the function's name, and its arguments as JSON."""

  name: str
  arguments: str


def calls(
  text: str, form: ToolFormat, functions: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[str, list[ToolCall]]:
  """(the text before the first call, the calls). What is no call in this format is text, and no call is made of it.

  Args:
    text: what the model has said in its turn.
    form: of the calls.
    functions: name → JSON schema of the parameters. XML calls do not say which values are texts: the schema does.
  """
  if not form.marked:
    found = _objects(text, form)
    return (text, []) if found is None else ("", found)
  inside = r"(.*?)" + (re.escape(form.end) if form.end else r"\Z")
  pattern = re.escape(form.begin) + inside if form.begin else r"(<function=.*?</function>)"
  first, made = None, []
  for one in re.finditer(pattern, text, re.DOTALL):
    found = _objects(one[1], form) if form.kind == JSON else _tags(one[1], form, functions or {})
    if found is None:
      return text, []
    first = one.start() if first is None else first
    made += found
  return (text, []) if first is None else (text[:first].rstrip(), made)


def _objects(text: str, form: ToolFormat) -> list[ToolCall] | None:
  """The calls of a text that holds nothing else; None if it holds anything else."""
  at, made = 0, []
  while rest := text[at:].strip():
    at = text.index(rest[0], at)
    try:
      value, at = _READ.raw_decode(text, at)
    except (ValueError, RecursionError):
      return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
      return None
    arguments = value.get(form.arguments, {})
    if not isinstance(arguments, dict):
      return None
    made.append(ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False)))
    while at < len(text) and text[at] in "; \n\t":  # Llama 3 puts a semicolon between calls
      at += 1
  return made or None


def _tags(text: str, form: ToolFormat, functions: Mapping[str, Mapping[str, Any]]) -> list[ToolCall] | None:
  """The calls of a text that holds nothing else; None if it holds anything else."""
  at, made = 0, []
  while at < len(text):
    if (one := _FUNCTION.match(text, at)) is None:
      return None
    arguments = _json(one[2]) if form.kind == TAGGED else _parameters(one[2], functions.get(one[1], {}))
    if not isinstance(arguments, dict):
      return None
    made.append(ToolCall(one[1], json.dumps(arguments, ensure_ascii=False)))
    at = one.end()
  return made or None


def _parameters(body: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
  """The arguments of an XML call; None if the body holds anything else, or one of them twice."""
  known = schema.get("properties")
  known, at, found = known if isinstance(known, Mapping) else {}, 0, {}
  while body[at:].strip():
    if (one := _PARAMETER.match(body, at)) is None or one[1] in found:
      return None
    found[one[1]] = _value(one[2], known.get(one[1]))
    at = one.end()
  return found


def _value(text: str, schema: Any) -> Any:
  """A parameter's value: the text itself, unless the schema names other types; then the JSON that it is, if it is."""
  kinds = _kinds(schema)
  if "null" in kinds and text == "null":
    return None
  if "string" in kinds or not kinds:
    return text
  if "boolean" in kinds and text in ("True", "False"):  # some templates write Python's names
    return text == "True"
  value = _json(text)
  return text if value is None else value


def _kinds(schema: Any) -> set[str]:
  """The JSON types that a schema names, its alternatives' included."""
  if not isinstance(schema, Mapping):
    return set()
  kinds = schema.get("type", ())
  found = {kinds} if isinstance(kinds, str) else {kind for kind in kinds if isinstance(kind, str)}
  for name in ("anyOf", "oneOf"):
    if isinstance(some := schema.get(name), list):
      found |= {kind for one in some for kind in _kinds(one)}
  return found


def _json(text: str) -> Any:
  """The value of a JSON text; None if it is none."""
  try:
    return json.loads(text)
  except (ValueError, RecursionError):
    return None
