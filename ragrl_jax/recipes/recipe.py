"""The parts of a recipe: a dataclass with a field for each."""

import dataclasses
import numbers
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ragrl_jax import structs
from ragrl_jax.settings import fields

AT_LAST = 10**9  # a step that no run reaches


class Prompt(Protocol):
  """Turns an example into the chat messages that open its episode."""

  def messages(self, example: structs.Example) -> list[dict[str, str]]:
    """The chat messages ({"role", "content"}) that open the episode."""
    ...


class Parser(Protocol):
  """Reads model text. It never sees the prompt or the environment's text."""

  def stop(self, text: str) -> str:
    """The stop string on which this model turn ended, or "eos"; for transcripts without a sampler's record."""
    ...

  def answer(self, text: str) -> str | None:
    """The final answer in the model's text, or None."""
    ...

  def observed(self, reply: str, text: str) -> tuple[str | None, tuple[structs.Passage, ...] | None]:
    """(query, passages) of the environment's `text` after the model's `reply`; (None, None) for a notice."""
    ...


@dataclasses.dataclass(frozen=True)
class Switches(fields.Checked, Mapping[str, Any]):
  """The settings of a recipe under config.switches. Each recipe has its own subclass.

  A recipe reads them as attributes. They are also a mapping by name, for writing them down: `dict(recipe.switches)`.
  """

  def __getitem__(self, name: str) -> Any:
    if name not in self.__dataclass_fields__:
      raise KeyError(name)
    return getattr(self, name)

  def __iter__(self) -> Iterator[str]:
    return iter(self.__dataclass_fields__)

  def __len__(self) -> int:
    return len(self.__dataclass_fields__)

  @property
  def stepped(self) -> bool:
    """Whether turns have thoughts, queries and answers in tags, so that steps can be judged (`recipes.steps`)."""
    return False

  def reads(self) -> fields.Reads:
    """The switches that are read beside some values of another setting alone, by names such as "switches.unit"."""
    return ()

  def refusal(self, name: str, value: Any, must: str) -> str:
    """The message for a switch with a value that is not allowed."""
    return f"switch {name}={value!r}: it must be {must} (config.switches.{name})."


