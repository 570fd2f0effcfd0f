"""Evaluates the tables' formulas, and a shell's arithmetic. Only the operations below exist; nothing is executed."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

THEIRS = "Add Sub Mult Div FloorDiv Mod Pow USub Not Eq NotEq Lt LtE Gt GtE Is IsNot"
OPERATIONS = "add sub mul truediv floordiv mod pow neg not_ eq ne lt le gt ge is_ is_not"
OPERATORS: dict[type, Callable[..., Any]] = {
  getattr(ast, theirs): getattr(operator, ours) for theirs, ours in zip(THEIRS.split(), OPERATIONS.split())
}
OPERATORS |= {ast.In: lambda x, many: x in many, ast.NotIn: lambda x, many: x not in many}
CALLS: dict[str, Callable[..., Any]] = dict(bool=bool, ceil=math.ceil, int=int, float=float, min=min, max=max, str=str)


def evaluate(text: str, get: Callable[[str], Any], calls: Mapping[str, Callable[..., Any]] = CALLS) -> Any:
  """The value of a formula.

  Args:
    text: a Python expression of the operations above, conditions, lists, dicts and `calls`.
    get: a dotted name → its value. It is called only for names that the value depends on.

  Raises:
    ValueError: the text is no such formula.
    KeyError: a dict of the formula has no entry for a value.
    TypeError, ZeroDivisionError: as in Python.
  """
  try:
    return _of(ast.parse(text.strip(), mode="eval").body, get, calls)
  except SyntaxError as error:
    raise ValueError(f"{text!r} is no formula.") from error


def _of(node: ast.expr, get: Callable[[str], Any], calls: Mapping[str, Callable[..., Any]]) -> Any:
  of = lambda inner: _of(inner, get, calls)
  match node:
    case ast.Constant(value):
      return value
    case ast.Name() | ast.Attribute():
      return get(ast.unparse(node))
    case ast.BinOp(left, operation, right) if type(operation) in OPERATORS:
      return OPERATORS[type(operation)](of(left), of(right))
    case ast.UnaryOp(operation, operand) if type(operation) in OPERATORS:
      return OPERATORS[type(operation)](of(operand))
    case ast.BoolOp(operation, values):
      result = of(values[0])
      for value in values[1:]:
        if bool(result) == isinstance(operation, ast.Or):
          break
        result = of(value)
      return result
    case ast.Compare(left, [operation], [right]):
      return OPERATORS[type(operation)](of(left), of(right))
    case ast.IfExp(test, body, otherwise):
      return of(body) if of(test) else of(otherwise)
    case ast.List(items) | ast.Tuple(items):
      return [of(item) for item in items]
    case ast.Dict(keys, values):
      return {of(key): of(value) for key, value in zip(keys, values) if key is not None}
    case ast.Subscript(value, at):
      return of(value)[of(at)]
    case ast.Call(ast.Name(name), arguments) if name in calls:
      return calls[name](*map(of, arguments))
  raise ValueError(f"{ast.unparse(node)!r} is no formula.")
