"""Parses the tool calls of a model's turn, strictly: text that is not a call in the template's format stays text."""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from ragrl_jax.agents.calls.formats import JSON, TAGGED, ToolFormat
from ragrl_jax.core.text.forms import well_formed
from ragrl_jax.protocol.requests import ToolCall

_FUNCTION = re.compile(r"\s*<function=([^<>\s]+)>(.*?)</function>\s*", re.DOTALL)
# A value ends where another parameter, or the end of the call, follows. One line break on each side is the format's.
_PARAMETER = re.compile(r"\s*<parameter=([^<>\s]+)>\n?(.*?)\n?</parameter>(?=\s*(?:<parameter=|\Z))\s*", re.DOTALL)


class Malformed(ValueError):
  """A turn begins or ends like a call, but is not a call in the template's format. The message gives the reason."""


def calls(text: str, form: ToolFormat, functions: Mapping[str, Any] | None = None) -> tuple[str, list[ToolCall]]:
  """(the text before the first call, the calls). If a call is malformed, all is text, and there are no calls.

  A call inside a thought is a draft, and part of the text. Clients get what this finds. So arguments that are a JSON
  object as text, an empty text or null are accepted, too; for `read` they are an error of the model.

  Args:
    functions: name → JSON schema of the parameters. XML calls do not mark which values are strings; the schema does.
  """
  start, end = outside(text)
  try:
    before, result, _ = read(text[start:end], dataclasses.replace(form, lenient=True), functions)
  except Malformed:
    return text, []
  return ((text[:start] + before).rstrip(), result) if result else (text, [])


def outside(text: str) -> tuple[int, int]:
  """Where a turn's text without its thoughts begins and ends: after the last `</think>`, before a `<think>` that is
  never closed.
  """
  start = text.rfind("</think>")
  start = 0 if start < 0 else start + len("</think>")
  opened = text.find("<think>", start)
  return start, len(text) if opened < 0 else opened


def read(text: str, form: ToolFormat, functions: Mapping[str, Any] | None = None) -> tuple[str, list[ToolCall], str]:
  """(the text before the first call, the calls, the text after the last one). Arguments as for `calls`.

  Raises:
    Malformed: a call cannot be parsed, or there is text between two calls.
  """
  if not form.marked:
    if not text.lstrip().startswith("{"):
      return text, [], ""
    return "", *_objects(text, form)
  result, first, at = [], None, 0
  while (start := text.find(form.opening, at)) >= 0:
    if result and text[at:start].strip():
      raise Malformed("there is text between two calls")
    calls_here, at = _one(text, start, form, functions or {})
    first = start if first is None else first
    result += calls_here
  before, after = text[:first], text[at:] if result else ""
  if form.closing and form.closing in before + after:
    raise Malformed(f"there is {form.closing} without {form.opening} before it")
  return before, result, after


def _one(text: str, start: int, form: ToolFormat, functions: Mapping[str, Any]) -> tuple[list[ToolCall], int]:
  """(the calls within the marks that begin at `start`, usually one; where they end)."""
  inside = start + len(form.begin)
  if form.kind == JSON:
    objects, rest = _objects(text[inside:], form)
    end = len(text) - len(rest)
    if not text.startswith(form.end, end):
      cut = not rest
      raise Malformed(f"the call does not end with {form.end}" + (": it was cut off" if cut else " after its object"))
    return objects, end + len(form.end)
  end = text.find(form.closing, inside)
  if end < 0:
    raise Malformed(f"the call does not end with {form.closing}: it was cut off")
  # <function=f>…</function> without marks around it: the closing tag is part of the call
  body = text[inside:end] if form.begin else text[start : end + len(form.closing)]
  return _tags(body, form, functions), end + len(form.closing)


def _objects(text: str, form: ToolFormat) -> tuple[list[ToolCall], str]:
  """(the calls at the beginning of a text, the text after them without leading white space)."""
  at, result = 0, []
  while (rest := text[at:].lstrip()) and (rest[0] == "{" or not result):
    at = len(text) - len(rest)
    value, at = _decoded(text, at)
    result.append(_call(value, form))
    at = len(text) - len(text[at:].lstrip("; \n\t"))  # Llama 3 puts a semicolon between calls
  if not result:
    raise Malformed("there is no JSON object in the call")
  if not form.marked and text[at:]:
    raise Malformed("there is text after the call")
  return result, text[at:]


