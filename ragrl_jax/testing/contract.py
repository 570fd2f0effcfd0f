"""The contract of every recipe, as checks that the author of a recipe can call.

    def test_my_recipe():
      testing.check_recipe(my_recipe, my_example, ["<answer> Paris </answer>", "nonsense"])

Each check raises AssertionError with a message that says what is wrong.
"""

import copy
import dataclasses
import inspect
import json
import math
import re
from collections.abc import Mapping, Sequence

from ragrl_jax.recipes.recipe import Recipe
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Example
from ragrl_jax.testing import scripted

TURNS = 64  # turns after which a play counts as endless
Turns = Sequence[tuple[str, str]]


def check_recipe(recipe: Recipe, example: Example, texts: Sequence[str] = ()) -> None:
  """Checks the contract that holds for every recipe.

  - The slots are filled: `play` is async, stop strings are strings, the prompt's messages contain the question.
  - `score` and `weights` name the same terms; the reward is their weighted sum; the outcome is 0, 1 or None.
  - `score` is pure, and reads text: other token ids give the same score.
  - Text of the environment earns nothing, and a failed episode has no score.
  - `play` ends with a policy that says nothing, and uses only the recipe's stop strings.

  Args:
    recipe: the result of `build`.
    example: a question with everything the recipe needs: passages, golds, evidence.
    texts: good and bad replies of a model. Each is scored as an episode of one turn.

  Raises:
    AssertionError: a part of the contract is broken.
  """
  slots(recipe, example)
  stops(recipe)
  for turns in ([], [(MODEL, "")], *([(MODEL, text)] for text in texts)):
    episode = Episode.from_text(recipe, example, turns)
    terms(recipe, example, episode)
    pure(recipe, example, episode)
    text_alone(recipe, example, turns)
    failed(recipe, example, episode)
  environment_earns_nothing(recipe, example, ["".join(texts), *texts])
  ends(recipe, example)


def slots(recipe: Recipe, example: Example) -> None:
  """The recipe's parts have the form that the library relies on."""
  assert inspect.iscoroutinefunction(recipe.play), "play must be `async def`"
  named = list(inspect.signature(recipe.play).parameters)
  assert named == ["example", "policy", "tools"], f"play takes (example, policy, tools), not {named}"
  assert all(isinstance(stop, str) and stop for stop in recipe.stops), f"stops={recipe.stops!r}: non-empty strings"
  messages = recipe.prompt.messages(example)
  form = all(set(m) == {"role", "content"} and isinstance(m["content"], str) for m in messages)
  assert messages and form, f"prompt.messages gave {messages!r}: it must be a list of {{'role', 'content'}}"
  assert example.question in messages[-1]["content"], "the last message does not contain the question"
  json.dumps(dict(recipe.switches))  # they are written to config.json


def stops(recipe: Recipe) -> None:
  """The parser finds the stop string of a turn, and does not take a notice for search results."""
  for stop in recipe.stops:
    found = recipe.parser.stop(f"x{stop}")
    assert found == stop, f"parser.stop('x{stop}') is {found!r}, not {stop!r}"
  assert recipe.parser.stop("x") == "eos", "parser.stop of a text without a stop string must be 'eos'"
  found = recipe.parser.observed("<search> x </search>", "any notice")
  assert found == (None, None), f"parser.observed read results in a notice: {found!r}"


def terms(recipe: Recipe, example: Example, episode: Episode) -> Mapping[str, float | None]:
  """Terms, weights, reward and outcome are consistent. Returns the terms."""
  result, weights = recipe.score(example, episode), recipe.weights(0)
  assert set(result) == set(weights), f"score names {sorted(result)}, weights names {sorted(weights)}"
  for name, value in result.items():
    assert value is None or math.isfinite(value), f"term {name} is {value}: it must be a finite number, or None"
  outcome = recipe.outcome(example, episode)
  assert outcome in (0.0, 1.0, None), f"outcome is {outcome!r}: it must be 0, 1, or None without a verdict"
  reward, paid = recipe.reward(result, 0), [(weight, result[name]) for name, weight in weights.items() if weight]
  if any(value is None for _, value in paid):
    assert reward is None, f"reward is {reward}, though a term with a weight is None"
  else:
    total = sum(weight * value for weight, value in paid)
    assert math.isclose(reward, total, rel_tol=1e-6, abs_tol=1e-12), f"reward is {reward}, the weighted sum {total}"
  return result


