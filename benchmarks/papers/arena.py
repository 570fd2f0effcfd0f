"""ARENA in miniature: rewards for format, references and answer, with a tenfold bonus if all are right; KL by k2.

Four passages: a model of this size does not learn to find the numbers of more before it reads them out. Its reader was
taught to name two to four passages first (`make base`). Planted: two fifths of the demonstrated lists name every
passage, two fifths of the two-hop replies stop at the first hop, and half of the analyses are outside their tags. The
warm start ends when some sampled lists are exact, as RL learns from these.

Naive GRPO, as in the paper, thinks and answers without naming passages. A fifth of the demonstrations have its format;
their prompts begin with "<think>", as its own do. The arms k2_fast and k3_fast have four times the learning rate, a
strong KL, and a reference whose replies are out of shape, so that the policy moves far from it.

The paper's SFT is the warm start. Its judge is not here, as an answer is one name, nor its third data set, as there is
one world, of which the test has new names.
"""

import random
import re
from collections.abc import Sequence

import reading_world
from papers import miniature, players
from papers.miniature import DEVELOPMENT, SAMPLED, TEST, WARM_EM, Claim, Side

from ragrl_jax.data import synthetic
from ragrl_jax.structs import MODEL, Episode, Example

PASSAGES, MIX = 4, {1: 3, 2: 7}
STEPS = 28  # until the learning rate is a tenth
THOUGHT = "<think> "  # begins the prompt of naive GRPO
FAULTS = dict(stop=0.4, all=0.4, outside=0.5)  # shares; see `demonstrate`
EXACT = 0.1  # exact lists among sampled replies, at the end of the warm start
FAST = dict(learning_rate=2.8e-3)  # with large steps, the choice of the KL estimator matters
SHAPE = re.compile(
  r"<relevance>\s*\[([\d, ]*)\]\s*</relevance>\s*<analysis>[^<>]*</analysis>\s*<answer>[^<>]*</answer>\s*"
)
CITED = re.compile(r"<relevance>\s*\[([\d, ]*)\]\s*</relevance>")


def questions(world: synthetic.World, seed: int) -> dict[str, Sequence[Example]]:
  draw = lambda count, number, part=synthetic.TRAIN, mix=MIX: reading_world.questions(
    world, count, mix=mix, part=part, seed=number, passages=PASSAGES, distinct=part == synthetic.HELD_OUT
  )
  return dict(
    demonstrations=miniature.mixed_in(draw(6000, seed), THOUGHT),
    train=draw(4000, seed + 1),
    development=draw(DEVELOPMENT, seed, synthetic.DEVELOPMENT, {1: 1, 2: 1}),
    held_out=draw(TEST, seed, synthetic.HELD_OUT),
  )


def demonstrate(example: Example, world: synthetic.World, search, rng: random.Random) -> list[tuple[str, str]]:
  """The scripted reply. It names the passages in the order of the hops, and its analysis repeats them.

  Faults: "stop" answers the first of two hops; "all" names every passage; "outside" leaves the analysis without tags.
  """
  del search
  stop = dict(fault=FAULTS["stop"], kinds=("stop",))
  if example.question.startswith(THOUGHT):
    return players.play_arena(example, world, rng, reply="thought", **stop)
  ((_, text),) = players.play_arena(example, world, rng, **stop)
  numbers = [str(number) for number in range(1, len(example.passages) + 1)]
  for hop in example.meta["decomposition"]:
    text = re.sub(rf"\[(\d)\] {hop['relation']} {hop['object']}\.", rf"{hop['sentence']} [\1]", text)
  if rng.random() >= FAULTS["all"]:
    numbers = re.findall(r"\. \[(\d)\]", text)
  text = CITED.sub(f"<relevance> [{', '.join(numbers)}] </relevance>", text)
  if rng.random() < FAULTS["outside"]:
    text = text.replace("<analysis> ", "").replace(" </analysis>", "")
  return [(MODEL, text)]


