"""The official `openai` package sends tools to the server, and reads the calls of its replies."""

import json

import pytest
import scripted_chat
from refusals import refused
from small_server import MODEL, ScriptedEngine, serving
from small_tokenizers import with_tools

from ragrl_jax.jobs import checkpoints

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.slow  # the package builds its types at the first call

CALL = scripted_chat.call("search", query="Rome")
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}]
client_of = lambda url: openai.OpenAI(base_url=url, api_key="none", max_retries=0)


@pytest.mark.parametrize("before", ["", "Let me look. "])
def test_tool_calls_in_the_templates_format(tokenizer, before):
  engine = ScriptedEngine(tokenizer, [before + CALL] * 2 + ["It is <b>Rome</b>, <tool", before + CALL])
  asked = dict(model=MODEL, messages=[dict(role="user", content="Where?")], tools=TOOLS)
  with serving(engine, tools=checkpoints.tool_reader(tokenizer)) as (url, _), client_of(url) as client:
    whole = client.chat.completions.create(**asked).choices[0]
    call = whole.message.tool_calls[0]
    assert whole.finish_reason == "tool_calls" and (whole.message.content or "") == before.rstrip()
    assert call.function.name == "search" and json.loads(call.function.arguments) == dict(query="Rome")
    # Streamed: nothing of the call is shown as text.
    text, calls, ends = "", [], []
    for part in client.chat.completions.create(**asked, stream=True):
      delta = part.choices[0].delta
      text += delta.content or ""
      calls += delta.tool_calls or []
      ends.append(part.choices[0].finish_reason)
    assert text == before.rstrip() and ends[-1] == "tool_calls"
    (one,) = calls
    assert (one.index, one.function.name, one.function.arguments) == (0, "search", call.function.arguments)
    # The result goes back through the template, and the final answer is text to its last sign.
    messages = [*asked["messages"], whole.message.model_dump(exclude_none=True)]
    messages.append(dict(role="tool", tool_call_id=call.id, content="Rome <|im_end|>"))
    parts = client.chat.completions.create(**asked | dict(messages=messages), stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == "It is <b>Rome</b>, <tool"
    prompt = tokenizer.decode(engine.prompts[-1])
    assert before.rstrip() in prompt and CALL in prompt and "Rome < |im_end|>" in prompt and "<tools>" in prompt
    # Without tools a call is text like any other.
    plain = client.chat.completions.create(**asked | dict(tools=openai.NOT_GIVEN))
    assert plain.choices[0].message.content == before + CALL and "<tools>" not in tokenizer.decode(engine.prompts[-1])


@pytest.mark.parametrize(("kind", "head", "middle", "rest"), [
  ("qwen", '<tool_call>\n{"name": "', '", "arguments": ', '{"x": "1"}}\n</tool_call>'),
  ("coder", "<tool_call>\n<function=", ">\n", "<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>"),
])  # fmt: skip
def test_forced_calls_begin_in_the_prompt(kind, head, middle, rest):
  tokenizer, said = with_tools(kind), f"look{middle}{rest}"
  tool = lambda name: dict(type="function", function=dict(name=name, parameters=dict(type="object", properties={})))
  named = dict(type="function", function=dict(name="look"))
  twice = rest + "\n" + CALL  # what follows the first call is never drawn
  engine = ScriptedEngine(tokenizer, [said, said, twice, twice, "nonsense", rest])
  asked = dict(model=MODEL, messages=[dict(role="user", content="Where?")], tools=[tool("search"), tool("look")])
  with serving(engine, tools=checkpoints.tool_reader(tokenizer)) as (url, _), client_of(url) as client:

    def ask(**how):
      whole = client.chat.completions.create(**asked | how, extra_body=dict(return_token_ids=True))
      return whole, whole.choices[0]

    def check(choice):
      (call,) = choice.message.tool_calls
      assert (call.function.name, json.loads(call.function.arguments)) == ("look", dict(x="1"))
      assert choice.finish_reason == "tool_calls" and not choice.message.content and choice.stop_reason is None

    whole, choice = ask(tool_choice="required")
    check(choice)
    assert tokenizer.decode(whole.prompt_token_ids).endswith(head)
    parts = [*client.chat.completions.create(**asked, tool_choice="required", stream=True)]
    assert not any(part.choices[0].delta.content for part in parts)
    assert [call.function.name for part in parts for call in part.choices[0].delta.tool_calls or ()] == ["look"]
    for how in (dict(tool_choice=named), dict(tool_choice="required", tools=[tool("look")])):
      whole, choice = ask(**how, parallel_tool_calls=False)
      check(choice)
      assert tokenizer.decode(choice.token_ids).rstrip() == rest  # it ends with its first call
    # What is no call is the reply's text, with the beginning that it was given.
    _, choice = ask(tool_choice=named)
    assert not choice.message.tool_calls and choice.finish_reason == "stop"
    assert choice.message.content.startswith(head) and choice.message.content.endswith("nonsense")
    for wrong, words in (
      (dict(tool_choice=dict(type="function", function=dict(name="hear"))), "which tools does not have"),
      (dict(tool_choice=dict(type="function", function=dict(name=""))), "which tools does not have"),
      (dict(tool_choice="always"), "tool_choice must be"), (dict(tools=[tool("a b")]), "tools must be"),
      (dict(tool_choice="required", tools=openai.NOT_GIVEN), "there are no tools"),
    ):  # fmt: skip
      refused(words, ask, **wrong, error=openai.BadRequestError)
