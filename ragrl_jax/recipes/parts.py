"""Parts that recipes share: a parser's defaults, a prompt with the question alone, an episode of one turn."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from ragrl_jax.prompting import wording
from ragrl_jax.recipes import recipe
from ragrl_jax.structs import Episode, Example, Passage, Policy, Tools

Play = Callable[[Example, Policy, Tools], Awaitable[Episode]]


class Parser(recipe.Parser):
  """A parser without searches. A subclass adds `answer`, and `stops` if turns end on stop strings."""

  def stop(self, text: str) -> str:
    """The stop string that a model turn ends on, white space aside; "eos" if there is none."""
    stops: Sequence[str] = getattr(self, "stops", ())
    return next((stop for stop in stops if text.rstrip().endswith(stop)), "eos")

  def observed(self, said: str, text: str) -> tuple[str | None, tuple[Passage, ...] | None]:
    """(None, None): no text of the environment is a search result."""
    del said, text
    return None, None


class Prompt:
  """One user message, or the messages of the user's file with {question}.

  Args:
    instructions: a key of `known` ("none" shows only the question), or file:PATH.
    known: the recipe's wordings.
    marked: every question ends with "?", as in Search-R1's data.

  Raises:
    ValueError: see `wording.chosen`.
  """

  def __init__(self, instructions: str, known: Mapping[str, str], *, marked: bool = False):
    setting = "config.switches.instructions"
    self._wording = wording.chosen(instructions, known, setting=setting, needs=("question",))
    self._read = asked if marked else str.strip

  def messages(self, example: Example) -> list[dict[str, str]]:
    """The chat messages that open the episode."""
    return self._wording.messages(question=self._read(example.question))


def one_turn(prompt: recipe.Prompt) -> Play:
  """The coroutine of a recipe whose model replies once, without tools."""

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    del tools
    talk = policy.start(prompt.messages(example))
    await talk.generate()
    return talk.end()

  return play


def asked(question: str) -> str:
  """The question as in Search-R1's data: it ends with "?"."""
  question = question.strip()
  return question if question.endswith("?") else f"{question}?"
