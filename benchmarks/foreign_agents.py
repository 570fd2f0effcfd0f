"""External agents learn to search: python benchmarks/foreign_agents.py [--seeds 0,1,2] [--programs openai]

World, model and faulty demonstrations are those of the quickstart. The model writes tool calls in the format of its
chat template, and a program in an agent library runs the searches. All programs of a seed start from the same warm
start. Each stage ends when it has reached its criterion on development questions. A finished run is not repeated, and a
killed run continues.
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import tokenizers
from absl import app, flags, logging
from flax import nnx
from tokenizers import decoders, models, pre_tokenizers, trainers

from ragrl_jax import config as config_lib, retrieval
from ragrl_jax.core import schedules
from ragrl_jax.data import readers, synthetic, writers
from ragrl_jax.jobs import evaluate, sft, train
from ragrl_jax.prompting.chat import Appender
from ragrl_jax.prompting.huggingface import HuggingFaceTokenizer
from ragrl_jax.recipes.search_r1.recipe import demonstrate, write_query
from ragrl_jax.run import player as player_lib
from ragrl_jax.run.prepared import prepare
from ragrl_jax.store import jsonl
from ragrl_jax.structs import MODEL, Example

SEEDS = flags.DEFINE_list("seeds", ["0"], "Seeds of world, model, demonstrations and sampling.")
PROGRAMS = flags.DEFINE_list("programs", ["openai"], "Which of openai, pydantic_ai and openai_agents.")
OUT = flags.DEFINE_string("out", "out/foreign_agents", "Folder of the runs.")
ONE = flags.DEFINE_string("one", "", "PROGRAM/SEED, or warm/SEED: this part only, in this process.")

ROOT = pathlib.Path(__file__).parents[1]
NAMES = dict(openai="tool_loop", pydantic_ai="pydantic_search", openai_agents="agents_search")
TASKS, ASKED, HELD_OUT, DEVELOPMENT = 6000, 4000, 300, 200  # demonstrations and questions
WARM_EM, WARM_ANSWERED = 0.95, 0.99  # on one-hop questions, twice in a row: the goal of the warm start
PATIENCE, RISE, GAIN = 3, 0.005, 0.1  # RL ends after PATIENCE measurements without a better EM, once it has gained GAIN
CLAIM = 0.3  # rise of held-out EM that every run must reach
MERGES = 240  # pieces in addition to the 256 bytes
# The beginning of a call, up to the query, is one piece, and so is its end.
CALL = '<tool_call>{"name": "search", "arguments": {"query": "'
CALLED = '"}}</tool_call>'
CONTROL = ("<|pad|>", "<|user|>", "<|tool|>", "<|assistant|>", "<|end|>")
TEMPLATE = (
  "{% for m in messages %}{% if m.role != 'system' %}<|{{ m.role }}|>{{ m.content }}"
  '{% for call in m.tool_calls or [] %}<tool_call>{"name": "{{ call.function.name }}", "arguments": '
  "{{ call.function.arguments | tojson }}}</tool_call>{% endfor %}<|end|>{% endif %}{% endfor %}"
  "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def main(_):
  logging.set_verbosity(logging.WARNING)
  out = pathlib.Path(OUT.value).resolve()
  if ONE.value:
    program, seed = ONE.value.split("/")
    warm(out, int(seed)) if program == "warm" else learn(out, program, int(seed))
    return
  for seed in SEEDS.value:
    for part in ("warm", *PROGRAMS.value):
      if not (out / f"{part}_{seed}" / "result.json").is_file():
        subprocess.run([sys.executable, __file__, f"--one={part}/{seed}", f"--out={out}"], check=True, cwd=ROOT)
  results = [
    json.loads((out / f"{program}_{seed}" / "result.json").read_text())
    for program in PROGRAMS.value
    for seed in SEEDS.value
  ]
  print(table(results))
  missed = [f"{r['program']}/{r['seed']}" for r in results if r["after"] - r["before"] < CLAIM]
  print(
    f"\nClaim (EM rises by at least {CLAIM} in every run): {'MISSED by ' + ', '.join(missed) if missed else 'holds'}"
  )
  sys.exit(bool(missed))


def table(results: Sequence[dict[str, Any]]) -> str:
  """The results as a Markdown table, one line per run."""
  lines = ["| program | seed | EM before | EM after | tool calls | steps | minutes |", "|---|---|---|---|---|---|---|"]
  for r in results:
    calls = f"{r['calls_before']:.2f} → {r['calls_after']:.2f}"
    line = (
      r["program"],
      r["seed"],
      f"{r['before']:.3f}",
      f"{r['after']:.3f}",
      calls,
      r["steps"],
      f"{r['minutes']:.1f}",
    )
    lines.append("| " + " | ".join(map(str, line)) + " |")
  return "\n".join(lines)


# ---- the world and its words -----------------------------------------------------------------------------------------


def make_world(folder: pathlib.Path, seed: int) -> None:
  """Makes corpus, index, questions and tokenizer in `folder`."""
  world = synthetic.build(synthetic.Settings(seed=seed, development=80))
  writers.write_passages(folder / "corpus.jsonl.gz", world.passages)
  retrieval.build_index(folder / "corpus.jsonl.gz", "hashing", folder / "index", progress=False)
  questions = synthetic.questions(world, TASKS, seed=seed, distinct=False)
  turns = demonstrations(world, questions, retrieval.load_index(folder / "index"), seed)
  writers.write_examples(folder / "demonstrations.jsonl.gz", questions, turns=turns)
  writers.write_examples(folder / "train.jsonl.gz", synthetic.questions(world, ASKED, seed=seed + 1, distinct=False))
  for part, count in ((synthetic.HELD_OUT, HELD_OUT), (synthetic.DEVELOPMENT, DEVELOPMENT)):
    writers.write_examples(folder / f"{part}.jsonl.gz", synthetic.questions(world, count, part=part, seed=seed))
  lines = [*(" " + line for line in synthetic.lines(world, seed=seed)), *(text for said in turns for _, text in said)]
  make_tokenizer(folder / "tokenizer", lines)


def make_tokenizer(folder: pathlib.Path, lines: Sequence[str]) -> None:
  """Makes a byte-level tokenizer. Its chat template has tool calls in Hermes's format, with few tokens per call."""
  bpe = tokenizers.Tokenizer(models.BPE())
  bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  bpe.decoder = decoders.ByteLevel()
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  cut = [line.replace(CALL, "").replace(CALLED, "") for line in lines]
  bpe.train_from_iterator(
    cut, trainers.BpeTrainer(vocab_size=256 + MERGES, initial_alphabet=alphabet, show_progress=False)
  )
  bpe.add_special_tokens(list(CONTROL))
  bpe.add_tokens([tokenizers.AddedToken(text, special=False, normalized=False) for text in (CALL, CALLED)])
  folder.mkdir(parents=True, exist_ok=True)
  bpe.save(str(folder / "tokenizer.json"))
  settings = dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="<|end|>", pad_token="<|pad|>")
  (folder / "tokenizer_config.json").write_text(json.dumps(settings | dict(chat_template=TEMPLATE)))


