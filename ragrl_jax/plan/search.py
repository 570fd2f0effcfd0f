"""Searches the best mesh of TPUs or GPUs by arithmetic, and estimates a run's memory and time on it."""

import dataclasses
import functools
import math
import types
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from ragrl_jax.learner import settings as settings_lib
from ragrl_jax.models import cache as cache_lib
from ragrl_jax.plan import chips, gpus, memory, temporaries
from ragrl_jax.plan import workload as load_lib
from ragrl_jax.plan.memory import Axes
from ragrl_jax.plan.summary import Conversation, Program, Report

LANES = (4, 8, 16, 32, 64, 128, 256, 512)
TENSOR = (1, 2, 4, 8)  # devices per replica of an engine
ROWS = (1, 2, 4)  # rows of a block per share of data and fsdp
TPUS = 4  # chips per TPU host, as libtpu counts hosts
EQUAL = 1.02  # steps whose times differ by less than this factor count as equal
SPARE = 1.2  # size of the cache, relative to that for conversations of the mean length
SLAB = 16_384  # largest number of tokens gathered for the head; limits config.learner.logprob_chunk times tensor · fsdp


@dataclasses.dataclass(frozen=True)
class Slice:
  """The chips of a run.

  Attributes:
    topology: topology of one slice, such as "v5e:16x16", or of all GPUs, such as "h200:2x8".
    chips: number of chips in all slices.
    slices: number of slices of TPUs, connected by the data centre's network.
  """

  topology: str
  chips: int
  slices: int = 1

  @functools.cached_property
  def host(self) -> int:
    """Number of chips of a host."""
    return gpus.hosts(self.topology)[1] if gpus.is_gpu(self.topology) else TPUS

  @functools.cached_property
  def hosts(self) -> int:
    """Number of hosts."""
    return self.chips // self.host

  def spans(self, tensor: int) -> int:
    """Hosts of an engine with `tensor` chips per replica; 0 if a replica fits neither whole hosts nor a part of one."""
    span = max(1, tensor // self.host)
    return span if self.host * span % tensor == 0 and self.hosts % span == 0 else 0

  @functools.cached_property
  def islands(self) -> int:
    """Number of groups of chips that are connected only by the data centre's network: TPU slices, or hosts of GPUs."""
    return self.hosts if gpus.is_gpu(self.topology) else self.slices


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
    config,
    config.rollout.rows,
    shape,
    where,
    made,
    axes,
    _learner(config, shape, where, made, settings, axes),
    _engine(config, shape, where, made),
  )


@dataclasses.dataclass(frozen=True)
class _Part:
  """The learner's or the engine's part of a report."""

  resident: dict[str, float]
  programs: tuple[Program, ...]
  needed_flops: float = 0.0
  conversation: Conversation | None = None
  span: int = 1  # hosts per engine

  @functools.cached_property
  def stays(self) -> float:
    """Resident bytes on a chip, without the gradient."""
    return sum(size for name, size in self.resident.items() if name != memory.GRADIENT)

  @functools.cached_property
  def room(self) -> float:
    """Bytes for the largest temporaries of a program, and for the gradient."""
    return max(one.temporaries for one in self.programs) + self.resident.get(memory.GRADIENT, 0.0)


def _joined(config, rows, shape, where, made, axes, learner, engine):
  assert engine.conversation is not None  # the learner's part has none
  return Report(
    where.topology,
    where.slices,
    where.chips,
    where.hosts,
    dataclasses.asdict(axes),
    int(memory.counted(shape, Axes()).all),
    learner.resident | engine.resident,
    learner.programs + engine.programs,
    rows,
    made.tokens,
    learner.needed_flops,
    config.rollout.ahead > 0,
    engine.conversation,
    engine.span,
    memory.fewest_hosts(shape, where.host, where.hosts, chips.of(where.topology).hbm - learner.stays),
  )


def _learner(config, shape, where, made, settings, axes):
  cut = load_lib.blocks(config, shape, made)
  mine, whole = (memory.counted(shape, one).all for one in (axes, Axes()))
  traffic = load_lib.train_bytes(
    shape, dataclasses.asdict(axes), temporaries.chip_tokens(config, axes), width=2, remat=True, parameters=whole
  )
  # Only the data axis spans islands. The gradient is summed within each first, then each chip sends its part.
  between = 4.0 * mine * where.islands / axes.data * (where.islands > 1)
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


