"""JSON schemas: makes them from typed Python functions, and checks a model's arguments against them."""

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_ALLOWED = "str, int, float, bool, None, Literal, list[…], dict[str, …], Any, or these joined by |"
_ARGUMENT = re.compile(r"^\s+\*?(\w+)(?: *\([^)]*\))?: *(.*)$")
_SECTION = re.compile(r"^(Args|Arguments|Returns|Raises|Yields|Examples?|Notes?): *$")
_SHOWN = 60  # most characters of a value in a message


def of_function(function: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
  """Makes a JSON schema from a function's docstring and signature.

  The description is the docstring's text before `Args:`. Lines `name: text` under `Args:` describe the arguments. An
  argument without a default is required.

  Returns:
    (description, JSON schema of the arguments).

  Raises:
    ValueError: an argument has no annotation, its type does not exist in JSON, or it is positional-only or variadic.
      The message names the function and the argument.
  """
  name = getattr(function, "__name__", str(function))
  try:
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
  except (NameError, TypeError, ValueError) as error:
    raise ValueError(f"the tool {name} has annotations that cannot be read: {error}.") from None
  description, about = _docstring(function)
  properties: dict[str, Any] = {}
  for parameter in parameters:
    where = f"the argument {parameter.name!r} of the tool {name}"
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
      raise ValueError(f"{where} cannot be given by name: use plain arguments, not *, ** or /.")
    if parameter.name not in hints:
      raise ValueError(f"{where} has no type: annotate it with {_ALLOWED}.")
    schema = _of_type(hints[parameter.name], where)
    if parameter.name in about:
      schema = {**schema, "description": about[parameter.name]}
    if parameter.default is not parameter.empty:
      try:
        schema = {**schema, "default": json.loads(json.dumps(parameter.default, allow_nan=False))}
      except (TypeError, ValueError):
        raise ValueError(f"{where} has the default {parameter.default!r:.{_SHOWN}}, which is no JSON.") from None
    properties[parameter.name] = schema
  required = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
  return description, dict(type="object", properties=properties, required=required, additionalProperties=False)


def _of_type(kind: Any, where: str) -> dict[str, Any]:
  origin, arguments = typing.get_origin(kind), typing.get_args(kind)
  if origin is typing.Annotated:  # Annotated[int, "what it is"]
    texts = [text for text in arguments[1:] if isinstance(text, str)]
    return _of_type(arguments[0], where) | (dict(description=texts[0]) if texts else {})
  if kind is Any:
    return {}
  if kind in _SIMPLE:
    return dict(type=_SIMPLE[kind])
  if origin in (typing.Union, types.UnionType):
    return dict(anyOf=[_of_type(one, where) for one in arguments])
  if origin is typing.Literal and all(type(one) in _SIMPLE for one in arguments):
    kinds = list(dict.fromkeys(_SIMPLE[type(one)] for one in arguments))
    return dict(type=kinds[0] if len(kinds) == 1 else kinds, enum=list(arguments))
  if (origin or kind) in (list, Sequence):
    return dict(type="array", **(dict(items=_of_type(arguments[0], where)) if arguments else {}))
  if (origin or kind) in (dict, Mapping) and (not arguments or arguments[0] is str):
    return dict(type="object", **(dict(additionalProperties=_of_type(arguments[1], where)) if arguments else {}))
  raise ValueError(f"{where} has the type {kind!r:.{_SHOWN}}, which a model cannot write: use {_ALLOWED}.")


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
  """(text before the first section, argument → its description under `Args:`)."""
  section, before, about, last = "", [], {}, ""
  for line in (inspect.getdoc(function) or "").splitlines():
    if match := _SECTION.match(line):
      section, last = match[1], ""
    elif not section:
      before.append(line)
    elif section in ("Args", "Arguments") and line.strip():
      if match := _ARGUMENT.match(line):
        last, about[match[1]] = match[1], match[2].strip()
      elif last:
        about[last] += " " + line.strip()
  return "\n".join(before).strip(), about


def fault(value: Any, schema: Any, where: str = "the arguments") -> str:
  """The first fault of a JSON value by a schema, as a message for the model; "" if the value is valid.

  It checks `type`, `enum`, `const`, `anyOf`, `oneOf`, `properties`, `required`, `additionalProperties` and `items`. It
  ignores other keywords: a server that uses them checks them itself.

  Args:
    value: the model's value, as `json.loads` returns it.
  """
  if not isinstance(schema, Mapping):  # true and false are schemas too
    return f"{where} must be left out" if schema is False else ""
  for word in ("anyOf", "oneOf"):
    ways = schema.get(word)
    if isinstance(ways, list) and (faults := [fault(value, way, where) for way in ways]) and all(faults):
      return "; or ".join(dict.fromkeys(faults))
  choices = schema.get("enum")
  if isinstance(choices, list | tuple) and not any(_same(value, one) for one in choices):
    return f"{where} must be one of {json.dumps(choices, ensure_ascii=False)}, not {_shown(value)}"
  if "const" in schema and not _same(value, schema["const"]):
    return f"{where} must be {json.dumps(schema['const'], ensure_ascii=False)}, not {_shown(value)}"
  kinds = schema.get("type") or ()
  kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
  if kinds and not any(_is(value, kind) for kind in kinds):
    return f"{where} must be of type {' or '.join(kinds)}, not {_shown(value)}"
  if isinstance(value, dict):
    return _fault_of_object(value, schema, where)
  if isinstance(value, list):
    faults = (fault(one, schema.get("items", {}), f"item {i} of {where}") for i, one in enumerate(value))
    return next(filter(None, faults), "")
  return ""


def fitted(value: Any, schema: Any) -> Any:
  """A valid value, with 3.0 and 1e3 as the whole numbers that the schema wants: Python functions tell them apart."""
  if not isinstance(schema, Mapping):
    return value
  for way in (*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())):
    if not fault(value, way):
      return fitted(value, way)
  kinds = schema.get("type") or ()
  is_whole = kinds == "integer" or "integer" in kinds and "number" not in kinds
  if isinstance(value, float) and value.is_integer():
    equal = [one for one in schema.get("enum") or () if _same(one, value)]
    return equal[0] if equal else int(value) if is_whole else value
  if isinstance(value, dict):
    properties, others = schema.get("properties") or {}, schema.get("additionalProperties", True)
    return {name: fitted(one, properties.get(name, others)) for name, one in value.items()}
  return [fitted(one, schema.get("items", {})) for one in value] if isinstance(value, list) else value


