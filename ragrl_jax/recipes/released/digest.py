"""Reason-in-documents: the model reads results in a separate conversation, and passes on a digest."""

import re

from ragrl_jax.prompting import passages, wording
from ragrl_jax.recipes.released.tags import AgentTags
from ragrl_jax.structs import Policy

NOTHING = "No helpful information found."
DIGESTS = {
  "paper": (
    "Somebody reasons about a question and has searched. Read the documents that were found, and tell from them, and "
    "from nothing else, what helps with this query and carries the reasoning on. Reply with the line "
    f"'Final information:' and what helps below it; if nothing does, write {NOTHING}\n"
    "Reasoning so far:\n{reasoning}\n\nQuery: {query}\n\nDocuments:\n{documents}\n"
  )
}
LAST = 4  # steps of the reasoning that are always shown
_MARK = re.compile(r"final information\W*", re.IGNORECASE)


def words(choice: str) -> wording.Wording:
  """The prompt that config.switches.digest names: the default, or a file with {reasoning}, {query} and {documents}."""
  return wording.chosen(choice, DIGESTS, setting="config.switches.digest", needs=("reasoning", "query", "documents"))


async def read(policy: Policy, how: wording.Wording, reasoning: str, query: str, documents: str) -> tuple[str, int]:
  """(the model's digest of the documents, number of its tokens)."""
  talk = policy.start(how.messages(reasoning=reasoning, query=query, documents=documents))
  said = await talk.generate()
  talk.end()
  text = said.text.rpartition("</think>")[2]
  return passages.neutral(_MARK.split(text)[-1].strip()) or NOTHING, len(said.ids)


def shortened(reasoning: str, tags: AgentTags) -> str:
  """The first step, the last LAST steps, and those with a query or results; "..." replaces the others. Steps are lines.

  Source: Search-o1 (arXiv 2501.05366), its code's extract of earlier steps.
  """
  steps = [line for line in reasoning.split("\n") if line.strip()]
  marks = (tags.query[0], tags.results[0])
  kept: list[str] = []
  for number, step in enumerate(steps):
    if not number or number >= len(steps) - LAST or any(mark in step for mark in marks):
      kept.append(step)
    elif kept[-1] != "...":
      kept.append("...")
  return "\n".join(kept)