def _engine(config, shape, where, made):
  here, r = memory.engine_axes(config, where.host, where.hosts), config.rollout
  layout = memory.layout(shape, config, where.topology, here.tensor)
  stays = memory.of_engine(shape, config, here, layout)
  work = load_lib.engine(
    config,
    shape,
    made,
    where.chips // here.size,
    replicas=here.data,
    weights=stays["engine: weights"],
    cache=stays["engine: cache"],
    tokens=memory.cached_tokens(config, here.data),
    passes=layout.passes,
  )
  tokens = load_lib.PREFILL_ROWS * r.prefill
  # A replica over several islands also sends everything over the data centre's network.
  far = here.tensor > where.chips // where.islands
  fill_sent, chunk_sent = temporaries.extend_sent(shape, here, tokens), temporaries.decode_sent(shape, config, here)
  return _Part(
    stays,
    (
      Program(
        "engine: prefill",
        0.0,
        temporaries.extend_room(shape, here, tokens),
        flops=work.fill_flops / here.size,
        hbm=work.fill_bytes,
        sent=fill_sent,
        dcn=fill_sent * far,
        calls=work.fills,
      ),
      Program(
        "engine: decode",
        0.0,
        temporaries.decode_room(shape, config, here),
        flops=work.chunk_flops / here.size,
        hbm=work.chunk_bytes,
        sent=chunk_sent,
        dcn=chunk_sent * far,
        calls=work.chunks,
      ),
    ),
    conversation=conversation(config, made, layout, here),
    span=here.size // where.host,
  )


def conversation(config: Any, load: load_lib.Load, layout: cache_lib.Layout, here: Axes) -> Conversation:
  """Memory of a conversation of the mean length in a cache with this layout on the engine's mesh."""
  r, pages = config.rollout, load_lib.held(config, load)
  wide = dataclasses.replace(layout, dtype=jnp.dtype(jnp.bfloat16)).token_bytes
  most = layout.most(here.tensor)
  return Conversation(
    pages * r.page,
    pages * r.page * layout.token_bytes / here.tensor,
    r.context * wide / here.tensor,
    here.data,
    None if most is None else most // pages,
  )


def choices(config: Any, shape: Any, where: Slice, load: load_lib.Load) -> Iterator[Choice]:
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
  length, chunk_ = max(config.learner.row_lengths), config.learner.logprob_chunk
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
        most = memory.layout(shape, config, where.topology, tensor).most(tensor)
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
  where: Slice,
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
  room = (1 - margin) * chips.of(where.topology).hbm
  made = load_lib.load(config, fill=fill, drawn=drawn)
  fitting = [
    (choice, _joined(config, choice.rows, shape, where, made, choice.axes, learner, engine))
    for choice, learner, engine in _parts(config, shape, where, made)
    if _needed(learner, engine, config.rollout.ahead > 0) <= room and choice not in refused
  ]
  if not fitting:
    return None
  fewest = min(where.spans(choice.tensor) for choice, _ in fitting)
  fitting = [one for one in fitting if where.spans(one[0].tensor) == fewest]
  for seconds in (lambda report: report.step_s, lambda report: report.step_s + _interconnect(report)):
    steps = [seconds(report) for _, report in fitting]
    fitting = [one for one, step in zip(fitting, steps) if step <= EQUAL * min(steps)]
  return min(fitting, key=lambda one: (-one[1].conversations, _interconnect(one[1]), one[1].needed))


def least(config: Any, shape: Any, where: Slice) -> float:
  """Smallest number of bytes per chip over all choices, however long their steps take."""
  ahead = config.rollout.ahead > 0
  return min(_needed(*parts, ahead) for _, *parts in _parts(config, shape, where, load_lib.load(config)))


def _parts(config, shape, where, made):
  """Yields (choice, learner's part, engine's part) for all choices; each part is computed once."""
  settings = settings_lib.from_config(config)
  learners: dict[Any, _Part] = {}
  engines: dict[Any, _Part] = {}
  light = _light(config.to_dict())
  for choice in choices(config, shape, where, made):
    mine, theirs = (choice.axes, choice.micro_rows), (choice.tensor, choice.lanes)
    if mine not in learners:
      light.learner.micro_rows, light.learner.logprob_chunk = choice.micro_rows, choice.logprob_chunk
      learners[mine] = _learner(light, shape, where, made, settings, choice.axes)
    if theirs not in engines:
      light.rollout.lanes, light.rollout.rows, light.rollout.pages = choice.lanes, choice.rows, choice.pages
      light.rollout.mesh.tensor = choice.tensor
      engines[theirs] = _engine(light, shape, where, made)
    yield choice, learners[mine], engines[theirs]


def _light(values):
  """The config as plain objects, whose values can be set quickly: thousands of choices are tried."""
  return types.SimpleNamespace(**{name: _light(x) if isinstance(x, dict) else x for name, x in values.items()})


def _needed(learner, engine, together):
  """`Report.needed` of the two parts."""
  if together:
    gradient = learner.resident[memory.GRADIENT]
    return learner.stays + engine.stays + max(learner.room, gradient + engine.room)
  return learner.stays + max(engine.stays + engine.room, learner.room)


def _interconnect(report):
  """Seconds per step in collectives, if they do not overlap with other work."""
  return sum(one.calls * one.sent for one in report.programs) / report.chip.interconnect
