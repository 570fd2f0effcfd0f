"""Chat messages as text, what a template appends after a turn, and the check that it never rewrites earlier turns."""

import datetime
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ragrl_jax.core.text.forms import well_formed
from ragrl_jax.structs import THINK, THOUGHT

if TYPE_CHECKING:
  from ragrl_jax.prompting.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, str]]

_PROBE = (
  {"role": "system", "content": "Rules first."},
  {"role": "user", "content": "A question?"},
  {"role": "assistant", "content": "<think>\nA thought.\n</think>\n\n<search> a query </search>"},
  {"role": "user", "content": "<information>Doc 1(Title: T) A text.</information>"},
  {"role": "assistant", "content": "<think>\nA second thought.\n</think>\n\n<answer> an answer </answer>"},
  {"role": "user", "content": "A second question?"},
)
_QUESTION = {"role": "user", "content": "A question?"}
_WORD = "probe"


@runtime_checkable
class Templated(Protocol):
  """A tokenizer that can render messages with role markers.

  Attributes:
    markers: the role markers in use, "template" or "own"; None if contents are joined without markers.
  """

  markers: str | None

  def template(self, messages: Messages, *, open_turn: bool) -> str:
    """The messages' text; with open_turn, it ends where the assistant's next turn begins."""


def plain(messages: Messages) -> str:
  """The contents joined by empty lines: the prompt for a tokenizer without a template.

  Source: Search-R1 gives the raw text to tokenizers without a template.
  """
  return "\n\n".join(message["content"] for message in messages)


NO_THOUGHTS = "<think>\n\n</think>\n\n"  # opens a turn if thinking is "off", as in Qwen3's template
# What templates write as today's date, as Llama 3's do: a conversation's tokens must not change at midnight.
DATE = datetime.date(2024, 7, 26)


