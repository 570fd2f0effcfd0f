"""The best mesh of a slice by arithmetic, and what it is said to need."""

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
ROWS = (1, 2, 4)  # of a block, on a chip's share
HOST = 4  # chips that libtpu counts for a host
EQUAL = 1.02
SLAB = 16_384  # tokens whose hidden states come together for the head: config.learner.logprob_chunk by chip


@dataclasses.dataclass(frozen=True)
class Slice:
  """Chips that are rented together.

  Attributes:
    topology: "v5e:16x16".
    chips: of all slices.
    slices: of that topology, joined by the data centre's network.
  """

  topology: str
  chips: int
  slices: int = 1


@dataclasses.dataclass(frozen=True)
class Choice:
  """What a run is free to set without changing what it learns from."""

  axes: Axes
  micro_rows: int
  lanes: int
  rows: int
  logprob_chunk: int

  def into(self, config: Any) -> Any:
    """The config with these settings."""
    config.mesh.update(dataclasses.asdict(self.axes))
    config.learner.update(dict(micro_rows=self.micro_rows, logprob_chunk=self.logprob_chunk))
    config.rollout.update(dict(lanes=self.lanes, rows=self.rows))
    return config


def estimate(config: Any, shape: Any, where: Slice, *, fill: float = 0.5, drawn: float = 0.5) -> Report:
  """What `compile_check.check` would report of this config, by arithmetic.

  For bf16 matmuls over float32 masters, remat, AdamW, every parameter trained.

  Args:
    config: of the run, its mesh without a -1.
    shape: a DecoderConfig.
    where: its chips.
    fill, drawn: as for `load.load`.
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
  """The learner's or the engine's share of a report."""

  resident: dict[str, float]
  programs: tuple[Program, ...]
  needed_flops: float = 0.0

  @functools.cached_property
  def stays(self) -> float:
    return sum(self.resident.values())

  @functools.cached_property
  def room(self) -> float:
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
  # Data lies across slices, nothing else does: the gradient is added up within each, and every chip sends its part on.
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
  tokens = load_lib.EXTENDED * r.prefill
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
  """Every mesh of the slice that the model and the rows can be cut by, with every number of rows and lanes.

  Several slices are joined along data: gradients cross the data centre's network, nothing else does. As many rows a
  lane as the config has, and not many more lanes than a host has episodes.
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
  """All of them, for a number of chips that is a power of two."""
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
  """The choice with the shortest step of those that fit; None if none does.

  Of those that are as short within EQUAL, the one whose collectives take least: where they hide behind work the
  roofline does not see them.

  Args:
    config: of the run.
    margin: share of a chip's memory that is left free, for what the arithmetic does not see.
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
  """Bytes a chip of the choice that needs least, however long it takes."""
  return min(_needed(*parts) for _, *parts in _parts(config, shape, where, load_lib.load(config)))


def _parts(config, shape, where, made):
  """Every choice with its learner's and its engine's part, each computed once."""
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
  """A config that is quick to change: thousands of choices are looked at."""
  return types.SimpleNamespace(**{name: _light(x) if isinstance(x, dict) else x for name, x in values.items()})


def _needed(learner, engine):
  return learner.stays + engine.stays + max(learner.room, engine.room)


def _interconnect(report):
  """Seconds a step spends in collectives if they hide behind nothing."""
  return sum(one.calls * one.sent for one in report.programs) / report.chip.interconnect