def _fault_of_object(value: dict[str, Any], schema: Mapping[str, Any], where: str) -> str:
  properties, others = schema.get("properties") or {}, schema.get("additionalProperties", True)
  if missing := [name for name in schema.get("required") or () if name not in value]:
    return f"{where} must have {missing[0]!r}"
  for name, one in value.items():
    if name not in properties and others is False:
      return f"{where} must not have {name!r:.{_SHOWN}}: there is {', '.join(map(repr, properties)) or 'nothing'}"
    if result := fault(one, properties.get(name, others), f"{name!r:.{_SHOWN}}"):
      return result
  return ""


def _is(value: Any, kind: str) -> bool:
  if isinstance(value, bool):  # in Python, True is an int; in JSON, true is not a number
    return kind == "boolean"
  if kind == "integer" and isinstance(value, float):
    return value.is_integer()  # JSON Schema: 3.0 is an integer
  kinds: dict[str, Any] = dict(string=str, integer=int, number=(int, float), null=type(None), array=list, object=dict)
  return isinstance(value, kinds.get(kind, ()))


def _same(value: Any, other: Any) -> bool:
  return value == other and isinstance(value, bool) == isinstance(other, bool)


def _shown(value: Any) -> str:
  text = json.dumps(value, ensure_ascii=False)
  return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
