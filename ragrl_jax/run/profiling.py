"""Traces chosen steps of a run by JAX's profiler, for xprof and TensorBoard's profile plugin."""

import contextlib
import pathlib
import re
from collections.abc import Iterator

import jax

FOLDER = "profile"


def steps_of(text: str) -> range | None:
  """The steps that --profile_steps names: "5:8" is 5 to 8, both included, "5" is step 5; "" is none.

  Raises:
    ValueError: the text names no steps.
  """
  if not text:
    return None
  found = re.fullmatch(r"([1-9]\d*)(?::([1-9]\d*))?", text)
  if found is None or int(found[2] or found[1]) < int(found[1]):
    raise ValueError(f"--profile_steps={text}: name a step, as in 5, or the first and the last one, as in 5:8.")
  return range(int(found[1]), int(found[2] or found[1]) + 1)


class Profile:
  """Writes one trace of the steps to `workdir`/profile. Ended by a `with` block, after an error too.

  Every host writes its own devices' part. Python's calls are left out: a step has millions.

  Args:
    workdir: the run's folder.
    steps: the steps, in order; None traces none.
    of: number of steps of the whole run.

  Raises:
    ValueError: the run ends before the first of them.
  """

  def __init__(self, workdir: pathlib.Path, steps: range | None, *, of: int):
    if steps and steps[0] > of:
      raise ValueError(f"--profile_steps names step {steps[0]}, and config.steps={of}: name earlier ones.")
    self._folder, self._steps, self._runs = workdir / FOLDER, steps or range(0), False

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

  def __enter__(self) -> "Profile":
    return self

  def __exit__(self, *_) -> None:
    self.close()
