"""Asks a checkpoint a question: ragrl ask --checkpoint RUN "Who was it?"

Plays the question with the run's recipe and retriever, and shows thoughts, searches, passages, quotes, citations and
the answer while they are generated. Without a question, it reads one question per line from the input. --conversation
puts earlier questions and answers before the next one. --data FILE --id ID asks a question of a file, with its passages
and right answers. --samples 5 samples five answers and reports their agreement. --json prints one answer per line, with
its whole episode.

--page serves a page to a browser of this machine, with live traces, marked quotes and citations, samples and export.
With --against OTHER_RUN it shows two checkpoints side by side.
"""

import asyncio
import contextlib
import json
import pathlib
import socket
import sys
import uuid
from collections.abc import Sequence

import uvicorn
from absl import app, flags

from ragrl_jax import settings, structs
from ragrl_jax.cli import commands
from ragrl_jax.data import readers
from ragrl_jax.jobs import checkpoints
from ragrl_jax.protocol import http_limits
from ragrl_jax.run import checks, prepared, questions
from ragrl_jax.serving import ask_checkpoint, ask_page, live_text
from ragrl_jax.store import compile_cache

FROM_CHECKPOINT = "run"
flags.FLAGS.set_gnu_getopt(True)  # flags may follow the question
CHECKPOINT = flags.DEFINE_string(
  "checkpoint", None, "RUN, RUN/checkpoints/STEP, model's folder or Hugging Face name.", required=True
)
CONFIG = commands.config_flag()
AGAINST = flags.DEFINE_string("against", "", "A second checkpoint that gets the same questions.")
DATA = flags.DEFINE_string("data", "", "Set with the question: file, folder, glob or hf:NAME/SUBSET/SPLIT.")
ID = flags.DEFINE_string("id", "", "Id of the question in --data; by default the first question.")
SAMPLES = flags.DEFINE_integer("samples", 1, "Number of answers; several are sampled.", lower_bound=1, upper_bound=64)
SEED = flags.DEFINE_integer(
  "seed", None, "Seed of the sampling; config.seed by default.", lower_bound=0, upper_bound=2**32 - 1
)
CONVERSATION = flags.DEFINE_bool("conversation", False, "Put earlier questions and answers before each question.")
PAGE = flags.DEFINE_bool("page", False, "Serve a page to this machine instead of the command line.")
PORT = flags.DEFINE_integer("port", 8010, "Port of the page.", lower_bound=1, upper_bound=65535)
JSON = flags.DEFINE_bool("json", False, "Print each answer as a line of JSON, without the trace.")


EXAMPLES = 3  # questions that the page shows


def main(words):
  compile_cache.keep()
  listener = http_limits.bound("127.0.0.1", PORT.value, "--port") if PAGE.value else None
  for checkpoint in filter(None, (CHECKPOINT.value, AGAINST.value)):
    checkpoints.locate(checkpoint)
  checks.devices()
  pairs = [(CONFIG.value, CHECKPOINT.value)]
  if AGAINST.value:
    other = checkpoints.config_of(AGAINST.value)
    if other.judge.kind == "none":  # both get the same judge
      other.judge, other.judges = CONFIG.value.judge, CONFIG.value.judges
    pairs.append((other, AGAINST.value))
  configs = [(settings.of(config), checkpoint) for config, checkpoint in pairs]
  example = _example(configs[0][0], words)
  examples = _examples(configs[0][0]) if PAGE.value else []
  for config, _ in configs if example is not None else ():
    ask_checkpoint.check_passages(prepared.recipe(config), example, has_index=bool(config.retrieval.index))
  askers = []
  try:
    for config, checkpoint in configs:
      sampler = checkpoints.opened(config, checkpoint, judged=ask_checkpoint.judged(config))
      askers.append(ask_checkpoint.Asker(sampler, checkpoint))
    if listener is not None:
      _page(askers, examples, listener)
    failed = listener is None and _session(askers, example)
  finally:
    for asker in askers:
      asker.close()
  sys.exit(1 if failed else 0)


