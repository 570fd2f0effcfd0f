"""The episode: think, search and read in turn, then answer."""

from typing import TYPE_CHECKING

from ragrl_jax.prompting import passages
from ragrl_jax.recipes.parts import Prompt
from ragrl_jax.recipes.search_agent import Parser
from ragrl_jax.structs import Episode, Example, Passage, Policy, Tools

if TYPE_CHECKING:
  from ragrl_jax.recipes.search_r1.recipe import Switches


def build(prompt: Prompt, parser: Parser, switches: "Switches", notice: str):
  """The coroutine. notice: the environment's text after a turn without a valid action."""
  max_searches = switches.max_searches

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    talk, reader = policy.start(prompt.messages(example)), Reader(tools)
    for turn in range(max_searches + 1):  # n searches, n + 1 generations; the last one can only answer
      said = await talk.generate(stop=parser.stops)
      action = parser.act(said.text)
      if action is not None and action[0] == "answer":
        return talk.end("answer", **parser.facts)
      if turn == max_searches:
        break
      read = None if action is None else await reader.act(*action)
      if read is None:
        went_on = talk.observe(notice)
      else:
        query, found = read
        shown = passages.block(found, tokenizer=policy.tokenizer, max_passage_tokens=switches.max_passage_tokens)
        went_on = talk.observe(shown, query=query, found=found)
      if not went_on:
        return talk.end("budget", **parser.facts)
    return talk.end("searches", **parser.facts)

  return play


class Reader:
  """Searches, opens and finds for one episode. It remembers the last results and the open document."""

  def __init__(self, tools: Tools):
    self._tools = tools
    self._shown: tuple[Passage, ...] = ()
    self._open: str | None = None  # id of a passage of the open document

  async def act(self, kind: str, text: str) -> tuple[str, tuple[Passage, ...]] | None:
    """(query, passages); None for an invalid action: an unknown number, no words, or no open document."""
    if kind == "search":
      query, found = text, await self._tools.search(text)
    elif kind == "open":
      number = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0
      if not 1 <= number <= len(self._shown):
        return None
      self._open = self._shown[number - 1].id
      query, found = f"open {self._open}", await self._tools.open(self._open)
    else:
      if self._open is None or not text:
        return None
      query, found = f"find {text} in {self._open}", await self._tools.find(self._open, text)
    self._shown = tuple(found)
    return query, self._shown
