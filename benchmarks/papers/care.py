"""CARE in miniature: rewards for quotes that occur in the context, and a curriculum towards harder questions.

Hard questions ask for the steps to the name, so that answers are sentences. A model of this size knows no facts. The
warm start teaches it some by heart, and to answer from memory if the passages state nothing. Passages contradict half
of these facts. Planted: the contradicted facts are demonstrated as answered from memory against the passage, so that
memory and context conflict; the counterfactual test asks for them with other passages. RL never shows a contradicting
passage. Of the other demonstrations, 60 % stop at the first of two hops, and 70 % of the quotes have added words or are
missing.

The passages of a question are about the same names and about others with the same relation. "No Ret." is the paper's:
without the reward for quotes, without quotes in the format, and without the curriculum; "No Cur." is without the
curriculum only. Instead of the quotes' BLEU, `evidence` is the share of the needed sentences that are quoted whole.
"""

import dataclasses
import random
import re
from collections.abc import Sequence

import reading_world
from papers import miniature, players
from papers.miniature import DEVELOPMENT, TEST, Claim, Side

from ragrl_jax.core.metrics import qa
from ragrl_jax.data import synthetic, world as world_lib
from ragrl_jax.recipes.care.prompt import Parser
from ragrl_jax.structs import MODEL, Episode, Example

PASSAGES, MIX = 4, {1: 4, 2: 6}
STEPS = 40
RECITED = 96  # how often the warm start recites each fact that it teaches by heart
# At the end of the warm start: of new facts, and of contradicted ones. Some new facts are answered from memory, too.
READ, BY_HEART = 0.8, 0.2
QUOTE = re.compile(r"<retrieval>(.*?)</retrieval>", re.DOTALL)