def own(messages: Messages, *, open_turn: bool, known: Iterable[str], thinking: str = "default") -> str:
  """The messages with this library's role markers, which never rewrite earlier turns as some templates do.

  Args:
    open_turn: end where the assistant's next turn begins.
    thinking: "default", "on" or "off"; with "off" every turn of the assistant begins with an empty <think> block.
    known: the tokenizer's control tokens. ChatML's or Llama 3's markers are used if it has them, else plain words.
  """
  known = set(known)
  if {"<|im_start|>", "<|im_end|>"} <= known:
    head, tail = "<|im_start|>{role}\n", "<|im_end|>\n"
  elif {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"} <= known:
    head, tail = "<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>"
  else:
    head, tail = "{role}:\n", "\n\n"
  silent = {"assistant": NO_THOUGHTS} if thinking == "off" else {}
  opening = lambda role: head.replace("{role}", role) + silent.get(role, "")
  text = "".join(opening(m["role"]) + m["content"] + tail for m in messages)
  return text + (opening("assistant") if open_turn else "")


def thinking(tokenizer: "Tokenizer") -> str | None:
  """What the chat template does with the model's thought: "on": it opens one; "off": it closes one; None: neither."""
  if not isinstance(tokenizer, Templated) or tokenizer.markers is None:
    return None
  text = tokenizer.template([_QUESTION], open_turn=True).rstrip()
  return "on" if text.endswith(THINK) else "off" if text.endswith(THOUGHT) else None


def stopped_clock() -> str:
  """A Jinja macro to put before a chat template: its `strftime_now` writes DATE instead of the current time.

  transformers passes no functions to templates, so each code of strftime is replaced in the macro's text. With the
  newline, which Jinja drops after a block, white space at the template's beginning stays what it is.
  """
  known = (*"aAbBdeFHIjmMpSTuwyY", "-d", "-m", "-H", "-I")
  codes = "".join(f" | replace('%{code}', {DATE.strftime(f'%{code}')!r})" for code in known)
  return f"{{%- macro strftime_now(format) -%}}{{{{ format{codes} }}}}{{%- endmacro %}}\n"


def disarmed_text(text: str, control: Iterable[str]) -> str:
  """The text with a space inside every control token that it spells out, so that it stays text."""
  for token in control:
    text = text.replace(token, f"{token[0]} {token[1:]}")
  return text


def disarmed(messages: Sequence[Mapping[str, Any]], control: Iterable[str]) -> list[dict[str, Any]]:
  """The messages with `disarmed_text` for all texts in them, but not for the roles."""
  control = tuple(control)
  inside = lambda name, value: value if name == "role" else disarmed_value(value, control)
  return [{name: inside(name, value) for name, value in message.items()} for message in messages]


def disarmed_value(value: Any, control: Sequence[str]) -> Any:
  """A JSON value with `disarmed_text` for all texts and keys in it: a call's arguments, or the schema of a tool."""
  if isinstance(value, str):
    return disarmed_text(value, control)
  if isinstance(value, Mapping):
    return {disarmed_value(key, control): disarmed_value(item, control) for key, item in value.items()}
  if isinstance(value, Sequence):
    return [disarmed_value(item, control) for item in value]
  return value


def check_append_only(
  tokenizer, probe: Sequence[Mapping[str, Any]] = _PROBE, tools: Sequence[Mapping[str, Any]] = ()
) -> None:
  """Refuses a chat template that rewrites earlier turns, such as one that drops past `<think>` blocks.

  A rollout only appends tokens. With such a template, training would use texts that the template never produces.

  Args:
    probe: a conversation like those that are played.

  Raises:
    ValueError: the template rewrites a turn; the message shows it before and after.
  """
  if not isinstance(tokenizer, Templated) or tokenizer.markers is None:
    return
  probe, render = list(probe), functools.partial(tokenizer.template, **(dict(tools=list(tools)) if tools else {}))
  try:
    render(probe[:2], open_turn=True)
  except ValueError:  # this template has no system turns
    probe = probe[1:]
  text = functools.cache(lambda turns: render(probe[:turns], open_turn=False))
  for turn, message in enumerate(probe, 1):
    try:
      texts = [text(turn)]
    except ValueError:
      if message["role"] != "system":
        raise
      continue  # Qwen3.5's template refuses to render it without a question
    if message["role"] == "assistant":  # first as it is sampled; of a turn with calls only the template knows that text
      sampled = "" if message.get("tool_calls") else message["content"]
      texts = [render(probe[: turn - 1], open_turn=True) + sampled, *texts]
    for before, later in itertools.product(texts, range(turn, len(probe) + 1)):
      if not (after := text(later)).startswith(before):
        raise ValueError(_refusal(turn, message["role"], later, before, after))


def _refusal(turn: int, role: str, later: int, before: str, after: str) -> str:
  same = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
  return (
    f"the chat template rewrites turn {turn} ({role}) once {later} turns are there: "
    f"{before[same : same + 60]!r} became {after[same : same + 60]!r}. Tokens in a conversation are never rewritten: "
    "set prompting.markers='own' (role markers that only append), or prompting.chat=False for bare text."
  )


class Rewritten(ValueError):
  """The template renders earlier turns differently when later turns follow."""


class Appender:
  """Renders what follows a model's turn: the turn's end, new messages, the next turn's start, as token ids.

  A conversation's tokens are never rendered again. Only what is new is rendered, so sampled tokens stay as they are:

      the conversation ends with   … <|im_start|>assistant\\nRome<|im_end|>
      and is continued by          \\n<|im_start|>user\\nWhy?<|im_end|>\\n<|im_start|>assistant\\n

  Args:
    tokenizer: the model's tokenizer, with or without a chat template.

  Raises:
    ValueError: the template leaves out the text of an assistant's turn, or refuses the turn.
  """

  def __init__(self, tokenizer: "Tokenizer"):
    self._tokenizer = tokenizer
    text = self._text([_QUESTION, {"role": "assistant", "content": _WORD}], False, ())
    if (place := text.rfind(_WORD)) < 0:
      raise ValueError("the chat template leaves out the assistant's text: no conversation can be continued with it.")
    self._closing = text[place + len(_WORD) :]

  def end_of_turn(self) -> int:
    """The EOS with which the template ends a model's turn; the tokenizer's first one if it writes none.

    The first EOS of a folder may be another one: Llama 3's is the end of a text, Gemma 3's that of pre-training.
    """
    closing = self._ids(self._closing.lstrip())  # Llama 2's template writes a space before EOS
    return closing[0] if closing and closing[0] in self._tokenizer.eos_ids else self._tokenizer.eos_ids[0]

  def after(
    self, messages: Sequence[Mapping[str, Any]], kept: int, tools: Sequence[Any] = (), *, ended: bool
  ) -> list[int]:
    """Ids that follow the model's turn, which is the last of the first `kept` messages.

    Args:
      kept: how many of them the conversation already has.
      tools: as the template presents them.
      ended: whether the model ended its turn itself, by EOS.

    Raises:
      Rewritten: the template renders the kept messages differently before the others.
      ValueError: the template refuses the messages.
    """
    before = self._text(messages[:kept], False, tools)
    after = self._text(messages, True, tools)
    if not after.startswith(before):
      raise Rewritten("the chat template renders earlier turns differently once others have followed")
    closing = self._closing.lstrip() if ended else self._closing
    ids = self._ids(closing + after[len(before) :])  # in one piece: some tokenizers put a space before each text
    return ids[1:] if ended and closing and ids[0] in self._tokenizer.eos_ids else ids  # the model has sampled it

  def _text(self, messages: Sequence[Mapping[str, Any]], opened: bool, tools: Sequence[Any]) -> str:
    if not isinstance(self._tokenizer, Templated) or self._tokenizer.markers is None:
      return plain(messages)
    render: Any = self._tokenizer.template
    return render(messages, open_turn=opened, **(dict(tools=list(tools)) if tools else {}))

  def _ids(self, text: str) -> list[int]:
    """Ids of a template's text; control tokens in it become their own ids."""
    encode = getattr(self._tokenizer, "encode_template", self._tokenizer.encode)
    return [*encode(well_formed(text))]
