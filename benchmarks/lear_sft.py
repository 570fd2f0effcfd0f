"""LEAR's study of the value of evidence (sec. 2.2), in miniature: python benchmarks/lear_sft.py [--seed 0]

A small model learns to read passages of the made-up world and to reply in four formats. LoRA on right transcripts then
makes three extractors (evidence only; a reason and then evidence; a reason only) and a generator that is trained only
on questions with passages. Each extractor gets held-out questions about names that occur in no training text. The
generator answers from the extractor's output. The configs are configs/lear.py's with other sizes and the same LoRA
ranks.

Finished stages are not repeated. It takes minutes on one core; results depend on the number of threads.
"""

import pathlib
import random
import time

import jax
import reading_world
from absl import app, flags, logging
from papers import players
from tqdm import tqdm

from ragrl_jax import config as config_lib, recipes
from ragrl_jax.core.metrics import stats
from ragrl_jax.data import readers, synthetic, writers
from ragrl_jax.jobs import evaluate, sft
from ragrl_jax.prompting import sentencepiece
from ragrl_jax.recipes import scripts
from ragrl_jax.recipes.lear import sft_data
from ragrl_jax.recipes.lear.prompt import SECTIONS
from ragrl_jax.run.prepared import prepare
from ragrl_jax.store import jsonl

ROOT = pathlib.Path(__file__).parents[1]
QUICKSTART = config_lib.load(ROOT / "configs" / "quickstart.py", "sft")  # settings of the model and of its training

OUT = flags.DEFINE_string("out", "out/lear_sft", "Folder of all results, with a subfolder per seed.")
SEED = flags.DEFINE_integer("seed", 0, "Seed of the world, the model and the transcripts.")
STEPS = flags.DEFINE_integer("steps", 700, "Steps in which the model learns to read.")
QUESTIONS = flags.DEFINE_integer("questions", 200, "Held-out questions.")

REPLIES = {"vanilla": "vanilla", "rational": "", "rationale": "rationale"}  # reply → variant of configs/lear.py
TAUGHT = ("rational", "vanilla", "rationale", "direct")  # replies of the base
SYLLABLES = 160
GIVEN = 4  # passages of a held-out question
SHOWN = (2, 3, 4, 4)  # passages of the questions with which the model learns to read
TRANSCRIPTS, EPOCHS = 620, 3  # as in the paper
LATENCY = 20  # questions asked one at a time
RATE = 2e-3  # learning rate of adapters; full fine-tuning, with a thousand times as many parameters, needs 1e-4
SIZES = dict(
  rollout=dict(lanes=64, rows=128, context=256, chunk=24, prefill=64, page=64, max_new_tokens=136),
  learner=dict(micro_rows=10, row_lengths=(256,), logprob_chunk=2048, share_prompts=False),
  switches=dict(instructions="none", titles=False),
)


def main(_):
  logging.set_verbosity(logging.WARNING)
  start, out = time.perf_counter(), pathlib.Path(OUT.value) / str(SEED.value)
  jax.config.update("jax_compilation_cache_dir", str((out / "compiled").resolve()))  # arms compile the same programs
  say = lambda text: print(f"[{time.perf_counter() - start:4.0f} s] {text}", flush=True)
  if not (out / "world" / "tokenizer.model").is_file():
    make_world(out / "world")
  base = tuned(out, "base", "sft", "")
  say("a model that reads and replies in any way")
  answering = tuned(out, "generator", "sft,generator", base)
  tests = str(out / "world" / "held_out.jsonl.gz")
  rows = [row("all passages", {}, [], answers(out, "generator", "generator", answering, tests))]
  say("the generator")
  for reply, variant in REPLIES.items():
    extractor = tuned(out, reply, f"sft,{variant}", base)
    result = answers(out, reply, variant, extractor, tests)
    predictions = list(jsonl.read(out / reply / "answers" / "predictions.jsonl"))
    asked = str(out / reply / "asked.jsonl.gz")
    writers.write_examples(asked, sft_data.from_evidence(readers.read_examples(tests), predictions))
    rows.append(row(reply, result, predictions, answers(out, f"{reply}_generator", "generator", answering, asked)))
    say(reply)
  print(table(rows))


def make_world(folder: pathlib.Path) -> None:
  """Writes held-out questions, transcripts for the base, each reply and the generator, and the tokenizer."""
  seed = SEED.value
  # With names that share few syllables, a model of this size learns within minutes to read several passages.
  world = reading_world.build(reading_world.Settings(seed=seed, syllables=SYLLABLES, wordings=(synthetic.BESIDE,)))
  ask = lambda count, draw, **options: reading_world.questions(
    world, count, seed=100 * seed + draw, distinct=False, **options
  )
  rng = random.Random(f"lear_sft/{seed}")
  show = lambda asked, **options: [players.play_lear(e, world, rng, **options) for e in asked]

  shown = [e for draw, given in enumerate(SHOWN) for e in ask(1500, draw, passages=given)]
  shown += ask(500, len(SHOWN), passages=1, mix={1: 1})
  turns = [players.play_lear(e, world, rng, reply=rng.choice(TAUGHT), fault=0.3, kinds=("stop", "copy")) for e in shown]
  writers.write_examples(folder / "base.jsonl.gz", shown, turns=turns)
  asked = ask(TRANSCRIPTS, 50, passages=GIVEN)
  for reply in REPLIES:  # the same questions for all: only the reply differs
    writers.write_examples(folder / f"{reply}.jsonl.gz", asked, turns=show(asked, reply=reply, fault=0.0))
  writers.write_examples(folder / "generator.jsonl.gz", asked, turns=scripts.answer_directly(asked))
  held_out = reading_world.questions(world, QUESTIONS.value, part=synthetic.HELD_OUT, seed=seed, passages=GIVEN)
  writers.write_examples(folder / "held_out.jsonl.gz", held_out)
  lines = [*(" " + line for line in synthetic.lines(world, seed=seed)), *(text for said in turns for _, text in said)]
  sentencepiece.train(
    lines,
    vocab_size=464 + SYLLABLES,
    marks=(*players.LEAR_MARKS, "\n", ".", "?"),
    path=folder / "tokenizer.model",
    threads=1,
  )