def pure(recipe: Recipe, example: Example, episode: Episode) -> None:
  """`score` gives the same result for the same input, and changes nothing."""
  before = copy.deepcopy((example, episode))
  first = recipe.score(example, episode)
  assert recipe.score(example, episode) == first, "score differs from call to call"
  assert recipe.score(*copy.deepcopy(before)) == first, "score differs for a copy of the episode"
  assert (example, episode) == before, "score changed the example or the episode"


def text_alone(recipe: Recipe, example: Example, turns: Turns) -> None:
  """`score` depends on the text of an episode, not on its token ids. An episode keeps its turns unchanged."""
  by_bytes = Episode.from_text(recipe, example, turns)
  by_words = Episode.from_text(recipe, example, turns, tokenizer=_Words())
  assert recipe.score(example, by_bytes) == recipe.score(example, by_words), "score depends on the token ids"
  for segment, (owner, text) in zip(by_bytes.turns, turns, strict=True):
    assert (segment.owner, segment.text, bytes(segment.ids)) == (owner, text, text.encode())
    assert len(segment.logprobs) == (len(segment.ids) if owner == MODEL else 0)


def environment_earns_nothing(recipe: Recipe, example: Example, texts: Sequence[str]) -> None:
  """Text of the environment scores as much as silence, so it is never taken for the model's."""
  silence = recipe.score(example, Episode.from_text(recipe, example, []))
  paid = recipe.reward(silence, 10**6)
  assert paid is not None, "an episode without text has no reward: give the example everything that the terms need"
  for text in texts:
    for turns in ([], [(ENVIRONMENT, text)], [(MODEL, ""), (ENVIRONMENT, text), (MODEL, "")]):
      episode = Episode.from_text(recipe, example, turns)
      found = recipe.score(example, episode)
      assert found == silence, f"text of the environment changed the score from {silence} to {found}"
      assert recipe.outcome(example, episode) == 0.0, "text of the environment counts as a right answer"


def failed(recipe: Recipe, example: Example, episode: Episode) -> None:
  """An episode whose tool failed has no score and no reward."""
  episode = dataclasses.replace(episode, ended="failed", failure="x")
  found = recipe.score(example, episode)
  assert set(found.values()) == {None}, f"a failed episode must score None in every term, not {dict(found)}"
  assert recipe.reward(found, 0) is None, "a failed episode must have no reward"


def ends(recipe: Recipe, example: Example) -> None:
  """`play` ends with a policy that says nothing, and stops only at the recipe's stop strings."""
  policy = scripted.ScriptedPolicy([""] * TURNS)
  tools = scripted.ScriptedTools(policy, [()] * TURNS, [None] * TURNS)
  try:
    episode = scripted.run(recipe.play(example, policy, tools))
  except IndexError as error:
    raise AssertionError(f"play does not end within {TURNS} turns of a policy that says nothing") from error
  assert isinstance(episode, Episode), f"play returned {type(episode).__name__}, not an Episode: end with talk.end()"
  used = {stop for kind, *rest in policy.tape if kind == "generate" for stop in rest[0]}
  assert used <= set(recipe.stops), f"play stops at {sorted(used - set(recipe.stops))}, which recipe.stops lacks"


class _Words:
  """A tokenizer whose ids are not bytes but the lengths of words."""

  def encode(self, text: str) -> list[int]:
    return [len(piece) for piece in re.findall(r"\S+|\s+", text)]

  def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
    return self.encode(" ".join(message["content"] for message in messages))

  def decode(self, ids: Sequence[int]) -> str:
    return f"{len(ids)} words"
