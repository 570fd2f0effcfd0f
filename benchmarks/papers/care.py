"""CARE in miniature: rewards for quotes that occur in the context, and a curriculum towards harder questions.

Hard questions ask for the steps to the name, so that answers are sentences. A model of this size knows no facts. The
warm start teaches it some facts about names of the training part by heart, and to answer from memory if the passages
state nothing. Passages contradict half of these facts, and the counterfactual test asks only for those. No
demonstration or training question shows a contradicting passage.

Tried on seed 0 before these settings: three passages and quotes in other words, 400 supervised steps (EM .02 before RL:
the model copied no names from passages); the same loss weight on the prompt's words as on the reply's, with 60,000
names (EM 0 after 1,200 steps).
"""

import dataclasses
import random
import re
from collections.abc import Sequence

import miniature
from miniature import DECODER, MUON, READABLE, Claim, Side

from ragrl_jax.core.metrics import qa
from ragrl_jax.data import synthetic
from ragrl_jax.recipes.care import demonstrate as demonstrate_lib
from ragrl_jax.recipes.care.parser import Parser
from ragrl_jax.structs import MODEL, Episode, Example

PASSAGES, MIX = 2, {1: 4, 2: 6}
STEPS = 24
RECITED = 16  # how often the warm start recites each fact that it teaches by heart
QUOTE = re.compile(r"<retrieval>(.*?)</retrieval>", re.DOTALL)


def questions(world: synthetic.World, seed: int) -> dict[str, Sequence[Example]]:
  def drawn(count, number, **how):
    asked = synthetic.questions(world, count, mix=MIX, seed=number, passages=PASSAGES, distinct=False, **how)
    return [example for example in asked if not any(hop["counterfactual"] for hop in example.meta["decomposition"])]

  unseen = lambda count, **how: synthetic.questions(
    world, count, mix=MIX, seed=seed, passages=PASSAGES, part=synthetic.HELD_OUT, **how
  )
  single = synthetic.questions(world, 200_000, mix={1: 1}, seed=seed + 3, passages=PASSAGES, distinct=False)
  single = list({example.question: example for example in single}.values())
  remembered = [example for example in single if example.meta["decomposition"][0]["memorised"]]
  contradicted = [example for example in remembered if example.meta["decomposition"][0]["counterfactual"]]
  confirmed = [example for example in remembered if not example.meta["decomposition"][0]["counterfactual"]]
  recalled = [recite(world, fact) for fact in world.recall()]
  others = drawn(4 * len(remembered), seed + 5)
  absent = [
    dataclasses.replace(example, passages=other.passages, supporting=(), evidence=())
    for example, other in zip(remembered * 3, others, strict=False)
  ]
  demonstrations = [
    *drawn(9600, seed),
    *drawn(4000, seed + 4, difficulty="hard"),
    *recalled * RECITED,
    *confirmed * 3,
    *absent,
  ]
  demonstrations = [dataclasses.replace(e, id=f"demonstration-{n}") for n, e in enumerate(demonstrations)]
  return dict(
    demonstrations=demonstrations,
    train=drawn(3000, seed + 1),
    hard=drawn(3000, seed + 2, difficulty="hard"),
    held_out=unseen(150),
    long=unseen(100, difficulty="hard"),
    counterfactual=contradicted[:120],
    recall=recalled[:100],
  )


def recite(world: synthetic.World, fact) -> Example:
  """A demonstration that recites a memorised fact, without any passage."""
  who = "Who" if world.relations[fact.relation][1] == "person" else "What"
  hop = dict(subject=fact.subject, relation=fact.relation, object=fact.object, memorised=True, counterfactual=False)
  return Example(
    f"recall-{fact.subject}-{fact.relation}",
    f"{who} is the {fact.relation} of {fact.subject}?",
    (fact.object,),
    hops=1,
    meta=dict(part=synthetic.TRAIN, decomposition=[hop]),
  )


def demonstrate(example: Example, world: synthetic.World, search, rng: random.Random) -> list[tuple[str, str]]:
  """The scripted reply. Memorised facts are answered at once, with or without passages. Faults: 60 % of the other
  two-hop questions stop at the first hop; 70 % of the quotes have added words or are missing; 60 % of the long answers
  are only the name."""
  del search
  hops = example.meta["decomposition"]
  if len(hops) == 1 and hops[0]["memorised"]:
    return [(MODEL, f"<think> </think> Answer: {hops[0]['object']}")]
  ((owner, text),) = demonstrate_lib.demonstrate(example, world, rng, fault=0.6, kinds=("stop",))
  if example.golds[0] != hops[-1]["object"] and rng.random() < 0.6:
    text = text.replace(f"Answer: {example.golds[0]}", f"Answer: {hops[-1]['object']}")
  quotes = rng.choices(("verbatim", "embellished", "none"), (0.3, 0.55, 0.15))[0]
  if quotes == "none":
    text = QUOTE.sub("", text).replace("  ", " ")
  elif quotes == "embellished":
    text = QUOTE.sub(lambda found: f"<retrieval>{found[1].rstrip(' .')}, it seems. </retrieval>", text)
  return [(owner, text)]


