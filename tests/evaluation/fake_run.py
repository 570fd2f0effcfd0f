"""Makes the folder of a made-up training run: `python tests/evaluation/fake_run.py OUT [steps]`.

The same arguments give the same numbers, except for the times of writing. It uses the library's own records and
writers, so a page made of it looks like the page of a real run.
"""

import json
import math
import pathlib
import re
import sys

import numpy as np

from ragrl_jax import config as config_lib, recipes, structs
from ragrl_jax.prompting import passages
from ragrl_jax.run import signs
from ragrl_jax.store import episodes, jsonl, metrics

PLACES = ("Velmar", "Tosk", "Brindal", "Kasovar", "Limnez", "Ordath", "Pelluc", "Quorn", "Sabrel", "Tindrum")
PEOPLE = ("Zora Kelmut", "Ivo Brask", "Mila Tandor", "Ruk Vosnel", "Ada Perlund", "Jon Sikkar", "Lena Morvik")
TRADES = ("painter", "surveyor", "glass-blower", "poet", "cartographer", "watchmaker", "botanist")
PROMPT = (
  "Answer the question. Search with <search>query</search>; what is found stands between <information> and "
  "</information>. Give the answer as <answer>…</answer>.\n\nQuestion: {}\n"
)
SEARCH, ANSWER = "</search>", "</answer>"
PARSER = recipes.get("search_r1").parser


class Words:
  """A tokenizer of words and signs that adds new ones as it reads. An é is two tokens, as in byte-level BPE."""

  control_names = {0: "<|im_end|>", 1: "<|im_start|>"}

  def __init__(self):
    self.ids: dict[bytes, int] = {b"": 0, b"<|im_start|>": 1}
    self.table = [b"", b""]

  def encode(self, text):
    pieces = []
    for word in re.findall(r" ?\w+|</?\w+>|\s+|.", text):
      raw = word.encode()
      cut = raw.find("é".encode()) + 1
      pieces += [raw[:cut], raw[cut:]] if cut else [raw]
    for raw in pieces:
      if self.ids.setdefault(raw, len(self.table)) == len(self.table):
        self.table.append(raw)
    return [self.ids[raw] for raw in pieces]

  def token_bytes(self, token):
    return self.table[token]


def passage(rng, number):
  person, trade, place = rng.choice(PEOPLE), rng.choice(TRADES), rng.choice(PLACES)
  wording = ("{0} was a {1} from {2}.", "In {2} lived the {1} {0}.", "The {1} {0}, née in {2}, worked there all year.")
  text = wording[number % 3].format(person, trade, place)
  return structs.Passage(f"p{number}", str(person), text + " The town lies on a river." * int(rng.integers(0, 3)))


def example(rng, number):
  gold = (passage(rng, 1000 + 2 * number), passage(rng, 1001 + 2 * number))
  hops = 1 + number % 2
  second = f"In which town was the friend of {gold[0].title}, who made maps, born?"
  question = f"Where did {gold[0].title} live?" if hops == 1 else second
  of = dict(supporting=tuple(range(hops)), source="made-up", hops=hops)
  return structs.Example(f"q{number:04d}", question, (str(rng.choice(PLACES)),), gold, **of)