def questions(world: reading_world.World, seed: int) -> dict[str, Sequence[Example]]:
  def drawn(count, number, **options):
    texts = reading_world.questions(world, count, mix=MIX, seed=number, passages=PASSAGES, distinct=False, **options)
    return [example for example in texts if not any(hop["counterfactual"] for hop in example.meta["decomposition"])]

  unseen = lambda count, part=synthetic.HELD_OUT, mix=MIX, **options: reading_world.questions(
    world, count, mix=mix, seed=seed, passages=PASSAGES, part=part, **options
  )
  single = reading_world.questions(world, 200_000, mix={1: 1}, seed=seed + 3, passages=PASSAGES, distinct=False)
  remembered = [example for example in single if example.meta["decomposition"][0]["memorised"]]
  confirmed = [example for example in remembered if not example.meta["decomposition"][0]["counterfactual"]]
  contradicted = [example for example in remembered if example.meta["decomposition"][0]["counterfactual"]]
  recalled = [recite(world, fact) for fact in world.recall()]
  others = drawn(4 * len(recalled), seed + 5)
  absent = [
    dataclasses.replace(example, passages=other.passages, supporting=(), evidence=())
    for example, other in zip(remembered[: len(others)], others)
  ]
  shown, tested = contradicted[: 2 * len(recalled)], contradicted[2 * len(recalled) :]
  demonstrations = [
    *drawn(5000, seed),
    *drawn(2500, seed + 4, difficulty="hard"),
    *recalled * RECITED,
    *confirmed[: 2 * len(recalled)],
    *shown,
    *absent,
  ]
  renamed = lambda name, examples: [dataclasses.replace(e, id=f"{name}-{n}") for n, e in enumerate(examples)]
  return dict(
    demonstrations=renamed("demonstration", demonstrations),
    train=drawn(4000, seed + 1),
    hard=drawn(4000, seed + 2, difficulty="hard"),
    development=[
      *unseen(DEVELOPMENT // 2, synthetic.DEVELOPMENT, {1: 1}),
      *renamed("conflict", tested[-DEVELOPMENT // 2 :]),
    ],
    held_out=unseen(TEST),
    long=unseen(TEST // 2, difficulty="hard"),
    counterfactual=renamed("counterfactual", tested[: -DEVELOPMENT // 2][:TEST]),
  )


def recite(world: reading_world.World, fact) -> Example:
  """A demonstration that recites a memorised fact, without any passage."""
  hop = dict(subject=fact.subject, relation=fact.relation, object=fact.object, memorised=True, counterfactual=False)
  return Example(
    f"recall-{fact.subject}-{fact.relation}",
    world_lib.chain_question([fact.relation], fact.subject, world.relations[fact.relation][1]) + "?",
    (fact.object,),
    hops=1,
    meta=dict(part=synthetic.TRAIN, decomposition=[hop]),
  )


def demonstrate(example: Example, world: reading_world.World, search, rng: random.Random) -> list[tuple[str, str]]:
  """The scripted reply. Memorised facts are answered at once, with or without passages. Faults: 60 % of the other
  two-hop questions stop at the first hop; 70 % of the quotes have added words or are missing; 60 % of the long answers
  are only the name."""
  del search
  hops = example.meta["decomposition"]
  if len(hops) == 1 and hops[0]["memorised"]:
    known = world.memory[hops[0]["subject"], hops[0]["relation"]]
    return [(MODEL, f"<think> </think> Answer: {known}")]
  ((owner, text),) = players.play_care(example, world, rng, fault=0.6, kinds=("stop",))
  if example.golds[0] != hops[-1]["object"] and rng.random() < 0.6:
    text = text.replace(f"Answer: {example.golds[0]}", f"Answer: {hops[-1]['object']}")
  quotes = rng.choices(("verbatim", "embellished", "none"), (0.3, 0.55, 0.15))[0]
  if quotes == "none":
    text = QUOTE.sub("", text).replace("  ", " ")
  elif quotes == "embellished":
    text = QUOTE.sub(lambda match: f"<retrieval>{match[1].rstrip(' .')}, it seems. </retrieval>", text)
  return [(owner, text)]


def measure(world: reading_world.World, example: Example, episode: Episode) -> dict[str, float | None]:
  """Measures of quotes and of memory.

  `quoted`: whether there are quotes and all of them occur word for word in the passages. `real`: the share of quotes
  that do. `evidence`: the share of hops whose sentence is quoted completely. `em_2`: EM on questions with two hops.
  `em_new`: EM on facts that are not memorised. `by_heart`: whether the answer is the memorised fact although the
  passage contradicts it.
  """
  text, hops = episode.model_text, example.meta["decomposition"]
  answer = Parser().answer(text) or ""
  lines = [quote for quote in (" ".join(found.split()) for found in QUOTE.findall(text)) if quote]
  real = [any(quote in passage.text for passage in example.passages) for quote in lines]
  stated = {passage.text for passage in example.passages}
  evidence = [
    hop["sentence"] in stated and any(hop["sentence"] in quote for quote in lines) for hop in hops if "sentence" in hop
  ]
  known = world.memory.get((hops[-1]["subject"], hops[-1]["relation"])) if hops[-1]["counterfactual"] else None
  return dict(
    quoted=float(bool(lines) and all(real)) if example.passages else None,
    real=sum(real) / len(real) if real else None,
    evidence=sum(evidence) / len(evidence) if evidence else None,
    em_2=qa.exact_match(answer, example.golds) if example.hops == 2 else None,
    em_new=None if hops[0]["memorised"] else qa.exact_match(answer, example.golds),
    by_heart=None if known is None else qa.exact_match(answer, (known,)),
  )


PAPER = miniature.Paper(
  name="care",
  world=dict(memorised=0.01, counterfactual=0.5),
  questions=questions,
  demonstrate=demonstrate,
  base=dict(
    switches=dict(instructions="none", titles=False, easy_steps=STEPS),
    rollout=dict(
      prompts_per_step=16, group_size=8, lanes=32, rows=128, context=224, chunk=24, prefill=96, max_new_tokens=96
    ),
    learner=dict(micro_rows=8, row_lengths=(512,), logprob_chunk=2048),
    checkpoint=dict(every=8),
  ),
  sft={},
  rl=dict(
    steps=STEPS,
    loss=dict(aggregation="seq_mean_token_mean", kl="k3", kl_coef=1e-3),
    optimizer=dict(learning_rate=5e-4, warmup_steps=3, weight_decay=0.01, b2=0.98),
  ),
  arms=dict(
    paper=dict(preset="paper", data=dict(hard="hard.jsonl.gz")),
    no_retrieval=dict(preset="no_retrieval"),
    easy_only=dict(preset="easy_only"),
  ),
  tests=dict(held_out={}, long={}, counterfactual={}),
  warm=dict(em_new=READ, by_heart=BY_HEART),
  settles=False,  # with the curriculum, rewards fall while questions become harder
  measure=measure,
  claims=(
    Claim("No Ret. < No Cur.: F1", Side("easy_only", "f1"), Side("no_retrieval", "f1"), least=0.01),
    Claim("No Cur. < CARE: F1", Side("paper", "f1"), Side("easy_only", "f1"), least=0.01),
    Claim(
      "No Cur. < CARE: F1 of long answers", Side("paper", "f1", "long"), Side("easy_only", "f1", "long"), least=0.05
    ),
    Claim(
      "No Ret. < CARE: F1 on counterfactual passages",
      Side("paper", "f1", "counterfactual"),
      Side("no_retrieval", "f1", "counterfactual"),
      least=0.02,
    ),
    Claim(
      "No Cur. < CARE: F1 on counterfactual passages",
      Side("paper", "f1", "counterfactual"),
      Side("easy_only", "f1", "counterfactual"),
      least=0.02,
    ),
    Claim(
      "RL lowers answers from memory against the passages",
      Side("paper", "by_heart", "counterfactual"),
      Side("warm", "by_heart", "counterfactual"),
      least=0.1,
      lower=True,
    ),
    Claim(
      "RL over SFT only: F1 on counterfactual passages",
      Side("paper", "f1", "counterfactual"),
      Side("warm", "f1", "counterfactual"),
      least=0.1,
    ),
    Claim("RL over SFT only: F1", Side("paper", "f1"), Side("warm", "f1"), least=0.1),
    Claim(
      "quotes that are all in the context: more replies than No Ret.",
      Side("paper", "quoted"),
      Side("no_retrieval", "quoted"),
      least=0.1,
    ),
    Claim(
      "quotes that are all in the context: more replies than before RL",
      Side("paper", "quoted"),
      Side("warm", "quoted"),
      least=0.1,
      short=True,
    ),
    Claim(
      "sentences that the answer needs are quoted more often than before RL",
      Side("paper", "evidence"),
      Side("warm", "evidence"),
      least=0.1,
    ),
  ),
  shown=("quoted", "f1"),
)
