"""The episode: one turn."""

from collections.abc import Sequence

from ragrl_jax.recipes.arena.prompt import Prompt
from ragrl_jax.structs import Episode, Example, Policy, Tools


def build(prompt: Prompt, *, stops: Sequence[str]):
  """The coroutine under these settings."""

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    del tools  # the references are in the prompt
    talk = policy.start(prompt.messages(example))
    said = await talk.generate(stop=stops)
    return talk.end("answer" if said.stop in stops else None)

  return play
