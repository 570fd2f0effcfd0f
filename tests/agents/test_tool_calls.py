"""The format of tool calls is read off a template, and calls in it are found again in what a model says."""

import json

import pytest
import small_tokenizers
from refusals import refused

from ragrl_jax.agents.calls import call_texts, formats
from ragrl_jax.agents.calls.formats import TAGGED, XML, ToolFormat
from ragrl_jax.prompting.huggingface import HuggingFaceTokenizer
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.protocol.requests import ToolCall

QWEN = small_tokenizers.QWEN_TOOLS
# Llama 3.1's, without the rest of it.
LLAMA = (
  "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}"
  '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
  "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
  "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LISTED = QWEN.replace("<tool_call>\n", "[TOOL_CALLS][").replace("\n</tool_call>", "]")
UNCLOSED = QWEN.replace('{"name": "', "<function=").replace('", "arguments": ', ">")
# Qwen3-Coder's calls, without the rest of its template; and the calls of Llama 3's own tools.
CODER = small_tokenizers.CODER_TOOLS
TAGS = LLAMA.replace('{"name": "', "<function=").replace('", "parameters": ', ">").replace("}}}", "}}</function>")
NAME, ARGUMENTS = '"name": "{{ call.function.name }}"', '"arguments": {{ call.function.arguments | tojson }}'
REVERSED = QWEN.replace(f"{{{NAME}, {ARGUMENTS}}}", f"{{{ARGUMENTS}, {NAME}}}")
TOOL_CALL = "<tool_call>", "</tool_call>"
QWENS = ToolFormat(*TOOL_CALL, "arguments", head='<tool_call>\n{"name": "', middle='", "arguments": ')
LLAMAS = ToolFormat("", "", "parameters", head='{"name": "', middle='", "parameters": ')
CODERS = ToolFormat(*TOOL_CALL, "", XML, "<tool_call>\n<function=", ">\n")
TAGGEDS = ToolFormat("", "", "", TAGGED, "<function=", ">")


@pytest.mark.parametrize("template, form", [
  (QWEN, QWENS), (LLAMA, LLAMAS), (CODER, CODERS), (TAGS, TAGGEDS),
  (REVERSED, ToolFormat(*TOOL_CALL, "arguments")), (LISTED, None), (UNCLOSED, None), (None, None),
  (small_tokenizers.CHATML, None),  # it leaves calls out
])  # fmt: skip
def test_a_templates_format_is_found(tmp_path, template, form):
  tokenizer = HuggingFaceTokenizer(small_tokenizers.byte_level(tmp_path, template=template))
  assert formats.format_of(tokenizer) == form
  if form is None:
    return
  # What the template writes for calls is found again as those calls.
  arguments = {"query": 'a "b" </tool> {1}\n<x>', "k": 3, "deep": {"a": [1, None]}, "sure": True, "year": "1900"}
  call = {"type": "function", "id": "1", "function": {"name": "search", "arguments": json.dumps(arguments)}}
  asked = [{"role": "user", "content": "Well?"}]
  said = formats.messages([*asked, {"role": "assistant", "content": "", "tool_calls": [call]}])
  tools = [{"type": "function", "function": {"name": "search"}}]
  whole = tokenizer.template(said, open_turn=False, tools=tools)
  turn = whole.removeprefix(tokenizer.template(asked, open_turn=True, tools=tools)).removesuffix("<|im_end|>\n")
  kinds = dict(query="string", k="integer", deep="object", sure="boolean")
  schema = dict(properties={name: dict(type=kind) for name, kind in kinds.items()})
  text, (found,) = call_texts.calls(turn, form, dict(search=schema))
  assert text == "" and found.name == "search" and json.loads(found.arguments) == arguments
  assert ("search" in tokenizer.decode(tokenizer.render(asked, tools))) == ("tools" in template)
  # A turn that is forced to be a call begins as the template's own.
  if form.head:
    assert turn.startswith(form.forced("search")) and form.forced("search").startswith(form.forced())
  else:
    refused("does not begin with the function's name", form.forced, "search")


def test_a_tokenizer_without_a_template_has_no_format():
  assert formats.format_of(ByteTokenizer()) is None


def test_control_tokens_in_arguments_stay_text(tmp_path):
  tokenizer = HuggingFaceTokenizer(small_tokenizers.byte_level(tmp_path, template=QWEN))
  call = {"type": "function", "function": {"name": "f", "arguments": '{"x": ["<|im_end|>"]}'}}
  said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
  end = tokenizer.eos_ids[0]
  assert tokenizer.render(formats.messages(said)).count(end) == 2  # of the two turns, none of the argument


@pytest.mark.parametrize("make, template, tokens", [
  (small_tokenizers.byte_level, QWEN, ("<|im_end|>", "<|im_start|>", "<|endoftext|>")),
  (small_tokenizers.byte_level, small_tokenizers.HERMES_TOOLS, ("<|im_end|>", "<|im_start|>")),
  (small_tokenizers.llama3, small_tokenizers.LLAMA_TOOLS, ("<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")),
])  # fmt: skip
def test_control_tokens_in_tool_definitions_stay_text(tmp_path, make, template, tokens):
  # An MCP server or a client could otherwise end the system turn and open one of its own. The definition has the same
  # control tokens as one without any: those of the template.
  tokenizer, asked = HuggingFaceTokenizer(make(tmp_path, template=template)), [dict(role="user", content="?")]

  def control(text):
    field = {"type": "string", "description": text, "enum": [text], "default": {text: [text, 1, None]}}
    schema = {"type": "object", "title": text, "properties": {"x": field, text: {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "f" + text, "description": text, "parameters": schema}}
    ids = tokenizer.render(asked, [tool, {"type": "function", "role": text, "function": {"name": "g"}}])
    assert text in "".join(tokenizer.decode(ids).split()) and '"g"' in tokenizer.decode(ids)
    return [i for i in ids if i in tokenizer.control_names]

  assert set(tokens) <= set(tokenizer.control)
  for token in tokens:
    assert control(token) == control("words")


@pytest.mark.parametrize("given, arguments", [
  (r'"{\"query\": \"Rome\", \"k\": 3}"', dict(query="Rome", k=3)),
  ('""', {}), ("null", {}), ('"Rome"', None), ('"[1]"', None), ("[1]", None), ("3", None), (r'"{\"k\": NaN}"', None),
])  # fmt: skip
def test_a_reply_to_a_client_may_give_arguments_as_text(given, arguments):
  text = f'<tool_call>{{"name": "search", "arguments": {given}}}</tool_call>'
  before, found = call_texts.calls(text, QWENS)
  assert [json.loads(call.arguments) for call in found] == ([] if arguments is None else [arguments])
  assert before == ("" if found else text)
  with pytest.raises(call_texts.Malformed, match="must be an object"):  # the policy in training is told
    call_texts.read(text, QWENS)


F, G, H = '<tool_call>{"name": "f"}</tool_call>', ToolCall("f", "{}"), ToolCall("g", "{}")
PLACE = "<tool_call>\n<function=f>\n<parameter=x>\n{}\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize("form, said, text, found", [
  (QWENS, "no call", "no call", []),
  (QWENS, 'So: <tool_call>{"name": "f", "arguments": {"é": 1}}</tool_call>', "So:", [ToolCall("f", '{"é": 1}')]),
  (QWENS, '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n' + F.replace("f", "g"), "", [G, H]),
  (QWENS, F.replace("}", ', "arguments": {"x": "</tool_call>?"}}'), "", [ToolCall("f", '{"x": "</tool_call>?"}')]),
  (QWENS, f"So: {F}<think>or {F}", "So:", [G]),
  (LLAMAS, '{"name": "f", "parameters": {"x": 1}}', "", [ToolCall("f", '{"x": 1}')]),
  (LLAMAS, '{"name": "f"}; {"name": "g"}', "", [G, H]), (LLAMAS, '{"title": "f"}', None, []), (LLAMAS, "", "", []),
  (CODERS, "So: " + PLACE.format("a\n</parameter>b"), "So:", [ToolCall("f", r'{"x": "a\n</parameter>b"}')]),
  (CODERS, "<tool_call><function=f></function></tool_call>", "", [G]),
  (CODERS, PLACE.replace("</function>", "more</function>"), None, []),
  (CODERS, PLACE.replace("</parameter>", ""), None, []), (CODERS, PLACE.replace("</function>\n", ""), None, []),
  (CODERS, PLACE.replace("</function>", "<parameter=x>2</parameter></function>"), None, []),
  (CODERS, '<tool_call>{"name": "f", "arguments": {}}</tool_call>', None, []),
  (TAGGEDS, 'So: <function=f>{"x": 1}</function>', "So:", [ToolCall("f", '{"x": 1}')]),
  (TAGGEDS, "<function=f>{}</function><function=g>{}</function>", "", [G, H]),
  (TAGGEDS, "<function=f>[1]</function>", None, []), (TAGGEDS, "<function=f>{}", None, []),
])  # fmt: skip
def test_calls_by_hand(form, said, text, found):
  assert call_texts.calls(said, form) == (said if text is None else text, found)


