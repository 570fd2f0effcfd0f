"""When to Search in miniature: stage 1 encourages searches, stage 2 saves them; memorised facts need no search.

Half of the test questions ask for one of some 90 memorised facts, the other half about names unseen in training.
Planted: a third of the known facts are searched for; of the unknown ones a sixth are guessed, and a third are searched
for with questions or twice, which the reward for queries tells apart. The warm start ends when memory is as sure as a
search, in sampled replies too, as otherwise stage 1 would do away with it. The lengths of the two stages are fixed, as
they are what is tested. Queries are compared by their letters instead of an encoder's vectors.
"""

import dataclasses
import random
from collections.abc import Callable, Sequence

import reading_world
from papers import miniature, players
from papers.miniature import DEVELOPMENT, SAMPLED, TEST, WARM_EM, Claim, Side

from ragrl_jax.core.metrics import qa
from ragrl_jax.data import synthetic
from ragrl_jax.recipes.search_agent import Parser, find_answer
from ragrl_jax.structs import Episode, Example, Passage

STEPS, STAGE_TWO = 24, 7
MIX = {1: 2, 2: 1}  # of what is not known
SURE = 0.85  # right answers among sampled ones to known questions without a search, at the end of the warm start


def questions(world: reading_world.World, seed: int) -> dict[str, Sequence[Example]]:
  """A part of each file asks for memorised facts; the rest of the test is about names unseen in training."""
  known, held_out = memorised(world, seed), synthetic.HELD_OUT
  rng = random.Random(f"when_to_search/{seed}")

  def mixed(some: int, others: int, number: int) -> list[Example]:
    drawn = rng.choices(known, k=some) + reading_world.questions(world, others, mix=MIX, seed=number, distinct=False)
    return [dataclasses.replace(example, id=f"{number}-{i}") for i, example in enumerate(rng.sample(drawn, len(drawn)))]

  unseen = reading_world.questions(world, TEST // 2, mix=MIX, part=held_out, seed=seed)
  asked = [dataclasses.replace(one, id=f"known-{i}") for i, one in enumerate(rng.choices(known, k=TEST // 2))]
  fresh = reading_world.questions(world, DEVELOPMENT // 2, mix={1: 1}, part=synthetic.DEVELOPMENT, seed=seed)
  return dict(
    demonstrations=mixed(4000, 4000, seed),
    train=mixed(2000, 2000, seed + 1),
    development=[*fresh, *asked[: DEVELOPMENT // 2]],
    mixed=asked + unseen,
  )


def memorised(world: reading_world.World, seed: int) -> list[Example]:
  """A question for each fact of the world's memory (about 1 % are never drawn)."""
  facts = len(world.parts[synthetic.TRAIN].facts)
  drawn = reading_world.questions(world, 5 * facts, mix={1: 1}, seed=seed, distinct=False)
  return list({example.question: example for example in drawn if is_known(example)}.values())


def is_known(example: Example) -> bool:
  return all(step["memorised"] for step in example.meta["decomposition"])


def demonstrate(
  example: Example, world: reading_world.World, search: Callable[[str], Sequence[Passage]], rng: random.Random
):
  """The scripted player, with faults in a third of the known questions and in half of the unknown ones."""
  kinds, shares = (("", "check"), (2, 1)) if is_known(example) else (("", "guess", "repeat", "ask"), (6, 2, 2, 2))
  (kind,) = rng.choices(kinds, shares)
  return players.play_when_to_search(example, search, rng, fault=float(bool(kind)), kinds=[kind] if kind else [])


def measure(world: reading_world.World, example: Example, episode: Episode) -> dict[str, float | None]:
  """Searches and right answers, separately for memorised and unknown facts.

  `known_direct`: known questions answered right without a search; `recalled`: EM of known questions without a search;
  `unknown_found`: others answered right with one; `unknown_read`: EM of unknown questions with a search; `repeated`:
  whether a query is asked twice; `asked`: whether one is put as a question.
  """
  known, count = is_known(example), episode.num_searches
  asked = [search.query or "" for search in episode.searches]
  right = qa.exact_match(find_answer(Parser(), episode) or "", example.golds)
  of = lambda kind, value: float(value) if kind else None
  return dict(
    searches_known=of(known, count),
    searches_unknown=of(not known, count),
    em_known=of(known, right),
    em_unknown=of(not known, right),
    known_direct=of(known, bool(right and not count)),
    recalled=of(known and not count, right),
    unknown_found=of(not known, bool(right and count)),
    unknown_read=of(not known and count, right),
    asked=float(any(query.endswith("?") for query in asked)),
    repeated=float(len(set(asked)) < len(asked)),
  )


PAPER = miniature.Paper(
  name="when_to_search",
  world=dict(memorised=0.01),
  questions=questions,
  demonstrate=demonstrate,
  base=dict(
    switches=dict(instructions="none", max_searches=4, correctness="exact", similarity="ngrams"),
    retrieval=dict(top_k=1),
    rollout=dict(lanes=32, rows=128, context=240, chunk=24, prefill=32, max_new_tokens=40),
    learner=dict(micro_rows=8, row_lengths=(512,), logprob_chunk=2048),
  ),
  sft={},
  rl=dict(
    steps=STEPS,
    checkpoint=dict(every=8),
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
  warm={"unknown_read": WARM_EM, f"recalled{SAMPLED}": SURE},
  # Sampled answers, which the short claim is about: the greedy ones are right long before most samples have the format.
  short_warm={f"unknown_read{SAMPLED}": 0.4},
  settles=False,
  claims=(
    Claim("searches rise in stage 1", Side("paper", "searches", step=STAGE_TWO - 1), Side("warm", "searches")),
    Claim(
      "searches fall in stage 2", Side("paper", "searches"), Side("paper", "searches", step=STAGE_TWO - 1), lower=True
    ),
    Claim("… with EM within 2 points", Side("paper", "em"), Side("paper", "em", step=STAGE_TWO - 1), least=-0.02),
    Claim(
      "in stage 2, more memorised facts are answered without a search",
      Side("paper", "known_direct"),
      Side("paper", "known_direct", step=STAGE_TWO - 1),
    ),
    Claim("… more than by the warm start", Side("paper", "known_direct"), Side("warm", "known_direct")),
    Claim("… and more than without stage 2", Side("paper", "known_direct"), Side("no_stage_two", "known_direct")),
    Claim(
      "more unknown facts are found than by the warm start",
      Side("paper", "unknown_found"),
      Side("warm", "unknown_found"),
      least=0.05,
      short=True,
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
    Claim("… and repeats more queries", Side("no_search_reward", "repeated"), Side("paper", "repeated"), least=0.02),
    Claim(
      "… and puts more queries as questions", Side("no_search_reward", "asked"), Side("paper", "asked"), least=0.05
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
