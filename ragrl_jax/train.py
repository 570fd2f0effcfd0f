"""Training: where the rooms meet. Read `train` top to bottom."""

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from flax import nnx

from ragrl_jax import config as config_lib
from ragrl_jax.data import readers, stream
from ragrl_jax.evaluation import player as player_lib
from ragrl_jax.evaluation import scoring
from ragrl_jax.learner import advantages, flops, watch
from ragrl_jax.learner import learner as learner_lib
from ragrl_jax.learner import settings as settings_lib
from ragrl_jax.rollout import collect, pack
from ragrl_jax.store import checkpoint
from ragrl_jax.store import episodes as episodes_lib
from ragrl_jax.store import metrics as metrics_lib


def train(
  config, workdir: str | pathlib.Path, *, observe: Callable[[int, Any, Any], dict[str, Any]] | None = None,
) -> Iterator[dict[str, Any]]:
  """Trains until `config.steps`, going on from the workdir's last checkpoint; yields each step's metrics.

  A generator: progress bars and early stops stay outside the loop.

  Args:
    config: see ragrl_jax/config.py.
    workdir: gets config.json, metrics.jsonl, TensorBoard events, checkpoints/ and episodes/.
    observe: (step, player, params) → more metrics for the step's row, such as an evaluation's; called before
      training with step 0 and after every step.

  Raises:
    ValueError: a config or an input that cannot be trained on.
    learner.NonFinite, TooManyFailures: the run had to stop; the message says why and what to change.
  """
  config_lib.validate(config)
  workdir = pathlib.Path(workdir)
  workdir.mkdir(parents=True, exist_ok=True)
  examples = list(readers.read_examples(config.data.train, max_examples=config.data.max_examples))
  draws = stream.Stream(len(examples), seed=config.seed)
  player = player_lib.build(config)
  learner = learner_lib.Learner(
    player.model, settings_lib.from_config(config), settings_lib.optimizer_from_config(config), mesh=player.mesh)

  checkpoints = checkpoint.Checkpoints(workdir / "checkpoints", keep=config.checkpoint.keep)
  state, first, cursor, restored = learner.init(config.seed), 0, 0, checkpoints.latest()
  if restored is not None:
    state, host = checkpoints.restore(state)
    first, cursor = host["step"], host["cursor"]
  (workdir / "config.json").write_text(config.to_json_best_effort(indent=1))
  episodes_lib.cut(workdir, restored)
  history: list[dict[str, Any]] = []

  with metrics_lib.MetricWriter(workdir, restored=restored, tensorboard=config.log.tensorboard) as writer:
    if observe is not None and first == 0:
      yield _written(writer, 0, observe(0, player, state.params))
    for step in range(first + 1, config.steps + 1):
      clock = Clock()
      with clock("weights"):
        player.engine.load(state.params, version=step - 1)
      with clock("rollout"):
        requests = [collect.Request(examples[which], index, sample)
                    for index, which in draws.draw(cursor, config.rollout.prompts_per_step)
                    for sample in range(config.rollout.group_size)]
        played = player.rollout.run(requests, step=step)
      clock.move("rollout", "retrieval_wait", player.rollout.report.wait_s)
      with clock("scoring"):
        scored = scoring.score(player.recipe, [request.example for request in requests], played, step)
        refuse_failures(scored, config.retrieval.max_failed_share)
        scored = with_advantages(scored, config.advantage)
        batches = pack.pack(played, [one.advantage for one in scored], rows=config.learner.micro_rows,
                            lengths=config.learner.row_lengths)
      with clock("update"):
        state, learned = learner.update(state, batches, checkpoint=str(checkpoints.latest()))
      cursor += config.rollout.prompts_per_step

      metrics = scoring.summarise(scored) | learned | engine_metrics(player.rollout.report) | clock.report()
      metrics |= throughput(metrics, player.config, learner.settings, played)
      history.append(metrics)
      metrics |= warnings(history, player)
      if observe is not None:
        metrics |= observe(step, player, state.params)
      if config.log.episodes_every and step % config.log.episodes_every == 0:
        log_episodes(workdir, step, scored, player.tokenizer)
      row = _written(writer, step, metrics)
      if step % config.checkpoint.every == 0 or step == config.steps:
        checkpoints.save(step, state, host=dict(step=step, cursor=cursor, seed=config.seed))
      yield row
  nnx.update(player.model, state.params)
  player_lib.save(player.model, player.config, config, workdir / "model")


