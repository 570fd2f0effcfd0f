"""A tiny reader for real questions. One minute of training teaches it each recipe's reply format, and nothing else.

With random weights, no reply would have the right format, and most measures of an evaluation would be empty. The
lessons have the recipes' own prompts, with questions and passages of the training sets. Every answer is yes or no.
"""

import dataclasses
import itertools
import pathlib
import random
import shutil

from tqdm import tqdm

from ragrl_jax import config as config_lib, recipes
from ragrl_jax.data import readers
from ragrl_jax.jobs import sft
from ragrl_jax.prompting import passages as passages_lib, sentencepiece
from ragrl_jax.recipes.released.agents import AGENTS
from ragrl_jax.retrieval import corpus
from ragrl_jax.run import prepared
from ragrl_jax.structs import ENVIRONMENT, MODEL, Example

TRAIN = ("hotpotqa_train", "2wikimultihopqa_train", "musique_train")
TAGS = (
  "relevance analysis think search information answer reason extract reflect retrieval thought question need".split()
)
# Each of these tags is one token, so that replies are short.
MARKS = tuple(f"<{slash}{tag}>" for tag in (*TAGS, "summary", "result", "documents") for slash in ("", "/"))
SHAPE = dict(
  family="qwen3", d_model=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, d_ff=160, rope_theta=1e6,
  tied=True,
)  # fmt: skip
VOCAB, CONTEXT = 4000, 6144
STEPS, ROWS, LENGTH = 120, 1, 2048
COUNT = 20  # lessons per format
SHOWN = 5  # whole passages per prompt: prompts must be as long as real ones, so that instructions are as far away
WORDS = 15  # most words of a retrieved passage, so that most tokens of a lesson are replies
# The reader's answers to all questions: nothing else can be learned in so few steps.
ANSWERS, QUERY, QUOTE = ("yes", "no"), "the history of the town", "The passage says so"
TAUGHT = (
  *("arena", "arena:naive", "arena:direct", "care", "care:no_retrieval", "care:original"),
  *(f"lear:{reply}".rstrip(":") for reply in ("", "vanilla", "rationale", "generator", "filter", "thoughts")),
  *("search_r1", "search_r1:r1", "veritas", "veritas:em_format", "when_to_search"),
  "untrained",
  *(f"untrained:{method}" for method in recipes.presets("untrained") if method not in ("given", "flare")),
  *("untrained:given", "untrained:cot,given", "untrained:self_ask,given"),
  *(f"released:{agent}" for agent in recipes.presets("released") if agent != "given"),
)
Turns = list[tuple[str, str]]


def model(out: pathlib.Path, data: pathlib.Path) -> pathlib.Path:
  """The folder of the reader and its tokenizer. The reader is trained if the folder does not exist."""
  words, folder = out / "tokenizer.model", out / "reader" / "model"
  if folder.is_dir():
    return folder
  if not words.is_file():
    texts = (passage.text for passage in corpus.read_passages(data / "corpora" / "hotpotqa.jsonl.gz"))
    sentencepiece.train(itertools.islice(texts, 4000), vocab_size=VOCAB, marks=MARKS, path=words)
  workdir = out / "taught"
  config = sized(config_lib.load("search_r1"), out)
  config.steps, config.data.train, config.checkpoint.every = STEPS, "lessons", STEPS
  config.optimizer.update(
    dict(learning_rate=5e-3, warmup_steps=10, schedule="cosine", final_share=0.1, weight_decay=0.0)
  )
  config.rollout.context = LENGTH
  config.learner.update(dict(micro_rows=ROWS, row_lengths=(LENGTH,), logprob_chunk=2048))
  taught = [
    transcript
    for name in TAUGHT
    for transcript in lessons(name, data, prepared.tokenizer(config_lib.validate(config, training=False), None))
  ]
  drawn = sft.batches(taught, rows=ROWS, lengths=(LENGTH,), seed=0)
  for _ in tqdm(sft.sft(config, workdir, drawn=drawn), total=STEPS, desc="the reader", unit="step"):
    pass
  # Moved away from its run's settings: in the tables it counts as an untrained model.
  shutil.copytree(workdir / "model", folder.with_name("part"), dirs_exist_ok=True)
  folder.with_name("part").rename(folder)
  return folder


def sized(config, out: pathlib.Path):
  """The settings, with the reader's sizes."""
  config.model.update(dict(path="", dtype="float32", remat=False))
  config.model.lora.rank = 0
  config.model.shape = SHAPE
  config.prompting.update(dict(tokenizer=str(out / "tokenizer.model"), chat=False, markers="template"))
  config.rollout.update(dict(lanes=32, rows=64, context=CONTEXT, prefill=256, page=128, max_new_tokens=64))
  config.rollout.reserve = min(config.rollout.reserve, 16)
  config.learner.update(dict(micro_rows=2, row_lengths=(CONTEXT,), logprob_chunk=1024))
  config.log.tensorboard = False
  return config


def lessons(name: str, data: pathlib.Path, words) -> list[sft.Transcript]:
  """Transcripts in a config's reply format, as `sft` reads them."""
  config = config_lib.load(name)
  recipe = recipes.get(config.recipe, config.preset, **config.switches.to_dict())
  drawn = examples(data, f"lessons/{name}", COUNT, whole=recipe.needs_passages)
  return [sft.tokenised(recipe, with_turns(recipe, example), words, 0.0, most=LENGTH) for example in drawn]


