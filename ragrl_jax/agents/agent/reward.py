"""The reward: the program's answer scored by exact match, F1, a judge or a function; or the program's own number."""

from ragrl_jax.recipes import answered
from ragrl_jax.structs import Episode, Example

KINDS = ("em", "f1", "judge", "program")


class Reward(answered.Reward):
  """Scores one episode. `kind`: one of KINDS, or a function of (example, answer, facts).

  A function returns a number, or None if the episode cannot be scored. The parser reads
  transcripts, which have no program.
  """

  def earned(self, example: Example, episode: Episode) -> float | None:
    """The term `answer`; None if the program, the judge or the function gave no number."""
    if self.kind == "program":
      return episode.facts.get("reward")
    if self.kind in KINDS:
      return super().earned(example, episode)
    earned = self.kind(example, answered.last_answer(self.parser, episode), episode.facts)
    return None if earned is None else float(earned)