def warnings(history: list[dict[str, Any]], player: player_lib.Player) -> dict[str, str]:
  """What is wrong with the last step, said aloud under warning/."""
  found = watch.warnings(history, searches_expected=player.retriever is not None)
  return {f"warning/{name}": text for name, text in found.items()}


def log_episodes(workdir: pathlib.Path, step: int, scored: list[scoring.Scored], tokenizer) -> None:
  """Every sampled episode of the step, with what it earned."""
  episodes_lib.write_episodes(workdir, step, [
    episodes_lib.row(one.example, one.episode, step=step, terms=one.terms, weights=one.weights, reward=one.reward,
                     outcome=one.outcome, advantage=one.advantage, tokenizer=tokenizer) for one in scored])


def _written(writer: metrics_lib.MetricWriter, step: int, metrics: dict[str, Any]) -> dict[str, Any]:
  writer.write(step, metrics)
  return dict(step=step, **metrics)


def with_advantages(scored: list[scoring.Scored], settings) -> list[scoring.Scored]:
  """Compares each episode with its group; one without a reward leaves the group's statistics and gets None.

  So does one whose prompt left no room for a single token (ended "budget"): there is nothing of it to train.
  """
  found = advantages.of_episodes(
    [one.reward if one.episode.num_model_tokens else None for one in scored],
    [one.episode.prompt_index for one in scored], **settings.to_dict())
  return [dataclasses.replace(one, advantage=value) for one, value in zip(scored, found)]


class TooManyFailures(RuntimeError):
  """More of a step's episodes failed than the config allows."""


def refuse_failures(scored: list[scoring.Scored], share: float) -> None:
  """Stops the run when a tool is down: a few failed episodes are masked, many are no training."""
  failed = [one.episode.failure for one in scored if one.episode.ended == "failed"]
  if len(failed) > share * len(scored):
    raise TooManyFailures(
      f"{len(failed)} of {len(scored)} episodes failed, more than config.retrieval.max_failed_share={share}. The first "
      f"said: {failed[0]}. See that the retriever answers, or raise config.retrieval.timeout_s and retries.")


class Clock:
  """Seconds by phase, and the phase that took most."""

  def __init__(self):
    self._seconds: dict[str, float] = {}

  @contextlib.contextmanager
  def __call__(self, phase: str):
    start = time.perf_counter()
    yield
    self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - start

  def move(self, of: str, to: str, seconds: float) -> None:
    """Takes seconds out of one phase and shows them as another."""
    self._seconds[of] -= seconds
    self._seconds[to] = self._seconds.get(to, 0.0) + seconds

  def report(self) -> dict[str, Any]:
    report = {f"seconds/{phase}": seconds for phase, seconds in self._seconds.items()}
    return report | {"seconds/step": sum(self._seconds.values())}


def engine_metrics(report: collect.Report) -> dict[str, float]:
  """What the engine did, under names of their own."""
  return {f"engine/{name}": value for name, value in report.metrics().items()}


def throughput(metrics: dict[str, Any], shape, settings, played) -> dict[str, Any]:
  """Tokens a second of the whole step, the learner's share of the hardware's peak, and the phase to look at first."""
  seconds = {name.removeprefix("seconds/"): value for name, value in metrics.items() if name.startswith("seconds/")}
  step = seconds.pop("step")
  lengths = [episode.num_tokens for episode in played]
  operations = flops.train(
    shape, tokens=sum(lengths), pairs=sum(n * (n + 1) / 2 for n in lengths), scored=metrics["tokens"],
    passes=int(settings.needs_reference) + int(not settings.on_policy), steps=settings.updates_per_batch)
  found = {"tokens_per_second": sum(lengths) / step, "bottleneck": max(seconds, key=seconds.get),
           "learner_flops_per_second": operations / seconds["update"]}
  mfu = flops.mfu(operations, seconds["update"], jax.device_count(), jax.devices()[0])
  return found if mfu is None else found | {"mfu": mfu}


def headline(metrics: dict[str, Any]) -> str:
  """The few numbers a progress bar shows."""
  shown = [("reward", "reward", ".3f"), ("outcome", "EM", ".3f"), ("searches", "searches", ".2f"),
           ("evaluation/em", "held-out EM", ".3f"), ("tokens_per_second", "tok/s", ".0f"),
           ("bottleneck", "slowest", "")]
  return " ".join(f"{label} {metrics[name]:{form}}" for name, label, form in shown if name in metrics)
