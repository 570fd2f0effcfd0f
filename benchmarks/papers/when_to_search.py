"""When to Search in miniature: stage 1 encourages searches, stage 2 saves them; memorised facts need no search.

Half of the test questions ask for one of about 190 memorised facts, the other half about names unseen in training.
Tried on seed 0 before these settings:
- a warm start of 400 steps that searches for half of the memorised facts: after stage 1 no direct answers are left for
  stage 2 to reward; the same with two unknown questions for each known one in training;
- 8 steps of stage 1: direct answers are rare after them, and return after 10 more steps;
- 15 steps of stage 2: searches fall to .61 per question, but EM falls from .96 to .89, because the model begins to
  answer questions about new names without a search. The length of stage 2 decides this trade-off; 9 steps were chosen
  on this seed.
"""

import dataclasses
import random
from collections.abc import Callable, Sequence

import miniature
from miniature import DECODER, MUON, Claim, Side

from ragrl_jax.core.metrics import qa
from ragrl_jax.data import synthetic
from ragrl_jax.recipes.search_r1.demonstrate import MARKS
from ragrl_jax.recipes.when_to_search import demonstrate as demonstrate_lib
from ragrl_jax.recipes.when_to_search.parser import Parser, last_answer
from ragrl_jax.structs import Episode, Example, Passage

STEPS, STAGE_TWO = 15, 7
MIX = {1: 2, 2: 1}  # of what is not known


def questions(world: synthetic.World, seed: int) -> dict[str, Sequence[Example]]:
  """A part of each file asks for memorised facts; the rest of the test is about names unseen in training."""
  known, held_out = memorised(world, seed), synthetic.HELD_OUT
  rng = random.Random(f"when_to_search/{seed}")

  def mixed(some: int, others: int, number: int) -> list[Example]:
    drawn = rng.choices(known, k=some) + synthetic.questions(world, others, mix=MIX, seed=number, distinct=False)
    return [dataclasses.replace(example, id=f"{number}-{i}") for i, example in enumerate(rng.sample(drawn, len(drawn)))]

  return dict(
    demonstrations=mixed(2500, 4500, seed),
    train=mixed(1500, 1500, seed + 1),
    mixed=rng.sample(known, 100) + synthetic.questions(world, 100, mix=MIX, part=held_out, seed=seed),
  )


def memorised(world: synthetic.World, seed: int) -> list[Example]:
  """A question for each fact of the world's memory (about 1 % are never drawn)."""
  drawn = synthetic.questions(world, 5 * len(world.parts[synthetic.TRAIN].facts), mix={1: 1}, seed=seed, distinct=False)
  return list({example.question: example for example in drawn if is_known(example)}.values())


def is_known(example: Example) -> bool:
  return all(step["memorised"] for step in example.meta["decomposition"])


def demonstrate(
  example: Example, world: synthetic.World, search: Callable[[str], Sequence[Passage]], rng: random.Random
):
  """The scripted player. Faults: a third of the known facts are searched for; 40 % of the unknown ones are guessed."""
  kinds, shares = (("", "check"), (2, 1)) if is_known(example) else (("", "guess", "repeat"), (9, 8, 3))
  (kind,) = rng.choices(kinds, shares)
  return demonstrate_lib.demonstrate(example, search, rng, fault=float(bool(kind)), kinds=[kind] if kind else [])


def measure(world: synthetic.World, example: Example, episode: Episode) -> dict[str, float | None]:
  """Searches and right answers, separately for memorised and unknown facts.

  `known_direct`: known questions answered right without a search; `unknown_found`: others answered right with one;
  `repeated`: whether a query is asked twice.
  """
  known, count = is_known(example), episode.num_searches
  asked = [search.query or "" for search in episode.searches]
  right = qa.exact_match(last_answer(Parser(), episode) or "", example.golds)
  of = lambda kind, value: float(value) if kind else None
  return dict(
    searches_known=of(known, count),
    searches_unknown=of(not known, count),
    em_known=of(known, right),
    em_unknown=of(not known, right),
    known_direct=of(known, bool(right and not count)),
    unknown_found=of(not known, bool(right and count)),
    repeated=float(len(set(asked)) < len(asked)),
  )