def episode(rng, tokenizer, question, index, sample, skill):
  """One episode. A higher skill (0 to 1) makes the right number of searches and a right answer more likely."""

  def segment(owner, text, **more):
    ids = tokenizer.encode(text)
    if owner == structs.MODEL:
      ids += [0] if more["stop"] == "eos" else []
      more["logprobs"] = tuple(float(x) for x in np.float32(-rng.exponential(0.9 - 0.7 * skill, len(ids))))
    return structs.Segment(owner, tuple(ids), text, **more)

  # A prompt as chat templates make it: control tokens separate its texts and occur in none of them.
  asked, start, end = "user\n" + PROMPT.format(question.question), tokenizer.ids[b"<|im_start|>"], 0
  ids = [start, *tokenizer.encode(asked), end, *tokenizer.encode("\n"), start, *tokenizer.encode("assistant\n")]
  said = [structs.Segment(structs.ENVIRONMENT, tuple(ids), f"{asked}\nassistant\n")]
  searches = question.hops if rng.random() < 0.3 + 0.7 * skill else int(rng.integers(0, 4))
  for hop in range(searches):
    query = f"where was {question.passages[min(hop, 1)].title} born" if rng.random() < 0.85 else question.question
    said.append(segment(structs.MODEL, f"<think>I need fact {hop + 1}.</think>\n<search>{query}</search>", stop=SEARCH))
    hit = [question.passages[min(hop, 1)]] if rng.random() < 0.4 + 0.6 * skill else []
    found = tuple(
      structs.Passage(p.id, p.title, p.text, round(9.5 - 1.7 * place, 2))
      for place, p in enumerate([*hit, *(passage(rng, int(rng.integers(0, 900))) for _ in range(3))][:3])
    )
    said.append(segment(structs.ENVIRONMENT, passages.block(found), query=query, found=found))
  right = bool(rng.random() < 0.1 + 0.85 * skill)
  late = rng.random() < 0.12 * (1 - skill)
  reply = question.golds[0] if right else str(rng.choice(PLACES))
  told = f"<think>The passage says it.</think>\n<answer>{reply}</answer>"
  text = "<think>I do not know yet, so I shall think about it once more" if late else told
  stop = ANSWER if not late else "length" if sample % 2 else "eos"
  said.append(segment(structs.MODEL, text, stop=stop))
  facts = {"judge": {"faithful": round(float(rng.random()), 3)}} if sample == 0 else {}
  of = dict(version=0, prompt_index=index, sample=sample, example_id=question.id, facts=facts)
  return structs.Episode(tuple(said), ended="answer" if stop == ANSWER else stop, **of)


def step_rows(step, skill, *, prompts=4, group=6):
  rng, tokenizer, rows = np.random.default_rng(1000 + step), Words(), []
  weights = {"answer": 1.0, "format": 0.2, "retrieval": 0.1}
  for index in range(prompts):
    question = example(rng, step * prompts + index)
    group_of = [episode(rng, tokenizer, question, step * prompts + index, sample, skill) for sample in range(group)]
    scored = []
    for got in group_of:
      answer = re.search(r"<answer>(.*)</answer>", got.model_text)
      right, searched = float(bool(answer) and answer[1] in question.golds), float(got.num_searches >= question.hops)
      scored.append({"answer": right, "format": float(bool(answer)), "retrieval": searched})
    totals = np.array([sum(weights[name] * terms[name] for name in weights) for terms in scored])
    spread = totals.std(ddof=1)
    for got, terms, total in zip(group_of, scored, totals, strict=True):
      advantage = (total - totals.mean()) / (spread + 1e-6) if spread > 0 else 0.0
      sizes = [len(segment.ids) for segment in got.segments if segment.owner == structs.MODEL]
      advantages = [np.full(size, advantage) for size in sizes]
      if index == 1:  # as a critic gives them: one per token
        advantages = np.split(advantage * np.linspace(0.2, 1.6, sum(sizes)), np.cumsum(sizes)[:-1])
      elif index == 2:  # as turns that are compared give them: one per turn
        advantages = [np.full(size, advantage / turn) for turn, size in enumerate(sizes, start=1)]
      how = dict(reward=float(total), outcome=terms["answer"], advantages=advantages, tokenizer=tokenizer)
      of_reply = signs.written(PARSER, tokenizer, got) | signs.asked([got])[0]
      how |= dict(step=step, terms=terms, weights=weights, signs=of_reply)
      rows.append(episodes.row(question, got, **how))
  return rows


def step_metrics(rng, step, skill):
  noise = lambda scale: float(rng.normal(0, scale))
  answer = min(1.0, max(0.0, 0.1 + 0.85 * skill + noise(0.04)))
  seconds = {
    "rollout": 1.1 + 0.4 * skill + abs(noise(0.1)) + 9 * (step == 1), "retrieval_wait": 0.18 + abs(noise(0.03)),
    "judge_wait": 0.0, "scoring": 0.31 + abs(noise(0.02)), "update": 0.9 + abs(noise(0.08)), "weights": 0.06,
  }  # fmt: skip
  return {
    "reward": answer + 0.2 * (0.9 + 0.1 * skill) + 0.1 * skill,
    "term": {"answer": answer, "format": min(1.0, 0.88 + 0.12 * skill + noise(0.01)),
             "retrieval": min(1.0, 0.4 + 0.6 * skill + noise(0.02))},
    "weight": {"answer": 1.0, "format": 0.2, "retrieval": 0.1},
    "outcome": answer, "searches": 0.8 + 0.75 * skill + noise(0.05), "response_tokens": 42 + 20 * skill + noise(1.5),
    "entropy": 0.9 - 0.75 * skill + abs(noise(0.02)), "kl": 0.002 + 0.06 * skill**2 + abs(noise(0.003)),
    "old_kl": abs(noise(0.001)),
    "grad_norm": float("nan") if step == 37 else 0.5 + abs(noise(0.25)) + (2.0 if step % 29 == 0 else 0),
    "clip_fraction": abs(noise(0.006)), "dual_clip_fraction": 0.0, "mismatch": abs(noise(2e-7)), "loss": noise(0.02),
    "zero_spread_groups": min(1.0, 0.2 + 0.4 * skill + abs(noise(0.03))), "failed_share": 0.0,
    "learning_rate": 5e-4 * min(1.0, step / 10),
    "ended": {"answer": 0.88 + 0.12 * skill} | ({} if step % 3 else {"length": 0.12 * (1 - skill)}),
    "tokens_per_second": (5200 + 900 * skill) / sum(seconds.values()), "bottleneck": max(seconds, key=seconds.get),
    "seconds": {**seconds, "step": sum(seconds.values())},
    **({"warning/little_signal": "Most tokens have advantage 0."} if step > 110 else {}),
  }  # fmt: skip


