"""Times the scoring of answers, compared with SQuAD's and FlashRAG's formulas, and the rescoring of an evaluation.

    python benchmarks/scoring.py [--rows 100000] [--golds 12] [--questions 51713]

The two other scorers are written here from their formulas. SQuAD's computes EM and F1; FlashRAG's computes EM, sub-EM
and F1 with precision and recall. Both normalise the prediction and every gold again for every pair, and FlashRAG's also
for every metric. All sides score the same made-up answers, and the benchmark checks that they agree. Two of our times
are measured: of the three metrics alone, and of the whole row of an evaluation (EM, F1, sub-EM, F1 by characters,
searches and tokens).

The second part is an evaluation with the size of VERITAS's: 51,713 questions of seven test sets, with two searches
each. They are read from an episodes.jsonl, scored again, summarised with all intervals, and put into the paper's
tables. Times are CPU seconds of this process, which a busy machine hardly changes.
"""

import argparse
import collections
import pathlib
import random
import re
import string
import tempfile
import time

from ragrl_jax import recipes, structs
from ragrl_jax.core.metrics import qa
from ragrl_jax.evaluation import answer_files, harness, records
from ragrl_jax.evaluation.tables import filling, papers, writing
from ragrl_jax.run import rewards
from ragrl_jax.store import episodes, jsonl

SETS = dict(nq=3610, triviaqa=11313, popqa=14267, hotpotqa=7405, musique=2417, bamboogle=125)
SETS["2wikimultihopqa"] = 51_713 - sum(SETS.values())
WORDS = 20_000
PUNCTUATION = frozenset(string.punctuation)


def main():
  cli = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  cli.add_argument("--rows", type=int, default=100_000)
  cli.add_argument("--golds", type=int, default=12)
  cli.add_argument("--questions", type=int, default=51_713, help="of the second part; 0 leaves it out")
  args = cli.parse_args()
  rng = random.Random(0)
  words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 9))) for _ in range(WORDS)]
  words = [word for word in words if word not in ("a", "an", "the", "yes", "no")]
  against_peers(rng, words, args.rows, args.golds)
  if args.questions:
    with tempfile.TemporaryDirectory() as folder:
      again(rng, words, args.questions, pathlib.Path(folder))


def against_peers(rng, words, rows: int, golds: int):
  """Scores of `rows` answers with `golds` right answers each."""
  asked = [tuple(phrase(rng, words) for _ in range(golds)) for _ in range(rows)]
  texts = [rng.choice(right) if rng.random() < 0.4 else near(rng, words, right[0]) for right in asked]
  plain = recipes.get("search_r1")
  built = [structs.Example(f"q{i}", "Who?", right) for i, right in enumerate(asked)]
  turn = lambda text: structs.Segment(structs.MODEL, (1, 2, 3), f"<answer>{text}</answer>", (0.0,) * 3, "</answer>")
  played = [structs.Episode((turn(text),), ended="answer", example_id=one.id) for one, text in zip(built, texts)]

  ours, elapsed = timed(lambda: [(qa.exact_match(a, g), qa.cover_em(a, g), qa.f1(a, g)) for a, g in zip(texts, asked)])
  lines = [("ours: EM, sub-EM, F1", elapsed)]
  # One after the other, as `ragrl evaluate` scores finished episodes.
  pairs = zip(built, played)
  score = lambda one, episode: harness.prediction(plain, rewards.score(plain, [one], [episode], 0)[0])
  found, elapsed = timed(lambda: [score(one, episode) for one, episode in pairs])
  lines.append(("ours: an evaluation's rows", elapsed))
  squad, elapsed = timed(lambda: [squad_scores(a, g) for a, g in zip(texts, asked)])
  lines.append(("SQuAD's formulas: EM, F1", elapsed))
  flash, elapsed = timed(lambda: [flashrag_scores(a, g) for a, g in zip(texts, asked)])
  lines.append(("FlashRAG's formulas: EM, sub-EM, F1", elapsed))

  assert [(em, f1) for em, _, f1 in ours] == squad and ours == flash
  assert [(row["em"], row["cover_em"], row["f1"]) for row in found] == ours
  print(f"{rows} answers, {golds} golds each; mean EM {sum(em for em, _, _ in ours) / rows:.3f}, the same on all sides")
  for name, seconds in lines:
    print(f"  {name:<38} {seconds:6.2f} s   {seconds / lines[0][1]:5.2f} × the first")


