"""Starts the small search run once: calls `ragrl train` in this process.

The recipe always searches and asks the judge. The faults that a process can only cause itself are caused here.
"""

import dataclasses
import os
import pathlib
import resource
import signal
import sys
import time

import psutil
import tiny_world

ROOT = pathlib.Path(__file__).parents[2]
os.environ |= dict(
  JAX_PLATFORMS="cpu", NO_PROXY="127.0.0.1", JAX_COMPILATION_CACHE_DIR=str(ROOT / ".cache" / "jax"),
  JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",  # importing and tracing take most of a start
  PYTHONWARNINGS="ignore:resource_tracker",  # a killed process would leave the progress bar's lock behind
)  # fmt: skip

from ragrl_jax import structs  # noqa: E402
from ragrl_jax.cli import main as cli  # noqa: E402
from ragrl_jax.jobs import train  # noqa: E402
from ragrl_jax.prompting import passages  # noqa: E402
from ragrl_jax.run import prepared  # noqa: E402


def searching(recipe):
  """The recipe, with a play that searches for the untrained model's text, and asks the judge about it."""

  async def play(example, policy, tools):
    talk = policy.start(recipe.prompt.messages(example))
    said = await talk.generate(stop=())
    found = await tools.search(f"{example.question} {said.text}")
    talk.observe(passages.block(found, tokenizer=policy.tokenizer, max_passage_tokens=24), query=said.text, found=found)
    said = await talk.generate(stop=())
    (verdict,) = await tools.judge(((found[0].text, said.text),), "follows")
    return dataclasses.replace(talk.end("answer"), facts=dict(follows=(verdict,)))

  def score(example, episode):
    wrote = sum(i for s in episode.segments if s.owner == structs.MODEL for i in s.ids)
    return dict(follows=episode.facts.get("follows", (None,))[0], wrote=wrote % 7 / 7)

  outcome = lambda example, episode: float(score(example, episode)["wrote"] > 0.5)
  of = dict(play=play, score=score, outcome=outcome, judged=("follows",))
  return dataclasses.replace(recipe, weights=lambda step: dict(follows=1.0, wrote=1.0), **of)


def watched(steps, faults):
  """The run's steps. A step can cause a fault of this process."""
  for number, row in enumerate(steps):
    if not number:
      print(f"first step {row['step']}", flush=True)
    if "disk" in faults and row["step"] >= faults["disk"][0]:
      _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
      resource.setrlimit(resource.RLIMIT_FSIZE, (faults["disk"][1], most))
    if "clock" in faults and row["step"] >= faults["clock"][0]:
      jump(faults.pop("clock")[1])
    if "memory" in faults:
      with open(faults["memory"], "a") as file:
        file.write(f"{psutil.Process().memory_info().rss / 2**20:.3f}\n")
    yield row


def jump(seconds):
  now, now_ns = time.time, time.time_ns
  time.time, time.time_ns = lambda: now() + seconds, lambda: now_ns() + int(seconds * 1e9)


def main(flags, faults, said, errors):
  """Runs `ragrl train` to its end. stdout and stderr are pipes, which a limit on the size of files does not affect.

  Of the faults, {"disk": (step, bytes)}: from this step on, no file grows beyond these bytes; {"clock": (step,
  seconds)}: the wall clock jumps; {"memory": file}: writes the resident MB after every step to this file.
  """
  os.dup2(said.fileno(), 1)
  os.dup2(errors.fileno(), 2)
  plain, trains = prepared.recipe, train.train
  prepared.recipe = lambda config: tiny_world.collapsing(searching(plain(config)), (4, 5))  # in steps 5 and 6
  train.train = lambda *args, **settings: watched(trains(*args, **settings), dict(faults))
  sys.argv = ["ragrl", "train", *flags]
  try:
    cli.main()
  except KeyboardInterrupt:  # what Python does when it exits, and multiprocessing does not
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
