"""Renders tools and their results for a model, and parses its calls, by its chat template or in this library's format.

Sampled turns are never rendered again. After a turn with calls, only the template's text after that turn is appended:

    sampled    <tool_call>\\n{"name": "f", "arguments": {"x": 1}}\\n</tool_call><|im_end|>
    appended   \\n<|im_start|>user\\n<tool_response>\\n3\\n</tool_response><|im_end|>\\n<|im_start|>assistant\\n

A tokenizer without role markers, or with this library's (config.prompting.markers), has no format for tools. A system
message then lists the tools, and calls and results have the format of Hermes.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.agents.calls import call_texts, formats
from ragrl_jax.agents.calls.formats import ToolFormat
from ragrl_jax.core.text.forms import well_formed
from ragrl_jax.prompting import chat
from ragrl_jax.protocol.requests import ToolCall
from ragrl_jax.recipes import parts

OWN = ToolFormat("<tool_call>", "</tool_call>", "arguments", head='<tool_call>\n{"name": "', middle='", "arguments": ')
_OWN_PROMPT = (
  "You have these tools, each as a JSON schema:\n{tools}\n"
  'To use a tool, write its name and arguments: <tool_call>\n{{"name": "NAME", "arguments": {{…}}}}\n</tool_call>\n'
  "What it gives comes back between <tool_response> and </tool_response>."
)
_VALUE = "ragrl probe value"  # marks the canonical call in a rendered conversation; no tool's schema contains it
_QUESTION = {"role": "user", "content": "A question?"}
_THOUGHT = "<think>\nA thought.\n</think>\n\n"
_RESPONSE = re.compile("<(?=/?tool_response>)")  # a result must not contain the tags that enclose it
_PYTHON_TAG = "<|python_tag|>"  # Llama 3 begins some calls with this control token


class ToolTurns:
  """The turns of a conversation with tools, for one tokenizer.

  Args:
    tools: as chat templates take them ({"type": "function", "function": {"name", "description", "parameters"}}).

  Attributes:
    form: the format of calls.
    single: whether the template renders at most one call per turn.
    beside: whether the template renders the text before the calls of a turn.
    tokens: number of tokens that the tools add to a prompt.

  Raises:
    ValueError: the chat template does not show the tools, has no known format of calls, or rewrites earlier turns.
  """

  def __init__(self, tokenizer: Any, tools: Sequence[Mapping[str, Any]]):
    self._tokenizer: Any = tokenizer
    self._tools = list(tools)
    self._functions = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
    self.marked = isinstance(tokenizer, chat.Templated) and tokenizer.markers is not None
    self._native = self.marked and tokenizer.markers == "template"
    self.form, self.single, self.beside = OWN, False, True
    if self._native:
      self._find()
    plain, own = self._tokenizer.render([_QUESTION]), self._prompt((("user", _QUESTION["content"]),))
    self.tokens = len(own if self.marked else self._tokenizer.render(own)) - len(plain)
    self._prompts = functools.lru_cache(1024)(self._prompt)  # the samples of a group share a prompt
    # The text of the canonical turn between its argument and the end of the turn.
    self._tail = self._tail_of() if self.marked else ""

  def prompt(self, messages: Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]] | tuple[int, ...]:
    """The messages with the tools, for `policy.start`: as token ids if there are role markers."""
    return self._prompts(tuple((message["role"], message["content"]) for message in messages))

  def calls(self, text: str, ids: Sequence[int] = ()) -> list[ToolCall]:
    """The calls of a turn, outside its thoughts; [] for a turn without a call.

    Args:
      ids: its token ids, to find control tokens with which only calls begin.

    Raises:
      Malformed: a call does not have this format; the message gives the reason.
    """
    _, result, after = call_texts.read(parts.spoken(text), self.form, self._functions)
    if result and not self.beside and not text.lstrip().startswith(self.form.opening):
      raise call_texts.Malformed("there must be no text before a call")
    if result and after.strip():
      raise call_texts.Malformed("there is text after the last call")
    if not result and any(self._tokenizer.control_names.get(token) == _PYTHON_TAG for token in ids):
      raise call_texts.Malformed(f"after {_PYTHON_TAG} there must be a JSON object")
    return result

  def after(self, results: Sequence[tuple[str, str]], *, ended: bool) -> str | list[int]:
    """The text or ids for `talk.observe` after a turn with calls: the turn's end, the results, the next turn's start.

    Args:
      results: (the tool's name, the result) of each call, in the calls' order.
      ended: whether the model ended its turn itself, by EOS.
    """
    results = [(name, _RESPONSE.sub("< ", text)) for name, text in results]
    if not self.marked:
      return "".join(f"\n<tool_response>\n{text}\n</tool_response>\n" for _, text in results)
    whole = self._text([_QUESTION, self._said(len(results)), *self._answers(results)], True)
    end, mark = 0, _VALUE + self._tail
    for _ in results:  # the calls come first, so the mark is found in them even if a result contains it
      end = whole.index(mark, end) + len(mark)
    ids = self._tokenizer.encode_template(well_formed(whole[end:]))
    return ids[1:] if ended and ids and ids[0] in self._tokenizer.eos_ids else ids

  # ---- how it is rendered --------------------------------------------------------------------------------------------

  def _find(self) -> None:
    form = formats.format_of(self._tokenizer)
    name = self._tools[0]["function"]["name"]
    text = self._text([_QUESTION], True)
    if form is None or name not in text:
      lacks = "has no format of tool calls that can be read" if form is None else "does not show the tools to the model"
      raise ValueError(
        f"this model's chat template {lacks}. Set prompting.markers='own', for this library's role markers and calls."
      )
    self.form = form
    self.beside = form.marked and "A thought." in self._text([_QUESTION, {**self._said(1), "content": _THOUGHT}], False)
    thought = _THOUGHT.removeprefix("<think>\n") if text.rstrip().endswith("<think>") else _THOUGHT
    if not self.beside or text.rstrip().endswith("</think>"):  # the model does not think
      thought = ""
    messages_of = lambda: [{**self._said(1), "content": thought}, *self._answers([(name, "A result.")])]
    chat.check_append_only(self._tokenizer, [_QUESTION, *messages_of(), *messages_of()], self._tools)
    try:
      self._text([_QUESTION, self._said(2), *self._answers([(name, "1"), (name, "2")])], True)
    except ValueError:  # Llama 3's template refuses two calls
      self.single = True

  def _tail_of(self) -> str:
    """The rest of a turn with one call, from the call's argument to where the template ends the turn."""
    word = "probe"
    text = self._text([_QUESTION, {"role": "assistant", "content": word}], False)
    closing = text[text.rindex(word) + len(word) :]
    turn = self._text([_QUESTION, self._said(1)], False)
    return turn[turn.rindex(_VALUE) + len(_VALUE) :].removesuffix(closing)

  def _said(self, number: int) -> dict[str, Any]:
    """The canonical turn with this number of calls. The text appended to a turn does not depend on the turn's text."""
    if self._native:
      function = dict(name="probe", arguments=dict(probe=_VALUE))
      calls = [dict(type="function", id=f"call_{i}", function=function) for i in range(number)]
      return dict(role="assistant", content="", tool_calls=calls)
    call = f'<tool_call>\n{{"name": "probe", "arguments": {{"probe": "{_VALUE}"}}}}\n</tool_call>'
    return dict(role="assistant", content="\n".join([call] * number))

  def _answers(self, results: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    if not self._native:
      return [dict(role="tool", content=f"<tool_response>\n{text}\n</tool_response>") for _, text in results]
    numbered = enumerate(results)
    return [dict(role="tool", name=name, tool_call_id=f"call_{i}", content=text) for i, (name, text) in numbered]

  def _text(self, messages: Sequence[Mapping[str, Any]], opened: bool) -> str:
    tools = dict(tools=self._tools) if self._native else {}
    return self._tokenizer.template(messages, open_turn=opened, **tools)

  def _prompt(self, pairs: tuple[tuple[str, str], ...]) -> Any:
    messages = [dict(role=role, content=content) for role, content in pairs]
    if self._native:
      return tuple(self._tokenizer.render(messages, self._tools))
    shown = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in self._tools)
    messages = [dict(role="system", content=_OWN_PROMPT.format(tools=shown)), *messages]
    return tuple(self._tokenizer.render(messages)) if self.marked else messages
