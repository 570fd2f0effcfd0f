"""Estimates a run's memory and time on given chips by arithmetic, without compiling its programs."""

import dataclasses
import functools
from typing import Any

import scale_temporaries as temporaries

from ragrl_jax import settings as run_settings
from ragrl_jax.learner import settings as settings_lib
from ragrl_jax.models import cache as cache_lib
from ragrl_jax.parallel import mesh as mesh_lib
from ragrl_jax.plan import chips, gpus, memory, workload as load_lib
from ragrl_jax.plan.memory import Axes
from ragrl_jax.plan.summary import VALUES, Conversation, Program, Report
from ragrl_jax.settings import MAX_PROMPTS

TPUS = 4  # chips per TPU host, as libtpu counts hosts


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
    return gpus.hosts(self.topology)[1] if gpus.is_gpu(self.topology) else min(TPUS, self.chips)

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


def estimate(config: Any, shape: Any, where: Slice, *, fill: float = 0.5, drawn: float = 0.5) -> Report:
  """The report that `plan.compiled.check` would give for this config, estimated by arithmetic.

  It assumes bf16 matmuls with float32 master weights, remat, AdamW, and that all parameters are trained.

  Args:
    config: the run's config; config.mesh must not contain -1.
    shape: a DecoderConfig.
    where: the run's chips.
    fill, drawn: as for `workload.load`.
  """
  axes, settings = Axes(**config.mesh.to_dict()), settings_lib.from_config(run_settings.of(config))
  load = load_lib.load(config, fill=fill, drawn=drawn)
  return joined(
    config,
    config.rollout.rows,
    shape,
    where,
    load,
    axes,
    learner_part(config, shape, where, load, settings, axes),
    engine_part(config, shape, where, load),
  )