PAPER = miniature.Paper(
  name="when_to_search",
  world=dict(memorised=0.015),
  questions=questions,
  demonstrate=demonstrate,
  marks=(*MARKS, "<reflect>", "</reflect>"),
  vocab_size=508,
  base=dict(
    switches=dict(instructions="none", max_searches=4, correctness="exact", similarity="ngrams"),
    model=dict(shape=DECODER),
    retrieval=dict(top_k=1),
    rollout=dict(lanes=64, rows=128, context=240, chunk=24, prefill=32, page=240, max_new_tokens=40),
    learner=dict(micro_rows=12, row_lengths=(256,), logprob_chunk=2048),
  ),
  sft=dict(steps=600, checkpoint=dict(every=200), learner=dict(micro_rows=10), optimizer=MUON),
  rl=dict(
    steps=STEPS,
    checkpoint=dict(every=STEPS // 2),
    switches=dict(stage_two_from=STAGE_TWO),
    rollout=dict(prompts_per_step=16, group_size=8, filter=dict(metric="total", tolerance=1e-6, max_draws=2)),
    advantage=dict(kind="group_relative", std="sample", eps=1e-6),
    loss=dict(aggregation="token_mean", clip_low=0.2, clip_high=0.28),
    optimizer=dict(learning_rate=5e-4, warmup_steps=3, weight_decay=0.01, b2=0.98),
  ),
  arms=dict(
    paper=dict(preset="paper"),
    no_search_reward=dict(preset="no_search_reward"),
    no_stage_one=dict(preset="no_stage_one", switches=dict(stage_two_from=0)),
    no_stage_two=dict(preset="no_stage_two", switches=dict(stage_two_from=STEPS + 1)),
    no_answer_reward=dict(preset="no_answer_reward"),
    unified=dict(preset="unified"),
  ),
  tests=dict(mixed={}),
  measure=measure,
  claims=(
    Claim("searches rise in stage 1", Side("paper", "searches", step=STAGE_TWO - 1), Side("warm", "searches")),
    Claim(
      "searches fall in stage 2", Side("paper", "searches"), Side("paper", "searches", step=STAGE_TWO - 1), lower=True
    ),
    Claim(
      "… with EM within 2 points",
      Side("paper", "em"),
      Side("paper", "em", step=STAGE_TWO - 1),
      least=-0.02,
      note="on the seed where it fails, stage 2 also searches less for new names (1.33 to 1.20).",
    ),
    Claim(
      "in stage 2, more memorised facts are answered without a search",
      Side("paper", "known_direct"),
      Side("paper", "known_direct", step=STAGE_TWO - 1),
    ),
    Claim(
      "… more than by the warm start",
      Side("paper", "known_direct"),
      Side("warm", "known_direct"),
      note="stage 1 reduces direct answers to nearly none; 9 steps of stage 2 restore about the earlier number.",
    ),
    Claim("… and more than without stage 2", Side("paper", "known_direct"), Side("no_stage_two", "known_direct")),
    Claim(
      "more unknown facts are found than by the warm start",
      Side("paper", "unknown_found"),
      Side("warm", "unknown_found"),
    ),
    Claim(
      "fewer searches for memorised facts than for unknown ones",
      Side("paper", "searches_known"),
      Side("paper", "searches_unknown"),
      least=0.5,
      lower=True,
    ),
    Claim(
      "without stage 1 the policy searches less",
      Side("no_stage_one", "searches"),
      Side("paper", "searches"),
      lower=True,
    ),
    Claim("… and answers worse", Side("no_stage_one", "em"), Side("paper", "em"), lower=True),
    Claim("without stage 2 the policy searches more", Side("no_stage_two", "searches"), Side("paper", "searches")),
    Claim(
      "with both stages' rewards from the start the policy searches less",
      Side("unified", "searches"),
      Side("paper", "searches"),
      lower=True,
    ),
    Claim(
      "without the reward for queries the policy searches more",
      Side("no_search_reward", "searches"),
      Side("paper", "searches"),
    ),
    Claim(
      "… and repeats more queries",
      Side("no_search_reward", "repeated"),
      Side("paper", "repeated"),
      note="the scripted player repeats a query in 304 of 1,979 demonstrations, but a policy hardly ever does "
      "(`repeated` is at most .02 in papers.jsonl). RL unlearns it with and without the search reward, because a "
      "repeated search brings nothing.",
    ),
    Claim(
      "without the reward for answers the policy answers worse",
      Side("no_answer_reward", "em"),
      Side("paper", "em"),
      lower=True,
    ),
  ),
  shown=("searches", "em"),
  every=3,
  searches=True,
)