def evaluated(em, searches):
  return {
    "n": 300, "em": em, "f1": em + 0.03, "cover_em": em + 0.01, "answered": 0.97, "searches": searches,
    "by_hops": {"1": {"n": 120, "em": min(1.0, em + 0.3)}, "2": {"n": 180, "em": max(0.0, em - 0.2)}},
  }  # fmt: skip


def answered(rng, skill, number=150):
  """Rows of an evaluation, with the fields of `harness.prediction` that the page reads."""
  rows = []
  for i in range(number):
    gold = PLACES[i % len(PLACES)]
    right, silent = rng.random() < 0.1 + 0.85 * skill, rng.random() < 0.1 * (1 - skill)
    said = None if silent and not right else gold if right else PLACES[(i + 3) % len(PLACES)]
    row = dict(id=f"q{i}", golds=[gold, gold.upper()], prediction=said, em=float(right), source="made up")
    row |= dict(num_searches=int(rng.integers(0, 3)), ended="failed" if i == 7 else "answer", hops=1 + i % 2)
    who = f"{PEOPLE[i % len(PEOPLE)]}, the {TRADES[i % len(TRADES)]} number {i}"
    rows.append(row | dict(question=f"In which town was {who}, born?"))
  return rows


def make(workdir, *, steps=120, logged_every=5):
  (workdir := pathlib.Path(workdir)).mkdir(parents=True, exist_ok=True)
  config = config_lib.default_config()
  config.steps = steps
  (workdir / "config.json").write_text(config.to_json(indent=2))
  rng = np.random.default_rng(0)
  skill_at = lambda step: 1 / (1 + math.exp(-8 * (step / steps - 0.35)))
  em = lambda skill: 0.12 + 0.8 * skill
  with metrics.MetricWriter(workdir) as writer:
    writer.write(0, {"evaluation": evaluated(em(skill_at(0)), 0.9)})
    jsonl.write_step(workdir / jsonl.EVALUATIONS, 0, answered(np.random.default_rng(0), skill_at(0)))
    for step in range(1, steps + 1):
      row = step_metrics(rng, step, skill := skill_at(step))
      if step % (steps // 6) == 0:
        row["evaluation"] = evaluated(em(skill), 0.9 + 0.8 * skill)
        jsonl.write_step(workdir / jsonl.EVALUATIONS, step, answered(np.random.default_rng(step), skill))
        row["seconds"] |= {"evaluate": 6.5, "checkpoint": 0.8}
      writer.write(step, row)
      if step % logged_every == 0 or step == 1:
        episodes.write_episodes(workdir, step, step_rows(step, skill))

  near = lambda em: dict(em_interval=[em - 0.05, min(1.0, em + 0.05)], f1_interval=[em - 0.02, min(1.0, em + 0.08)])
  score = lambda em, searches, wasted: evaluated(em, searches) | near(em) | dict(wasted_searches=wasted)
  before, after = score(em(skill_at(0)), 0.9, 0.41), score(em(skill_at(steps)), 1.62, 0.05)
  summary = dict(em_before=before["em"], em_after=after["em"], searches_before=0.9, searches_after=1.62)
  summary |= dict(seconds=241.7, seed=0, before=before, after=after)
  (workdir / "summary.json").write_text(json.dumps(summary))
  return workdir


if __name__ == "__main__":
  print(make(sys.argv[1], steps=int(sys.argv[2]) if len(sys.argv) > 2 else 120))
