"""Searches the best mesh of a TPU slice by arithmetic, and estimates a run's memory and time on it."""

import dataclasses
import functools
import types
from collections.abc import Iterator
from typing import Any

from ragrl_jax.learner import settings as settings_lib
from ragrl_jax.plan import chips, memory, temporaries
from ragrl_jax.plan import workload as load_lib
from ragrl_jax.plan.memory import Axes
from ragrl_jax.plan.summary import Program, Report

LANES = (4, 8, 16, 32, 64, 128, 256, 512)
ROWS = (1, 2, 4)  # rows of a block per share of data and fsdp
HOST = 4  # chips per host, as libtpu counts hosts
EQUAL = 1.02  # steps whose times differ by less than this factor count as equal
SLAB = 16_384  # largest number of tokens gathered for the head; limits config.learner.logprob_chunk times tensor · fsdp


@dataclasses.dataclass(frozen=True)
class Slice:
  """The chips of a run.

  Attributes:
    topology: topology of one slice, such as "v5e:16x16".
    chips: number of chips in all slices.
    slices: number of slices, connected by the data centre's network.
  """

  topology: str
  chips: int
  slices: int = 1


@dataclasses.dataclass(frozen=True)
class Choice:
  """Settings that may be chosen freely: they do not change what the run learns from."""

  axes: Axes
  micro_rows: int
  lanes: int
  rows: int
  logprob_chunk: int

  def into(self, config: Any) -> Any:
    """Writes these settings into the config, and returns it."""
    config.mesh.update(dataclasses.asdict(self.axes))
    config.learner.update(dict(micro_rows=self.micro_rows, logprob_chunk=self.logprob_chunk))
    config.rollout.update(dict(lanes=self.lanes, rows=self.rows))
    return config


def estimate(config: Any, shape: Any, where: Slice, *, fill: float = 0.5, drawn: float = 0.5) -> Report:
  """The report that `plan.compiled.check` would give for this config, estimated by arithmetic.

  It assumes bf16 matmuls with float32 master weights, remat, AdamW, and that all parameters are trained.

  Args:
    config: the run's config; config.mesh must not contain -1.
    shape: a DecoderConfig.
    where: the run's chips.
    fill, drawn: as for `workload.load`.
  """
  axes, settings = Axes(**config.mesh.to_dict()), settings_lib.from_config(config)
  made = load_lib.load(config, fill=fill, drawn=drawn)
  return _joined(
    config.rollout.rows,
    shape,
    where,
    made,
    axes,
    _learner(config, shape, where, made, settings, axes),
    _engine(config, shape, where, made, axes.here(HOST)),
  )


@dataclasses.dataclass(frozen=True)
class _Part:
  """The learner's or the engine's part of a report."""

  resident: dict[str, float]
  programs: tuple[Program, ...]
  needed_flops: float = 0.0

  @functools.cached_property
  def stays(self) -> float:
    """Resident bytes on a chip."""
    return sum(self.resident.values())

  @functools.cached_property
  def room(self) -> float:
    """Bytes of temporaries of the program that needs most."""
    return max(one.temporaries for one in self.programs)


def _joined(rows, shape, where, made, axes, learner, engine):
  return Report(
    where.topology,
    where.slices,
    where.chips,
    where.chips // HOST,
    dataclasses.asdict(axes),
    int(memory.counted(shape, Axes()).all),
    learner.resident | engine.resident,
    learner.programs + engine.programs,
    rows + load_lib.MAX_PROMPTS,
    made.tokens,
    learner.needed_flops,
  )


def _learner(config, shape, where, made, settings, axes):
  cut = load_lib.blocks(config, shape, made)
  mine, whole = (memory.counted(shape, one).all for one in (axes, Axes()))
  traffic = load_lib.train_bytes(
    shape, dataclasses.asdict(axes), temporaries.chip_tokens(config, axes), width=2, remat=True, parameters=whole
  )
  # Only the data axis spans slices. The gradient is summed within each slice first, then each chip sends its part.
  between = 4.0 * mine * where.slices / axes.data * (where.slices > 1)
  found = [
    Program(
      "learner: accumulate",
      0.0,
      temporaries.accumulate_room(shape, config, axes),
      flops=4 * cut.forward / axes.size,
      hbm=traffic,
      sent=temporaries.accumulate_sent(shape, config, axes),
      dcn=between,
      calls=cut.count,
    )
  ]
  update = Program("learner: apply", 0.0, hbm=28.0 * mine, calls=cut.updates)
  found.append(update)
  critic = settings.critic.kind == "own"
  if critic:
    found += [
      dataclasses.replace(
        found[0],
        name="learner critic: accumulate",
        sent=temporaries.accumulate_sent(shape, config, axes, head=False),
        temporaries=temporaries.accumulate_room(shape, config, axes, head=False),
      ),
      dataclasses.replace(update, name="learner critic: apply"),
    ]
  if scores := settings.scores_old + settings.needs_reference:
    found.append(
      Program(
        "learner: score",
        0.0,
        temporaries.score_room(shape, config, axes),
        flops=cut.forward / axes.size,
        hbm=traffic / 4,
        sent=temporaries.score_sent(shape, config, axes),
        calls=scores * cut.count // settings.epochs,
      )
    )
  stays = memory.of_learner(shape, axes, reference=settings.needs_reference, critic=critic)
  return _Part(stays, tuple(found), load_lib.passes(settings) * cut.whole / axes.size)


