"""Training: where the rooms meet. Read `train` top to bottom."""

import contextlib
import copy
import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from flax import nnx

from ragrl_jax import config as config_lib
from ragrl_jax import structs
from ragrl_jax.core.rewards.overlong import overlong_penalty
from ragrl_jax.learner import flops, packing
from ragrl_jax.learner import learner as learner_lib
from ragrl_jax.learner import settings as settings_lib
from ragrl_jax.parallel import hosts, signals
from ragrl_jax.rollout import dispatch, timings
from ragrl_jax.rollout import groups as groups_lib
from ragrl_jax.run import player as player_lib
from ragrl_jax.run import questions, rewards, watch
from ragrl_jax.store import episodes as episodes_lib
from ragrl_jax.store import metrics as metrics_lib
from ragrl_jax.store import workdir as run_lib


def train(
  config,
  workdir: str | pathlib.Path,
  *,
  observe: Callable[[int, Any, Any], dict[str, Any]] | None = None,
  reached: Callable[[dict[str, Any]], bool] = lambda row: False,
  resume: str = "auto",
  accept_changes: bool = False,
  say: Callable[[str], None] = print,
) -> Iterator[dict[str, Any]]:
  """Trains until `config.steps`, going on from the workdir's last checkpoint; yields each step's metrics.

  A generator: progress bars and early stops stay outside the loop. On several hosts (`parallel/hosts.py`) all call it
  with the same config and a workdir that all see: each plays its own prompts, all train together, the first one logs.
  SIGTERM, Ctrl-C and a tool that is down end it with the last finished step saved.

  Args:
    config: see ragrl_jax/config.py.
    workdir: gets config.json, metrics.jsonl, TensorBoard events, checkpoints/, episodes/ and model/.
    observe: (step, player, params) → more metrics for the step's row, such as an evaluation's; called before
      training with step 0 and after every step.
    reached: a step's row → whether the run has reached what it is for, and ends there as it would at config.steps.
    resume: "auto", "must" or "never" go on from a checkpoint.
    accept_changes: go on from one of other settings (store/changes.py), which is recorded.
    say: told where the run goes on, or that it is finished.

  Raises:
    ValueError: a config or an input that cannot be trained on; a run of other settings in the workdir.
    lock.Held: another process trains in the workdir.
    learner.NonFinite, supply.TooManyFailures: the run had to stop; the message says why and what to change.
    hosts.Stopped: a signal ended it.
  """
  config_lib.validate(config)
  with run_lib.opened(pathlib.Path(workdir), config, resume=resume, accept_changes=accept_changes, say=say) as run:
    if not run.finished:
      yield from _trained(config, run, observe, reached)


