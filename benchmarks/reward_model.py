"""VERITAS's reward model from end to end, in miniature: python benchmarks/reward_model.py [--machines] [--seeds 0,1,2]

Stages: a warm start of the policy → pairs of results and thoughts → labels by a judge → split → LoRA → consistency and
Cohen's κ on held-out pairs → the reward model serves batches in a VERITAS run, and its verdicts are compared with the
labelling judge's. World, questions and settings are those of benchmarks/papers/veritas.py. Every supervised stage ends
when it reaches its criterion on its own development questions or pairs, or at a maximum number of steps. A finished run
is not repeated.

The judge's decoder starts from the policy's warm start (0.8M parameters). This model can read results and copy from
them, but has never compared two texts, as an instruct model can. It is therefore first taught to compare, by full
fine-tuning on pairs of a scripted player. The adapters then learn only from the policy's own pairs.
"""

import dataclasses
import json
import pathlib
import random
import statistics
import sys
import time
from collections.abc import Sequence

import machines
from absl import app, flags, logging

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "papers"))

import miniature  # noqa: E402
import veritas  # noqa: E402

from ragrl_jax import evaluate, judging, recipes, retrieval, sft, train  # noqa: E402
from ragrl_jax.core import stopping  # noqa: E402
from ragrl_jax.core.rewards import faithful  # noqa: E402
from ragrl_jax.data import readers, synthetic, writers  # noqa: E402
from ragrl_jax.models import lora  # noqa: E402
from ragrl_jax.recipes.veritas import demonstrate, distil  # noqa: E402
from ragrl_jax.recipes.veritas.parser import steps  # noqa: E402
from ragrl_jax.rollout import collect  # noqa: E402
from ragrl_jax.run import player as player_lib  # noqa: E402
from ragrl_jax.store import episodes as episodes_lib  # noqa: E402
from ragrl_jax.store import fresh  # noqa: E402
from ragrl_jax.structs import Episode, Example  # noqa: E402

OUT = flags.DEFINE_string("out", "out/reward_model", "Folder of the runs, one a seed and machine.")
ONE = flags.DEFINE_string("one", "", "SEED/FOLDER: this run only, in this process; the folder is emptied first.")

SAMPLED, SCRIPTED, HELD_OUT = 2400, 12_000, 400  # episodes of the policy and of a script; pairs of the policy
DEVELOPMENT = 200  # pairs, of either, that decide when a stage ends
WARM_EM = 0.95  # of the policy on development questions, twice in a row
PATIENCE, RISE = 4, 0.005  # a stage of the judge ends when so many measurements in a row brought no better consistency
CLAIM = 0.05  # by how much LoRA must raise consistency in every run
PROMPT = "information_think_bare"
ENDLESS = dict(schedule="inverse_sqrt")
WARM = dict(steps=1200, evaluate=dict(every=25), optimizer=dict(ENDLESS, learning_rate=6e-3))
JUDGE = dict(  # of both supervised runs; many small steps teach comparing sooner than a few large ones
  preset="reward_model",
  switches=dict(judge_prompt=PROMPT),
  sft=dict(environment_weight=0.0),
  learner=dict(micro_rows=4),
  retrieval=dict(index=""),
)
BASE = dict(
  steps=3000,
  checkpoint=dict(every=3000),
  evaluate=dict(every=100),
  optimizer=dict(ENDLESS, learning_rate=4e-3, warmup_steps=100),
)
LORA = dict(
  steps=1200,
  checkpoint=dict(every=1200),
  evaluate=dict(every=50),
  model=dict(lora=dict(rank=16, alpha=32.0)),
  optimizer=dict(ENDLESS, kind="adamw", learning_rate=2e-3, warmup_steps=50, weight_decay=0.0),
)
SERVED = dict(steps=6, checkpoint=dict(every=6), switches=dict(veritas.WEIGHTS, ramp_start=0, ramp_end=2))


def main(_):
  logging.set_verbosity(logging.WARNING)
  if ONE.value:
    seed, folder = ONE.value.split("/", 1)
    run(int(seed), fresh.folder(pathlib.Path(folder)))
    return
  out = pathlib.Path(OUT.value).resolve()
  asked = [(seed, machine, out / f"{machines.slug(machine)}_{seed}") for seed, machine in machines.wanted()]
  machines.run(
    [
      machines.Job(machine, [sys.executable, __file__, f"--one={seed}/{folder}"], folder.with_suffix(".log"))
      for seed, machine, folder in asked
      if not (folder / "result.json").is_file()
    ],
    cwd=ROOT,
  )
  results = []
  for seed, machine, folder in asked:
    if not (folder / "result.json").is_file():
      raise RuntimeError(f"{folder} has no result: its log, {folder.with_suffix('.log')}, says why.")
    results.append(json.loads((folder / "result.json").read_text()) | dict(seed=seed, machine=machine))
  print(table(results))
  gains = [r["after"]["all"]["consistency"] - r["before"]["all"]["consistency"] for r in results]
  print(
    f"\nClaim (LoRA raises consistency by {CLAIM} or more in every run): "
    f"{'holds' if min(gains) >= CLAIM else 'MISSED'}; gain {statistics.mean(gains):+.3f}, least {min(gains):+.3f}"
  )
  sys.exit(min(gains) < CLAIM)