def demonstrations(world, asked: Sequence[Example], retriever, seed: int) -> list[list[tuple[str, str]]]:
  """The quickstart's transcripts, including their deliberate faults, as turns of a chat with tool calls."""
  queries = list(dict.fromkeys(write_query(hop) for example in asked for hop in example.meta["decomposition"]))
  results = dict(zip(queries, retriever.search(queries, 1)))
  rng, result = random.Random(f"demonstrations/{seed}"), []
  for example in asked:
    turns, searched = [], ""
    for owner, text in demonstrate(example, results.__getitem__, rng):
      if owner != MODEL:
        turns.append(("environment", f" {results[searched][0].text}"))
        continue
      plan = text.partition("</think>")[0].removeprefix("<think>").rstrip() if "<think>" in text else ""
      if "<search>" in text:
        searched = text.split("<search>")[1].split("</search>")[0].strip()
        said = f"{plan}{CALL} {searched}{CALLED}"
      else:
        said = plan + text.split("<answer>")[1].split("</answer>")[0].rstrip()
      turns.append((MODEL, said))
    result.append(turns)
  return result


def tokenised(tokenizer: HuggingFaceTokenizer, example: Example) -> sft.Transcript:
  """(token ids, loss weights) of a demonstration. The ids are exactly those that a client's requests would produce."""
  appender, end = Appender(tokenizer), tokenizer.eos_ids[0]
  messages: list[dict[str, Any]] = [dict(role="user", content=example.question)]
  ids = [*tokenizer.render(messages)]
  weights = [0.0] * len(ids)
  for owner, text in example.meta["turns"]:
    if owner == MODEL:
      lines = [*tokenizer.encode(text), end]
      messages.append(dict(role="assistant", content=text))
      ids, weights = ids + lines, weights + [1.0] * len(lines)
    else:
      messages.append(dict(role="tool", content=text))
      new = appender.after(messages, len(messages) - 1, ended=True)
      ids, weights = ids + new, weights + [0.0] * len(new)
  return ids, weights


# ---- the stages ------------------------------------------------------------------------------------------------------


