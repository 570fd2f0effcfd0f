"""Training connects the rooms. Read `train` from top to bottom. Next: ragrl_jax/engine/engine.py.

  ┌→ engine.load → sampler.take → rewards.score → learner.prepare → learner.train ─┐
  │   new weights    Episodes       terms, [B]     advantages, rows    TrainState   │
  └─────────────────────────────────────────────────────────────────────────────────┘

A run is resumed in this order, and a new run begins in it too:

  1. Settings are checked, prepared and compared with the run's own; the folder is locked.
  2. The rooms are built: questions, then index and judges, weights and engine, then the learner.
  3. The train state is restored from the newest undamaged checkpoint, and the logs are cut to its step.
  4. The group sampler restores its cursor, and the groups that were sampled but not trained on.
"""

import pathlib
from collections.abc import Callable, Generator
from typing import Any

from flax import nnx

from ragrl_jax.learner.state import TrainState
from ragrl_jax.parallel import hosts, signals
from ragrl_jax.rollout import dispatch
from ragrl_jax.run import progress, questions, rewards, rollback, rooms as rooms_lib, saving, warning_signs
from ragrl_jax.run.prepared import Prepared, prepare
from ragrl_jax.store import metrics as metrics_lib, workdir as run_lib


def train(
  config,
  workdir: str | pathlib.Path,
  *,
  evaluate: progress.Evaluate | None = None,
  reached: Callable[[dict[str, Any]], bool] = lambda row: False,
  resume: str = "auto",
  accept_changes: bool = False,
  profile: range | None = None,
  say: Callable[[str], None] = print,
) -> Generator[dict[str, Any], Exception | None]:
  """Trains until `config.steps`, starting from the workdir's last checkpoint; yields each step's metrics.

  A generator, so progress bars and early stops stay outside the loop. On several hosts, all call it with one config and
  a workdir that all see: each plays its own prompts, all train, the first one logs. SIGTERM, Ctrl-C, a failed tool and
  an error that is sent to the generator end it after saving the last finished step.

  Args:
    config: all settings (`ragrl_jax.Config`), or what was `prepared` from them.
    workdir: gets config.json, metrics.jsonl, the trackers' files, checkpoints/, episodes/ and model/.
    evaluate: (step, player, params) → more metrics for the step's row (evaluate.evaluator makes one); called after
      every step, and before training with step 0.
    reached: a step's row → whether the run has reached its goal. It then ends as it would at config.steps.
    resume: "auto", "must" or "never" resume from a checkpoint; `say` receives a message, also if the run is finished.
    accept_changes: resume although settings have changed (store/changes.py); the changes are recorded.
    profile: steps of which JAX's profiler writes a trace to `workdir`/profile.

  Raises:
    ValueError: invalid settings or questions, or a workdir that holds a run with other settings.
    lock.Held: another process trains in the workdir.
    learner.NonFinite, group_sampler.TooManyFailures, rollback.Collapsed: the run had to stop; the message says why and
      what to change.
    hosts.Stopped, hosts.Ended: a signal ended it, or an error that was sent to another host's generator.
  """
  # ---- 1. settings and lock ------------------------------------------------------------------------------------------
  prepared = prepare(config, workdir)
  config = prepared.settings
  waits = progress.waits_for_held_out(config, prepared.recipe, measured=evaluate is not None)
  options = dict(waits_for_held_out=waits, resume=resume, accept_changes=accept_changes, say=say)
  with run_lib.opened(pathlib.Path(workdir), config, objective="rl", **options) as run:
    if not run.finished:
      say(questions.named(config))
      yield from _trained(prepared, run, evaluate, reached, progress.Profile(run.workdir, profile, of=config.steps))


