"""HotpotQA's supporting facts and joint metrics, by passage: the cited references against the supporting ones."""

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards import citations
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.arena.reward import Reward
from ragrl_jax.structs import Episode, Example

NAMES = ("fact_em", "fact_f1", "joint_em", "joint_f1")


def measures(reward: Reward, example: Example, episode: Episode) -> dict[str, float | None]:
  """NAMES (`core.metrics.qa`); None where the supporting passages are unknown or the format cites none.

  Answers are normalised as in HotpotQA's script.
  """
  golds = passages.gold_numbers(example, reward.gold_ids) if "relevance" in reward.parser.sections else []
  if not golds:
    return dict.fromkeys(NAMES)
  text = episode.model_text
  ids = citations.parse_ids(reward.parser.section(text, "relevance") or "", strict=reward.strict_ids)
  facts = qa.set_overlap(ids or (), golds)
  both = qa.joint(qa.overlap(reward.parser.answer(text) or "", example.golds, yes_no_rule=True), facts)
  return dict(fact_em=facts.exact, fact_f1=facts.f1, joint_em=both.exact, joint_f1=both.f1)
