"""The episode: think, search and read in turn, then answer. Then a judge judges which steps follow from their basis."""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ragrl_jax.core.rewards import faithful
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.parts import Prompt
from ragrl_jax.recipes.search_agent import STOPS, Parser
from ragrl_jax.recipes.steps import steps
from ragrl_jax.structs import Conversation, Episode, Example, Policy, Tools

if TYPE_CHECKING:
  from ragrl_jax.recipes.veritas.recipe import Switches


def build(prompt: Prompt, parser: Parser, switches: "Switches", notice: str, judged: Sequence[str]):
  """The coroutine with these settings.

  Args:
    prompt, parser, switches: the recipe's.
    notice: the environment's text after a turn without a valid action.
    judged: the terms whose pairs are judged.
  """
  max_searches = switches.max_searches

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    talk = policy.start(prompt.messages(example))
    episode = talk.end(await search_and_answer(talk, policy, tools))  # frees its pages while the judge reads
    return dataclasses.replace(episode, facts=parser.facts | await verdicts(episode, tools))

  async def search_and_answer(talk: Conversation, policy: Policy, tools: Tools) -> str:
    for turn in range(max_searches + 1):  # n searches, n + 1 generations: the last one can only answer
      said = await talk.generate(stop=STOPS)
      action, text = parser.act(said.text) or ("", "")
      if action == "answer":
        return "answer"
      if turn == max_searches:
        break
      if action == "search" and text:
        found = await tools.search(text)
        shown = passages.block(found, tokenizer=policy.tokenizer, max_passage_tokens=switches.max_passage_tokens)
        went_on = talk.observe(shown, query=text, found=found)
      else:
        went_on = talk.observe(notice)
      if not went_on:
        return "budget"
    return "searches"

  async def verdicts(episode: Episode, tools: Tools) -> dict[str, tuple[float | None, ...]]:
    """For each judged term, one verdict for each of its complete pairs, in order."""
    found = steps(episode.turns, parser.action)
    pairs = {name: faithful.whole(getattr(found, name)) for name in judged}
    answers = await asyncio.gather(*(tools.judge(some, term) for term, some in pairs.items() if some))
    told = iter(answers)
    return {name: tuple(next(told)) if some else () for name, some in pairs.items()}

  return play