def _trained(prepared: Prepared, run, evaluate, reached, profiled: progress.Profile):
  # ---- 2. the rooms are built ----------------------------------------------------------------------------------------
  config = prepared.settings
  steps, save_every = config.steps, config.checkpoint.every
  leads = hosts.is_first()  # the first host logs for all
  if held_out := getattr(evaluate, "contents", None):
    run.compare({"data.evaluate": held_out})
  rooms = rooms_lib.build(prepared, run)
  player, policy = rooms.player, rooms.learner.policy

  # ---- 3. 4. state and logs are restored, then the sampler; a new run begins with the initial parameters -------------
  state, host = run.restore(rooms.learner.init(config.seed, keep=False))
  if host is not None:
    state = rooms.restore(host, state, run.checkpoints)
  done = host is not None and host["reached"]  # a kill came after the last step, before the model was saved
  step = first = run.restored or 0

  # ---- the steps -----------------------------------------------------------------------------------------------------
  log = metrics_lib.MetricWriter.of_run(run.workdir, config, restored=run.restored, silent=not leads)
  with signals.Signals() as received, log as writer, profiled:
    guard = rollback.Guard(config, run.workdir)
    rooms.learner.rate = guard.rate
    clock, past = progress.Clock(), rollback.Past(run.workdir)
    if evaluate is not None and host is None:
      first_metrics = progress.evaluated(clock, evaluate, 0, player, policy(state.params)) | clock.report()
      if stop := (yield writer.write(0, first_metrics)):
        raise stop
    if config.guard.rollback and host is None:  # for a collapse before the first checkpoint
      run.save(0, state, rooms.saved())
    for step in range(first + 1, first + 1 if done else steps + 1):
      with profiled(step):
        state, scored, metrics, failed = _step(rooms, run, past, clock, step, state, last=step == steps)
      # ---- its row; what follows its report counts in the next one ---------------------------------------------------
      with clock("metrics"):
        alarms = guard.see(step, metrics)
        metrics |= warning_signs.of_training(metrics, player.recipe, step, steps, mixed=bool(config.data.hard)) | alarms
      if returns := rollback.TO in alarms:
        state = rooms.rewind(run, state, guard, alarms)
      run.checkpoints.spared = guard.spared(step)
      if evaluate is not None:
        metrics |= progress.evaluated(clock, evaluate, step, player, policy(state.params))
      metrics |= progress.seconds_of(clock, rooms.sampler.reported())
      metrics |= progress.throughput(metrics, rooms.learner, [one.episode for one in scored])
      # The first host decides for all, because rows have seconds of their own.
      done = hosts.exchange(bool(reached(dict(step=step, **metrics))))[0]
      last = done or step == steps
      with clock("writing"):
        if leads:
          run.write(rewards.write, run.workdir, step, scored, player.tokenizer)
          metrics |= progress.costs(run.workdir, metrics, config) if last else {}
        row = writer.write(step, metrics)
      guard.stop(alarms)
      # ---- its checkpoint --------------------------------------------------------------------------------------------
      if step % save_every == 0 or last or returns:
        with clock("checkpoint"):
          run.save(step, state, rooms.saved(), reached=done, older=rooms.sampler.next.weights)
      with clock("handing_over"):
        failed = (yield row) or failed
      if last:
        break
      if end := received.end(failed):
        run.leave(step, state, rooms.saved(), older=rooms.sampler.next.weights)
        raise end

  # ---- the model -----------------------------------------------------------------------------------------------------
  player.engine.release()  # the last evaluation has loaded it, and several hosts gather whole matrices on their devices
  nnx.update(player.model, policy(state.params))
  saving.save(player.model, player.config, player.tokenizer, config, run.workdir / "model", base=run.base)
  run.end(step, reached=done)


def _step(
  rooms: rooms_lib.Rooms,
  run: run_lib.Run,
  past: rollback.Past,
  clock: progress.Clock,
  step: int,
  state: TrainState,
  *,
  last: bool,
):
  """One step: (state, scored episodes, metrics, an error that must end the run after the step or None)."""
  player, learner, failed = rooms.player, rooms.learner, None
  if player.recipe.next_recipe is not None:
    # The schedule depends on the run's metrics. Rows after the restored step are cut, so a resumed run does the same.
    player.recipe = past.next_recipe(player.recipe, step)
  with rooms_lib.saving_what_is_done(run, step - 1, state, rooms):
    with clock("weights"):
      rooms.load(step, state)
    # Example → play → Episode, until there are enough groups. The next step's prompts use lanes that become idle.
    with clock("rollout"):
      groups = rooms.sampler.take(step, last=last)
    if not rooms.sampler.ahead:
      player.engine.release()  # frees the memory of its weights and its cache for the learner
    with clock("scoring"):
      # Episode → terms → reward per turn
      examples = [rooms.sampler.example(episode) for episode in groups.episodes]
      scored = rooms.scorer.score(player.recipe, examples, groups.episodes, step)
      parts = rewards.by_prompts(scored, rooms.minibatches)
      # → advantage per turn → rows → scores on the device; with a critic, scores come before advantages
      ready = learner.prepare(state, [rooms.items(part, step, state) for part in parts], rooms.pack)
      scored = rewards.with_advantages([one for part in parts for one in part], ready.items)
    # → optimiser steps. Meanwhile the engine may sample the next step's groups with the weights it has.
    learning = dispatch.Work(learner.train(state, ready, checkpoint=str(run.checkpoints.latest() or "")))
  if rooms.sampler.next.playing is not None:
    with clock("rollout"):
      failed = rooms.sample_next(step + 1, learning)
  with clock("update"):
    state, learned = learning.finish()
  with clock("metrics"):
    metrics = rewards.summarise(scored) | groups.metrics | learned
  return state, scored, metrics, failed