def _trained(config, run: run_lib.Run, observe, reached) -> Iterator[dict[str, Any]]:
  # ---- the rooms -----------------------------------------------------------------------------------------------------
  workdir = run.workdir
  player_lib.check(config)  # and then the questions, before weights and index are loaded
  examples, draws = questions.training(config, player_lib.recipe(config), player_lib.tokenizer(config))
  player = player_lib.build(config)
  supply = groups_lib.GroupSampler(
    player.rollout,
    examples,
    draws.draw,
    lambda *given: rewards.measure(
      player.recipe, config.rollout.filter.metric, *given, penalty=overlong(config.reward)
    ),
    prompts_per_step=config.rollout.prompts_per_step,
    group_size=config.rollout.group_size,
    filter=groups_lib.Filter(**config.rollout.filter),
    max_failed_share=config.retrieval.max_failed_share,
    max_unjudged_share=config.judge.max_failed_share,
  )
  learner = learner_lib.Learner(
    player.model, settings_lib.from_config(config), settings_lib.optimizer_from_config(config), mesh=player.mesh
  )

  # ---- where it goes on ----------------------------------------------------------------------------------------------
  state, host = run.restore(learner.init(config.seed))
  first, done = run.restored or 0, False
  if host is not None:
    supply.restore(host["supply"])
    done = host["reached"]
  if hosts.is_first():
    episodes_lib.cut(workdir, run.restored)
  history: list[dict[str, Any]] = []
  step, saving_s = first, 0.0

  # ---- the steps -----------------------------------------------------------------------------------------------------
  with (
    signals.Signals() as received,
    metrics_lib.MetricWriter(
      workdir, restored=run.restored, tensorboard=config.log.tensorboard, silent=not hosts.is_first()
    ) as writer,
  ):
    if observe is not None and first == 0:
      yield _written(writer, 0, _observed(observe, 0, player, learner.policy(state.params)))
    for step in range(first + 1, first + 1 if done else config.steps + 1):
      clock, before, failed = Clock(), copy.copy(supply), None
      if player.recipe.follow is not None:  # rows after the restored step are gone: a resumed run follows alike
        seen = metrics_lib.read_metrics(workdir) if hosts.is_first() else []
        player.recipe = player.recipe.follow(hosts.exchange(seen)[0])
      with _saving_what_is_done(run, step - 1, state, before):
        with clock("weights"):
          player.engine.load(learner.policy(state.params), version=step - 1)
        with clock("rollout"):
          supplied = supply.take(step)
        with clock("scoring"):
          episodes = supplied.episodes
          scored = rewards.score(
            player.recipe,
            [supply.example(episode) for episode in episodes],
            episodes,
            step,
            penalty=overlong(config.reward),
          )
          parts = by_prompts(scored, config.loss.minibatches)
          items = [[packing.of_episode(one.episode, one.turns) for one in part if trains(one)] for part in parts]
          ready = learner.prepare(state, *(packing.pack_items(part, **how_packed(config.learner)) for part in items))
          scored = [
            one
            for part, packed, blocks in zip(parts, items, ready.host)
            for one in with_advantages(part, packed, blocks, how_packed(config.learner))
          ]
      learning = dispatch.Work(learner.training(state, ready, checkpoint=str(run.checkpoints.latest())))
      if config.rollout.ahead and step < config.steps:
        before = copy.copy(supply)
        with clock("rollout"):
          try:
            supply.sample_ahead(step + 1, learning)
          except groups_lib.TooManyFailures as error:  # raised when this step is done and saved
            supply, failed = before, error
      with clock("update"):
        state, learned = learning.finish()
      played = supply.reported()
      clock.move("rollout", "retrieval_wait", played.wait_s)
      clock.move("rollout", "judge_wait", played.judge_wait_s)
      clock.move("rollout", "update", played.beside_s)

      metrics = rewards.summarise(scored) | supplied.metrics | learned | engine_metrics(played) | clock.report()
      metrics |= throughput(metrics, player.config, learner, episodes)
      history.append(metrics)
      metrics |= warnings(history, player, config.steps)
      metrics |= {"seconds/checkpoint": saving_s} if saving_s else {}  # of the step before: its row came first
      if observe is not None:
        metrics |= _observed(observe, step, player, learner.policy(state.params))
      if hosts.is_first() and config.log.episodes_every and step % config.log.episodes_every == 0:
        log_episodes(workdir, step, scored, player.tokenizer)
      row, saving_s = _written(writer, step, metrics), 0.0
      done = bool(reached(row))
      last = done or step == config.steps
      if step % config.checkpoint.every == 0 or last:
        began = time.perf_counter()
        run.save(step, state, dict(supply=supply.saved()), reached=done)
        saving_s = time.perf_counter() - began
      yield row
      if last:
        break
      if (number := received.caught()) or failed:
        run.leave(step, state, dict(supply=supply.saved()))
        raise failed or hosts.Stopped(number)

  # ---- the model -----------------------------------------------------------------------------------------------------
  nnx.update(player.model, learner.policy(state.params))
  player_lib.save(player.model, player.config, config, workdir / "model")
  run.end(step, reached=done)


@contextlib.contextmanager
def _saving_what_is_done(run: run_lib.Run, step: int, state: Any, supply: groups_lib.GroupSampler) -> Iterator[None]:
  """Saves the last finished step before an error ends the run, unless its checkpoint is there already.

  On several hosts only what all of them raise: the others would wait for the one that fails alone.
  """
  try:
    yield
  except Exception as error:
    if step and (hosts.count() == 1 or isinstance(error, groups_lib.TooManyFailures)):
      run.leave(step, state, dict(supply=supply.saved()))
    raise


def _observed(observe, step: int, player: player_lib.Player, params: Any) -> dict[str, Any]:
  """What `observe` finds, and the seconds it took, if it found anything."""
  began = time.perf_counter()
  found = observe(step, player, params)
  return found | {"seconds/evaluate": time.perf_counter() - began} if found else {}


def warnings(history: list[dict[str, Any]], player: player_lib.Player, steps: int) -> dict[str, str]:
  """What is wrong with the last step, and with the first one's plan for `steps`, said aloud under warning/."""
  found = watch.warnings(history, searches_expected=player.retriever is not None)
  if len(history) == 1 and (unreached := player.recipe.unreached(steps)):
    weights = ", ".join(f"{name} {end:g} (later {last:g})" for name, (end, last) in unreached.items())
    found["schedule"] = (
      f"the run ends before its rewards' schedule does: at step {steps} the weights are {weights}. Raise config.steps, "
      f"or lower the step in config.switches ({player.recipe.name}'s README says which one)."
    )
  return {f"warning/{name}": text for name, text in found.items()}


