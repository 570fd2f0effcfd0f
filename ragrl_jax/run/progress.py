"""The time of each part of a step, its speed, traces of JAX's profiler, and the few numbers of the progress bar."""

import contextlib
import pathlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from ragrl_jax import structs
from ragrl_jax.learner import flops
from ragrl_jax.learner.learner import Learner
from ragrl_jax.recipes.recipe import Recipe
from ragrl_jax.rollout import timings
from ragrl_jax.run.player import Player
from ragrl_jax.settings import Settings
from ragrl_jax.store import metrics as metrics_lib, versions

# (step, player, params) → more metrics for the step's row, such as an evaluation's
Evaluate = Callable[[int, Player, Any], dict[str, Any]]


APART = ("evaluate", "checkpoint")  # phases that are no part of a step


class Clock:
  """Seconds by phase. In a trace of the profiler a phase has its name (`Profile`).

  Example: `with clock("rollout"): …` adds to "rollout"; `clock.move("rollout", "judge_wait", 2.0)` moves two of these
  seconds to another phase.
  """

  def __init__(self):
    self._seconds: dict[str, float] = {}
    self._began = time.perf_counter()

  @contextlib.contextmanager
  def __call__(self, phase: str) -> Iterator[None]:
    start = time.perf_counter()
    with jax.profiler.TraceAnnotation(phase):
      yield
    self.add(phase, time.perf_counter() - start)

  def add(self, phase: str, seconds: float) -> None:
    """Adds seconds to a phase."""
    self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

  def move(self, of: str, to: str, seconds: float) -> None:
    """Takes seconds out of one phase and adds them to another."""
    self.add(of, -seconds)
    self.add(to, seconds)

  def report(self) -> dict[str, float]:
    """Seconds per phase since the last report, the rest as "other", and all but APART as "seconds/step"."""
    since, self._began = self._began, time.perf_counter()
    self.add("other", self._began - since - sum(self._seconds.values()))
    seconds_of_phase, self._seconds = self._seconds, {}
    step = sum(seconds for phase, seconds in seconds_of_phase.items() if phase not in APART)
    return {f"seconds/{phase}": seconds for phase, seconds in seconds_of_phase.items()} | {"seconds/step": step}


def seconds_of(clock: Clock, played: timings.Timings) -> dict[str, float]:
  """The step's seconds, with the rollout's waits as separate phases, and the engine's own numbers."""
  clock.move("rollout", "retrieval_wait", played.wait_s)
  clock.move("rollout", "judge_wait", played.judge_wait_s)
  clock.move("rollout", "update", played.beside_s)  # an update that ran while conversations waited
  return {f"engine/{name}": value for name, value in played.metrics().items()} | clock.report()


def waits_for_held_out(config: Settings, recipe: Recipe, *, measured: bool) -> bool:
  """Whether a stage begins when a metric of held-out questions settles.

  Raises:
    ValueError: it does, and such questions are not `measured` during the run.
  """
  metric = recipe.waits_for
  if (waits := metric.startswith("evaluation/")) and not measured:
    raise ValueError(
      f"config.recipe={config.recipe!r} with these switches waits for {metric}: no held-out questions are measured "
      "during the run, so its next stage would never begin. Set config.data.evaluate and config.evaluate.every, or "
      "pass `evaluate` to train."
    )
  return waits


