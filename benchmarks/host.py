"""What the host does in a step of 512 short episodes: seconds of each phase, and outside of all phases.

    python benchmarks/host.py [out/host] [--steps 8] [--cpu]
    python benchmarks/host.py out/before out/after

Trains in the folders that hold no run yet, and prints a column for each: medians over the steps, without the first two.
To compare two versions of the library, give each a folder of its own, then name both. "By the clock" is the time
between two rows of metrics.jsonl; "outside" is what the later row does not account for.

Replies are ARENA's, written by its script, half of them with a wrong answer. The rollout takes half a second, in which
the host waits as for an accelerator (`retrieval_wait`). The model that learns from them is tiny.
--cpu: CPU seconds of the main thread, which other work on the machine hardly changes, and in which waiting is free.
"""

import argparse
import asyncio
import dataclasses
import pathlib
import random
import statistics
import tempfile
import time

import reading_world

from ragrl_jax import config as config_lib, structs
from ragrl_jax.data import synthetic, writers
from ragrl_jax.jobs import train
from ragrl_jax.prompting import sentencepiece
from ragrl_jax.run import prepared
from ragrl_jax.store import malloc, metrics

PROMPTS, GROUP, QUESTIONS = 64, 8, 256
ROLLOUT_S = 0.5


def main():
  cli = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  cli.add_argument("runs", nargs="*", type=pathlib.Path, default=[pathlib.Path("out/host")])
  cli.add_argument("--steps", type=int, default=8)
  cli.add_argument("--cpu", action="store_true")
  args = cli.parse_args()
  malloc.limit()
  for run in args.runs:
    if not metrics.read_metrics(run):
      with tempfile.TemporaryDirectory() as folder:
        built = scripted(pathlib.Path(folder), args.steps)
        if args.cpu:
          time.perf_counter = time.time = time.thread_time
        for _ in train.train(built, run):
          pass
  print(table({str(run): medians(metrics.read_metrics(run)) for run in args.runs}))


def scripted(world: pathlib.Path, steps: int) -> prepared.Prepared:
  """A run whose replies are the script's."""
  config = config_lib.load("small", "arena")
  config.steps, config.checkpoint.every, config.seed = steps, 10**6, 0
  config.switches.instructions, config.prompting.chat = "none", False
  config.prompting.tokenizer, config.data.train = str(world / "tokenizer.model"), str(world / "questions.jsonl")
  config.model.shape = dict(family="qwen3", d_model=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8)
  config.model.shape.update(d_ff=32, rope_theta=1000.0, tied=True)
  config.rollout.update(prompts_per_step=PROMPTS, group_size=GROUP, max_new_tokens=96)
  config.rollout.update(lanes=8, rows=8, context=256, prefill=64, page=32)
  config.learner.update(micro_rows=32, row_lengths=(1024,))
  built = reading_world.build(reading_world.Settings(seed=0, entities=120, held_out=12))
  questions = reading_world.questions(built, QUESTIONS, passages=2, distinct=False)
  writers.write_examples(world / "questions.jsonl", questions)
  script = prepared.recipe(config).script
  replies = {one.id: script(one, (), random.Random(one.id)) for one in questions}
  lines = [*(" " + line for line in synthetic.lines(built, fillers=500)), *replies.values()]
  sentencepiece.train(lines, vocab_size=1000, path=world / "tokenizer.model")
  ready = prepared.prepare(config)
  return dataclasses.replace(ready, recipe=replying(ready, questions, replies))


def replying(ready: prepared.Prepared, asked, replies: dict[str, str]):
  """The recipe with a play that gives these replies, or the same with the answer of another question."""
  recipe, rng, episodes = ready.recipe, random.Random(0), {}
  for one, other in zip(asked, asked[1:] + asked[:1]):
    wrong = replies[one.id].replace(one.golds[0], other.golds[0])
    for right, text in enumerate((wrong, replies[one.id])):
      played = structs.Episode.from_text(recipe, one, [("model", text)], tokenizer=ready.tokenizer)
      *before, last = played.segments
      last = dataclasses.replace(last, logprobs=tuple(-rng.random() for _ in last.ids))
      episodes[one.id, right] = dataclasses.replace(played, segments=(*before, last))

  async def play(example, policy, tools):
    await asyncio.sleep(ROLLOUT_S * rng.random())
    return episodes[example.id, rng.randrange(2)]

  return dataclasses.replace(recipe, play=play)


def medians(rows) -> dict[str, float]:
  """Seconds of each phase, by the clock and outside of every phase."""
  result: dict[str, list[float]] = {}
  for before, row in zip(rows[1:], rows[2:]):
    seconds = {name.removeprefix("seconds/"): value for name, value in row.items() if name.startswith("seconds/")}
    seconds["by the clock"] = row["time"] - before["time"]
    seconds["outside"] = seconds["by the clock"] - seconds.pop("step") - seconds.get("checkpoint", 0.0)
    for name, value in seconds.items():
      result.setdefault(name, []).append(value)
  return {name: statistics.median(values) for name, values in result.items()}


def table(columns: dict[str, dict[str, float]]) -> str:
  """A Markdown table: a row for each phase, a column for each run."""
  names = list(dict.fromkeys(name for column in columns.values() for name in column))
  share = lambda column, name: f"{column[name]:.3f} ({column[name] / column['by the clock']:.1%})"
  cells = [[name, *(share(one, name) if name in one else "" for one in columns.values())] for name in names]
  head = [["Seconds of a step", *columns], ["---"] * (1 + len(columns))]
  return "\n".join(f"| {' | '.join(row)} |" for row in [*head, *cells])


if __name__ == "__main__":
  main()
