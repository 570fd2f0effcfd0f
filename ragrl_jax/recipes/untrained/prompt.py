"""The prompt of each method: how to reason, how to get documents, where to put the answer; and the parser."""

import dataclasses
import functools
import re
from collections.abc import Sequence

from ragrl_jax.core.text import tags
from ragrl_jax.prompting import passages, wording
from ragrl_jax.recipes import parts
from ragrl_jax.recipes.search_agent import own
from ragrl_jax.structs import Example, Passage

_ANSWER = "Give the answer, a word or a short phrase without explanations, between <answer> and </answer>."
_SHOWN = {
  "search": "Documents that a search has found come between <information> and </information>; they may be of no use.",
  "given": "Documents stand below; they may be of no use.",
}
# method → the text before the question; "{answer}" and "{shown}" are the lines above
_TOLD = {
  "closed_book": "Answer the question. {answer}",
  "cot": "Answer the question. Let's think step by step: first reason between <think> and </think>. {answer}",
  "rag": "Answer the question with the help of documents. {shown} {answer}",
  "ircot": (
    "Answer the question by reasoning in steps. {shown} Write one sentence of reasoning at a time, between <thought> "
    "and </thought>; new documents are then searched for with it. As soon as the answer is certain, stop reasoning. "
    "{answer}"
  ),
  "iter_retgen": (
    "Answer the question with the help of documents. {shown} Whenever documents have come, reason about them between "
    "<think> and </think>, and answer as well as you can: better documents are then searched for with what you wrote. "
    "{answer}"
  ),
  "self_ask": (
    "Answer the question. If another, simpler question has to be answered first, ask it between <question> and "
    "</question>. {shown} Answer it for yourself, and ask the next one in the same way, as long as one is needed. "
    "{answer}"
  ),
  "skr": (
    "Answer the question. First say whether you need additional information for that, by <need> yes </need> or "
    "<need> no </need>. If you do, it is searched for. {shown} {answer}"
  ),
  "sure": (
    "Read documents about the question, and propose two different answers to it that may be right, the likelier one "
    "first, each a word or a short phrase between <answer> and </answer>. {shown}"
  ),
  "flare": "Answer the question. First reason, one short sentence after the other. {answer}",
  "adaptive": (
    "Say what it takes to answer the question, without answering it: A, general knowledge alone; B, one search for "
    "documents; C, several searches, each of which depends on what the one before has found. Write the letter between "
    "<need> and </need>."
  ),
  "recomp": (
    "Read documents about the question. Sum up what they say that helps to answer it, in one to three sentences, "
    "between <summary> and </summary>; if nothing helps, leave it empty. Do not answer the question. {shown}"
  ),
  "filco": (
    "Read documents about the question. Copy the few sentences that are needed to answer it, word for word, one a "
    "line, between <extract> and </extract>; if none is, leave it empty. Do not answer the question. {shown}"
  ),
}
_SHORT = {
  "closed_book": "<answer> short answer </answer>",
  "rag": "<answer> short answer </answer>",
  "cot": "<think> thoughts </think><answer> short answer </answer>",
  "ircot": "<thought> one sentence </thought>, several times, then <answer> short answer </answer>",
  "iter_retgen": "<think> thoughts </think><answer> short answer </answer>",
  "self_ask": "<question> simpler question </question>, several times, then <answer> short answer </answer>",
  "skr": "<need> yes or no </need><answer> short answer </answer>",
  "sure": "<answer> short answer </answer><answer> another one </answer>",
  "flare": "reasons, then <answer> short answer </answer>",
  "adaptive": "<need> A, B or C: no, one or several searches </need>",
  "recomp": "<summary> what helps </summary>",
  "filco": "<extract> sentences that help </extract>",
}
METHODS = tuple(_TOLD)
INSTRUCTIONS = ("paper", "short", "none")
DOCUMENTS = ("search", "given")
END = "</answer>"
# method → the tag after which it may search
ASKS = {"ircot": "thought", "self_ask": "question", "skr": "need", "adaptive": "thought"}
# method → the stop strings of its other turns
_ENDS = {"adaptive": ("</need>",), "recomp": ("</summary>",), "filco": ("</extract>",)}
_TAG = re.compile(r"</?\w+>")
_YES_NO = re.compile(r"\b(?:yes|no)\b")


