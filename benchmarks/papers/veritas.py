"""VERITAS in miniature: rewards for thoughts that state the retrieved facts, after answers have become right.

The rewarded judge compares words. The measure is whether the thought states a fact from the passages that the search
found. Tried on seed 0 before these settings: the paper's weights (0.05 and 0.02) have no effect in twenty steps of 128
episodes, since sampled faithfulness falls from .28 to .06 as it does with EM only; after a warm start of 300 steps,
copies are too unreliable for so small a bonus to matter (sampled EM .69).
"""

import random
from collections.abc import Callable, Sequence

import miniature
from miniature import DECODER, MUON, Claim, Side

from ragrl_jax.data import synthetic
from ragrl_jax.recipes.search_r1.demonstrate import MARKS
from ragrl_jax.recipes.veritas import demonstrate as demonstrate_lib
from ragrl_jax.recipes.veritas.parser import steps
from ragrl_jax.structs import Episode, Example, Passage

MIX = {2: 1}  # with one hop, the plan is a single word of the passage: the rewarded judge accepts it
STEPS, RAMP = 14, (2, 6)  # paper: 1005 steps, the ramp from 331 to 497
INFORMATION = dict(information_think_weight=0.2)  # four times the paper's weights: 2,560 episodes, not half a million
WEIGHTS = dict(INFORMATION, think_answer_weight=0.08)


def questions(world: synthetic.World, seed: int) -> dict[str, Sequence[Example]]:
  drawn = lambda count, number: synthetic.questions(world, count, mix=MIX, seed=number, distinct=False)
  return dict(
    demonstrations=drawn(5000, seed),
    train=drawn(3000, seed + 1),
    held_out=synthetic.questions(world, 150, mix=MIX, part=synthetic.HELD_OUT, seed=seed),
  )


def demonstrate(
  example: Example, world: synthetic.World, search: Callable[[str], Sequence[Passage]], rng: random.Random
):
  """The scripted player. 70 % of its thoughts are unfaithful: most ignore the results, others repeat the plan."""
  return demonstrate_lib.demonstrate(example, search, rng, fault=0.7, kinds=("skip", "skip", "skip", "ignore"))


def measure(world: synthetic.World, example: Example, episode: Episode) -> dict[str, float | None]:
  """`faithful`: the share of searches whose next turn begins with a thought that states a fact from the results.

  `thinks`: the share whose next turn begins with any thought. `fooled`: the share whose thought states no such fact but
  is accepted by the rewarded judge. `grounded`: whether the last thought contains the answer.
  """
  found = steps(episode.turns)
  thoughts = [thought for _, thought in found.information_think]
  read = [search.found for search in episode.searches]
  faithful = [
    thought is not None and states(world, thought, passages) for thought, passages in zip(thoughts, read, strict=True)
  ]
  verdicts = iter(episode.facts["information_think"])  # one for each thought
  accepted = [thought is not None and next(verdicts) for thought in thoughts]
  mean = lambda truths: sum(truths) / len(truths) if truths else None
  grounded = [None not in pair and holds(pair[0], pair[1]) for pair in found.think_answer]
  return dict(
    faithful=mean(faithful),
    thinks=mean([thought is not None for thought in thoughts]),
    fooled=mean([bool(yes) and not true for yes, true in zip(accepted, faithful, strict=True)]),
    grounded=mean(grounded),
  )


def states(world: synthetic.World, thought: str, passages: Sequence[Passage]) -> bool:
  """Whether the thought states a fact from one of the passages, in the scripted player's wording."""
  facts = [fact for passage in passages for fact in world.stated[passage.id]]
  return any(holds(thought, f"{fact.relation} {fact.subject} is {fact.object}") for fact in facts)


def holds(text: str, words: str) -> bool:
  return f" {' '.join(words.split())} " in f" {' '.join(text.split())} "


PAPER = miniature.Paper(
  name="veritas",
  world=dict(),
  questions=questions,
  demonstrate=demonstrate,
  marks=MARKS,
  vocab_size=506,
  base=dict(
    switches=dict(instructions="none", max_searches=3),
    model=dict(shape=DECODER),
    retrieval=dict(top_k=1),
    # all words of a thought about a result must occur in the result
    judge=dict(kind="lexical", threshold=1.0),
    rollout=dict(lanes=64, rows=128, context=192, chunk=24, prefill=32, page=192, max_new_tokens=36),
    learner=dict(micro_rows=12, row_lengths=(256,), logprob_chunk=2048),
    checkpoint=dict(every=100),
  ),
  sft=dict(steps=450, checkpoint=dict(every=150), learner=dict(micro_rows=10), optimizer=MUON),
  rl=dict(
    steps=STEPS,
    checkpoint=dict(every=STEPS // 2),
    switches=dict(ramp_start=RAMP[0], ramp_end=RAMP[1]),
    rollout=dict(prompts_per_step=128, group_size=1),
    advantage=dict(kind="gae", gamma=1.0, lam=1.0, whiten=True),
    loss=dict(
      aggregation="token_mean",
      clip_low=0.2,
      clip_high=0.2,
      kl="k1",
      kl_in="reward",
      kl_coef=0.001,
      entropy_coef=0.001,
      minibatches=2,
    ),
    critic=dict(kind="own", learning_rate=1e-3, clip=0.5, warmup_steps=2),
    optimizer=dict(learning_rate=5e-4, warmup_steps=5, weight_decay=0.01, b2=0.98),
  ),
  arms=dict(
    paper=dict(preset="paper", switches=WEIGHTS),
    em=dict(preset="em"),
    em_it=dict(preset="em_it", switches=INFORMATION),
    no_ramp=dict(preset="no_ramp", switches=dict(WEIGHTS, ramp_start=0, ramp_end=0)),
    em_format=dict(preset="em_format"),
  ),
  # The rewarded judge is asked in all arms, so that its verdicts can be shown beside the world's own facts.
  tests=dict(held_out=dict(judge_information=True)),
  measure=measure,
  claims=(
    Claim(
      "more thoughts state what was read than with EM alone",
      Side("paper", "faithful"),
      Side("em", "faithful"),
      least=0.1,
    ),
    Claim("… at equal or better EM", Side("paper", "em"), Side("em", "em"), least=-0.02),
    Claim(
      "more do so with the information-think reward alone, too",
      Side("em_it", "faithful"),
      Side("em", "faithful"),
      least=0.1,
    ),
    Claim("… at equal or better EM", Side("em_it", "em"), Side("em", "em"), least=-0.02),
    Claim(
      "the last thought contains the answer more often than with EM alone",
      Side("paper", "grounded"),
      Side("em", "grounded"),
      least=0.1,
    ),
    Claim(
      "more thoughts state what was read than with a format reward",
      Side("paper", "faithful"),
      Side("em_format", "faithful"),
      least=0.1,
    ),
    Claim(
      "EM is higher with the ramp than without",
      Side("paper", "em"),
      Side("no_ramp", "em"),
      note="EM is .95 to .99 before RL, so answers can gain little while the ramp delays the other rewards.",
    ),
    Claim("the judge is fooled more often without the ramp", Side("no_ramp", "fooled"), Side("paper", "fooled")),
  ),
  shown=("faithful", "em"),
  searches=True,
)