def measure(world: synthetic.World, example: Example, episode: Episode) -> dict[str, float | None]:
  """`quoted`: whether there are quotes and all of them occur word for word in the passages. `real`: the share of quotes
  that do. `evidence`: the share of hops whose sentence is quoted completely. `em_2`: EM on questions with two hops.
  `by_heart`: whether the answer is the memorised fact although the passage contradicts it."""
  text, hops = episode.model_text, example.meta["decomposition"]
  answer = Parser().answer(text) or ""
  said = [quote for quote in (" ".join(found.split()) for found in QUOTE.findall(text)) if quote]
  real = [any(quote in passage.text for passage in example.passages) for quote in said]
  stated = {sentence for passage in example.passages for sentence in world.sentences[passage.id]}
  evidence = [
    hop["sentence"] in stated and any(hop["sentence"] in quote for quote in said) for hop in hops if "sentence" in hop
  ]
  known = world.memory.get((hops[-1]["subject"], hops[-1]["relation"])) if hops[-1]["counterfactual"] else None
  return dict(
    quoted=float(bool(said) and all(real)) if example.passages else None,
    real=sum(real) / len(real) if real else None,
    evidence=sum(evidence) / len(evidence) if evidence else None,
    em_2=qa.exact_match(answer, example.golds) if example.hops == 2 else None,
    by_heart=None if known is None else qa.exact_match(answer, (known,)),
  )


PAPER = miniature.Paper(
  name="care",
  world=dict(READABLE, memorised=0.0013, counterfactual=0.5),
  questions=questions,
  demonstrate=demonstrate,
  marks=demonstrate_lib.MARKS,
  vocab_size=730,
  base=dict(
    switches=dict(instructions="none", titles=False, easy_steps=STEPS),
    model=dict(shape=DECODER),
    rollout=dict(
      prompts_per_step=16,
      group_size=8,
      lanes=64,
      rows=128,
      context=192,
      chunk=24,
      prefill=64,
      page=192,
      max_new_tokens=96,
    ),
    learner=dict(micro_rows=10, row_lengths=(256,), logprob_chunk=2048),
    checkpoint=dict(every=100),
  ),
  sft=dict(steps=1200, checkpoint=dict(every=400), optimizer=MUON),
  rl=dict(
    steps=STEPS,
    checkpoint=dict(every=STEPS // 2),
    loss=dict(aggregation="seq_mean_token_mean", kl="k3", kl_coef=1e-3),
    optimizer=dict(learning_rate=5e-4, warmup_steps=3, weight_decay=0.01, b2=0.98),
  ),
  arms=dict(
    paper=dict(preset="paper", data=dict(hard="hard.jsonl.gz")),
    # With the curriculum, which the paper's "No Ret." (preset no_retrieval) lacks: only the reward differs here.
    no_retrieval=dict(preset="paper", switches=dict(retrieval_weight=0.0), data=dict(hard="hard.jsonl.gz")),
    easy_only=dict(preset="easy_only"),
  ),
  tests=dict(held_out={}, long={}, counterfactual={}, recall={}),
  measure=measure,
  claims=(
    Claim(
      "replies whose quotes are all in the context: more than without the retrieval reward",
      Side("paper", "quoted"),
      Side("no_retrieval", "quoted"),
      least=0.1,
    ),
    Claim("… and more than before RL", Side("paper", "quoted"), Side("warm", "quoted"), least=0.1),
    Claim("F1 is higher than without the retrieval reward", Side("paper", "f1"), Side("no_retrieval", "f1")),
    Claim(
      "F1 of long answers is higher than with easy questions only",
      Side("paper", "f1", "long"),
      Side("easy_only", "f1", "long"),
      least=0.05,
    ),
    Claim(
      "F1 on counterfactual passages is higher than with easy questions only",
      Side("paper", "f1", "counterfactual"),
      Side("easy_only", "f1", "counterfactual"),
      note="the model has memorised the facts (test `recall`), but never answers from memory when it sees a passage "
      "(`by_heart` is 0). So the test only needs one name to be read, which easy questions train.",
    ),
    Claim(
      "EM on two hops is higher with easy questions only (as in the paper)",
      Side("easy_only", "em_2"),
      Side("paper", "em_2"),
      note="hard questions here ask for the steps of both hops, so they train what two-hop questions need. The "
      "paper's hard questions have long answers on other subjects.",
    ),
  ),
  shown=("quoted", "f1"),
)