def engine_axes(config: Any, each: int, hosts: int = 1) -> Axes:
  """An engine's mesh on `hosts` hosts of `each` chips: replicas on "data", the chips of a replica on "tensor".

  Raises:
    ValueError: config.rollout.mesh does not fill whole hosts.
  """
  mesh = config.rollout.mesh
  size = mesh_lib.engine_size(each, hosts, replicas=mesh.replicas, tensor=mesh.tensor)
  return Axes(data=size // mesh.tensor, tensor=mesh.tensor)


def cached_tokens(config: Any, replicas: int) -> int:
  """Capacity of the cache of one replica, in tokens."""
  r = config.rollout
  full = (-(-r.rows // replicas) + MAX_PROMPTS) * -(-r.context // r.page)
  return (-(-r.pages // replicas) or full) * r.page


def cache_layout(shape: Any, config: Any, topology: str, tensor: int) -> cache_lib.Layout:
  """The layout of the engine's cache on these TPUs or GPUs, with bf16 matmuls and `tensor` chips per replica."""
  r, platform = config.rollout, "gpu" if gpus.is_gpu(topology) else "tpu"
  return cache_lib.layout(shape, r.page, "bfloat16", platform, tensor, kv_dtype=r.kv_dtype)


def of_learner(shape: Any, axes: Axes, *, reference: bool, critic: bool) -> dict[str, float]:
  """Bytes that the learner keeps on a chip, by name: float32 master weights, AdamW's two moments, the gradient.

  The parameters that a run starts from become the state's (`Learner.init`), or they are the reference. There is one
  gradient at a time, of the policy or of the critic, and only while the learner works.

  Args:
    shape: a DecoderConfig; all parameters are trained.
    axes: the mesh.
    reference: whether there is a frozen policy: the initial parameters.
    critic: whether the critic has its own decoder.
  """
  mine = memory.counted(shape, axes).all
  result = {"learner": 12.0 * mine}
  if reference:
    result["reference"] = 4.0 * mine
  if critic:
    mine += shape.d_model + 1
    result["critic"] = 12.0 * mine
  return result | {memory.GRADIENT: 4.0 * mine}


def of_engine(shape: Any, config: Any, here: Axes, cache: cache_lib.Layout) -> dict[str, float]:
  """Bytes that an engine keeps on a chip, by name: bf16 weights with float32 norms and biases, and the cache.

  Args:
    shape: a DecoderConfig.
    config: the run's config.
    here: the engine's mesh, see `engine_axes`.
    cache: its layout.
  """
  return {
    "engine: weights": memory.of_weights(shape, here),
    "engine: cache": cached_tokens(config, here.data) * cache.token_bytes / here.tensor,
  }


@dataclasses.dataclass(frozen=True)
class Part:
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
    return max(program.temporaries for program in self.programs) + self.resident.get(memory.GRADIENT, 0.0)


def joined(
  config: Any, rows: int, shape: Any, where: Slice, made: load_lib.Load, axes: Axes, learner: Part, engine: Part
) -> Report:
  """The report of the two parts.

  Args:
    config, shape, where: as for `estimate`.
    rows: cache rows per engine.
    made: the tokens of a step.
    axes: sizes of the learner's mesh.
    learner, engine: see `learner_part` and `engine_part`.
  """
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
    memory.fewest_hosts(shape, where.host, where.hosts, chips.for_topology(where.topology).hbm - learner.stays),
  )


def learner_part(config: Any, shape: Any, where: Slice, made: load_lib.Load, settings: Any, axes: Axes) -> Part:
  """The learner's part, for a mesh of these sizes; `settings` are the learner's. For the others see `joined`."""
  cut = load_lib.blocks(config, shape, made)
  mine, whole = (memory.counted(shape, one).all for one in (axes, Axes()))
  traffic = load_lib.train_bytes(
    shape, dataclasses.asdict(axes), temporaries.chip_tokens(config, axes), width=2, remat=True, parameters=whole
  )
  # Only the data axis spans islands. The gradient is summed within each first. Then each chip's part is scattered over
  # the islands and gathered, so that a chip sends it, mine · h / data, 2 (h - 1) / h times over h islands.
  between = 2 * 4.0 * mine * (where.islands - 1) / axes.data
  result = [
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
  result.append(update)
  critic = settings.critic.kind == "own"
  if critic:
    result += [
      dataclasses.replace(
        result[0],
        name="learner critic: accumulate",
        sent=temporaries.accumulate_sent(shape, config, axes, head=False),
        temporaries=temporaries.accumulate_room(shape, config, axes, head=False),
      ),
      dataclasses.replace(update, name="learner critic: apply"),
    ]
  passes = {"learner: score": settings.scores_old + settings.needs_reference, VALUES: settings.critic.kind != "none"}
  for name, number in passes.items():
    if number:
      result.append(
        Program(
          name,
          0.0,
          temporaries.score_room(shape, config, axes, head=name != VALUES),
          flops=cut.forward / axes.size,
          hbm=traffic / 4,
          sent=temporaries.score_sent(shape, config, axes, head=name != VALUES),
          calls=number * cut.count // settings.epochs,
        )
      )
  stays = of_learner(shape, axes, reference=settings.needs_reference, critic=critic)
  return Part(stays, tuple(result), load_lib.passes(settings) * cut.whole / axes.size)


def engine_part(config: Any, shape: Any, where: Slice, made: load_lib.Load) -> Part:
  """The engine's part. For the arguments see `joined`."""
  here, r = engine_axes(config, where.host, where.hosts), config.rollout
  layout = cache_layout(shape, config, where.topology, here.tensor)
  stays = of_engine(shape, config, here, layout)
  work = load_lib.engine(
    config,
    shape,
    made,
    where.chips // here.size,
    replicas=here.data,
    weights=stays["engine: weights"],
    cache=stays["engine: cache"],
    tokens=cached_tokens(config, here.data),
    passes=layout.passes,
  )
  tokens = load_lib.PREFILL_ROWS * r.prefill
  # A replica over several islands also sends everything over the data centre's network.
  far = here.tensor > where.chips // where.islands
  fill_sent, chunk_sent = temporaries.extend_sent(shape, here, tokens), temporaries.decode_sent(shape, config, here)
  return Part(
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
    conversation=load_lib.conversation(config, made, layout, here),
    span=here.size // where.host,
  )


def needed(learner: Part, engine: Part, together: bool) -> float:
  """`Report.needed` of the two parts, in bytes per chip; `together`: the engine samples while the learner trains."""
  if together:
    gradient = learner.resident[memory.GRADIENT]
    return learner.stays + engine.stays + max(learner.room, gradient + engine.room)
  return learner.stays + max(engine.stays + engine.room, learner.room)


def interconnect(report: Report) -> float:
  """Seconds per step in collectives, if they do not overlap with other work."""
  return sum(program.calls * program.sent for program in report.programs) / report.chip.interconnect