def _engine(config, shape, where, made, here):
  stays, r = memory.of_engine(shape, config, here), config.rollout
  work = load_lib.engine(
    config, shape, made, where.chips // HOST, weights=stays["engine: weights"] * here.fsdp, cache=stays["engine: cache"]
  )
  tokens = load_lib.PREFILL_ROWS * r.prefill
  return _Part(
    stays,
    (
      Program(
        "engine: prefill",
        0.0,
        temporaries.extend_room(shape, here, tokens),
        flops=work.fill_flops / HOST,
        hbm=work.fill_bytes,
        sent=temporaries.extend_sent(shape, here, tokens),
        calls=work.fills,
      ),
      Program(
        "engine: decode",
        0.0,
        temporaries.decode_room(shape, config, here),
        flops=work.chunk_flops / HOST,
        hbm=work.chunk_bytes,
        sent=temporaries.decode_sent(shape, config, here),
        calls=work.chunks,
      ),
    ),
  )


def choices(config: Any, shape: Any, where: Slice) -> Iterator[Choice]:
  """All meshes of the slice that divide the model and the rows, each with all numbers of rows and lanes.

  Only the data axis spans several slices, so that only gradients cross the data centre's network. The number of cache
  rows per lane is the config's. The number of lanes is below twice a host's number of episodes.
  """
  length, chunk_ = max(config.learner.row_lengths), config.learner.logprob_chunk
  r = config.rollout
  spare, episodes = r.rows // r.lanes, -(-r.prompts_per_step * r.group_size * HOST // where.chips)
  for axes in meshes(where.chips):
    if (
      shape.num_kv_heads % axes.tensor
      or shape.d_model % axes.fsdp
      or length % (128 * axes.sequence)
      or axes.data % where.slices
    ):
      continue
    chunk = max(1, min(chunk_, SLAB // (axes.fsdp * axes.tensor)))
    for rows in ROWS:
      for lanes in (n for n in LANES if n < 2 * episodes):  # a host's
        yield Choice(axes, rows * axes.shares, lanes, lanes * spare, chunk)


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
  where: Slice,
  *,
  margin: float,
  fill: float = 0.5,
  drawn: float = 0.5,
  refused: frozenset[Choice] = frozenset(),
) -> tuple[Choice, Report] | None:
  """The fitting choice with the shortest step, and its report; None if no choice fits.

  Among steps that are equal within EQUAL, it takes the choice with the least time in collectives, because the roofline
  assumes that collectives overlap with other work.

  Args:
    config: the run's config.
    shape: a DecoderConfig.
    where: the run's chips.
    margin: share of a chip's memory to leave free, for memory that the arithmetic does not count.
    fill, drawn: as for `workload.load`.
    refused: choices that are known not to fit.
  """
  room = (1 - margin) * chips.of(where.topology).hbm
  made = load_lib.load(config, fill=fill, drawn=drawn)
  fitting = [
    (choice, _joined(choice.rows, shape, where, made, choice.axes, learner, engine))
    for choice, learner, engine in _parts(config, shape, where, made)
    if _needed(learner, engine) <= room and choice not in refused
  ]
  if not fitting:
    return None
  steps = [report.step_s for _, report in fitting]
  equals = [one for one, step in zip(fitting, steps) if step <= EQUAL * min(steps)]
  return min(equals, key=lambda one: (_interconnect(one[1]), one[1].needed))


def least(config: Any, shape: Any, where: Slice) -> float:
  """Smallest number of bytes per chip over all choices, however long their steps take."""
  return min(_needed(*parts) for _, *parts in _parts(config, shape, where, load_lib.load(config)))


def _parts(config, shape, where, made):
  """Yields (choice, learner's part, engine's part) for all choices; each part is computed once."""
  settings = settings_lib.from_config(config)
  learners: dict[Any, _Part] = {}
  engines: dict[Any, _Part] = {}
  light = _light(config.to_dict())
  for choice in choices(config, shape, where):
    mine, theirs = (choice.axes, choice.micro_rows), (choice.axes.here(HOST), choice.lanes)
    if mine not in learners:
      light.learner.micro_rows, light.learner.logprob_chunk = choice.micro_rows, choice.logprob_chunk
      learners[mine] = _learner(light, shape, where, made, settings, choice.axes)
    if theirs not in engines:
      light.rollout.lanes, light.rollout.rows = choice.lanes, choice.rows
      engines[theirs] = _engine(light, shape, where, made, theirs[0])
    yield choice, learners[mine], engines[theirs]


def _light(values):
  """The config as plain objects, whose values can be set quickly: thousands of choices are tried."""
  return types.SimpleNamespace(**{name: _light(x) if isinstance(x, dict) else x for name, x in values.items()})


def _needed(learner, engine):
  return learner.stays + engine.stays + max(learner.room, engine.room)


def _interconnect(report):
  """Seconds per step in collectives, if they do not overlap with other work."""
  return sum(one.calls * one.sent for one in report.programs) / report.chip.interconnect
