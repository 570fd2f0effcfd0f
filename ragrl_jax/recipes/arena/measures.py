"""What is measured beside the reward: tricks that it pays for although they are not worth it, and cited facts."""

import re

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.text import forms, tokens
from ragrl_jax.recipes.arena.reward import Reward
from ragrl_jax.structs import Episode, Example

LEAST_WORDS = 5  # fewest words of an analysis or a thought
_NUMBER = re.compile(r"\d+")


class Measured(Reward):
  """The reward with its measures; if `guarded`, it pays for no trick."""

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """The terms. With `guarded`, all known ones are 0 if the reply uses a trick of `unearned`."""
    terms = super().score(example, episode)
    if not self.switches.guarded or episode.ended == "failed" or not any(self.unearned(example, episode).values()):
      return terms
    return {name: None if value is None else 0.0 for name, value in terms.items()}

  def unearned(self, example: Example, episode: Episode) -> dict[str, bool]:
    """The tricks that the published reward pays for, and whether the reply uses them.

    `out_of_shape`: a wrong format, with a reward for the answer or the references. `shape_alone`: the right format,
    without a reward for either. `cites_many`: fewer than half of the cited numbers are right, but they earn a reward.
    `no_reasoning`: the analysis, or thought, has fewer than LEAST_WORDS words, or does not name a cited number.
    """
    parser, text = self.parser, episode.model_text
    terms = super().score(example, episode)
    pays = any(terms[name] != 0.0 for name in ("accuracy", "relevance") if name in terms)  # None: it may be
    shaped = terms["format"] == 1.0
    analysis = " ".join(forms.typed(parser.section(text, name) or "") for name in ("analysis", "think"))
    numbers = set(_NUMBER.findall(forms.typed(parser.section(text, "relevance") or "")))
    golds = set(map(str, self.golds(example)))
    reasons = len(parser.sections) == 1 or len(tokens.words(analysis)) >= LEAST_WORDS
    return dict(
      out_of_shape=pays and not shaped,
      shape_alone=shaped and not pays,
      cites_many=bool(terms.get("relevance")) and 2 * len(numbers & golds) < len(numbers),
      no_reasoning=shaped and not (reasons and numbers <= set(_NUMBER.findall(analysis))),
    )

  def measures(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """The cited facts, alone and with the answer, as in HotpotQA's script (`core.metrics.qa`).

    None where the supporting passages are unknown.
    """
    golds = self.golds(example)
    if not golds:
      return dict.fromkeys(("fact_em", "fact_f1", "joint_em", "joint_f1"))
    text = episode.model_text
    facts = qa.set_overlap(self.cited(text) or (), golds)
    joint = qa.joint(qa.overlap(self.parser.answer(text) or "", example.golds, yes_no_rule=True), facts)
    return dict(fact_em=facts.exact, fact_f1=facts.f1, joint_em=joint.exact, joint_f1=joint.f1)
