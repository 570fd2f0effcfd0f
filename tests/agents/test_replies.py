"""Tool calls of a reply, whole and streamed in pieces: a call inside a thought is text, and is never held back."""

import pytest
from scripted_chat import call

from ragrl_jax.agents.calls import served
from ragrl_jax.agents.calls.formats import ToolFormat
from ragrl_jax.agents.calls.turns import OWN
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.protocol import replies, requests
from ragrl_jax.structs import Sampling

CALL = call("search", query="x")
BARE = '{"name": "search", "parameters": {"query": "x"}}'
FOUND = [dict(name="search", arguments='{"query": "x"}')]
LLAMAS = ToolFormat("", "", "parameters")


def asked(form, prompt=b"?", opened=""):
  how = dict(stream=True, usage=False, logprobs=False, token_ids=False)
  tools = served.Reader(form).tools(dict(tools=[dict(type="function", function=dict(name="search"))]))
  prompts = (tuple(prompt + opened.encode()),)
  sampling = Sampling(0.0, 0, 1.0, 100)
  return requests.Asked(requests.CHAT, prompts, 1, sampling, 0, (), False, tools=tools, opened=opened, **how)


def made(form, **begun):
  return replies.Replies(asked(form, **begun), "m", None, ByteTokenizer())


def streamed(text, form, **begun):
  """(the text after each piece of one character, the calls at the end)."""
  reply, shown, calls = made(form, **begun), [""], []
  for at, sign in enumerate(text, 1):
    for chunk in reply.events(replies.Piece(0, sign, (1,), (0.0,), "stop" if at == len(text) else "")):
      delta = chunk["choices"][0]["delta"]
      calls += delta.get("tool_calls", ())
      shown.append(shown[-1] + (delta.get("content") or ""))
  return shown, calls


@pytest.mark.parametrize(("form", "text", "content", "number"), [
  (OWN, f"<think>I write <tool_call> now</think>\n{CALL}", "<think>I write <tool_call> now</think>", 1),
  (OWN, f"<think>draft: {CALL} hm, no</think>\nThe answer is 3.", None, 0),
  (OWN, f"<think>draft {CALL}</think>\n{CALL}\n{CALL}", f"<think>draft {CALL}</think>", 2),
  (OWN, f"The prompt opened it: {CALL}</think> So {CALL}", f"The prompt opened it: {CALL}</think> So", 1),
  (OWN, f"<think>never closed {CALL}", None, 0), (OWN, f"Let me see. \n{CALL}", "Let me see.", 1),
  (OWN, "It is <b>, <tool", None, 0), (LLAMAS, f"<think>{BARE}</think>\n{BARE}", f"<think>{BARE}</think>", 1),
  (LLAMAS, f"<think>{BARE}</think> It is 3.", None, 0), (LLAMAS, BARE, None, 1),
])  # fmt: skip
def test_calls_are_read_outside_thoughts(form, text, content, number):
  content = content or ("" if number else text)
  message = made(form).whole([replies.Piece(0, text, (1,), (0.0,), "stop")])["choices"][0]["message"]
  functions = [one["function"] for one in message.get("tool_calls", ())]
  assert (message["content"] or "", functions) == (content, FOUND * number)
  shown, calls = streamed(text, form)
  assert (shown[-1], len(calls)) == (content, number)


@pytest.mark.parametrize("finish, said", [("stop", "tool_calls"), ("length", "length")])
def test_a_reply_that_was_cut_off_after_a_call_says_so(finish, said):
  piece = replies.Piece(0, f"{CALL}\n", (1,), (0.0,), finish)
  (choice,) = made(OWN).whole([piece])["choices"]
  assert (choice["finish_reason"], len(choice["message"]["tool_calls"])) == (said, 1)
  assert made(OWN).events(piece)[-1]["choices"][0]["finish_reason"] == said


def test_nothing_of_a_thought_is_held_back():
  thought = f"<think>draft {CALL} <too"
  reply, shown = made(OWN), ""
  for sign in thought:
    *_, chunk = reply.events(replies.Piece(0, sign, (1,), (0.0,)))
    shown += chunk["choices"][0]["delta"].get("content", "")
  assert shown == thought


@pytest.mark.parametrize(
  "begun", [dict(prompt=b"a\n<think>\n"), dict(opened="<think>I"), dict(prompt=b"<think>", opened="I")]
)
@pytest.mark.parametrize(("form", "said"), [(OWN, CALL), (LLAMAS, BARE)])
def test_a_call_in_a_thought_that_the_prompt_has_opened_is_text_until_the_thought_ends(begun, form, said):
  for text, content, number in ((said, said, 0), (f"Hm. {said}</think>\n{said}", f"Hm. {said}</think>", 1)):
    message = made(form, **begun).whole([replies.Piece(0, text, (1,), (0.0,), "length")])["choices"][0]["message"]
    assert (message["content"], len(message.get("tool_calls", ()))) == (content, number)
    shown, calls = streamed(text, form, **begun)
    assert (shown[-1], len(calls)) == (content, number)
  shown, calls = streamed(said, form, prompt=b"<think> a </think>")
  assert (shown[-1], len(calls)) == ("", 1)
