"""Searches the mesh of TPUs or GPUs with the shortest step, by the arithmetic of `scale_estimate`."""

import dataclasses
import math
import types
from collections.abc import Iterator
from typing import Any

import scale_estimate as estimate

from ragrl_jax import settings as run_settings
from ragrl_jax.learner import row_layout, settings as settings_lib
from ragrl_jax.plan import chips, gpus, workload as load_lib
from ragrl_jax.plan.memory import Axes
from ragrl_jax.plan.summary import Report

LANES = (4, 8, 16, 32, 64, 128, 256, 512)
TENSOR = (1, 2, 4, 8)  # devices per replica of an engine
ROWS = (1, 2, 4)  # rows of a block per share of data and fsdp
EQUAL = 1.02  # steps whose times differ by less than this factor count as equal
SPARE = 1.2  # size of the cache, relative to that for conversations of the mean length
SLAB = 16_384  # largest number of tokens gathered for the head; limits config.learner.logprob_chunk times tensor · fsdp


@dataclasses.dataclass(frozen=True)
class Choice:
  """Settings that can be chosen freely, because they do not change what the run learns."""

  axes: Axes
  micro_rows: int
  lanes: int
  rows: int
  logprob_chunk: int
  tensor: int = 1  # of the engine's mesh
  pages: int = 0

  def into(self, config: Any) -> Any:
    """Writes these settings into the config, and returns it."""
    config.mesh.update(dataclasses.asdict(self.axes))
    config.learner.update(dict(micro_rows=self.micro_rows, logprob_chunk=self.logprob_chunk))
    config.rollout.update(dict(lanes=self.lanes, rows=self.rows, pages=self.pages))
    config.rollout.mesh.update(dict(replicas=0, tensor=self.tensor))
    return config


