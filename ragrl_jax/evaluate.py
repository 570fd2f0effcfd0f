"""Scoring a checkpoint on questions: the same meeting of rooms as training, without the learner.

Read `evaluate` for a checkpoint on disk, `evaluator` for the held-out questions of a run under way.
"""

import functools
import hashlib
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx

from ragrl_jax import config as config_lib
from ragrl_jax import judging, recipes, structs
from ragrl_jax.evaluation import harness
from ragrl_jax.learner import learner as learner_lib
from ragrl_jax.learner import settings as settings_lib
from ragrl_jax.models import lora, peft
from ragrl_jax.parallel import hosts
from ragrl_jax.rollout import collect
from ragrl_jax.run import player as player_lib
from ragrl_jax.run import questions, rewards
from ragrl_jax.run.progress import Evaluate
from ragrl_jax.store import addresses, evaluations
from ragrl_jax.store import checkpoint as checkpoint_lib


def evaluate(
  config,
  checkpoint: str | pathlib.Path,
  data: str,
  out: str | pathlib.Path,
  *,
  sample: bool = False,
  progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
  """Scores every question of `data` once; writes out/predictions.jsonl and out/metrics.json; returns the latter.

  Answers are greedy; with `sample` they are drawn as config.rollout says. After a kill the same call goes on where it
  stopped.

  Args:
    config: recipe, retrieval and sizes (ragrl_jax/config.py). Its model is replaced by the checkpoint's.
    checkpoint: a Hugging Face folder, or PEFT's with adapters; a run's folder (its finished `model/`, else its newest
      checkpoint); or one step of a run, RUN/checkpoints/40.
    data: questions, as config.data.train takes them; config.data.max_examples bounds them.
    out: the folder of the results.
    progress: told (done, of how many).

  Raises:
    ValueError, FileNotFoundError: what cannot be read, or results of something else in `out`.
    harness.TooManyFailures: the retriever or a judge is down.
  """
  # ---- 1. settings: the caller's, and what decides on the checkpoint's arrays from the run's own ---------------------
  config_lib.validate(config, training=False)
  plays = player_lib.recipe(config)
  config = config.copy_and_resolve_references()
  folder, run, step = locate(checkpoint)
  if folder is not None:
    adapters = peft.is_folder(folder)
    config.model.path = peft.base(folder, config.model.path) if adapters else str(folder)
    config.model.lora.update(dict(rank=0, path=str(folder) if adapters else ""))
  else:
    _as_trained(config, run.parent / "config.json")

  # ---- 2. the rooms are built: questions first, then weights, index and engine ---------------------------------------
  player_lib.check(config, training=False)  # before the questions are read
  examples = questions.testing(config, data, max_examples=config.data.max_examples)
  questions.check_passages(config, plays, examples, str(data))
  player = player_lib.build(config, training=False)
  examples = questions.fitting(config, player, examples)
  questions.check_room(config, player.tokenizer, player.recipe.prompt, examples, str(data))

  # ---- 3. the checkpoint's weights -----------------------------------------------------------------------------------
  params = lora.split(player.model)[1] if folder is not None else _restored(config, player, run, step)
  player.engine.load(params, version=step)
  nnx.update(player.model, params)

  # ---- the questions: results so far are gone on from, if they are of the same settings ------------------------------
  settings = dict(
    checkpoint=str(checkpoint),
    weights=fingerprint(nnx.split(player.model)[1]),
    data=str(data),
    questions=len(examples),
    **_described(config, player, sample=sample),
  )
  return harness.evaluate(
    examples,
    _play(player, greedy=not sample),
    player.recipe,
    pathlib.Path(out),
    settings=settings,
    batch=batch_of(config),
    max_failed_share=config.retrieval.max_failed_share,
    max_unjudged_share=config.judge.max_failed_share,
    progress=lambda done: progress(done, len(examples)),
  )


def _described(config, player: player_lib.Player, *, sample: bool) -> dict[str, Any]:
  """The settings that stand beside a score, and that the results in a folder must share."""
  # What only changes the speed, such as lanes and chunks, is not among them.
  r = config.rollout
  drawn = dict(temperature=r.temperature, top_k=r.top_k, top_p=r.top_p, seed=config.seed)
  retrieval = None
  if player.retriever is not None:
    index = addresses.without_credentials(config.retrieval.index)
    retrieval = dict(index=index, top_k=config.retrieval.top_k, **player.retriever.describe())
  return dict(
    recipe=config.recipe,
    preset=config.preset,
    switches=dict(player.recipe.switches),
    sampling=drawn if sample else "greedy",
    noise=config.data.noise,
    evidence=config.data.evidence,
    cut_middle=config.data.cut_middle,
    max_new_tokens=r.max_new_tokens,
    context=r.context,
    reserve=r.reserve or None,
    retrieval=retrieval,
    judges={term: dict(judge.describe()) for term, judge in player.judges.items()},
  )


def evaluator(
  config, examples: Sequence[structs.Example] | None = None, *, workdir: str | pathlib.Path | None = None
) -> Evaluate:
  """For `train(evaluate=…)`: measures held-out questions at the end, and every config.evaluate.every steps if set.

  Step 0 is among these: the weights before training.

  Args:
    config: of the run.
    examples: the questions; by default those of config.data.evaluate.
    workdir: where the answers are kept, a file a step, for the page; None: nowhere.

  Returns:
    (step, player, params) → the numbers under "evaluation/", or nothing at a step that is not measured.
  """
  steps, every, batch = config.steps, config.evaluate.every, batch_of(config)
  if examples is None:
    examples = questions.testing(config, config.data.evaluate, max_examples=config.evaluate.examples)
    questions.check_passages(
      config, player_lib.recipe(config), examples, f"config.data.evaluate={config.data.evaluate}"
    )

  def evaluate_step(step: int, player: player_lib.Player, params: Any) -> dict[str, Any]:
    due = step == steps or (every and step % every == 0)
    if not due:
      return {}
    fitting = questions.fitting(config, player, examples)
    metrics, scored = measure(player, params, fitting, version=step, batch=batch)
    if workdir is not None:
      keep(workdir, step, player.recipe, scored)
    return harness.flat(metrics)

  return evaluate_step


def keep(workdir: str | pathlib.Path, step: int, recipe, scored: Sequence[rewards.Scored]) -> None:
  """Keeps the answers of one evaluation in a run's folder; its page compares the first with the last."""
  if hosts.is_first():
    evaluations.write(pathlib.Path(workdir), step, [harness.prediction(recipe, one) for one in scored])


def measure(
  player: player_lib.Player, params: Any, examples: Sequence[structs.Example], *, version: int = 0, batch: int = 256
) -> tuple[dict[str, Any], list[rewards.Scored]]:
  """Greedy answers of these weights: (`harness.summarise`'s metrics, every episode with its score)."""
  player.engine.load(params, version=version)
  found = [pair for part in harness.rows_of(examples, _play(player), player.recipe, batch=batch) for pair in part]
  return harness.summarise([row for row, _ in found]), [scored for _, scored in found]


def batch_of(config) -> int:
  """Questions played together: enough to keep the cache rows full most of the time."""
  return config.evaluate.batch or 4 * config.rollout.rows


def locate(checkpoint: str | pathlib.Path) -> tuple[pathlib.Path | None, pathlib.Path | None, int]:
  """(folder of a model or of adapters, None, 0), or (None, folder of a run's checkpoints, step).

  Raises:
    FileNotFoundError: neither is there.
  """
  path = pathlib.Path(checkpoint)
  for folder in (path, path / "model"):
    if ((folder / "config.json").exists() or peft.is_folder(folder)) and any(folder.glob("*.safetensors")):
      return folder, None, 0
  if path.name.isdigit() and path.parent.name == "checkpoints" and path.is_dir():
    return None, path.parent, int(path.name)
  run = path if path.name == "checkpoints" else path / "checkpoints"
  steps = [int(step.name) for step in run.iterdir() if step.name.isdigit()] if run.is_dir() else []
  if not steps:
    raise FileNotFoundError(
      f"{checkpoint}: no model here. Name a Hugging Face folder (config.json and *.safetensors), a run's folder, or "
      "one step of it, RUN/checkpoints/STEP (--checkpoint)."
    )
  return None, run, max(steps)


def config_of(checkpoint: str | pathlib.Path):
  """The settings of the run that a checkpoint belongs to, every switch of its recipe among them.

  Args:
    checkpoint: as `evaluate` takes it.

  Raises:
    ValueError: it belongs to no run whose config.json is there.
  """
  path = pathlib.Path(checkpoint).absolute()
  for folder in (path, path.parent, path.parent.parent):  # RUN, RUN/model or RUN/checkpoints, RUN/checkpoints/STEP
    if (folder / "checkpoints").is_dir() and (folder / "config.json").is_file():
      config = config_lib.of_run(folder)
      break
  else:
    raise ValueError(f"{checkpoint}: no run's folder, whose config.json says how to ask it: give --config.")
  with config.unlocked():
    config.switches = {**recipes.switches(config.recipe), **config.switches}
    config.judges = {term: {**judging.unset(config.judge), **judge} for term, judge in config.judges.items()}
  return config


def _play(player: player_lib.Player, *, greedy: bool = True) -> harness.Play:
  """The player as the harness calls it; what is drawn depends on the question's number alone."""
  if greedy:
    return functools.partial(player_lib.answers, player)
  return lambda examples, first: player.rollout.run(
    [collect.Request(example, first + i) for i, example in enumerate(examples)], step=0
  )


def fingerprint(params: Any) -> str:
  """Tells weights apart: a hash of the first and the last thousand values of every array, in the tree's order."""
  digest = hashlib.sha256()
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    flat = leaf.reshape(-1)
    digest.update(f"{jax.tree_util.keystr(path)}{leaf.shape}{leaf.dtype}".encode())
    digest.update(jax.device_get(flat[:1000]).tobytes() + jax.device_get(flat[-1000:]).tobytes())
  return digest.hexdigest()[:16]


def _as_trained(config, path: pathlib.Path) -> None:
  """Takes over what decides on the checkpoint's arrays, and the tokenizer, from the run's own config."""
  if not path.exists():
    return
  trained = json.loads(path.read_text(encoding="utf-8"))
  # Each of these shapes the train state: layers, adapters, moments, a critic.
  for name in ("model", "optimizer", "loss", "advantage", "critic"):
    config[name].update(trained[name])
  config.prompting.tokenizer = config.prompting.tokenizer or trained["prompting"]["tokenizer"]


def _restored(config, player: player_lib.Player, run: pathlib.Path, step: int) -> Any:
  """The policy's trained parameters of a run's checkpoint."""
  # A checkpoint is a whole train state: the learner says what it looks like, and which part the policy is.
  learner = learner_lib.Learner(
    player.model, settings_lib.from_config(config), settings_lib.optimizer_from_config(config), mesh=player.mesh
  )
  checkpoints = checkpoint_lib.Checkpoints(run, keep=config.checkpoint.keep, read_only=True)
  try:
    state, _ = checkpoints.restore(learner.init(config.seed, keep=False), step)
  finally:
    checkpoints.close()
  return learner.policy(state.params)
