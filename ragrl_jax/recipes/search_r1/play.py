"""The episode: think, search and read in turn, then answer."""

from ragrl_jax.prompting import passages
from ragrl_jax.recipes.search_r1.parser import STOPS, Parser
from ragrl_jax.recipes.search_r1.prompt import Prompt
from ragrl_jax.structs import Episode, Example, Policy, Tools


def build(prompt: Prompt, parser: Parser, *, notice: str, max_searches: int, max_passage_tokens: int | None):
  """The coroutine under these settings. notice: the environment's words after a turn without a valid action."""

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    talk = policy.start(prompt.messages(example))
    for turn in range(max_searches + 1):  # n searches, n + 1 generations; the last one can only answer
      said = await talk.generate(stop=STOPS)
      action = parser.act(said.text)
      if action is not None and action[0] == "answer":
        return talk.end("answer")
      if turn == max_searches:
        break
      if action is None:
        went_on = talk.observe(notice)
      else:
        found = await tools.search(action[1])
        shown = passages.block(found, tokenizer=policy.tokenizer, max_passage_tokens=max_passage_tokens)
        went_on = talk.observe(shown, query=action[1], found=found)
      if not went_on:
        return talk.end("budget")
    return talk.end("searches")

  return play
