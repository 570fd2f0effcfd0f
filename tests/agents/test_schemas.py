import json

import pytest
import tool_functions

from ragrl_jax.agents.toolbox import schemas, tool

SIMPLE = {
  "text": dict(type="string"), "number": dict(type="number"), "sure": dict(type="boolean"),
  "mode": dict(type=["string", "integer"], enum=["fast", "slow", 3]),
  "names": dict(type="array", items=dict(type="string")),
  "scores": dict(type="object", additionalProperties=dict(type="array", items=dict(type="integer"))),
  "many": dict(type="array", description="any of them"),
  "size": dict(anyOf=[dict(type="integer"), dict(type="null")], default=None), "what": dict(default=None),
  "nothing": dict(type="null", default=None),
  "either": dict(anyOf=[dict(type="string"), dict(type="array", items=dict(type="integer"))], default="x"),
}  # fmt: skip
GIVEN = dict(text="a", number=2, sure=True, mode="fast", names=["b"], scores={"c": [1]}, many=[None, 1])


def test_every_type_has_its_schema_and_the_docstring_describes_the_arguments():
  description, schema = schemas.of_function(tool_functions.typed)
  required = ["text", "number", "sure", "mode", "names", "scores", "many"]
  assert description == "Every type that JSON has."
  assert schema == dict(type="object", properties=SIMPLE, required=required, additionalProperties=False)
  json.dumps(schema)  # templates write it
  made = tool.of_function(tool_functions.add)
  a = dict(type="integer", description="the first one.")
  b = dict(type="integer", description="the second one, which has a default.", default=1)
  parameters = dict(type="object", properties=dict(a=a, b=b), required=["a"], additionalProperties=False)
  function = dict(name="add", description="Adds two numbers.", parameters=parameters)
  assert made.shown == dict(type="function", function=function)


@pytest.mark.parametrize("function, says", [
  (tool_functions.untyped, "the argument 'query' of the tool untyped has no type: annotate it with str, int"),
  (tool_functions.variadic, "the argument 'names' of the tool variadic cannot be given by name"),
  (tool_functions.foreign, "the argument 'when' of the tool foreign has the type <class 'threading.Event'>"),
  (tool_functions.defaulted, "the argument 'when' of the tool defaulted has the default .*, which is no JSON"),
  (tool_functions.unknown, "the tool unknown has annotations that cannot be read: name 'Nowhere' is not defined"),
  (lambda: 1, "a tool has the name '<lambda>': it must be of letters"),
])  # fmt: skip
def test_functions_without_a_schema_are_refused_by_name(function, says):
  with pytest.raises(ValueError, match=says):
    tool.of_function(function)


@pytest.mark.parametrize("change, says", [
  ({}, ""), (dict(number=2.5, mode=3, names=[], scores={}, many=[], size=4, what={"x": 1}, either=[1]), ""),
  (dict(text=3), "'text' must be of type string, not 3"), (dict(text=None), "'text' must be of type string, not null"),
  (dict(number="2"), "'number' must be of type number, not \"2\""),
  (dict(number=True), "'number' must be of type number, not true"),
  (dict(sure=1), "'sure' must be of type boolean, not 1"),
  (dict(mode="warp"), '\'mode\' must be one of ["fast", "slow", 3], not "warp"'),
  (dict(mode=True), '\'mode\' must be one of ["fast", "slow", 3], not true'),
  (dict(names="b"), "'names' must be of type array, not \"b\""),
  (dict(names=["b", 1]), "item 1 of 'names' must be of type string, not 1"),
  (dict(scores={"c": [1.5]}), "item 0 of 'c' must be of type integer, not 1.5"),
  (dict(size="4"), "'size' must be of type integer, not \"4\"; or 'size' must be of type null, not \"4\""),
  (dict(nothing=0), "'nothing' must be of type null, not 0"),
  (dict(either=1.0), "'either' must be of type string, not 1.0; or 'either' must be of type array, not 1.0"),
  (dict(query="x"), "the arguments must not have 'query': there is 'text', 'number', 'sure', 'mode', 'names'"),
  (dict(text="x" * 90, sure="y" * 90), f"'sure' must be of type boolean, not \"{'y' * 59}…"),
])  # fmt: skip
def test_what_a_model_wrote_is_checked(change, says):
  _, schema = schemas.of_function(tool_functions.typed)
  found = schemas.fault(GIVEN | change, schema)
  assert found.startswith(says) and bool(found) == bool(says), found


def test_missing_arguments_what_is_no_object_and_servers_schemas_that_hold_more_than_is_checked():
  _, schema = schemas.of_function(tool_functions.add)
  assert schemas.fault({}, schema) == "the arguments must have 'a'"
  assert schemas.fault([1], schema) == "the arguments must be of type object, not [1]"
  fault = lambda value, **schema: schemas.fault(dict(x=value), dict(properties=dict(x=schema)))
  assert fault(3, minimum=5) == "" and fault("y", **{"$ref": "#/$defs/Y"}) == "" and fault(3, type="weight") != ""
  assert fault(3, const=4) == "'x' must be 4, not 3" and fault(4, const=4) == ""
  assert fault(3, oneOf=[dict(type="string"), dict(type="integer")]) == ""
  assert schemas.fault(dict(x=1), dict(properties=dict(x=False))) == "'x' must be left out"
  assert schemas.fault(dict(x=1), dict(properties=dict(x=True))) == ""
  assert fault(3, type=None, enum=None) == "" and schemas.fault(dict(x=1), dict(required=None, properties=None)) == ""
  assert schemas.fitted(dict(x=1.0), dict(properties=None)) == dict(x=1.0)
  assert fault(3.0, type="integer") == "" and fault(3.5, type="integer") != "" and fault(True, type="integer") != ""


def test_whole_numbers_fit_integers():
  _, schema = schemas.of_function(tool_functions.typed)
  given = GIVEN | dict(number=2.0, mode=3.0, scores={"c": [1e3, 2]}, size=4.0, what={"x": 1.0})
  assert not schemas.fault(given, schema)
  found = schemas.fitted(given, schema)
  numbers = found["number"], found["mode"], *found["scores"]["c"], found["size"], found["what"]["x"]
  assert found == given and [type(one) for one in numbers] == [float, int, int, int, int, float]
  assert schemas.fitted({"x": 1.0}, True) == {"x": 1.0} and schemas.fitted(2.0, dict(type=["integer", "number"])) == 2.0
