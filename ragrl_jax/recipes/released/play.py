"""The episode: an agent writes, searches in its own tags, and reads results in the same turn, until it answers."""

import re
from typing import TYPE_CHECKING

from ragrl_jax.prompting import passages, wording
from ragrl_jax.recipes import search_agent
from ragrl_jax.recipes.parts import Prompt
from ragrl_jax.recipes.released.agents import Agent
from ragrl_jax.recipes.released.prompt import END, Parser
from ragrl_jax.structs import Episode, Example, Passage, Policy, Tools

if TYPE_CHECKING:
  from ragrl_jax.recipes.released.recipe import Switches


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


def digest_wording(choice: str) -> wording.Wording:
  """The prompt that config.switches.digest names: the default, or a file with {reasoning}, {query} and {documents}."""
  return wording.chosen(choice, DIGESTS, setting="config.switches.digest", needs=("reasoning", "query", "documents"))


async def digest(policy: Policy, how: wording.Wording, reasoning: str, query: str, documents: str) -> tuple[str, int]:
  """(the model's digest of the documents, number of its tokens)."""
  talk = policy.start(how.messages(reasoning=reasoning, query=query, documents=documents))
  said = await talk.generate()
  talk.end()
  text = said.text.rpartition("</think>")[2]
  return passages.neutral(_MARK.split(text)[-1].strip()) or NOTHING, len(said.ids)


def shortened(reasoning: str, agent: Agent) -> str:
  """The first step, the last LAST steps, and those with a query or results; "..." replaces the others. Steps are lines.

  Source: Search-o1 (arXiv 2501.05366), its code's extract of earlier steps.
  """
  steps = [line for line in reasoning.split("\n") if line.strip()]
  marks = (agent.query[0], agent.results[0])
  kept: list[str] = []
  for number, step in enumerate(steps):
    if not number or number >= len(steps) - LAST or any(mark in step for mark in marks):
      kept.append(step)
    elif kept[-1] != "...":
      kept.append("...")
  return "\n".join(kept)


TOLD = 5  # additional turns for an agent that is told that no searches are left
NO_MORE = "\nNo searches are left: searching is not allowed any more.\n"
AGAIN = "\nThis query was searched for before: its results are above.\n"


def make_play(prompt: Prompt, parser: Parser, switches: "Switches"):
  """The coroutine. With documents="given" a search returns all of the example's own passages."""
  notice, words = search_agent.notice(switches.notice), digest_wording(switches.digest)
  agent, max_searches = parser.agent, switches.max_searches

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    talk, question = policy.start(prompt.messages(example)), example.question.strip()
    asked: set[str] = set()
    facts = dict(digest_tokens=0) if agent.digests else {}

    async def results(query: str) -> tuple[str, tuple[Passage, ...] | None]:
      """(the block after a query, the passages if there was a search)."""
      if agent.digests and (len(asked) == max_searches or query in asked):
        return agent.block(AGAIN if query in asked else NO_MORE), None
      asked.add(query)
      found = example.passages if switches.documents == "given" else await tools.search(query)
      shown = agent.shown(found, policy.tokenizer, switches.max_passage_tokens)
      if agent.digests:
        said = "".join(segment.text for segment in talk.segments[1:])
        reasoning = shortened(f"Question: {question}\n{said}", agent)
        shown, tokens = await digest(policy, words, reasoning, query, shown)
        facts["digest_tokens"] += tokens
      return agent.block(shown), found

    turns = max_searches + 1 + (TOLD if agent.digests else 0)
    for turn in range(turns):
      said = await talk.generate(stop=parser.stops)
      query = parser.query(said.text)
      if said.stop == END or (query is None and not agent.notice):
        return talk.end("answer" if said.stop == END or parser.answer(said.text) is not None else None, **facts)
      if turn == turns - 1:
        break
      shown, found = (notice, None) if query is None else await results(query)
      if not talk.observe(shown, query=query if found is not None else None, found=found):
        return talk.end("budget", **facts)
    return talk.end("searches", **facts)

  return play
