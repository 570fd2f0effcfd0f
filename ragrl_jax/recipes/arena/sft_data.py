"""The SFT baselines' transcripts from questions with gold passages: only answers, or also a model's reasoning."""

from collections.abc import Sequence
from typing import Any

from ragrl_jax.chat.client import Chat
from ragrl_jax.data import transcripts as transcripts_lib
from ragrl_jax.prompting import passages, wording
from ragrl_jax.recipes.arena.prompt import SECTIONS, Parser
from ragrl_jax.structs import MODEL, Example

REASON = {
  "paper": "A question, numbered references, the numbers of the references that matter and the right answer stand "
  "below. Write down the thinking process that leads from these references, and from no others, to the answer; name "
  "the number of the reference that each step rests on. Reply with the thinking process and nothing else.\n"
  "Question: {question}\nReferences:\n{references}\nReferences that matter: {relevance_ids}\nAnswer: {answer}\n"
  "The thinking process:"
}


def asked(choice: str = "paper") -> wording.Wording:
  """The backbone's prompt: ours, or file:PATH with {question}, {references}, {relevance_ids} and {answer}.

  Raises:
    ValueError: see `wording.resolve`.
  """
  placeholders = ("question", "references", "relevance_ids", "answer")
  return wording.resolve(choice, REASON, setting="--wording", needs=placeholders)


async def reasoned(examples: Sequence[Example], backbone: Chat, *, words: wording.Wording | None = None, **how: Any):
  """SFT-reasoning; see `data.transcripts.make`, which takes `how`.

  Args:
    examples: with passages, and the positions of the supporting ones.
    backbone: gets the gold references and the answer, and writes the analysis.
    words: see `asked`; None: the default prompt.

  Fates: "kept"; "no references" (the data marks none, so the model is not asked); "no answer" (none in time; it can be
  asked again); "cut off" (by the token limit); "out of shape" (an empty text, or one with a tag of the format).

  Source: ARENA (arXiv 2505.13258), baselines.
  """

  words = words or asked()

  async def one(example: Example):
    golds = passages.gold_numbers(example, "supporting")
    if not golds:
      return "no references", None
    values = dict(references=passages.numbered(example.passages), relevance_ids=str(golds), answer=example.golds[0])
    reply = await backbone.ask(words.messages(question=example.question, **values))
    if reply.cut:
      return "cut off", None
    thought = reply.content.rpartition("</think>")[2].strip()
    text = f"<relevance> {golds} </relevance>\n<analysis> {thought} </analysis>\n<answer> {example.golds[0]} </answer>"
    return ("kept", [(MODEL, text)]) if thought and Parser(SECTIONS["cited"]).in_shape(text) else ("out of shape", None)

  return await transcripts_lib.make(examples, one, **how)