def log_episodes(workdir: pathlib.Path, step: int, scored: list[rewards.Scored], tokenizer) -> None:
  """Every episode the step trained on, with what it earned."""
  episodes_lib.write_episodes(
    workdir,
    step,
    [
      episodes_lib.row(
        one.example,
        one.episode,
        step=step,
        terms=one.terms,
        weights=one.weights,
        reward=one.reward,
        outcome=one.outcome,
        advantage=one.advantage,
        tokenizer=tokenizer,
      )
      for one in scored
    ],
  )


def _written(writer: metrics_lib.MetricWriter, step: int, metrics: dict[str, Any]) -> dict[str, Any]:
  writer.write(step, metrics)
  return dict(step=step, **metrics)


def overlong(settings) -> Callable[[structs.Episode], float] | None:
  """DAPO's penalty for episodes in which the model wrote too much; None if there is no limit."""
  if not settings.overlong_limit:
    return None
  return lambda episode: overlong_penalty(
    episode.num_model_tokens,
    limit=settings.overlong_limit,
    buffer=settings.overlong_buffer,
    factor=settings.overlong_factor,
  )


def by_prompts(scored: list[rewards.Scored], parts: int) -> list[list[rewards.Scored]]:
  """As many lists, each with its share of the prompts, in order: groups stay whole."""
  prompts = list(dict.fromkeys(one.episode.prompt_index for one in scored))
  part_of = {prompt: number * parts // len(prompts) for number, prompt in enumerate(prompts)}
  return [[one for one in scored if part_of[one.episode.prompt_index] == part] for part in range(parts)]


def trains(one: rewards.Scored) -> bool:
  """Whether there is anything to learn from: a reward, and a token of the model's (a prompt may leave no room)."""
  return one.reward is not None and one.episode.num_model_tokens > 0


def how_packed(settings) -> dict[str, Any]:
  """How rows are packed, from config.learner."""
  return dict(rows=settings.micro_rows, lengths=settings.row_lengths, share_prefix=settings.share_prompts)


def with_advantages(
  scored: list[rewards.Scored], items: list[packing.Item], blocks: list[structs.Batch], how: dict[str, Any]
) -> list[rewards.Scored]:
  """The episodes with the mean advantage of their trained tokens, read off the blocks their items were packed into."""
  means = iter(
    [
      float(blocks[b].advantages[row, here][blocks[b].loss_mask[row, here]].mean())
      for b, row, here in packing.places(items, **how)
    ]
  )
  return [dataclasses.replace(one, advantage=next(means) if trains(one) else None) for one in scored]


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
    """Seconds by phase as metrics `seconds/PHASE`, and their sum as `seconds/step`."""
    report = {f"seconds/{phase}": seconds for phase, seconds in self._seconds.items()}
    return report | {"seconds/step": sum(self._seconds.values())}


def engine_metrics(played: timings.Timings) -> dict[str, float]:
  """What the engine did, under names of their own."""
  return {f"engine/{name}": value for name, value in played.metrics().items()}


def throughput(metrics: dict[str, Any], shape, learner, episodes) -> dict[str, Any]:
  """Tokens a second of the whole step, the learner's share of the hardware's peak, and the phase to look at first."""
  seconds = {name.removeprefix("seconds/"): value for name, value in metrics.items() if name.startswith("seconds/")}
  step = seconds.pop("step")
  lengths = [episode.num_tokens for episode in episodes]
  operations = flops.update(
    shape,
    learner.settings,
    tokens=sum(lengths),
    pairs=sum(n * (n + 1) / 2 for n in lengths),
    scored=metrics["tokens"],
    adapters=learner.adapters,
  )
  found = {
    "tokens_per_second": sum(lengths) / step,
    "bottleneck": max(seconds, key=seconds.get),
    "learner_flops_per_second": operations / seconds["update"],
  }
  mfu = flops.mfu(operations, seconds["update"], jax.device_count(), jax.devices()[0])
  return found if mfu is None else found | {"mfu": mfu}


def headline(metrics: dict[str, Any]) -> str:
  """The few numbers a progress bar shows."""
  shown = [
    ("reward", "reward", ".3f"),
    ("outcome", "EM", ".3f"),
    ("searches", "searches", ".2f"),
    ("evaluation/em", "held-out EM", ".3f"),
    ("tokens_per_second", "tok/s", ".0f"),
    ("bottleneck", "slowest", ""),
  ]
  # Most recipes never search; of one that should, run/watch.py warns.
  told = lambda name: name in metrics and (name != "searches" or metrics[name])
  return " ".join(f"{label} {metrics[name]:{form}}" for name, label, form in shown if told(name))
