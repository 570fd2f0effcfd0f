"""The warm start's transcripts: one model reasons to an answer, another inserts gold sentences into the reasoning."""

import re
from collections.abc import Sequence
from typing import Any

from ragrl_jax.chat.client import Chat, Completion
from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards import quotes
from ragrl_jax.data import transcripts as transcripts_lib
from ragrl_jax.prompting import passages, wording
from ragrl_jax.recipes.care.prompt import ANSWER, Prompt
from ragrl_jax.structs import MODEL, Example

REASON = {
  "paper": "You read a context closely to answer a question. Whenever a step of your reasoning rests on something "
  'that the context says, first name what you have to know for it ("I need to know …"), and only then take the '
  'step. At the very end write "Answer:" and the answer, as short as can be: a word or a phrase.\nContext: {context}\n'
  "Question: {question}"
}
INSERT = {
  "paper": "Below are a question, a line of reasoning that solves it, and sentences of evidence, one a line. Work all "
  "of the sentences into the reasoning, each just before what is concluded from it; one may be used several "
  "times. Not a sign of any sentence may change. Reply with the whole new reasoning and nothing else.\n"
  "Question: {question}\nReasoning: {reasoning}\nEvidence, a sentence a line:\n{evidence}\nThe new reasoning:"
}
_TAG = re.compile(r"</?(?:think|retrieval)>")


def wordings(reason: str = "paper", insert: str = "paper") -> tuple[wording.Wording, wording.Wording]:
  """The prompts of M_R and M_I: each "paper" (our wording), or file:PATH.

  Raises:
    ValueError: see `wording.resolve`.
  """
  return (
    wording.resolve(reason, REASON, setting="--reasoner_wording", needs=("context", "question")),
    wording.resolve(insert, INSERT, setting="--inserter_wording", needs=("question", "reasoning", "evidence")),
  )


async def transcripts(
  examples: Sequence[Example],
  reasoner: Chat,
  inserter: Chat,
  *,
  words: tuple[wording.Wording, wording.Wording] | None = None,
  **how: Any,
):
  """Makes the transcripts. `how` is passed to `data.transcripts.make`.

  Args:
    examples: with passages, golds and gold sentences (`evidence`).
    reasoner: M_R. It sees the context.
    inserter: M_I. It does not see the context.
    words: see `wordings`; None: the default ones.

  Fates: "kept"; "no evidence" (the data has no gold sentence, or one that no passage contains; not asked); "no answer"
  (none, asked twice); "cut off" (by the token limit); "wrong answer"; "tags" (M_I's reply contains tags); "evidence
  changed" (a gold sentence is missing).

  Source: CARE sec. 3.3 and appendix C (DeepSeek-R1, then DeepSeek-V3).
  """
  reason, insert = words or wordings()

  async def one(example: Example):
    facts = list(dict.fromkeys(quotes.collapse(passages.neutral(sentence)) for _, sentence in example.evidence))
    context = Prompt().context(example)
    if not facts or not all(quotes.exact(fact, context) for fact in facts):
      return "no evidence", None
    messages = reason.messages(context="\n\n".join(context), question=example.question)
    said = await reasoner.ask(messages)
    if said.cut:
      return "cut off", None
    thought, answer = read(said)
    if not thought or answer is None or not qa.exact_match(answer, example.golds):
      return "wrong answer", None
    messages = insert.messages(question=example.question, reasoning=thought, evidence="\n".join(facts))
    inserted = await inserter.ask(messages)
    if inserted.cut:
      return "cut off", None
    reply = inserted.content.strip()
    if _TAG.search(reply):
      return "tags", None
    if not all(fact in reply for fact in facts):
      return "evidence changed", None
    return "kept", [(MODEL, f"<think>\n{wrapped(reply, facts)}\n</think>\n\n{ANSWER} {example.golds[0]}")]

  return await transcripts_lib.make(examples, one, **how)


def read(reply: Completion) -> tuple[str, str | None]:
  """(reasoning, answer or None) of M_R's reply.

  The reasoning is the endpoint's separate field if it has one, else the text between think tags, else the text before
  the last "Answer:".
  """
  thoughts, closing, answer_text = reply.content.rpartition("</think>")
  before, mark, answer = answer_text.rpartition(ANSWER)
  thought = reply.reasoning or (thoughts.replace("<think>", "", 1) if closing else before)
  return thought.strip(), answer.strip() if mark else None


def wrapped(text: str, facts: Sequence[str]) -> str:
  """Puts every occurrence of a fact between retrieval tags. If one fact contains another, only the longer is marked."""
  pattern = "|".join(map(re.escape, sorted(facts, key=len, reverse=True)))
  return re.sub(pattern, lambda fact: f"<retrieval>{fact[0]}</retrieval>", text)