def _page(askers: list[ask_checkpoint.Asker], examples: list[str], listener: socket.socket) -> None:
  """Serves the page until it is interrupted, or an engine fails."""
  application = ask_page.Application(askers, examples=examples)
  server = uvicorn.Server(http_limits.configured(application, host="127.0.0.1", port=PORT.value))
  for asker in askers:
    asker.thread.failed = lambda error: setattr(server, "should_exit", True)
  print(f"Open http://127.0.0.1:{PORT.value} in a browser of this machine. Ctrl-C ends.", flush=True)
  with contextlib.suppress(KeyboardInterrupt):
    server.run(sockets=[listener])
  if any(asker.thread.error for asker in askers):
    sys.exit(1)


def _examples(config) -> list[str]:
  """The first questions of --data, or of the run's held-out file; none if that is elsewhere or has moved."""
  data = DATA.value or config.data.evaluate
  if not data or (not DATA.value and not all(pathlib.Path(part).is_file() for part in readers.parts(data))):
    return []
  return [example.question for example in questions.testing(config, data, max_examples=EXAMPLES)]


def _example(config, words: Sequence[str]) -> structs.Example | None:
  """The question of the command line; None if questions are to be read from the input."""
  question = " ".join(words).strip()
  if words and not question:
    raise app.UsageError("the question is empty: give its text, or no argument to enter questions.")
  if question and DATA.value:
    raise app.UsageError("give either a question or --data, but not both.")
  if question:
    return structs.Example("question", question, ())
  if not DATA.value:
    if ID.value:
      raise app.UsageError(f"--id={ID.value}: give the file of the question with --data.")
    return None
  examples = questions.testing(config, DATA.value, max_examples=0)
  matches = [example for example in examples if ID.value in ("", example.id)]
  if not matches:
    raise ValueError(f"--data={DATA.value}: none of its {len(examples)} questions has the id {ID.value!r} (--id).")
  return matches[0]


def _session(askers: list[ask_checkpoint.Asker], example: structs.Example | None) -> bool:
  """Asks the question, or each line of the input. Returns whether an answer failed, or a verdict did not come."""
  if example is not None:
    return asyncio.run(_ask(askers, example, []))
  failed, earlier, terminal = False, [], sys.stdin.isatty()
  if terminal:
    print("Enter one question per line; an empty line ends.")
  # Read outside of an event loop: Ctrl-C would not end one whose thread waits for a line.
  while read := sys.stdin.readline():
    if not (line := read.strip()):
      if terminal:
        break
      continue
    text = ask_checkpoint.in_conversation(earlier, line) if CONVERSATION.value else line
    failed |= asyncio.run(_ask(askers, structs.Example(str(uuid.uuid4()), text, ()), earlier, line))
  return failed


async def _ask(askers, example: structs.Example, earlier: list[tuple[str, str]], text: str = "") -> bool:
  failed = False
  for place, asker in enumerate(askers):
    live = live_text.LiveText()
    tell = (lambda event: None) if JSON.value or SAMPLES.value > 1 else live.tell
    if len(askers) > 1 and not JSON.value:
      print(f"{asker.name}")
    greedy = SAMPLES.value == 1
    answers = await asker.ask(example, samples=SAMPLES.value, greedy=greedy, seed=SEED.value, tell=tell)
    unjudged = [answer["no_verdict"] for answer in answers if answer["no_verdict"]]
    failed |= bool(unjudged) or any(answer["ended"] == "failed" for answer in answers)
    if JSON.value:
      for answer in answers:
        print(json.dumps(dict(checkpoint=asker.name) | answer, ensure_ascii=False), flush=True)
    elif SAMPLES.value > 1:
      for one in ask_checkpoint.agreement([answer["answer"] for answer in answers]):
        live.line(f"{one['count']} of {SAMPLES.value}", "no answer" if one["answer"] is None else one["answer"])
      if unjudged:
        live.line("no verdict", f"on steps of {len(unjudged)} of {SAMPLES.value} answers: {unjudged[0]}", "bad")
    if not place:
      earlier.append((text, answers[0]["answer"] or "none"))
  return failed
