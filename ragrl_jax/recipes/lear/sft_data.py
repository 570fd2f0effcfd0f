"""Transcripts for the study of evidence: a teacher's reason, evidence and answer, or only some of these sections."""

from collections.abc import Sequence
from typing import Any

from ragrl_jax.chat.cached import Chat
from ragrl_jax.core.metrics import qa
from ragrl_jax.core.text import tags
from ragrl_jax.data import transcripts as transcripts_lib
from ragrl_jax.recipes.lear.parser import Parser
from ragrl_jax.recipes.lear.prompt import SECTIONS, Prompt
from ragrl_jax.structs import MODEL, Example

# File of the study → the kind of reply that it teaches. The rationale is the rational model's own reason.
ARMS = {"vanilla": "extract", "rational": "reason_extract"}


async def taught(examples: Sequence[Example], teacher: Chat, *, instructions: str = "paper", **how: Any):
  """The teacher's replies, in the recipe's own format. `how` is passed to `data.transcripts.make`.

  Args:
    examples: with passages and golds.
    teacher: the model that answers the recipe's prompt.
    instructions: of this prompt, as the recipe's switch: "paper" or file:PATH.

  Fates: "kept"; "no passages" (not asked); "no answer" (none, asked twice); "out of shape";
  "wrong answer".

  Source: LEAR sec. 2.2 (DeepSeek-R1, 1,000 NQ questions, of which about 620 were kept).
  """
  parser, prompt = Parser(), Prompt(instructions)

  async def one(example: Example):
    if not example.passages:
      return "no passages", None
    reply = await teacher.ask(prompt.messages(example))
    said = reply.content.rpartition("</think>")[2]  # without a reasoning model's own thoughts
    # Headings, code fences and remarks around the sections are left out.
    text = "\n".join(f"<{pair.name}>{pair.body}</{pair.name}>" for pair in tags.pairs(said, parser.sections))
    if not parser.in_shape(text):
      return "out of shape", None
    if not qa.exact_match(parser.answer(text) or "", example.golds):
      return "wrong answer", None
    return "kept", [(MODEL, text)]

  return await transcripts_lib.make(examples, one, **how)


def arm(turns: transcripts_lib.Turns, reply: str) -> transcripts_lib.Turns:
  """The same transcript with only the sections of this reply (a key of SECTIONS)."""
  ((_, text),) = turns
  return [(MODEL, "\n".join(f"<{name}> {Parser().section(text, name)} </{name}>" for name in SECTIONS[reply]))]


def answerable(examples: Sequence[Example], recall: str = "words") -> list[Example]:
  """Examples with a passage that contains a gold, as words or letters (`qa.CONTAINS`); the study is tested on these."""
  holds = qa.CONTAINS[recall]
  return [e for e in examples if any(holds(passage.text, e.golds) for passage in e.passages)]
