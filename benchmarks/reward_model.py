"""VERITAS's reward model from end to end, in miniature: python benchmarks/reward_model.py [--out DIR] [--seed 0]

Pairs of results and thoughts → labels of a judge → split → LoRA → consistency and Cohen's κ on held-out pairs → served,
batched, inside a VERITAS run, whose verdicts are compared with the labelling judge's. Policy, world and questions are
benchmarks/papers/veritas.py's; its warm start is taken from --papers, or made there.

The decoder that judges is the policy's warm start, of 0.8M parameters, which can read results and copy from them but
has never compared two texts. An instruct model could; this one is taught to first, whole, on pairs of a scripted
player. The adapters then learn from the policy's own pairs, and from nothing else.
"""

import dataclasses
import pathlib
import random
import sys
import time
from collections.abc import Sequence

from absl import app, flags, logging

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "papers"))

import miniature  # noqa: E402
import veritas  # noqa: E402
from quickstart import SEED  # noqa: E402

from ragrl_jax import judging, recipes, retrieval, sft, train  # noqa: E402
from ragrl_jax.core.rewards import faithful  # noqa: E402
from ragrl_jax.data import readers, synthetic, writers  # noqa: E402
from ragrl_jax.evaluation import player as player_lib  # noqa: E402
from ragrl_jax.models import lora  # noqa: E402
from ragrl_jax.recipes.veritas import demonstrate, distil  # noqa: E402
from ragrl_jax.recipes.veritas.parser import steps  # noqa: E402
from ragrl_jax.rollout import collect  # noqa: E402
from ragrl_jax.store import episodes as episodes_lib  # noqa: E402
from ragrl_jax.store import fresh  # noqa: E402
from ragrl_jax.structs import Episode, Example  # noqa: E402

OUT = flags.DEFINE_string("out", "out/reward_model", "Folder for everything this makes; it is emptied first.")
PAPERS = flags.DEFINE_string("papers", "out/papers", "Where `make papers` keeps the warm start.")

SAMPLED, SCRIPTED, HELD_OUT = 2400, 12_000, 400  # episodes of the policy and of a script; pairs of the policy
PROMPT = "information_think_bare"
JUDGE = dict(  # of both supervised runs; many small steps teach comparing sooner than a few large ones
  preset="reward_model", switches=dict(judge_prompt=PROMPT), sft=dict(environment_weight=0.0),
  learner=dict(micro_rows=4))
BASE = dict(steps=900, checkpoint=dict(every=900), optimizer=dict(learning_rate=2e-3, warmup_steps=20))
LORA = dict(
  steps=300, checkpoint=dict(every=300), model=dict(lora=dict(rank=16, alpha=32.0)),
  optimizer=dict(kind="adamw", learning_rate=2e-3, warmup_steps=20, schedule="cosine", weight_decay=0.0))
SERVED = dict(steps=6, checkpoint=dict(every=6), switches=dict(veritas.WEIGHTS, ramp_start=0, ramp_end=2))


