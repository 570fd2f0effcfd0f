"""What is measured beside the reward: tricks that it pays for although they are not worth it, and cited facts."""

import re

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards import citations
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
    pays = any(terms[name] != 0.0 for name in ("accuracy", "relevance") if name in terms)  # None: it may be
    shaped = terms["format"] == 1.0
    analysis = " ".join(forms.typed(parser.section(text, name) or "") for name in ("analysis", "think"))
    numbers = set(_NUMBER.findall(forms.typed(parser.section(text, "relevance") or "")))
    golds = {str(number) for number in passages.gold_numbers(example, self.reward.gold_ids)}
    reasons = len(parser.sections) == 1 or len(_WORD.findall(analysis)) >= LEAST_WORDS
    return dict(
      out_of_shape=pays and not shaped,
      shape_alone=shaped and not pays,
      cites_many=bool(terms.get("relevance")) and 2 * len(numbers & golds) < len(numbers),
      no_reasoning=shaped and not (reasons and numbers <= set(_NUMBER.findall(analysis))),
    )


NAMES = ("fact_em", "fact_f1", "joint_em", "joint_f1")


def measure_facts(reward: Reward, example: Example, episode: Episode) -> dict[str, float | None]:
  """NAMES (`core.metrics.qa`); None where the supporting passages are unknown or the format cites none.

  Answers are normalised as in HotpotQA's script.
  """
  golds = passages.gold_numbers(example, reward.gold_ids) if "relevance" in reward.parser.sections else []
  if not golds:
    return dict.fromkeys(NAMES)
  text = episode.model_text
  ids = citations.parse_ids(reward.parser.section(text, "relevance") or "", strict=reward.strict_ids)
  facts = qa.set_overlap(ids or (), golds)
  joint = qa.joint(qa.overlap(reward.parser.answer(text) or "", example.golds, yes_no_rule=True), facts)
  return dict(fact_em=facts.exact, fact_f1=facts.f1, joint_em=joint.exact, joint_f1=joint.f1)