class Prompt:
  """One user message, or the messages of a file with {question}, and {passages} if the prompt shows documents.

  Args:
    method: one of METHODS.
    instructions: one of INSTRUCTIONS ("none" shows only the question), or file:PATH.
    documents: "given": the prompt shows the example's own passages. "search": it shows none; results come after the
      prompt, or for "flare" in it.
  """

  def __init__(self, method: str = "rag", instructions: str = "paper", documents: str = "search"):
    self._given = documents == "given"
    placeholders = ("question", "passages") if self._given else ("question",)
    may = ("passages",) if method == "flare" else ()
    # A prompt without given documents does not mention documents.
    methods = {"search": "closed_book" if self._given and method == "rag" else method, "given": method}
    instructions_of = lambda where: _TOLD[methods[where]].replace("{answer}", _ANSWER).replace("{shown}", _SHOWN[where])
    wordings_of = lambda before, where: {
      "paper": f"{instructions_of(where)}\n{before}Question: {{question}}\n",
      "short": f"Reply with {_SHORT[method]}\n{before}Question: {{question}}\n",
      "none": f"{before}{{question}}",
    }
    choose = functools.partial(wording.resolve, setting="config.switches.instructions", needs=placeholders, may=may)
    self._bare = choose(instructions, wordings_of("", "search"))
    self._shown = choose(instructions, wordings_of("Documents:\n{passages}\n", "given"))

  def messages(self, example: Example) -> list[dict[str, str]]:
    """The chat messages that open the episode."""
    return self.over(example, example.passages if self._given else ())

  def over(self, example: Example, documents: Sequence[Passage]) -> list[dict[str, str]]:
    """The messages that show these documents, numbered. Text that looks like a tag is broken up."""
    text = passages.numbered(documents, titles=True)
    return (self._shown if documents else self._bare).messages(question=example.question.strip(), passages=text)


@dataclasses.dataclass(frozen=True)
class Parser(parts.Parser):
  """Reads the replies of a method of `prompt.METHODS`."""

  method: str = "rag"

  @property
  def stops(self) -> tuple[str, ...]:
    """The stop strings of a turn while searches are left."""
    asks = (f"</{ASKS[self.method]}>",) if self.method in ASKS else ()
    return (*_ENDS.get(self.method, ()), *asks, END)

  def query(self, text: str, question: str) -> str | None:
    """The query after a turn with this text, or None."""
    if self.method == "iter_retgen":
      reply = " ".join(_TAG.sub(" ", text).split())
      return f"{question} {reply}".strip() if reply else None
    if self.method not in ASKS:
      return None
    pair = tags.last(text, (ASKS[self.method], "answer"))
    if pair is None or pair.name == "answer" or not pair.body.strip():
      return None
    if self.method == "skr":
      reply = _YES_NO.search(pair.body.lower())  # its first word of the two
      return question if reply and reply[0] == "yes" else None
    return pair.body.strip()

  def answer(self, text: str) -> str | None:
    """The last complete answer in the text after its thoughts, outside of `search_agent.own`'s blocks, or None."""
    pair = tags.last(parts.spoken(own(text)), ("answer",))
    return None if pair is None else pair.body.strip()

  def observed(self, reply: str, text: str) -> tuple[str | None, tuple[Passage, ...] | None]:
    """(the model's query, or None if the question itself was the query; passages) of a result block."""
    results = passages.parse_block(text)
    return (None, None) if results is None else (self.query(reply, "") or None, results)
