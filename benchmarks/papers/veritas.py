"""VERITAS in miniature: rewards for thoughts that state the retrieved facts, beside the reward for the answer.

Questions of two and three hops. Planted: half of the demonstrations stop after an earlier hop, so that EM is low at
first, and a third, drawn apart from these, think after a search what they thought before it. The rewarded judge
compares words and accepts a thought if nearly all of its words are in the results, whatever they say there: a single
name from the results fools it. The measure is whether the thought states a fact from the passages that the search
found. The weights are four times the paper's (0.05 and 0.02), since a run has some 2,500 episodes, not half a million;
the arm `heavy` has four times as much again. A search finds one passage, and so no distractors (the paper: three).
"""

import dataclasses
import random
from collections.abc import Callable, Sequence

from papers import miniature, players
from papers.miniature import DEVELOPMENT, TEST, WARM_EM, Claim, Side

from ragrl_jax.data import synthetic
from ragrl_jax.recipes.steps import steps
from ragrl_jax.structs import Episode, Example, Passage

MIX = {2: 2, 3: 1}
STOPPED, UNFAITHFUL = 0.5, 0.35  # shares of the demonstrations, drawn independently
STEPS, RAMP = 20, (4, 8)  # paper: 1005 steps, the ramp from 331 to 497
INFORMATION = dict(information_think_weight=0.2)
WEIGHTS = dict(INFORMATION, think_answer_weight=0.08)
HEAVY = dict(information_think_weight=0.8, think_answer_weight=0.32)


def questions(world: synthetic.World, seed: int) -> dict[str, Sequence[Example]]:
  draw = lambda count, number, part=synthetic.TRAIN, mix=MIX: synthetic.questions(
    world, count, mix=mix, part=part, seed=number, distinct=part == synthetic.HELD_OUT
  )
  return dict(
    demonstrations=[*draw(5000, seed), *draw(1000, seed + 2, mix={1: 1})],
    train=draw(4000, seed + 1),
    development=draw(DEVELOPMENT, seed, synthetic.DEVELOPMENT, {1: 1, 2: 1, 3: 1}),
    held_out=draw(TEST, seed, synthetic.HELD_OUT),
  )


def demonstrate(
  example: Example, world: synthetic.World, search: Callable[[str], Sequence[Passage]], rng: random.Random
):
  """The scripted player. Half of its games stop at an earlier hop; a third, stopped or not, are unfaithful."""
  hops = example.meta["decomposition"]
  if len(hops) > 1 and rng.random() < STOPPED:
    hops = hops[: rng.randint(1, len(hops) - 1)]
    example = dataclasses.replace(example, golds=(hops[-1]["object"],), meta=dict(example.meta, decomposition=hops))
  return players.play_veritas(example, search, rng, fault=UNFAITHFUL, kinds=("ignore",))


def measure(world: synthetic.World, example: Example, episode: Episode) -> dict[str, float | None]:
  """`faithful`: the share of searches whose next turn begins with a thought that states a fact from the results.

  `thinks`: the share whose next turn begins with any thought. `fooled`: the share whose thought states no such fact but
  is accepted by the rewarded judge. `grounded`: whether the last thought contains the answer.
  """
  result = steps(episode.turns)
  thoughts = [thought for _, thought in result.information_think]
  read = [search.found for search in episode.searches]
  faithful = [
    thought is not None and states(world, thought, passages) for thought, passages in zip(thoughts, read, strict=True)
  ]
  verdicts = iter(episode.facts["information_think"])  # one for each thought
  accepted = [thought is not None and next(verdicts) for thought in thoughts]
  mean = lambda truths: sum(truths) / len(truths) if truths else None
  grounded = [None not in pair and holds(pair[0], pair[1]) for pair in result.think_answer]
  return dict(
    faithful=mean(faithful),
    thinks=mean([thought is not None for thought in thoughts]),
    fooled=mean([bool(yes) and not true for yes, true in zip(accepted, faithful, strict=True)]),
    grounded=mean(grounded),
  )