def run(seed: int, out: pathlib.Path) -> None:
  """One run from random weights; writes its results to `out`/result.json."""
  began = time.perf_counter()
  say = lambda text: print(f"[{time.perf_counter() - began:4.0f} s] {text}", flush=True)
  settings = lambda *parts: miniature.settings(PAPER, out / "world", seed, *parts)
  miniature.make_world(PAPER, out / "world", seed)
  world = synthetic.build(synthetic.Settings(seed=seed, **PAPER.world))
  asked = list(readers.read_examples(str(out / "world" / "development.jsonl.gz")))
  config = settings(PAPER.sft, WARM)
  config.data.train = str(out / "world" / "demonstrations.jsonl.gz")
  curve = supervised(config, out / "sft", asked, lambda curve: stopping.holds(curve, WARM_EM))
  say(f"warm start: {curve}")

  labeller = judging.load(settings().judge)
  label = lambda pairs: distil.labelled(pairs, labeller.judge([distil.asked(pair) for pair in pairs]))
  config = settings(PAPER.rl, dict(preset="em"))
  config.model.path = str(out / "sft" / "model")

  def taught(name: str, pairs: Sequence[Example], path: str, *parts) -> str:
    """The decoder of `path` after supervised steps on these pairs, but for those that say when to stop."""
    learnt, development = distil.split(pairs, DEVELOPMENT, seed=seed)
    writers.write_examples(out / f"{name}.jsonl.gz", learnt, turns=distil.transcripts(learnt))
    made = settings(PAPER.sft, JUDGE, *parts)
    made.model.path, made.data.train = path, str(out / f"{name}.jsonl.gz")
    curve = supervised(
      made, out / name, development, lambda curve: stopping.stopped_rising(curve, patience=PATIENCE, rise=RISE)
    )
    say(f"{name}: {len(learnt)} pairs, {len(curve) * made.evaluate.every} steps, consistency {curve}")
    return str(out / name / "model")

  rng = random.Random(f"reward_model/{seed}")
  script = altered(distil.pairs(scripted(config, world, seed, rng)), world, rng)
  base = taught("base", label(script), config.model.path, BASE)

  own = distil.pairs(sampled(config, SAMPLED))
  learnt, held_out = distil.split(label(own), HELD_OUT, seed=seed)
  say(f"{SAMPLED} episodes of the policy: {len(learnt)} pairs to learn from, {len(held_out)} held out")
  adapters = taught("adapters", learnt, base, LORA)

  service, result = dict(kind="reward_model", prompt=PROMPT, threshold=0.5, batch=64, max_tokens=128), {}
  for name, path in (("before", base), ("after", adapters)):
    judge = judging.load({**settings().judge, **service, "path": path})
    result[name] = report(f"held out, {name} LoRA", held_out, judge.judge([distil.asked(pair) for pair in held_out]))

  config = settings(PAPER.rl, dict(preset="paper", judge=dict(kind="none")), SERVED)
  config.judges = dict(information_think=service | dict(path=adapters))
  config.model.path = str(out / "sft" / "model")
  rows = list(train.train(config, out / "run"))
  result["served"] = served(config, out / "run", labeller)
  say(f"{len(rows)} steps of VERITAS with it; all rewards follow from its verdicts")
  for key in ("term/information_think", "weight/information_think", "reward", "seconds/judge_wait", "seconds/step"):
    print(f"{key}: {' '.join(f'{row[key]:.3f}' for row in rows)}")
  result["seconds"] = round(time.perf_counter() - began)
  (out / "result.json").write_text(json.dumps(result, indent=1))


def questions(world: synthetic.World, seed: int) -> dict[str, Sequence[Example]]:
  """The paper's questions, and some that decide when the warm start ends."""
  return dict(
    veritas.questions(world, seed),
    development=synthetic.questions(world, 100, mix=veritas.MIX, part=synthetic.DEVELOPMENT, seed=seed),
  )


PAPER = dataclasses.replace(veritas.PAPER, world=dict(development=80), questions=questions)


def supervised(config, workdir: pathlib.Path, asked: Sequence[Example], over) -> list[float]:
  """Fine-tunes until over(curve), at most config.steps; the curve: EM on `asked`, every config.evaluate.every steps."""
  player, curve = player_lib.build(config), []

  def measure(step, model):
    if step % config.evaluate.every:
      return {}
    found, _ = evaluate.measure(player, lora.split(model)[1], asked, version=step)
    curve.append(round(found["em"], 3))
    return {"development/em": found["em"]}

  for _ in sft.sft(config, workdir, evaluate=measure, reached=lambda row: over(curve)):
    pass
  return curve


