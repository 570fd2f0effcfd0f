"""The episode: one turn, as a coroutine. Next: reward.py."""

import dataclasses
from collections.abc import Sequence

from ragrl_jax.core.metrics import qa
from ragrl_jax.judging import references
from ragrl_jax.recipes.arena.parser import Parser
from ragrl_jax.recipes.arena.prompt import Prompt
from ragrl_jax.structs import Episode, Example, Policy, Tools


def build(prompt: Prompt, parser: Parser, *, stops: Sequence[str], judge: bool):
  """The coroutine with these settings. judge: ask for a verdict on each answer that is not exactly right."""

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    talk = policy.start(prompt.messages(example))
    said = await parser.say(talk, stops)
    episode = talk.end("answer" if said.stop in stops else None)  # frees its pages while the judge reads
    answer = parser.answer(episode.model_text)
    if not judge or not answer or not example.golds or qa.exact_match(answer, example.golds, style="spaced"):
      return episode
    (verdict,) = await tools.judge([(references(example.golds), answer)])
    return dataclasses.replace(episode, facts=dict(correct=verdict))

  return play