def measure(world: synthetic.World, example: Example, episode: Episode) -> dict[str, float | None]:
  """`in_shape`: the reply is the three sections only. `cited`: it names exactly the references that state the
  question's hops. `precision`: the share of named references that do. `em_2`: EM on questions with two hops."""
  text, hops = episode.model_text, [(hop["subject"], hop["relation"]) for hop in example.meta["decomposition"]]
  golds = {
    number
    for number, passage in enumerate(example.passages, 1)
    if (world.stated[passage.id].subject, world.stated[passage.id].relation) in hops
  }
  match = CITED.search(text)
  cited = {int(number) for number in re.findall(r"\d+", match[1])} if match else set()
  answer = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
  right = float(answer is not None and answer[1].strip() == example.golds[0])
  return dict(
    in_shape=float(SHAPE.fullmatch(text) is not None),
    cited=float(cited == golds),
    precision=len(cited & golds) / len(cited) if cited else None,
    em_2=right if example.hops == 2 else None,
  )


PAPER = miniature.Paper(
  name="arena",
  world={},
  questions=questions,
  demonstrate=demonstrate,
  base=dict(
    switches=dict(instructions="none"),
    rollout=dict(
      prompts_per_step=16, group_size=8, lanes=32, rows=128, context=256, chunk=24, prefill=128, max_new_tokens=80
    ),
    learner=dict(micro_rows=8, row_lengths=(512,), logprob_chunk=2048),
    checkpoint=dict(every=8),
  ),
  sft={},
  rl=dict(
    steps=STEPS,
    loss=dict(aggregation="token_mean", kl="k2", kl_coef=0.04),  # the code's coefficient
    optimizer=dict(learning_rate=7e-4, warmup_steps=3, schedule="linear", weight_decay=0.01, b2=0.98),
  ),
  arms=dict(
    paper=dict(preset="paper"),
    no_bonus=dict(preset="no_bonus"),
    naive=dict(preset="naive", switches=dict(instructions="file:thought.txt")),
    k2_fast=dict(loss=dict(kl_coef=0.2), optimizer=FAST),
    k3_fast=dict(loss=dict(kl="k3", kl_coef=0.2, kl_tangent=None), optimizer=FAST),
  ),
  tests=dict(held_out={}),
  measure=measure,
  reader="numbers",
  settles=False,
  wordings={"thought.txt": f"{THOUGHT}{{question}}\n{{references}}"},
  warm={"by_hops/1/em": WARM_EM, f"cited{SAMPLED}": EXACT},
  trained=("grad_norm", "entropy"),
  claims=(
    Claim(
      "more replies in the required format than before RL",
      Side("paper", "in_shape"),
      Side("warm", "in_shape"),
      least=0.1,
      short=True,
    ),
    Claim("more exact reference lists than before RL", Side("paper", "cited"), Side("warm", "cited"), least=0.1),
    Claim("EM is higher than before RL", Side("paper", "em"), Side("warm", "em"), least=0.1),
    Claim("F1 is higher than before RL", Side("paper", "f1"), Side("warm", "f1"), least=0.1),
    Claim("EM is higher than of naive GRPO", Side("paper", "em"), Side("naive", "em"), least=0.02),
    Claim("F1 is higher than of naive GRPO", Side("paper", "f1"), Side("naive", "f1"), least=0.02),
    Claim(
      "more exact reference lists than without the bonus", Side("paper", "cited"), Side("no_bonus", "cited"), least=0.05
    ),
    Claim("… after 8 steps", Side("paper", "cited", step=8), Side("no_bonus", "cited", step=8), least=0.05),
    Claim("EM is higher than without the bonus", Side("paper", "em"), Side("no_bonus", "em"), least=0.02),
    Claim(
      "far from the reference, the largest gradient norm is lower than with k3",
      Side("k2_fast", "trained/grad_norm/max"),
      Side("k3_fast", "trained/grad_norm/max"),
      lower=True,
    ),
    Claim("… and EM is higher than with k3", Side("k2_fast", "em"), Side("k3_fast", "em"), least=0.02),
  ),
  shown=("cited", "em"),
)
