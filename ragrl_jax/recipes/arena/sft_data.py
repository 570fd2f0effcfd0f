"""The SFT baselines' transcripts, from questions with gold passages: answers alone, or the backbone's reasoning too."""

from collections.abc import Sequence
from typing import Any

from ragrl_jax.chat.cached import Chat
from ragrl_jax.data import transcripts as transcripts_lib
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.arena.parser import Parser
from ragrl_jax.recipes.arena.prompt import SECTIONS
from ragrl_jax.structs import MODEL, Example

REASON = (
  "A question, numbered references, the numbers of the references that matter and the right answer stand below. Write "
  "down the thinking process that leads from these references, and from no others, to the answer; name the number of "
  "the reference that each step rests on. Reply with the thinking process and nothing else.\n"
)


def direct(examples: Sequence[Example]) -> list[transcripts_lib.Turns]:
  """SFT-direct: each example's first gold, as preset `direct` replies."""
  return [[(MODEL, f"<answer> {example.golds[0]} </answer>")] for example in examples]


async def reasoned(examples: Sequence[Example], backbone: Chat, **how: Any):
  """SFT-reasoning; see `data.transcripts.make`, which takes `how`.

  Args:
    examples: with passages and what of them supports the answer.
    backbone: told the gold references and the answer, it writes the analysis.

  Fates: "kept"; "no references" (the data marks none: not asked); "no answer" (none in time: to be asked again);
  "out of shape" (nothing was written, or it holds a tag of ours).

  Source: ARENA (arXiv 2505.13258), baselines.
  """

  async def one(example: Example):
    golds = passages.gold_numbers(example, "supporting")
    if not golds:
      return "no references", None
    asked = (
      f"{REASON}Question: {example.question}\nReferences:\n{passages.numbered(example.passages)}\n"
      f"References that matter: {golds}\nAnswer: {example.golds[0]}\nThe thinking process:"
    )
    reply = await backbone.ask([dict(role="user", content=asked)])
    thought = reply.content.rpartition("</think>")[2].strip()
    text = f"<relevance> {golds} </relevance>\n<analysis> {thought} </analysis>\n<answer> {example.golds[0]} </answer>"
    return ("kept", [(MODEL, text)]) if thought and Parser(SECTIONS["cited"]).in_shape(text) else ("out of shape", None)

  return await transcripts_lib.make(examples, one, **how)