def settings(out: pathlib.Path, seed: int, program: str, variant: str = "") -> Any:
  """The quickstart's settings with the recipe `agent` and this program."""
  config, world = config_lib.load("quickstart", variant), out / f"warm_{seed}" / "world"
  config.recipe, config.preset, config.seed = "agent", "paper", seed
  with config.unlocked():
    config.switches = dict(program=f"ragrl_jax.agents.agent.programs.{NAMES[program]}:run", search=True)
  config.prompting.update(dict(chat=True, tokenizer=str(world / "tokenizer")))
  config.retrieval.index = str(world / "index")
  config.data.train, config.data.evaluate = (str(world / f"{name}.jsonl.gz") for name in ("train", "held_out"))
  config.rollout.update(dict(context=160, page=160, prefill=32))
  return config


def warm(out: pathlib.Path, seed: int) -> None:
  """Trains the warm start of a seed: SFT on faulty demonstrations, until the model answers one-hop questions."""
  folder, start = out / f"warm_{seed}", time.perf_counter()
  if not (folder / "world" / "tokenizer" / "tokenizer_config.json").is_file():
    make_world(folder / "world", seed)
  config = settings(out, seed, "openai", "sft")
  player, curve = player_lib.build(prepare(config)), dict(em=[], answered=[])
  asked = [example for example in readers.read_examples(folder / "world" / "development.jsonl.gz") if example.hops == 1]
  lines = [
    tokenised(player.tokenizer, example)
    for example in readers.read_examples(folder / "world" / "demonstrations.jsonl.gz")
  ]
  rows, lengths = config.learner.micro_rows, config.learner.row_lengths
  drawn = sft.batches(lines, rows=rows, lengths=lengths, seed=seed)

  def measure(step: int, model: nnx.Module) -> dict[str, Any]:
    if step % config.evaluate.every and step != config.steps:
      return {}
    measured, _ = evaluate.measure(player, nnx.split(model)[1], asked, version=step)
    for name in curve:
      curve[name].append(measured[name])
    print(
      f"[{time.perf_counter() - start:4.0f} s] warm {seed}, step {step}: one-hop EM {measured['em']:.3f}", flush=True
    )
    return {f"development/{name}": values[-1] for name, values in curve.items()}

  reached = lambda row: schedules.holds(curve["em"], WARM_EM) and schedules.holds(curve["answered"], WARM_ANSWERED)
  step = 0
  for row in sft.sft(config, folder / "sft", drawn=drawn, evaluate=measure, reached=reached):
    step = row["step"]
  jsonl.write(folder / "curve.jsonl", [curve])
  minutes = (time.perf_counter() - start) / 60
  (folder / "result.json").write_text(json.dumps(dict(seed=seed, steps=step, minutes=minutes, reached=reached(None))))


def learn(out: pathlib.Path, program: str, seed: int) -> None:
  """Trains by RL on a program's episodes, until EM on the development questions has stopped rising."""
  folder, start, curve, results = out / f"{program}_{seed}", time.perf_counter(), [], {}
  config = settings(out, seed, program)
  config.model.path = str(out / f"warm_{seed}" / "sft" / "model")
  questions = list(readers.read_examples(out / f"warm_{seed}" / "world" / "development.jsonl.gz"))
  held_out = list(readers.read_examples(config.data.evaluate))
  over: Callable[[], bool] = lambda: schedules.stopped_rising(curve, patience=PATIENCE, rise=RISE, gain=GAIN)

  def measure(step: int, player: player_lib.Player, params: Any) -> dict[str, Any]:
    if step % config.evaluate.every and step != config.steps:
      return {}
    measured, _ = evaluate.measure(player, params, questions, version=step)
    curve.append(measured["em"])
    if step == 0 or step == config.steps or over():
      results[step], _ = evaluate.measure(player, params, held_out, version=step)
    print(f"[{time.perf_counter() - start:4.0f} s] {program} {seed}, step {step}: EM {curve[-1]:.3f}", flush=True)
    return {"development/em": curve[-1]}

  for row in train.train(config, folder, evaluate=measure, reached=lambda row: over()):
    if row["step"]:
      shown = ("outcome", "measure/tool_calls", "failed_share", "seconds/rollout", "seconds/update")
      print(f"step {row['step']}: " + ", ".join(f"{name} {row[name]:.2f}" for name in shown if name in row), flush=True)
  before, after = results[0], results[max(results)]
  calls = lambda measured: measured.get("searches", float("nan"))
  result = dict(
    program=program,
    seed=seed,
    before=before["em"],
    after=after["em"],
    calls_before=calls(before),
    calls_after=calls(after),
    steps=max(results),
    curve=curve,
    minutes=(time.perf_counter() - start) / 60,
    commit=subprocess.run(
      ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT
    ).stdout.strip(),
  )
  (folder / "result.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
  os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
  app.run(main)