def examples(data: pathlib.Path, seed: str, count: int, *, whole: bool) -> list[Example]:
  """Questions of the training sets, with SHOWN whole passages (two of them gold), or with the two gold ones, cut."""
  rng, result = random.Random(seed), []
  files = ",".join(str(data / "qa" / f"{name}.jsonl.gz") for name in TRAIN)
  for asked in rng.sample(list(readers.read_examples(files)), count):
    golds = list(asked.supporting[:2])
    others = [place for place in range(len(asked.passages)) if place not in asked.supporting]
    places = golds + others[: SHOWN - len(golds)] if whole else golds
    rng.shuffle(places)
    lines = [asked.passages[place] for place in places]
    if not whole:
      lines = [dataclasses.replace(one, text=" ".join(one.text.split()[:WORDS])) for one in lines]
    supporting = tuple(i for i, place in enumerate(places) if place in golds)
    result.append(dataclasses.replace(asked, passages=tuple(lines), supporting=supporting, evidence=()))
  return result


def with_turns(recipe, example: Example) -> Example:
  """The example with a transcript in the recipe's reply format."""
  text = random.Random(example.id).choice(ANSWERS)
  turns = _TURNS[recipe.name](recipe.switches, dataclasses.replace(example, golds=(text,)))
  if recipe.searches and not recipe.needs_passages:
    example = dataclasses.replace(example, passages=(), supporting=())
  return dataclasses.replace(example, meta={"turns": turns})


def _said(answer: str, **sections: str) -> Turns:
  return [(MODEL, "".join(f"<{name}> {body} </{name}>" for name, body in dict(sections, answer=answer).items()))]


def _arena(switches, example: Example) -> Turns:
  numbers = [place + 1 for place in example.supporting]
  why = " ".join(f"{QUOTE} [{number}]." for number in numbers)
  sections = {"cited": dict(relevance=str(numbers), analysis=why), "thought": dict(think=why), "direct": {}}
  return _said(example.golds[0], **sections[switches.reply])


def _care(switches, example: Example) -> Turns:
  if switches.instructions == "none":
    return [(MODEL, example.golds[0])]
  return [(MODEL, f"<think> <retrieval>{QUOTE}</retrieval> </think> Answer: {example.golds[0]}")]


def _lear(switches, example: Example) -> Turns:
  if switches.reply == "thoughts":
    return [(MODEL, f"{QUOTE}. The answer is {example.golds[0]}.")]
  names = {
    "rational": ("reason", "extract"),
    "vanilla": ("extract",),
    "rationale": ("reason",),
    "extract": ("extract",),
  }
  sections = dict.fromkeys(names.get(switches.reply, ()), f"{QUOTE}.")
  said = _said(example.golds[0], **sections)
  return said if switches.reply != "extract" else [(MODEL, f"<extract> {QUOTE}. </extract>")]


def _searching(switches, example: Example) -> Turns:
  if getattr(switches, "max_searches", 1) == 0:
    return _said(example.golds[0], think="I know this.")
  query = f"<think> I have to look this up. </think><search> {QUERY} </search>"
  result = (ENVIRONMENT, passages_lib.block(example.passages))
  return [(MODEL, query), result, *_said(example.golds[0], think=f"{QUOTE}.")]


def _when_to_search(switches, example: Example) -> Turns:
  first, found, _ = _searching(switches, example)
  return [first, found, *_said(example.golds[0], reflect=f"{QUOTE}.")]


def _untrained(switches, example: Example) -> Turns:
  gold, thought = example.golds[0], f"{QUOTE}."
  result = (ENVIRONMENT, passages_lib.block(example.passages))
  asks = dict(ircot="thought", self_ask="question", skr="need")
  if switches.method in asks and switches.documents == "search":
    said = {"ircot": thought, "self_ask": f"{QUERY}?", "skr": "yes"}[switches.method]
    return [(MODEL, f"<{asks[switches.method]}> {said} </{asks[switches.method]}>"), result, *_said(gold)]
  if switches.method in ("rag", "iter_retgen", "sure", "recomp", "filco") and switches.documents == "search":
    result = [result]
  else:
    result = []
  replies = dict(
    cot=_said(gold, think=thought),
    iter_retgen=_said(gold, think=thought),
    sure=[(MODEL, "<answer> yes </answer><answer> no </answer>")],
    adaptive=[(MODEL, "<need> B </need>")],
    recomp=[(MODEL, f"<summary> {thought} </summary>")],
    filco=[(MODEL, f"<extract> {thought} </extract>")],
  )
  return [*result, *replies.get(switches.method, _said(gold))]


def _released(switches, example: Example) -> Turns:
  agent, gold = AGENTS[switches.agent], example.golds[0]
  tags = AGENTS[switches.agent]
  before = "<think> I have to look this up. </think>" if tags.thinks else ""
  shown = agent.shown(example.passages, None, None)
  boxed = f"\\boxed{{{gold}}}"
  last = {"tags": f"<answer> {gold} </answer>", "boxed": f"<answer> {boxed} </answer>", "box": f"It is {boxed}."}
  return [
    (MODEL, f"{before}{tags.query[0]} {QUERY} {tags.query[1]}"),
    (ENVIRONMENT, agent.block(shown)),
    (MODEL, ("<think> I have read it. </think>" if tags.thinks else "") + last[tags.answered]),
  ]


_TURNS = dict(
  arena=_arena, care=_care, lear=_lear, search_r1=_searching, veritas=_searching, when_to_search=_when_to_search,
  untrained=_untrained, released=_released,
)  # fmt: skip