def again(rng, words, questions: int, folder: pathlib.Path):
  """Scores an evaluation's episodes again, and makes VERITAS's tables of them."""
  recipe = recipes.get("veritas", "em_ta")
  sources = [name for name, count in SETS.items() for _ in range(count)][:questions]
  passages = [structs.Passage(str(i), phrase(rng, words), phrase(rng, words, 100)) for i in range(2000)]
  examples = [
    structs.Example(f"q{i}", f"Who is {phrase(rng, words)}?", (phrase(rng, words),) * (i % 3 + 1), source=source)
    for i, source in enumerate(sources)
  ]
  with open(folder / episodes.PLAYED, "w", encoding="utf-8") as file:
    file.writelines(jsonl.line(episodes.played(one, transcript(rng, words, passages, one))) for one in examples)

  def scored():
    rows = zip(examples, episodes.read_folder(folder), strict=True)
    pairs = ((example, episodes.episode_of(row)) for example, row in rows)
    return [harness.prediction(recipe, one) for e, played in pairs for one in rewards.score(recipe, [e], [played], 0)]

  def tabulated():
    settings = dict(recipe="transcripts", system="research", model="qwen2.5-7b-base", data=",".join(SETS))
    jsonl.write(folder / answer_files.PREDICTIONS, rows)
    answer_files.write_json(folder / answer_files.METRICS, metrics | dict(settings=settings))
    paper = papers.PAPERS["veritas"]
    return writing.FORMATS["markdown"](paper, filling.fill(paper, [records.read(folder)]))

  rows, scoring = timed(scored)
  metrics, summing = timed(lambda: harness.summarise(rows))
  text, tables = timed(tabulated)
  assert f"{metrics['by_source']['nq']['em']:.3f}" in text
  print(
    f"{questions} questions of VERITAS's sets, {(folder / episodes.PLAYED).stat().st_size / 2**20:.0f} MiB of episodes"
  )
  for name, seconds in (("read and scored", scoring), ("summed up", summing), ("VERITAS's tables", tables)):
    print(f"  {name:<38} {seconds:6.2f} s")
  print(f"  {'all':<38} {scoring + summing + tables:6.2f} s")


def transcript(rng, words, passages, example) -> structs.Episode:
  """Two searches of three passages each, a thought before every action, and an answer, right in half of the cases."""
  model = lambda text: structs.Segment(structs.MODEL, (), text)
  segments = [structs.Segment(structs.ENVIRONMENT, (), f"Question: {example.question}")]
  for _ in range(2):
    query, result = phrase(rng, words), tuple(rng.sample(passages, 3))
    block = "\n".join(f"Doc {i}(Title: {one.title}) {one.text}" for i, one in enumerate(result, 1))
    segments.append(model(f"<think> {phrase(rng, words, 20)} </think><search> {query} </search>"))
    segments.append(
      structs.Segment(structs.ENVIRONMENT, (), f"<information>{block}</information>", (), "", query, result)
    )
  said = example.golds[0] if rng.random() < 0.5 else phrase(rng, words)
  segments.append(model(f"<think> It is {said}. </think><answer> {said} </answer>"))
  return structs.Episode(tuple(segments), ended="answer", example_id=example.id)


def phrase(rng, words, size: int | None = None) -> str:
  return " ".join(rng.choices(words, k=size or rng.randint(1, 4))).title()


def near(rng, words, text: str) -> str:
  """Another answer, which often shares words with this one."""
  return f"The {rng.choice(text.split())} {phrase(rng, words)}."


def timed(work):
  """(result, CPU seconds)."""
  begin = time.process_time()
  result = work()
  return result, time.process_time() - begin


# ---- the peers' formulas ---------------------------------------------------------------------------------------------


def normal(text: str) -> str:
  """Normalises as SQuAD does: lower case, no punctuation, no articles, single spaces."""
  kept = "".join(letter for letter in text.lower() if letter not in PUNCTUATION)
  return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def overlap(answer: str, gold: str) -> float:
  """F1 over the words of a prediction and one gold."""
  ours, theirs = normal(answer).split(), normal(gold).split()
  common = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
  if not common:
    return 0.0
  precision, recall = common / len(ours), common / len(theirs)
  # As one fraction, because 2PR / (P + R) can differ in the last bit.
  assert abs(2 * precision * recall / (precision + recall) - 2.0 * common / (len(ours) + len(theirs))) < 1e-12
  return 2.0 * common / (len(ours) + len(theirs))


def squad_scores(answer: str, golds) -> tuple[float, float]:
  """(EM, F1), each the best over the golds."""
  return max(float(normal(answer) == normal(gold)) for gold in golds), max(overlap(answer, gold) for gold in golds)


def flashrag_scores(answer: str, golds) -> tuple[float, float, float]:
  """(EM, sub-EM, F1): each metric stops at its first hit, except F1, which takes the best gold."""
  ours = normal(answer)
  em = any(normal(gold) == ours for gold in golds)
  ours = normal(answer)
  covered = any(normal(gold) in ours for gold in golds)
  return float(em), float(covered), max(overlap(answer, gold) for gold in golds)


if __name__ == "__main__":
  main()
