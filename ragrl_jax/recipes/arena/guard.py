"""Finds tricks that the reward pays although they are not worth it (README.md, "Unearned reward"), and refuses them."""

import re

from ragrl_jax.core.text import forms
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.arena.reward import Reward
from ragrl_jax.structs import Episode, Example

LEAST_WORDS = 5  # fewest words of an analysis or a thought
_WORD, _NUMBER = re.compile(r"\w+"), re.compile(r"\d+")


class Guard:
  """Finds the tricks that this reward pays for."""

  def __init__(self, reward: Reward):
    self.reward = reward

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """The reward's terms. If the reply uses a trick of `unearned`, all known terms are 0."""
    terms = self.reward.score(example, episode)
    if episode.ended == "failed" or not any(self.unearned(example, episode).values()):
      return terms
    return {name: None if value is None else 0.0 for name, value in terms.items()}

  def unearned(self, example: Example, episode: Episode) -> dict[str, bool]:
    """The tricks, and whether the reply uses them.

    `out_of_shape`: a wrong format, with a reward for the answer or the references. `shape_alone`: the right format,
    without a reward for either. `cites_many`: fewer than half of the cited numbers are right, but they earn a reward.
    `no_reasoning`: the analysis, or thought, has fewer than LEAST_WORDS words, or does not name a cited number.
    """
    parser, text = self.reward.parser, episode.model_text
    terms = self.reward.score(example, episode)
    paid = any(terms[name] != 0.0 for name in ("accuracy", "relevance") if name in terms)  # None: it may be
    shaped = terms["format"] == 1.0
    analysis = " ".join(forms.typed(parser.section(text, name) or "") for name in ("analysis", "think"))
    cited = set(_NUMBER.findall(forms.typed(parser.section(text, "relevance") or "")))
    golds = {str(number) for number in passages.gold_numbers(example, self.reward.gold_ids)}
    reasons = len(parser.sections) == 1 or len(_WORD.findall(analysis)) >= LEAST_WORDS
    return dict(
      out_of_shape=paid and not shaped,
      shape_alone=shaped and not paid,
      cites_many=bool(terms.get("relevance")) and 2 * len(cited & golds) < len(cited),
      no_reasoning=shaped and not (reasons and cited <= set(_NUMBER.findall(analysis))),
    )
