"""What a chat template appends after a model's turn, as token ids: the turn's end, new messages, the next turn's start.

A conversation's tokens are never rendered again. Only what is new is rendered, so sampled tokens stay as they are:

    the conversation ends with   … <|im_start|>assistant\\nRome<|im_end|>
    and is continued by          \\n<|im_start|>user\\nWhy?<|im_end|>\\n<|im_start|>assistant\\n
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.core.text.surrogates import well_formed
from ragrl_jax.prompting import chat
from ragrl_jax.prompting.tokenizer import Tokenizer

_ASKED = {"role": "user", "content": "A question?"}
_WORD = "probe"


class Rewritten(ValueError):
  """The template renders earlier turns differently when later turns follow."""


class Appender:
  """Renders what follows a model's turn.

  Args:
    tokenizer: the model's tokenizer, with or without a chat template.

  Raises:
    ValueError: the template leaves out the text of an assistant's turn, or refuses the turn.
  """

  def __init__(self, tokenizer: Tokenizer):
    self._tokenizer = tokenizer
    said = self._text([_ASKED, {"role": "assistant", "content": _WORD}], False, ())
    if (place := said.rfind(_WORD)) < 0:
      raise ValueError("the chat template leaves out the assistant's text: no conversation can be continued with it.")
    self._closing = said[place + len(_WORD) :]

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
      messages: all of them, in the template's form.
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
    closing = self._ids(self._closing.lstrip() if ended else self._closing)
    if ended and closing and closing[0] in self._tokenizer.eos_ids:  # the model has sampled it
      closing = closing[1:]
    return closing + self._ids(after[len(before) :])

  def _text(self, messages: Sequence[Mapping[str, Any]], opened: bool, tools: Sequence[Any]) -> str:
    if not isinstance(self._tokenizer, chat.Templated) or self._tokenizer.markers is None:
      return chat.plain(messages)
    render: Any = self._tokenizer.template
    return render(messages, open_turn=opened, **(dict(tools=list(tools)) if tools else {}))

  def _ids(self, text: str) -> list[int]:
    """Ids of a template's text; control tokens in it become their own ids."""
    encode = getattr(self._tokenizer, "encode_template", self._tokenizer.encode)
    return [*encode(well_formed(text))]