def _decoded(text: str, at: int) -> tuple[Any, int]:
  try:
    return _READ.raw_decode(text, at)
  except json.JSONDecodeError as error:
    raise Malformed(f"the call is no JSON: {error.msg} at its character {error.pos - at}") from None
  except RecursionError:
    raise Malformed("the call is no JSON: it is nested too deeply") from None
  except ValueError as error:  # from the hooks below, or for a number with thousands of digits
    raise Malformed(f"the call is no JSON: {str(error)[:80]}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  result = dict(pairs)
  if len(result) < len(pairs):
    raise ValueError("a name stands in an object twice")
  return result


def _no_constant(name: str) -> Any:
  raise ValueError(f"{name} is no number")


_READ = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)


def _call(value: Any, form: ToolFormat) -> ToolCall:
  """The call of a JSON value. Llama 3 also writes "type": "function". Arguments may be missing."""
  if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
    raise Malformed('the call has no "name" with the function\'s name')
  others = value.keys() - {"name", form.arguments}
  if others - {"type"} or value.get("type", "function") != "function":
    raise Malformed(f'the call has "{min(others)[:40]}": it must have "name" and "{form.arguments}" alone')
  arguments = value.get(form.arguments, {})
  if form.lenient and not isinstance(arguments, dict):
    arguments = {} if arguments in ("", None) else _json(arguments) if isinstance(arguments, str) else arguments
  if not isinstance(arguments, dict):
    raise Malformed(f'"{form.arguments}" must be an object')
  return _make(value["name"], arguments)


def _make(name: str, arguments: dict[str, Any]) -> ToolCall:
  # JSON may contain half a surrogate pair, which UTF-8 cannot encode.
  try:
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
  except ValueError:  # Python's parser reads 1e999 as infinity
    raise Malformed("a number in the arguments is not finite") from None
  except RecursionError:  # writing nests deeper than reading
    raise Malformed("the arguments are nested too deeply") from None
  return ToolCall(well_formed(name), well_formed(text))


def _tags(text: str, form: ToolFormat, functions: Mapping[str, Any]) -> list[ToolCall]:
  """The calls of a text that contains only calls."""
  at, result = 0, []
  while at < len(text) or not result:
    if (match := _FUNCTION.match(text, at)) is None:
      raise Malformed("the call must be <function=NAME>…</function> and nothing else")
    if form.kind == TAGGED:
      arguments, end = _decoded(match[2].strip() or " ", 0)
      if not isinstance(arguments, dict) or match[2].strip()[end:].strip():
        raise Malformed("between <function=NAME> and </function> there must be one JSON object")
    else:
      arguments = _parameters(match[2], functions.get(match[1]))
    result.append(_make(match[1], arguments))
    at = match.end()
  return result


def _parameters(body: str, schema: Any) -> dict[str, Any]:
  """The arguments of an XML call."""
  properties = schema.get("properties") if isinstance(schema, Mapping) else None
  properties, at, result = properties if isinstance(properties, Mapping) else {}, 0, {}
  while body[at:].strip():
    if (match := _PARAMETER.match(body, at)) is None:
      raise Malformed("the arguments must be <parameter=NAME>…</parameter> and nothing else")
    if match[1] in result:
      raise Malformed(f"<parameter={match[1][:40]}> stands in the call twice")
    result[match[1]] = _value(match[2], _kinds(properties.get(match[1]), schema, set()))
    at = match.end()
  return result


def _value(text: str, kinds: set[str]) -> Any:
  """A parameter's value: the text, or, if its types exclude strings and the text is JSON, the JSON value."""
  if "null" in kinds and text == "null":
    return None
  if "string" in kinds or not kinds:
    return text
  if "boolean" in kinds and text in ("True", "False"):  # some templates write Python's names
    return text == "True"
  value = _json(text)
  return text if value is None else value


def _kinds(schema: Any, root: Any, seen: set[str]) -> set[str]:
  """The JSON types of a schema, those of its alternatives and of the definitions that it refers to included.

  Args:
    root: the schema of all parameters, which has the definitions: "#/$defs/Place" is its ["$defs"]["Place"].
    seen: the references that have been followed, since definitions may refer to each other.
  """
  if not isinstance(schema, Mapping):
    return set()
  kinds = schema.get("type", ())
  result = {kinds} if isinstance(kinds, str) else {kind for kind in kinds if isinstance(kind, str)}
  parts = [one for name in ("anyOf", "oneOf", "allOf") if isinstance(some := schema.get(name), list) for one in some]
  if isinstance(name := schema.get("$ref"), str) and name.startswith("#/") and name not in seen:
    seen.add(name)
    at = root
    for key in name.split("/")[1:]:
      at = at.get(key) if isinstance(at, Mapping) else None
    parts.append(at)
  return result.union(*(_kinds(one, root, seen) for one in parts))


def _json(text: str) -> Any:
  """The value of a JSON text; None if the text is not JSON."""
  try:
    return json.loads(text, parse_constant=_no_constant)
  except (ValueError, RecursionError):
    return None
