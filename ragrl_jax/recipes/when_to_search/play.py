"""The episode: think, search if needed and reflect on the results, answer. Then judge and encoder are called."""

import dataclasses
from typing import TYPE_CHECKING, Any

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.text.normalize import normalize
from ragrl_jax.judging import references
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.parts import Prompt
from ragrl_jax.recipes.when_to_search.parser import STOPS, Parser, last_answer
from ragrl_jax.recipes.when_to_search.reward import to_judge
from ragrl_jax.structs import Episode, Example, Policy, Tools

if TYPE_CHECKING:
  from ragrl_jax.recipes.when_to_search.recipe import Switches


def build(prompt: Prompt, parser: Parser, switches: "Switches"):
  """The coroutine with these settings."""
  max_searches = switches.max_searches

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    talk = policy.start(prompt.messages(example))
    why = None
    for searches in range(max_searches + 1):  # n searches, n + 1 generations; the last one can only answer
      said = await talk.generate(stop=STOPS)
      action, text = parser.act(said.text) or ("", "")
      if action == "answer":
        why = "answer"
      if action != "search" or not text:  # an invalid action ends the episode
        break
      if searches == max_searches:
        why = "searches"
        break
      found = await tools.search(text)
      shown = passages.block(found, tokenizer=policy.tokenizer, max_passage_tokens=switches.max_passage_tokens)
      if not talk.observe(shown, query=text, found=found):
        why = "budget"
        break
    episode = talk.end(why)  # frees its pages while judge and encoder work
    return dataclasses.replace(episode, facts=await facts(example, episode, tools))

  async def facts(example: Example, episode: Episode, tools: Tools) -> dict[str, Any]:
    """`correct`: the verdict on an answer that equals no gold; `query_vectors`: the vectors of several queries."""
    known: dict[str, Any] = {}
    said = last_answer(parser, episode) or ""
    answer = to_judge(said, example.golds)
    if switches.judges and answer and example.golds and not qa.exact_match(said, example.golds):
      # Texts are normalised, as for the paper's judge. This gives fewer different pairs, so fewer calls.
      golds = [normalize(gold, "squad") or gold for gold in example.golds]
      (known["correct"],) = await tools.judge([(references(golds), answer)])
    if switches.similarity == "encoder" and episode.num_searches > 1:
      known["query_vectors"] = await tools.embed([search.query or "" for search in episode.searches])
    return known

  return play