def settings(out: pathlib.Path, variant: str):
  """The config of configs/lear.py with the sizes of a small model."""
  config = config_lib.load(ROOT / "configs" / "lear.py", variant)
  config.update(SIZES)
  config.seed, config.log.tensorboard = SEED.value, False
  config.model.update(dict(dtype="float32", remat=False, shape=QUICKSTART.model.shape))
  config.prompting.update(dict(tokenizer=str(out / "world" / "tokenizer.model"), chat=False))
  config.sft.update(dict(batch=0, epochs=0, warmup_share=0.0))  # `tuned` sets the steps
  return config


def tuned(out: pathlib.Path, name: str, variant: str, base: str) -> str:
  """The folder of the model trained on this name's transcripts: adapters of `base`, for EPOCHS epochs; or, without one,
  a whole model, for STEPS steps."""
  config = settings(out, variant)
  config.data.train, config.model.path = str(out / "world" / f"{name}.jsonl.gz"), base
  if base:
    config.steps, config.sft.environment_weight = EPOCHS * epoch(config), 0.0
    config.optimizer.update(dict(learning_rate=RATE, warmup_steps=config.steps // 10, weight_decay=0.0))
  else:
    config.steps, config.model.lora.rank = STEPS.value, 0
    config.sft.environment_weight = 0.1  # most of it cannot be foretold: names
    config.optimizer.update(QUICKSTART.optimizer)
    config.optimizer.update(dict(learning_rate=4e-3, schedule="cosine", final_share=0.1))
  if not (out / name / "model").is_dir():
    with tqdm(total=config.steps, desc=name, unit="step") as bar:
      for metrics in sft.sft(config, out / name):
        bar.update(metrics["step"] - bar.n)
        bar.set_postfix_str(f"loss {metrics['loss']:.3f}")
  return str(out / name / "model")


def epoch(config) -> int:
  """The number of steps in one epoch."""
  ready = prepare(config)
  tokenizer, recipe = ready.tokenizer, ready.recipe
  lengths = [
    len(sft.tokenised(recipe, example, tokenizer, 0.0)[0]) for example in readers.read_examples(config.data.train)
  ]
  room = sft.FILL * config.learner.micro_rows * max(config.learner.row_lengths)
  return -(-len(lengths) // int(room * len(lengths) / sum(lengths)))


def answers(out: pathlib.Path, name: str, variant: str, model: str, questions: str) -> dict:
  """The metrics of a model on questions, and the seconds from a question to its answer where they come one at a time:
  from the evidence alone where the reply has any, as configs/lear.py:inference does it."""
  config = settings(out, variant)
  config.switches.answers = "f"  # no probes
  result = evaluate.evaluate(config, model, questions, out / name / "answers")
  if "extract" in SECTIONS[recipes.get("lear", config.preset).switches["reply"]]:
    config.switches.update(dict(stop_at="extract", answers="e"))
  config.evaluate.batch, config.data.max_examples = 1, LATENCY
  return result | dict(latency=evaluate.evaluate(config, model, questions, out / name / "one_by_one")["latency"])


def row(name: str, results, predictions, answered) -> list[str]:
  """One line of the table: the extractor's evidence, and the generator's answers from it."""
  em = [f"{answered['em']:.3f}", span(answered["em_interval"])]
  if not predictions:
    return [name, "", "", "", "", *em, "", f"{answered['latency']:.3f}"]
  recall = [prediction["answer_recall"] for prediction in predictions]
  tokens = [prediction["evidence_tokens"] for prediction in predictions]
  return [
    name,
    f"{sum(recall) / len(recall):.3f}",
    span(stats.bootstrap_interval(recall, seed=0)),
    f"{sum(tokens) / len(tokens):.1f}",
    f"{results['compression_total']:.1f}",
    *em,
    f"{results['em']:.3f}",
    f"{results['latency']:.3f}",
  ]


def span(bounds) -> str:
  return "{:.3f} to {:.3f}".format(*bounds)


def table(rows: list[list[str]]) -> str:
  head = [
    "extractor",
    "answer recall",
    "95 %",
    "tokens",
    "compression",
    "generator's EM",
    "95 %",
    "own EM",
    "s a question",
  ]
  return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows])


if __name__ == "__main__":
  app.run(main)