def states(world: synthetic.World, thought: str, passages: Sequence[Passage]) -> bool:
  """Whether the thought states a fact from one of the passages, in the scripted player's wording."""
  facts = [world.stated[passage.id] for passage in passages]
  return any(holds(thought, f"{fact.relation} {fact.subject} is {fact.object}") for fact in facts)


def holds(text: str, words: str) -> bool:
  return f" {' '.join(words.split())} " in f" {' '.join(text.split())} "


PAPER = miniature.Paper(
  name="veritas",
  world={},
  questions=questions,
  demonstrate=demonstrate,
  warm={"by_hops/1/em": WARM_EM},
  base=dict(
    switches=dict(instructions="none", max_searches=4),
    retrieval=dict(top_k=1),
    # four fifths of the words of a thought about a result must occur in the result
    judge=dict(kind="lexical", threshold=0.8),
    rollout=dict(lanes=32, rows=128, context=256, chunk=24, prefill=32, max_new_tokens=40),
    learner=dict(micro_rows=8, row_lengths=(512,), logprob_chunk=2048),
    checkpoint=dict(every=8),
  ),
  sft={},
  rl=dict(
    steps=STEPS,
    switches=dict(ramp_start=RAMP[0], ramp_end=RAMP[1]),
    rollout=dict(prompts_per_step=128, group_size=1),
    learner=dict(micro_rows=9),  # a minibatch's 64 episodes fill 17 rows
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
    optimizer=dict(learning_rate=8e-4, warmup_steps=4, schedule="linear", weight_decay=0.01, b2=0.98),
  ),
  arms=dict(
    paper=dict(preset="paper", switches=WEIGHTS),
    em=dict(preset="em"),
    em_it=dict(preset="em_it", switches=INFORMATION),
    no_ramp=dict(preset="no_ramp", switches=dict(WEIGHTS, ramp_start=0, ramp_end=0)),
    em_format=dict(preset="em_format"),
    heavy=dict(preset="paper", switches=HEAVY),
  ),
  # The rewarded judge is asked in all arms, so that its verdicts can be shown beside the world's own facts.
  tests=dict(held_out=dict(judge_information=True)),
  measure=measure,
  least=RAMP[1] + 8,  # the ramp changes the weights of the reward
  claims=(
    Claim("EM is higher than before RL", Side("paper", "em"), Side("warm", "em"), least=0.1, short=True),
    Claim(
      "more thoughts state what was read than with EM alone",
      Side("paper", "faithful"),
      Side("em", "faithful"),
      least=0.1,
    ),
    Claim("… and EM is higher", Side("paper", "em"), Side("em", "em"), least=0.01),
    Claim("… and not lower", Side("paper", "em"), Side("em", "em"), least=-0.02),
    Claim(
      "more do so with the information-think reward alone, too",
      Side("em_it", "faithful"),
      Side("em", "faithful"),
      least=0.1,
    ),
    Claim("… and EM is not lower", Side("em_it", "em"), Side("em", "em"), least=-0.02),
    Claim(
      "the last thought contains the answer more often than with EM alone",
      Side("paper", "grounded"),
      Side("em", "grounded"),
      least=0.05,
    ),
    Claim(
      "a format reward lowers faithfulness below that of EM alone",
      Side("em_format", "faithful"),
      Side("em", "faithful"),
      least=0.05,
      lower=True,
    ),
    Claim(
      "more thoughts state what was read than with a format reward",
      Side("paper", "faithful"),
      Side("em_format", "faithful"),
      least=0.1,
    ),
    Claim("EM is higher with the ramp than without", Side("paper", "em"), Side("no_ramp", "em"), least=0.01),
    Claim(
      "the judge is fooled more often without the ramp", Side("no_ramp", "fooled"), Side("paper", "fooled"), least=0.02
    ),
    Claim("four times the weights lower EM", Side("heavy", "em"), Side("paper", "em"), least=0.02, lower=True),
  ),
  shown=("faithful", "by_hops/2/em"),  # one hop is answered worse after RL, as the policy searches once more
  searches=True,
)