def sampled(config, count: int) -> list[Episode]:
  """Episodes of the policy of config.model.path, on the training questions, as training samples them."""
  player = player_lib.build(config)
  player.engine.load(lora.split(player.model)[1], version=0)
  examples = list(readers.read_examples(config.data.train, max_examples=count))
  return player.rollout.run([collect.Request(example, i) for i, example in enumerate(examples)], step=0)


def scripted(config, world: synthetic.World, seed: int, rng: random.Random) -> list[Episode]:
  """Episodes of the scripted player: most say what they read, the others their plan once more."""
  recipe = recipes.get("veritas", "em", instructions="none")
  index = retrieval.load_index(config.retrieval.index)
  asked = synthetic.questions(world, SCRIPTED, mix=veritas.MIX, seed=seed + 2, distinct=False)
  queries = list(
    dict.fromkeys(f"{hop['relation']} {hop['subject']}" for example in asked for hop in example.meta["decomposition"])
  )
  found = dict(zip(queries, index.search(queries, config.retrieval.top_k)))
  return [
    Episode.from_text(
      recipe, example, demonstrate.demonstrate(example, found.__getitem__, rng, fault=0.3, kinds=("ignore",))
    )
    for example in asked
  ]


def altered(pairs: Sequence[Example], world: synthetic.World, rng: random.Random) -> list[Example]:
  """The pairs; half of the thoughts that state something now have another word, or another syllable, than was read."""
  facts = [fact for stated in world.stated.values() for fact in stated]

  def misread(pair: Example) -> Example:
    words, other = pair.question.split(), rng.choice(facts)
    if len(words) != 4 or rng.random() < 0.5:  # relation, subject, is, object
      return pair
    place, word = rng.choice([(0, other.relation), (1, other.subject), (3, other.object)])
    if place and rng.random() < 0.6:  # what a small policy does when it copies badly
      syllables = [words[place][i : i + 3] for i in range(0, len(words[place]), 3)]
      syllables[rng.randrange(len(syllables))] = word[:3].lower()
      word = "".join(syllables).capitalize()
    words[place] = word
    return dataclasses.replace(pair, question=" ".join(words))

  return [misread(pair) for pair in pairs]


def report(title: str, pairs: Sequence[Example], verdicts: Sequence[float | None]) -> dict[str, dict]:
  """Agreement with the labels beside what the commoner digit alone would reach; then by what the thought is."""
  states = [" is " in pair.question for pair in pairs]
  found = {}
  for kind, chosen in (
    ("all", [True] * len(pairs)),
    ("states something", states),
    ("does not", [not one for one in states]),
  ):
    some = [(pair, verdict) for pair, verdict, take in zip(pairs, verdicts, chosen) if take]
    of = distil.agreement(*zip(*some))
    found[kind] = of | dict(majority=max(of["ones"], 1 - of["ones"]))
    print(
      f"{title}, {kind}: n {of['n']}, majority {found[kind]['majority']:.3f}, "
      f"consistency {of['consistency']:.3f}, kappa {of['kappa']:.3f}",
      flush=True,
    )
  return found


def table(results: Sequence[dict]) -> str:
  """Markdown, a row a run."""
  of = lambda part: f"{part['consistency']:.3f}, {part['kappa']:.3f}"
  lines = [
    "| Seed | Machine | n | the commoner digit | base: consistency, κ | after LoRA | served | seconds |",
    "|---" * 8 + "|",
  ]
  for r in results:
    held_out = r["after"]["all"]
    lines.append(
      f"| {r['seed']} | {r['machine']} | {held_out['n']} | {held_out['majority']:.3f} | "
      f"{of(r['before']['all'])} | **{of(held_out)}** | {of(r['served']['all'])} | {r['seconds']} |"
    )
  return "\n".join(lines)


def served(config, run: pathlib.Path, labeller: judging.Judge) -> dict[str, dict]:
  """Checks that rewards follow from the reward model's verdicts; compares these with the labelling judge's."""
  recipe = player_lib.recipe(config)
  pairs, verdicts, paid = [], [], 0
  for step, path in episodes_lib.steps(run).items():
    for row in episodes_lib.read_episodes(path):
      episode = episodes_lib.episode_of(row)
      said = episode.facts["information_think"]
      pairs += faithful.whole(steps(episode.turns).information_think)
      verdicts += said
      if row["reward"] != recipe.reward(
        recipe.score(Example(row["id"], row["question"], tuple(row["golds"])), episode), step
      ):
        raise ValueError(f"{path}: the reward of {row['id']} is not what its verdicts give.")
      paid += bool(any(said) and row["weights"]["information_think"])
  labels = labeller.judge(pairs)
  if not paid:
    raise ValueError(f"{run}: no episode was paid by a verdict.")
  return report("served", distil.labelled([Example("", claim, ()) for _, claim in pairs], labels), verdicts)


if __name__ == "__main__":
  app.run(main)