def choices(config: Any, shape: Any, where: estimate.Slice, load: load_lib.Load) -> Iterator[Choice]:
  """All meshes of the chips that divide the model and the rows, each with all numbers of rows and lanes.

  Only the data axis spans several slices, or several hosts of GPUs, so that only gradients cross the data centre's
  network. On GPUs rows are not split, because their attention needs whole rows. The number of cache rows per lane is
  the config's. Lanes and rows do not exceed the episodes of an engine. The cache has SPARE times the room for
  conversations of the mean length. Longer conversations use the pages that shorter ones leave free.

  Args:
    config: the run's config.
    shape: a DecoderConfig.
    where: the run's chips.
    load: the tokens of a step.
  """
  length, chunk_ = row_layout.longest_row(config), config.learner.logprob_chunk
  r = config.rollout
  spare, episodes = r.rows // r.lanes, -(-r.prompts_per_step * r.group_size // where.hosts)
  most_sequence = 1 if gpus.is_gpu(where.topology) else where.chips
  for axes in meshes(where.chips):
    if (
      shape.num_kv_heads % axes.tensor
      or shape.vocab_size % axes.tensor
      or shape.num_experts % axes.tensor
      or shape.d_model % axes.fsdp
      or length % (128 * axes.sequence)
      or axes.data % where.islands
      or axes.sequence > most_sequence
    ):
      continue
    chunk = max(1, min(chunk_, SLAB // (axes.fsdp * axes.tensor)))
    for rows in ROWS:
      for tensor in TENSOR:
        if any(n % tensor for n in (shape.num_kv_heads, shape.vocab_size, shape.num_experts)) or not where.spans(
          tensor
        ):
          continue
        replicas, most_rows = max(1, where.host // tensor), episodes * where.spans(tensor)  # an engine's
        share = lambda number, replicas=replicas: -(-number // replicas) * replicas
        most = estimate.cache_layout(shape, config, where.topology, tensor).most(tensor)
        for lanes in (*(n for n in LANES if n < most_rows), most_rows):
          held = share(max(lanes, min(lanes * spare, most_rows)))
          pages = pages_for(config, load, held, replicas)
          if most is None or not most < pages // replicas <= 2 * most:
            yield Choice(axes, rows * axes.shares, share(lanes), held, chunk, tensor, pages)


def pages_for(config: Any, load: load_lib.Load, rows: int, replicas: int) -> int:
  """Pages for SPARE times `rows` conversations of the mean length, and at least one full conversation per replica."""
  r = config.rollout
  pages = lambda tokens: math.ceil(tokens / r.page)
  needed = math.ceil(SPARE * rows * load_lib.held(config, load))
  least = replicas * (pages(r.context) + pages(load.length))
  return -(-max(needed, least) // replicas) * replicas


def meshes(chips_: int) -> Iterator[Axes]:
  """All meshes of this number of chips, which must be a power of two."""
  powers = [2**n for n in range(chips_.bit_length()) if chips_ % 2**n == 0]
  for fsdp in powers:
    for tensor in powers:
      for sequence in powers:
        if chips_ % (fsdp * tensor * sequence) == 0:
          yield Axes(chips_ // (fsdp * tensor * sequence), fsdp, tensor, sequence)


def best(
  config: Any,
  shape: Any,
  where: estimate.Slice,
  *,
  margin: float,
  fill: float = 0.5,
  drawn: float = 0.5,
  refused: frozenset[Choice] = frozenset(),
) -> tuple[Choice, Report] | None:
  """The fitting choice with the shortest step, and its report; None if no choice fits.

  Engines span as few hosts as possible: with more engines, fewer episodes wait for each other.
  Among choices whose steps are equal within EQUAL, the one with room for the most conversations in the cache wins. The
  steps must also be equal if no collective overlaps with other work; the roofline assumes that all overlap.

  Args:
    config: the run's config.
    shape: a DecoderConfig.
    where: the run's chips.
    margin: share of a chip's memory to leave free, for memory that the arithmetic does not count.
    fill, drawn: as for `workload.load`.
    refused: choices that are known not to fit.
  """
  room = (1 - margin) * chips.for_topology(where.topology).hbm
  load = load_lib.load(config, fill=fill, drawn=drawn)
  fitting = [
    (choice, estimate.joined(config, choice.rows, shape, where, load, choice.axes, learner, engine))
    for choice, learner, engine in _parts(config, shape, where, load)
    if estimate.needed(learner, engine, config.rollout.ahead > 0) <= room and choice not in refused
  ]
  if not fitting:
    return None
  fewest = min(where.spans(choice.tensor) for choice, _ in fitting)
  fitting = [one for one in fitting if where.spans(one[0].tensor) == fewest]
  for seconds in (lambda report: report.step_s, lambda report: report.step_s + estimate.interconnect(report)):
    steps = [seconds(report) for _, report in fitting]
    fitting = [one for one, step in zip(fitting, steps) if step <= EQUAL * min(steps)]
  return min(fitting, key=lambda one: (-one[1].conversations, estimate.interconnect(one[1]), one[1].needed))


def least(config: Any, shape: Any, where: estimate.Slice) -> float:
  """Smallest number of bytes per chip over all choices, however long their steps take."""
  ahead = config.rollout.ahead > 0
  return min(estimate.needed(*parts, ahead) for _, *parts in _parts(config, shape, where, load_lib.load(config)))


def _parts(config, shape, where, made):
  """Yields (choice, learner's part, engine's part) for all choices; each part is computed once."""
  settings = settings_lib.from_config(run_settings.of(config))
  learners: dict[Any, estimate.Part] = {}
  engines: dict[Any, estimate.Part] = {}
  light = _light(config.to_dict())
  for choice in choices(config, shape, where, made):
    mine, theirs = (choice.axes, choice.micro_rows), (choice.tensor, choice.lanes, choice.rows, choice.pages)
    if mine not in learners:
      light.learner.micro_rows, light.learner.logprob_chunk = choice.micro_rows, choice.logprob_chunk
      learners[mine] = estimate.learner_part(light, shape, where, made, settings, choice.axes)
    if theirs not in engines:
      light.rollout.lanes, light.rollout.rows, light.rollout.pages = choice.lanes, choice.rows, choice.pages
      light.rollout.mesh.tensor, light.rollout.mesh.replicas = choice.tensor, 0
      engines[theirs] = estimate.engine_part(light, shape, where, made)
    yield choice, learners[mine], engines[theirs]


def _light(values):
  """The config as plain objects, whose values can be set quickly: thousands of choices are tried."""
  return types.SimpleNamespace(**{name: _light(x) if isinstance(x, dict) else x for name, x in values.items()})
