"""Compiles a run's programs for TPUs or GPUs that this machine lacks. Reports memory, traffic and the shortest time.

Nothing runs, and no weights are needed. Sizes come from the config and the model's shape, memory and collectives from
the compiler, operations and HBM traffic from `plan/workload.py`.
"""

import dataclasses
import math
import time
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ragrl_jax import config as config_lib
from ragrl_jax.engine import loader, programs, sizes as sizes_lib, stops
from ragrl_jax.learner import flops, learner, row_layout, settings as settings_lib, step
from ragrl_jax.learner.trained import Trained
from ragrl_jax.models import cache as cache_lib, hub, lora, weights
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import STREAM, Decoder
from ragrl_jax.models.shapes import SHAPES
from ragrl_jax.parallel import mesh as mesh_lib, rules
from ragrl_jax.plan import aot, chips, gpu_kernels, index as index_lib, memory, switch, workload as load_lib
from ragrl_jax.plan.memory import GRADIENT, Axes
from ragrl_jax.plan.summary import VALUES, Conversation, Program, Report
from ragrl_jax.settings import PREFILL_ROWS, Settings, fields
from ragrl_jax.structs import Batch, TeacherRows

READ = ("tokens", "positions", "until", "states")  # a batch's arrays of the rows' length
KINDS = dict.fromkeys((*READ, "segment_ids", "places"), jnp.int32) | dict(loss_mask=jnp.bool_)
STATES = 64  # assumed number of states of the stop automaton; its table is small