def evaluated(clock: Clock, evaluate: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
  """The metrics of `evaluate(*given)`. Its seconds are a phase of the clock if it measured anything."""
  start = time.perf_counter()
  if metrics := evaluate(*arguments):
    clock.add("evaluate", time.perf_counter() - start)
  return metrics


def costs(workdir: pathlib.Path, metrics: dict[str, Any], config: Settings) -> dict[str, Any]:
  """What the run has cost (`metrics.cost_of_rows`) and its devices, for the row of its last step."""
  rows = [*metrics_lib.read_metrics(workdir), metrics]
  return metrics_lib.cost_of_rows(rows, config.log.price_per_hour) | {"cost/devices": versions.devices()}


def throughput(metrics: dict[str, Any], learner: Learner, episodes: Sequence[structs.Episode]) -> dict[str, Any]:
  """Tokens per second of the whole step, the learner's share of the hardware's peak, and the slowest phase.

  `metrics` has the step's seconds and the learner's `flops`, and the step trained on these episodes.
  """
  seconds = {name.removeprefix("seconds/"): value for name, value in metrics.items() if name.startswith("seconds/")}
  step = seconds.pop("step")
  learning = seconds["scoring"] + seconds["update"]  # the old and the reference policy's passes are in scoring
  numbers = {
    "tokens_per_second": sum(episode.num_tokens for episode in episodes) / step,
    "bottleneck": max(seconds.keys() - APART, key=seconds.get),
    "learner_flops_per_second": metrics["flops"] / learning,
  }
  devices = 1 if learner.mesh is None else learner.mesh.size
  mfu = flops.mfu(metrics["flops"], learning, devices, jax.devices()[0])
  return numbers if mfu is None else numbers | {"mfu": mfu}


def headline(metrics: dict[str, Any]) -> str:
  """The few numbers in a progress bar."""
  columns = [
    ("reward", "reward", ".3f"),
    ("outcome", "outcome", ".3f"),
    ("groups/metric", "before filter", ".3f"),
    ("searches", "searches", ".2f"),
    ("evaluation/em", "held-out EM", ".3f"),
    ("tokens_per_second", "tok/s", ".0f"),
    ("bottleneck", "slowest", ""),
  ]
  # Most recipes never search. If a recipe should search and does not, run/warning_signs.py warns.
  has = lambda name: name in metrics and (name != "searches" or metrics[name])
  return " ".join(f"{label} {metrics[name]:{form}}" for name, label, form in columns if has(name))


def steps_of(text: str) -> range | None:
  """The steps that --profile_steps names: "5:8" is 5 to 8, both included, "5" is step 5; "" is none.

  Raises:
    ValueError: the text names no steps.
  """
  if not text:
    return None
  match = re.fullmatch(r"([1-9]\d*)(?::([1-9]\d*))?", text)
  if match is None or int(match[2] or match[1]) < int(match[1]):
    raise ValueError(f"--profile_steps={text}: name a step, as in 5, or the first and the last one, as in 5:8.")
  return range(int(match[1]), int(match[2] or match[1]) + 1)


class Profile(contextlib.AbstractContextManager):
  """Writes one trace of the steps to `workdir`/profile, for xprof. Ended by a `with` block, after an error too.

  Every host writes its own devices' part. Python's calls are left out: a step has millions.

  Args:
    steps: the steps, in order; None traces none.

  Raises:
    ValueError: the run ends before the first of them.
  """

  def __init__(self, workdir: pathlib.Path, steps: range | None, *, of: int):
    if steps and steps[0] > of:
      raise ValueError(f"--profile_steps names step {steps[0]}, and config.steps={of}: name earlier ones.")
    self._folder, self._steps, self._runs = workdir / "profile", steps or range(0), False

  @contextlib.contextmanager
  def __call__(self, step: int) -> Iterator[None]:
    """For a `with` block around a step's work; it begins and ends the trace at the first and the last of the steps."""
    if step not in self._steps:
      yield
      return
    if not self._runs:
      options = jax.profiler.ProfileOptions()
      options.python_tracer_level = 0
      jax.profiler.start_trace(str(self._folder), profiler_options=options)
      self._runs = True
    with jax.profiler.StepTraceAnnotation("step", step_num=step):
      yield
    if step == self._steps[-1]:
      self.close()

  def close(self) -> None:
    """Writes the trace, if one runs."""
    if self._runs:
      self._runs = False
      jax.profiler.stop_trace()

  def __exit__(self, *_) -> None:
    self.close()