def main(_):
  logging.set_verbosity(logging.WARNING)
  began, seed, out = time.perf_counter(), SEED.value, pathlib.Path(OUT.value)
  say = lambda text: print(f"[{time.perf_counter() - began:4.0f} s] {text}", flush=True)
  fresh.folder(out)
  papers = pathlib.Path(PAPERS.value) / "veritas" / str(seed)
  if not (papers / miniature.WARM / "result.json").is_file():
    miniature.run(veritas.PAPER, miniature.WARM, seed, papers)
    say("world and warm start are made")
  settings = lambda *parts: miniature.settings(veritas.PAPER, papers / "world", seed, *parts)
  world = synthetic.build(synthetic.Settings(seed=seed, **veritas.PAPER.world))

  labeller = judging.load(settings().judge)
  label = lambda pairs: distil.labelled(pairs, labeller.judge([distil.asked(pair) for pair in pairs]))
  config = settings(veritas.PAPER.rl, dict(preset="em"))
  config.model.path = str(papers / "sft" / "model")

  def taught(name: str, pairs: Sequence[Example], path: str, *parts) -> str:
    """The decoder of `path` after supervised steps on these pairs."""
    writers.write_examples(out / f"{name}.jsonl.gz", pairs, turns=distil.transcripts(pairs))
    made = settings(veritas.PAPER.sft, JUDGE, *parts)
    made.model.path, made.data.train = path, str(out / f"{name}.jsonl.gz")
    losses = [metrics["loss"] for metrics in sft.sft(made, out / name)]
    say(f"{name}: {len(pairs)} pairs, {len(losses)} steps, loss {losses[0]:.3f} → {losses[-1]:.3f}")
    return str(out / name / "model")

  rng = random.Random(f"reward_model/{seed}")
  script = altered(distil.pairs(scripted(config, world, seed, rng)), world, rng)
  base = taught("base", label(script), config.model.path, BASE)

  own = distil.pairs(sampled(config, SAMPLED))
  learnt, held_out = distil.split(label(own), HELD_OUT, seed=seed)
  say(f"{SAMPLED} episodes of the policy: {len(learnt)} pairs to learn from, {len(held_out)} held out")
  adapters = taught("adapters", learnt, base, LORA)

  service = dict(kind="reward_model", prompt=PROMPT, threshold=0.5, batch=64, max_tokens=128)
  for name, path in (("before", base), ("after", adapters)):
    judge = judging.load({**settings().judge, **service, "path": path})
    report(f"held out, {name} LoRA", held_out, judge.judge([distil.asked(pair) for pair in held_out]))

  # Serve.
  config = settings(veritas.PAPER.rl, dict(preset="paper", judge=dict(kind="none")), SERVED)
  config.judges = dict(information_think=service | dict(path=adapters))
  config.model.path = str(papers / "sft" / "model")
  rows = list(train.train(config, out / "run"))
  say(f"{len(rows)} steps of VERITAS with it: {served(config, out / 'run', labeller)}")
  for key in ("term/information_think", "weight/information_think", "reward", "seconds/judge_wait", "seconds/step"):
    print(f"{key}: {' '.join(f'{row[key]:.3f}' for row in rows)}")


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
  queries = list(dict.fromkeys(
    f"{hop['relation']} {hop['subject']}" for example in asked for hop in example.meta["decomposition"]))
  found = dict(zip(queries, index.search(queries, config.retrieval.top_k)))
  return [Episode.from_text(recipe, example, demonstrate.demonstrate(
    example, found.__getitem__, rng, fault=0.3, kinds=("ignore",))) for example in asked]


def altered(pairs: Sequence[Example], world: synthetic.World, rng: random.Random) -> list[Example]:
  """The pairs; half of the thoughts that state something now have another word, or another syllable, than was read."""
  facts = [fact for stated in world.stated.values() for fact in stated]

  def misread(pair: Example) -> Example:
    words, other = pair.question.split(), rng.choice(facts)
    if len(words) != 4 or rng.random() < 0.5:  # relation, subject, is, object
      return pair
    place, word = rng.choice([(0, other.relation), (1, other.subject), (3, other.object)])
    if place and rng.random() < 0.6:  # what a small policy does when it copies badly
      syllables = [words[place][i:i + 3] for i in range(0, len(words[place]), 3)]
      syllables[rng.randrange(len(syllables))] = word[:3].lower()
      word = "".join(syllables).capitalize()
    words[place] = word
    return dataclasses.replace(pair, question=" ".join(words))

  return [misread(pair) for pair in pairs]


def report(title: str, pairs: Sequence[Example], verdicts: Sequence[float | None]) -> None:
  """Agreement with the labels beside what the commoner digit alone would reach; then by what the thought is."""
  states = [" is " in pair.question for pair in pairs]
  for kind, chosen in (("all", [True] * len(pairs)), ("states something", states),
                       ("does not", [not one for one in states])):
    some = [(pair, verdict) for pair, verdict, take in zip(pairs, verdicts, chosen) if take]
    found = distil.agreement(*zip(*some))
    print(f"{title}, {kind}: n {found['n']}, majority {max(found['ones'], 1 - found['ones']):.3f}, "
          f"consistency {found['consistency']:.3f}, kappa {found['kappa']:.3f}", flush=True)


def served(config, run: pathlib.Path, labeller: judging.Judge) -> str:
  """Checks that rewards are made of the reward model's verdicts; compares those with the labelling judge's."""
  recipe = player_lib.recipe(config)
  pairs, verdicts, paid = [], [], 0
  for step, path in episodes_lib.steps(run).items():
    for row in episodes_lib.read_episodes(path):
      episode = episodes_lib.episode_of(row)
      said = episode.facts["information_think"]
      pairs += faithful.whole(steps(episode.turns).information_think)
      verdicts += said
      if row["reward"] != recipe.reward(recipe.score(Example(row["id"], row["question"], tuple(row["golds"])), episode),
                                        step):
        raise ValueError(f"{path}: the reward of {row['id']} is not what its verdicts give.")
      paid += bool(any(said) and row["weights"]["information_think"])
  labels = labeller.judge(pairs)
  report("served", distil.labelled([Example("", claim, ()) for _, claim in pairs], labels), verdicts)
  return f"{len(verdicts)} verdicts, {paid} episodes paid by them, all rewards follow from them"


if __name__ == "__main__":
  app.run(main)
