"""The episode: an agent writes, searches in its own tags, and reads results in the same turn, until it answers."""

from typing import TYPE_CHECKING

from ragrl_jax.recipes import search_agent
from ragrl_jax.recipes.released import digest
from ragrl_jax.recipes.released.agents import PLAYED
from ragrl_jax.recipes.released.parser import END, Parser
from ragrl_jax.recipes.released.prompt import Prompt
from ragrl_jax.structs import Episode, Example, Passage, Policy, Tools

if TYPE_CHECKING:
  from ragrl_jax.recipes.released.recipe import Switches

TOLD = 5  # additional turns for an agent that is told that no searches are left
NO_MORE = "\nNo searches are left: searching is not allowed any more.\n"
AGAIN = "\nThis query was searched for before: its results are above.\n"


def build(prompt: Prompt, parser: Parser, switches: "Switches"):
  """The coroutine. With documents="given" a search returns all of the example's own passages."""
  notice, words = search_agent.notice(switches.notice), digest.words(switches.digest)
  max_searches = switches.max_searches
  agent = PLAYED[parser.agent]

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
        reasoning = digest.shortened(f"Question: {question}\n{said}", parser.tags)
        shown, tokens = await digest.read(policy, words, reasoning, query, shown)
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