def check(
  config,
  topology: str,
  *,
  slices: int = 1,
  shape: str = "",
  fill: float = 0.5,
  drawn: float = 0.5,
  only: tuple[str, ...] = (),
  index: index_lib.Index | None = None,
) -> Report:
  """Compiles all programs that a run with this config executes on these TPUs or GPUs.

  Args:
    config: the run's config; config.mesh must fit the devices.
    topology: such as "v5e:16x16", or "h200:2x8" for two hosts of eight GPUs.
    slices: number of slices of that topology, connected by the data centre's network.
    shape: a key of SHAPES. If empty, the shape of config.model.path's config.json, or else config.model.shape.
    fill: mean number of tokens of an episode, divided by config.rollout.context.
    drawn: share of these tokens that the model samples.
    only: names of programs to compile; all if empty. The report leaves out the others.
    index: a dense index that is split over the chips of every host; None for none. Each episode searches once.

  Raises:
    ValueError: an invalid config or topology; the message says why.
    gpus.CompilerMissing: the compiler is not installed.
  """
  chips.for_topology(topology)  # checked before a compiler for another kind of chip is requested
  config = config_lib.validate(config)
  model_shape = shape_of(config, shape)
  devices = aot.devices(topology, slices)
  mesh = mesh_lib.make(devices, **vars(config.mesh))
  blocks = dict(micro_rows=config.learner.micro_rows, row_lengths=config.learner.row_lengths)
  heads = dict(heads=model_shape.num_heads, kv_heads=model_shape.num_kv_heads)
  rules.check(mesh.shape, **heads, vocab=model_shape.vocab_size, **model_shape.parts, **blocks)
  model = abstract_model(config, model_shape, mesh)
  hosts = len({device.process_index for device in devices})
  span = mesh_lib.engine_size(len(devices) // hosts, hosts, **vars(config.rollout.mesh)) * hosts // len(devices)
  inside = mesh.local_mesh.shape if span == 1 else dict(tensor=-1, data=1)
  own_mesh = mesh if hosts == span else mesh_lib.make(aot.devices(aot.of_hosts(topology, span)), **inside)
  compiled = _Compiler(config, mesh, own_mesh, model, model_shape, load_lib.load(config, fill=fill, drawn=drawn), only)
  compiled.engine()
  of_engine = compiled.programs, compiled.resident
  compiled.programs, compiled.resident = [], {}
  model.room = spare(model, mesh, topology, sum(of_engine[1].values()))
  compiled.learner()
  stays = sum(size for name, size in compiled.resident.items() if name != GRADIENT)
  compiled.programs, compiled.resident = compiled.programs + of_engine[0], compiled.resident | of_engine[1]
  if index is not None:
    compiled.index(index, list(own_mesh.devices.flat) if span == 1 else aot.devices(aot.of_hosts(topology)))
  if not only or switch.NAME in only:
    compiled.programs.append(switch.program(model, config.rollout, mesh, own_mesh))
  assert compiled.conversation is not None  # `engine` counts it, whatever is compiled
  room = chips.for_topology(topology).hbm - stays
  return Report(
    topology=topology,
    slices=slices,
    devices=len(devices),
    hosts=hosts,
    mesh=dict(mesh.shape),
    parameters=_count(nnx.state(model)),
    resident=compiled.resident,
    programs=tuple(compiled.programs),
    rows=config.rollout.rows,
    tokens=compiled.load.tokens,
    needed_flops=compiled.needed_flops,
    together=config.rollout.ahead > 0,
    conversation=compiled.conversation,
    span=span,
    fewest=memory.fewest_hosts(model_shape, len(devices) // hosts, hosts, room),
    partial=bool(only),
    base=compiled.base,
  )


def shape_of(config: Settings, name: str) -> DecoderConfig:
  """The model's shape, without its weights.

  Raises:
    ValueError: the name is not in SHAPES.
  """
  if name:
    if name not in SHAPES:
      raise ValueError(f"shape {name!r}: it must be one of {', '.join(SHAPES)}.")
    return SHAPES[name]
  if config.model.path:
    return weights.config_of(hub.folder(config.model.path, "config.model.path", part="config"))
  return DecoderConfig.from_shape(151_936, **fields.plain(config.model.shape))


def abstract_model(config: Settings, shape: DecoderConfig, mesh: jax.sharding.Mesh) -> Decoder:
  """The decoder with its adapters, made of ShapeDtypeStructs."""
  settings = config.model

  def make():
    dtypes = dict(param_dtype=jnp.dtype(settings.param_dtype), dtype=jnp.dtype(settings.dtype))
    result = Decoder(shape, rngs=nnx.Rngs(0), remat=settings.remat, **dtypes)
    if settings.lora.rank:
      lora.add(result, rank=settings.lora.rank, alpha=settings.lora.alpha, layers=settings.lora.layers, seed=0)
    elif settings.lora.path:
      lora.add_zeros(result, hub.folder(settings.lora.path, "config.model.lora.path", part="config"))
    return result

  model = nnx.eval_shape(make)
  model.mesh = mesh
  return model


def spare(model: Decoder, mesh: jax.sharding.Mesh, topology: str, beside: int) -> int:
  """`Decoder.room` in a run on these devices, beside so many bytes of an engine."""
  if mesh.size > 1 or mesh.devices.flat[0].platform != "gpu":
    return 0
  all_bytes, trained = (
    aot.on_chip(rules.place(mesh, x)) for x in (nnx.state(model), nnx.state(model, lora.trainable(model)))
  )
  # Beside the trained parameters: their gradient and two moments.
  return max(0, round(chips.JAX_SHARE * chips.for_topology(topology).memory) - all_bytes - 3 * trained - beside) // 2


class _Compiler:
  """Compiles one program after the other, and collects the resident bytes by name."""

  def __init__(self, config: Settings, mesh, here, model, shape, load, only):
    self.config, self.mesh, self.here, self.model = config, mesh, here, model
    self.shape, self.load, self.only = shape, load, only
    self.programs: list[Program] = []
    self.resident: dict[str, int] = {}
    self.conversation: Conversation | None = None
    self.needed_flops, self.base = 0.0, 0

  def add(self, name: str, lower, *, calls: int, work: float, hbm: float, turns: int = 1, pages: float = 0.0) -> None:
    """Compiles one program and appends it to `programs`.

    Args:
      calls: number of calls in a training step.
      work: operations of a call, on all chips together.
      hbm: bytes of HBM traffic of a call, on one chip.
      turns: number of iterations of its outermost loop, if the program's text does not give it.
      pages: bytes of a call that attention reads through page tables, on one chip.
    """
    if self.only and name not in self.only:
      return
    start = time.perf_counter()
    try:
      compiled = lower().compile()
    except jax.errors.JaxRuntimeError as error:
      self.programs.append(Program(name, time.perf_counter() - start, calls=calls, error=aot.refused(error)))
      return
    seconds = time.perf_counter() - start
    text = compiled.as_text()
    sent = [dataclasses.replace(one, times=one.times * (turns if one.loops else 1)) for one in aot.collectives(text)]
    devices = self.mesh.size if name.startswith("learner") else self.here.size
    if self.mesh.devices.flat[0].platform == "gpu":
      links = self._on_gpus(text, sent, turns, pages, devices)
    else:
      links = dict(dcn=float(aot.between_slices(text)))
    counts = aot.measured(compiled, sent) | links
    self.programs.append(Program(name, seconds, flops=work / devices, hbm=hbm, calls=calls, turns=turns, **counts))

  def _on_gpus(self, text: str, moved: list[aot.Collective], turns: int, pages: float, devices: int) -> dict[str, Any]:
    """A program's traffic between hosts of GPUs, from the groups of its collectives, its launches and its bytes."""
    crossing: dict[str, int] = {}
    network, each = 0.0, self.mesh.local_mesh.size
    for one in moved:
      if sent := aot.between_hosts(one.kind, one.bytes, one.groups, each, devices):
        crossing[one.kind] = crossing.get(one.kind, 0) + one.times
        network += sent * one.times
    counts = gpu_kernels.counted(text, turns)
    return dataclasses.asdict(counts) | dict(dcn=network, crossing=crossing, moved=counts.moved + pages)

  def learner(self) -> None:
    """Compiles the learner's programs."""
    config, mesh = self.config, self.mesh
    settings, taught = settings_lib.from_config(config), config.loss.teacher
    teacher = None
    if taught.local:
      shape = weights.config_of(hub.folder(taught.path, "config.loss.teacher.path", part="config"))
      frozen = {"model.param_dtype": config.model.dtype, "model.remat": False}  # see `teaching.load`
      frozen |= {"model.lora.rank": 0, "model.lora.path": ""}
      shape = dataclasses.replace(shape, vocab_size=self.shape.vocab_size)
      teacher = abstract_model(fields.replaced(config, frozen), shape, mesh)
      teacher.room = self.model.room
    built = learner.Learner(
      self.model,
      settings,
      settings_lib.optimizer_from_config(config),
      mesh=mesh,
      reference=rules.place(mesh, nnx.state(self.model, lora.trainable(self.model))),
      teacher=teacher,
    )
    cut = load_lib.blocks(config, self.shape, self.load)
    block = self._block(cut.rows, cut.length, settings_lib.sharing(config, self.shape, mesh))
    remat = cut.forward * bool(config.model.remat)
    shape_of_teacher = self.shape if teacher is None else teacher.config
    of_teacher = flops.teacher(shape_of_teacher, settings, **self.load.sizes)
    operations = load_lib.needed(self.shape, settings, cut, self.load, built.adapters)
    self.needed_flops = (operations + of_teacher) / mesh.size
    chip_tokens = cut.rows * cut.length / (mesh.shape["data"] * mesh.shape["fsdp"] * mesh.shape["sequence"])

    trained = dict(learner=built.trained) | ({} if built.critic is None else {"learner critic": built.critic})
    for name, model in trained.items():
      work = 3 * cut.forward + remat
      if built.adapters and model is built.trained:
        work += 6.0 * built.adapters * cut.rows * cut.length - cut.matrices
      arguments = self._taught(built, block) if taught.in_loss and model is built.trained else ()
      self._trained(name, model, block, *arguments, calls=(cut.count, cut.updates), work=work, tokens=chip_tokens)
    hbm = self._train_bytes(chip_tokens, _count(built.trained.params)) / 4
    passes = dict(calls=cut.count // settings.epochs, work=cut.forward, hbm=hbm)
    scores = settings.scores_old + settings.needs_reference + config.advantage.informs
    if settings.needs_reference:
      self.resident["reference"] = aot.on_chip(built.trained.params)
    if built.teacher is not None:
      if teacher is not None:
        self.resident["teacher"] = aot.on_chip(built.teacher.params)
      calls = cut.count if taught.in_loss else passes["calls"]
      program = built.teacher.states if taught.in_loss else built.teacher.scores
      self.add(
        "learner: teacher",
        lambda: program.lower(*self._read(built, block)),
        **passes | dict(calls=calls, work=of_teacher / max(calls, 1)),
      )
    if scores:
      self.add(
        "learner: score",
        lambda: built._score.lower(built.trained.params, built.trained.frozen, block),
        **passes | dict(calls=scores * passes["calls"]),
      )
    if settings.critic.kind != "none":
      critic = built.critic or built.trained
      self.add(VALUES, lambda: built._values.lower(critic.params, critic.frozen, block), **passes)

  def _read(self, made: Any, block: Batch) -> tuple[Any, Batch, TeacherRows | None]:
    """What the teacher's programs are called with. Prompts that only it reads are counted as half a row."""
    if made.teacher.params is not None:
      return made.teacher.params, block, None
    rows, length = block.tokens.shape
    array = lambda n: jax.ShapeDtypeStruct((rows, n), jnp.int32, sharding=rules.batch_sharding(self.mesh))
    wide = array(length + length // 2)
    return (made.trained.params, made.trained.frozen), block, TeacherRows(wide, wide, wide, array(length))

  def _taught(self, made: Any, block: Batch) -> tuple[Any]:
    """The argument of `accumulate` that comes from a teacher."""
    params, *read = self._read(made, block)
    hidden, head = jax.eval_shape(made.teacher, *read, params)
    at = jax.sharding.NamedSharding(self.mesh, rules.activation(self.mesh, STREAM, hidden.shape))
    hidden = jax.ShapeDtypeStruct(hidden.shape, hidden.dtype, sharding=at)
    return ((hidden, rules.place(self.mesh, {"embedding": head})["embedding"]),)

  def _trained(self, name: str, trained: Trained, block: Batch, *args, calls, work: float, tokens: float) -> None:
    """Compiles `accumulate` and `apply` of one model, and adds its resident bytes."""
    replicated = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())
    number = lambda *size: jax.ShapeDtypeStruct(size, jnp.float32, sharding=replicated)
    state = rules.place(self.mesh, jax.eval_shape(lambda p: trained.init(p, 0), trained.params))
    sums = dict.fromkeys(("loss",) if "critic" in name else step.SUMS, number())
    grads = state.params
    self.resident |= {
      f"{name}: parameters": aot.on_chip(state.params) + aot.on_chip(trained.frozen),
      f"{name}: moments": aot.on_chip(state.opt_state),
      GRADIENT: max(aot.on_chip(grads), self.resident.get(GRADIENT, 0)),  # one at a time
    }
    self.add(
      f"{name}: accumulate",
      lambda: trained.accumulate.lower(
        grads, sums, state.params, trained.frozen, block, number(2), state.kl_coef, *args
      ),
      calls=calls[0],
      work=work,
      hbm=self._train_bytes(tokens, _count(state.params)),
    )
    self.add(
      f"{name}: apply",
      lambda: trained.apply.lower(state, grads, sums),
      calls=calls[1],
      work=0.0,
      hbm=7.0 * aot.on_chip(grads),
    )

  def _block(self, rows: int, length: int, sharing: row_layout.Sharing | None) -> Batch:
    at, scored = rules.batch_sharding(self.mesh), length * (sharing.entries if sharing else 1)
    array = lambda n, dtype: jax.ShapeDtypeStruct((rows, n), dtype, sharding=at)
    names = [field.name for field in dataclasses.fields(Batch)]
    fields = {n: array(length if n in READ else scored, KINDS.get(n, jnp.float32)) for n in names}
    fields["routes"] = None
    if self.shape.num_experts:
      size = rows, length, self.shape.num_layers * self.shape.experts_per_token
      fields["routes"] = jax.ShapeDtypeStruct(size, jnp.int16, sharding=at)
    return Batch(**fields | ({} if sharing else dict(until=None, states=None, places=None)))

  def _train_bytes(self, tokens: float, parameters: int) -> float:
    settings = self.config.model
    how = dict(width=jnp.dtype(settings.dtype).itemsize, remat=bool(settings.remat), parameters=parameters)
    return load_lib.train_bytes(self.shape, self.mesh.shape, tokens, **how)

  def engine(self) -> None:
    """Compiles one engine, which has the devices of one or several hosts, and its share of the episodes.

    The programs are compiled for a slice of these hosts: ahead of time, libtpu refuses programs for a part of a slice.
    """
    config, c = self.config, self.shape
    r, engines = config.rollout, self.mesh.size // self.here.size
    engine_mesh = mesh_lib.of_engine(self.here, **vars(r.mesh))
    sizes = sizes_lib.from_settings(r, engine_mesh)
    sizes_lib.check_model(c.num_kv_heads, c.vocab_size, engine_mesh.shape["tensor"], **c.parts)
    graphdef, params = nnx.split(nnx.merge(*nnx.split(self.model)))
    dtype = jnp.dtype(config.model.dtype)
    caster = loader.Caster(dtype, c, engine_mesh, own=True)
    weights, self.base = caster.abstract(params), aot.on_chip(caster.abstract(lora.split(self.model)[2]))
    at, pages = programs.Programs.cache_sharding(engine_mesh), sizes.cache_pages * sizes.replicas
    platform, tensor = engine_mesh.devices.flat[0].platform, engine_mesh.shape["tensor"]
    layout = cache_lib.layout(c, sizes.page, dtype, platform, tensor, kv_dtype=sizes.kv_dtype)
    layout.check(sizes.cache_pages, tensor)
    self.conversation = load_lib.conversation(config, self.load, layout, Axes(data=sizes.replicas, tensor=tensor))
    cache = jax.eval_shape(lambda: layout.allocate(pages, slots=sizes.slots * sizes.replicas))
    cache = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), cache)
    table = stops.Table(
      jnp.zeros((STATES, c.vocab_size), jnp.uint8),
      jnp.zeros((STATES,), jnp.int32),
      jnp.full((STATES, 1), -1, jnp.int32),
    )
    options = dict(chunk=r.chunk, speculate=r.speculate, routes=c.num_layers * c.experts_per_token)
    compiled = programs.Programs(graphdef, table, layout, **options, mesh=engine_mesh)
    held, cache_bytes = aot.on_chip(weights), aot.on_chip(cache)
    self.resident |= {"engine: weights": held, "engine: cache": cache_bytes}
    split = jax.sharding.NamedSharding(engine_mesh, programs.SPLIT)
    ints = lambda rows, *size: jax.ShapeDtypeStruct((rows * sizes.replicas, *size), jnp.int32, sharding=split)
    paged = dict(cache=aot.on_chip(cache[: layout.paged]), tokens=sizes.cache_pages * sizes.page, passes=layout.passes)
    work = load_lib.engine(config, c, self.load, engines, replicas=sizes.replicas, weights=held, **paged)
    remembered = 2 * layout.memory_bytes / tensor  # a step reads and writes a lane's
    fill = dict(work=work.fill_flops, hbm=work.fill_bytes + PREFILL_ROWS * remembered, pages=work.fill_bytes - held)
    widest, *narrower = sizes.widths.items()
    for name, calls, (width, n) in zip(("prefill", "extend"), (work.fills, 0), (widest, *narrower[-1:])):
      arguments = ints(n, width), ints(n, 3), ints(n, sizes.table)
      self.add(
        f"engine: {name}",
        lambda arguments=arguments: compiled.extend.lower(weights, cache, *arguments),
        calls=calls,
        **fill,
      )
    lanes = sizes.lanes // sizes.replicas
    self.add(
      "engine: decode",
      lambda: compiled.decode.lower(weights, cache, ints(lanes, sizes.columns), ints(lanes, sizes.table), ints(1, 2)),
      calls=work.chunks,
      work=work.chunk_flops,
      hbm=work.chunk_bytes + r.chunk * lanes * remembered,
      turns=r.chunk,
      pages=work.chunk_bytes - r.chunk * held,
    )

  def index(self, index: index_lib.Index, devices: list[jax.Device]) -> None:
    """Compiles the search of an index whose vectors are split over these devices, all of one host."""
    engines = self.mesh.size // self.here.size
    self.resident[index_lib.VECTORS] = index.bytes(devices)
    if not self.only or index_lib.SEARCH in self.only:
      calls = math.ceil(self.load.episodes / engines / index.queries)
      self.programs.append(index_lib.search(index, devices, calls=calls))


def _count(tree: Any) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(tree))
