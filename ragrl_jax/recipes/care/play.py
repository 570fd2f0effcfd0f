"""The episode: one turn, to the end of the model's reply."""

from ragrl_jax.recipes.care.prompt import Prompt
from ragrl_jax.structs import Episode, Example, Policy, Tools


def build(prompt: Prompt):
  """The coroutine with these settings."""

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    del tools  # the context is part of the prompt
    talk = policy.start(prompt.messages(example))
    await talk.generate()
    return talk.end()

  return play