@dataclasses.dataclass(frozen=True)
class Recipe:
  """One published system.

  Attributes:
    name: its room's name.
    prompt: example → chat messages.
    parser: model text → action and parts; written against that prompt.
    play: async (example, policy, tools) → Episode: the episode as a coroutine that reads like the paper.
    stops: all stop strings that `play` uses. The engine compiles them into one automaton.
    score: (example, episode) → {term: unweighted number, or None where it cannot be scored}. Pure.
    weights: step → {term: weight}.
    outcome: (example, episode) → 0 or 1: whether the answer is correct, without reward shaping. None if a judge's
      verdict is missing. Filters, progress bars and tables use it.
    switches: all switches with their values: those of the preset, and the overrides.
    evidence: (example, episode) → the text that supports the answer, for tables. None if the recipe has no such text.
    mixture: (step, counted from 0; steps of the run) → probability of drawing a question from the easy set if
      config.data.hard names a hard one. None if the recipe uses one set.
    credit: (example, episode) → {term: one number per model segment}; their sum is the term. It is for terms that
      single turns earn. Only per-turn and per-token advantages use it. None: the last turn earns everything.
    style: how the paper's tables normalise answers (`core.text.normalize`). If it is not "squad", evaluations also
      report em_STYLE and f1_STYLE.
    pooled: (example, episode) → {term: (sum, number)} for terms that are means, such as a mean of verdicts on pairs.
      The sum divided by the number, over many episodes, is logged as pooled/TERM. An episode without pairs counts 0 in
      the term, and is left out here. None: no term is such a mean.
    judged: terms for which `play` asks a judge by the term's name. Each may have its own judge (config.judges).
    judges_golds: `play` asks a judge about the question's golds, so its verdicts hold for these golds only.
    unearned: (example, episode) → {trick: whether the episode uses it}, for tricks that the published reward pays
      although they are not worth it (the recipe's README, "Unearned reward"). `guarded` does not change it. The shares
      are logged as unearned/TRICK. None: no such trick is known.
    measures: (example, episode) → {name: number, or None if unknown}: other quantities in the paper's figures and
      tables. They are logged as measure/NAME in training and evaluation. None: there are none.
    next_recipe: rows of metrics.jsonl so far → the recipe of the next step, for stages that depend on metrics. A pure
      function. With `waits_for`, the rows have the step and this metric alone. None: the recipe never changes.
    waits_for: the metric on which `next_recipe` depends, such as "evaluation/em"; "": a metric of training, or none.
    paced: steps per epoch → the recipe, with schedules in epochs converted to steps. None: no schedule is in epochs.
    tool_tokens: tokenizer → the number of tokens that tools add to a prompt; raises ValueError if the recipe cannot use
      the chat template. None: there are no tools, and the template must only append (`chat.check_append_only`).
    encodes: `play` compares vectors of texts, so it needs an encoder (config.retrieval.query_encoder).
    searches: `play` may search, so it needs a retriever.
    needs_passages: the prompt shows the question's own passages. With `searches`, a question without passages gets
      retrieved ones.
    script: (example, segments so far with the prompt first, random numbers) → the model's next text in a demonstration
      (`ragrl demonstrate`), from the supporting passages of the example's row. Raises `scripts.NotShown`. None: the
      recipe has no demonstrations.
    trainable: an episode is one conversation, or says where the others begin (`Episode.starts`). False: an episode
      joins several conversations, so the recipe can only be evaluated.
  """

  name: str
  prompt: Prompt
  parser: Parser
  play: Callable[[structs.Example, structs.Policy, structs.Tools], Awaitable[structs.Episode]]
  stops: Sequence[str]
  score: Callable[[structs.Example, structs.Episode], Mapping[str, float | None]]
  weights: Callable[[int], Mapping[str, float]]
  outcome: Callable[[structs.Example, structs.Episode], float | None]
  switches: Mapping[str, Any]
  evidence: Callable[[structs.Example, structs.Episode], str] | None = None
  mixture: Callable[[int, int], float] | None = None
  credit: Callable[[structs.Example, structs.Episode], Mapping[str, Sequence[float]]] | None = None
  style: str = "squad"
  pooled: Callable[[structs.Example, structs.Episode], Mapping[str, tuple[float, int]]] | None = None
  judged: Sequence[str] = ()
  judges_golds: bool = False
  unearned: Callable[[structs.Example, structs.Episode], Mapping[str, bool]] | None = None
  measures: Callable[[structs.Example, structs.Episode], Mapping[str, float | None]] | None = None
  next_recipe: Callable[[Sequence[Mapping[str, Any]]], "Recipe"] | None = None
  waits_for: str = ""
  paced: Callable[[float], "Recipe"] | None = None
  tool_tokens: Callable[[Any], int] | None = None
  encodes: bool = False
  searches: bool = False
  needs_passages: bool = False
  script: Callable[[structs.Example, Sequence[structs.Segment], random.Random], str] | None = None
  trainable: bool = True

  def reward(self, terms: Mapping[str, float | None], step: int) -> float | None:
    """The weighted sum of the terms; None if a term with a weight cannot be scored.

    Raises:
      ValueError: `score` did not return a term that `weights` names, or returned something else than a number.
    """
    total = 0.0
    for name, weight in self.weights(step).items():
      if weight:
        if not isinstance(terms, Mapping) or name not in terms:
          names = ", ".join(map(repr, terms)) if isinstance(terms, Mapping) else type(terms).__name__
          raise ValueError(
            f"recipe {self.name}: weights() names the term {name!r}, but score() returned {names or 'no term'}: it "
            "must return a dict with every term of weights()."
          )
        if (term := terms[name]) is None:
          return None
        if not isinstance(term, numbers.Real):
          raise ValueError(
            f"recipe {self.name}: score() returned {term!r:.80} for the term {name!r}: it must return a number, or "
            "None for an episode that cannot be scored."
          )
        total += weight * term
    return float(total)

  def cut_short(self, steps: int, *, mixed: bool = True) -> dict[str, tuple[float, float]]:
    """Weights whose schedule is longer than the run: {term: (weight at the run's end, final weight)}.

    The share of easy questions is included as "easy_share" if the run has hard ones (`mixed`). The result is empty if
    the stages depend on metrics (`next_recipe`), because their steps are not known in advance.
    """
    end, last = dict(self.weights(steps)), dict(self.weights(AT_LAST))
    if mixed and self.mixture is not None:
      end["easy_share"], last["easy_share"] = self.mixture(steps, steps), self.mixture(AT_LAST, steps)
    return {} if self.next_recipe else {name: (end[name], last[name]) for name in last if end[name] != last[name]}


def scoring(reward: Any) -> dict[str, Any]:
  """The fields of `Recipe` that a reward has methods for."""
  names = ("score", "weights", "outcome", "evidence", "pooled", "unearned", "measures")
  return {name: getattr(reward, name) for name in names if hasattr(reward, name)}