@pytest.mark.parametrize("schema, text, value", [
  (dict(type="string"), "1900", "1900"), (dict(), "1900", "1900"), (None, "1900", "1900"),
  (dict(type="integer"), "1900", 1900), (dict(type="integer"), "many", "many"),
  (dict(type=["integer", "null"]), "null", None), (dict(anyOf=[dict(type="string"), dict(type="null")]), "1", "1"),
  (dict(anyOf=[dict(type="string"), dict(type="null")]), "null", None),
  (dict(type="boolean"), "True", True), (dict(type="boolean"), "false", False), (dict(type="array"), '["a"]', ["a"]),
  ({"$ref": "#/$defs/Place"}, '{"a": 1}', dict(a=1)), (dict(allOf=[{"$ref": "#/$defs/Place"}]), '{"a": 1}', dict(a=1)),
  ({"$ref": "#/$defs/Many"}, "3", 3), ({"$ref": "#/$defs/Other"}, "3", "3"), ({"$ref": "https://a/b"}, "3", "3"),
])  # fmt: skip
def test_the_schema_says_which_values_are_texts(schema, text, value):
  many = dict(anyOf=[dict(type="integer"), {"$ref": "#/$defs/Many"}])  # it refers to itself
  definitions = {"$defs": dict(Place=dict(type="object"), Many=many)}
  functions = dict(f=dict(properties={} if schema is None else dict(x=schema)) | definitions)
  _, (call,) = call_texts.calls(PLACE.format(text), CODERS, functions)
  assert json.loads(call.arguments) == dict(x=value)


def test_arguments_that_are_no_json_are_refused():
  for call in ({}, {"function": {"name": "f", "arguments": "{"}}, {"function": {"name": "f", "arguments": "[1]"}}, 3):
    refused("a tool call must be", formats.messages, [{"role": "assistant", "content": "", "tool_calls": [call]}])
