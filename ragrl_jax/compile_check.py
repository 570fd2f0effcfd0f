"""A run's programs compiled for TPU slices that are not there: what fits, what moves, how fast it could be at best.

Nothing is run and no weights are made: sizes come from the config and the model's shape, memory and collectives from
libtpu's compiler, floating-point operations from `learner/flops.py`, HBM traffic from `_Compiler.train_bytes`.
"""

import dataclasses
import math
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ragrl_jax import config as config_lib
from ragrl_jax.learner import flops, learner, step
from ragrl_jax.learner import settings as settings_lib
from ragrl_jax.learner.programs import Trained
from ragrl_jax.models import cache as cache_lib
from ragrl_jax.models import hf, lora
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.models.shapes import SHAPES
from ragrl_jax.parallel import aot, chips, rules
from ragrl_jax.parallel import mesh as mesh_lib
from ragrl_jax.rollout import programs, stops
from ragrl_jax.structs import Batch

KINDS = dict(loss_mask=jnp.bool_, tokens=jnp.int32, segment_ids=jnp.int32, positions=jnp.int32, group_ids=jnp.int32,
             prefix_ids=jnp.int32)
STATES = 64  # of a stop automaton of some size: what its table takes is little
MAX_PROMPTS = 8  # the engine's default: cache rows for the prompts of groups


@dataclasses.dataclass(frozen=True)
class Program:
  """One compiled program; memory in bytes a chip, work and traffic a call.

  Attributes:
    temporaries, peak: what it needs beside its arguments, and the most that lives at once with them.
    flops: a chip's share of what is computed, remat's second forward pass included.
    hbm: bytes a chip reads and writes at least.
    sent: bytes a chip sends and receives in collectives.
    collectives: kind → how many a call.
    calls: in one training step.
    error: why it does not compile; "" if it does.
  """

  name: str
  compile_s: float
  temporaries: int = 0
  peak: int = 0
  flops: float = 0.0
  hbm: float = 0.0
  sent: float = 0.0
  collectives: dict[str, int] = dataclasses.field(default_factory=dict)
  calls: int = 1
  error: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
  """What a slice has to hold and do for one run.

  Attributes:
    devices, hosts: of the slice.
    mesh: its axes' sizes.
    parameters: of the model.
    resident: what stays on a chip for the whole run, by name, in bytes.
    programs: all of them.
    rows: cache rows of a host.
    tokens: of one step's episodes, as they were assumed.
    needed_flops: a chip's share of the learner's work in a step, remat's second pass left out.
  """

  topology: str
  slices: int
  devices: int
  hosts: int
  mesh: dict[str, int]
  parameters: int
  resident: dict[str, int]
  programs: tuple[Program, ...]
  rows: int
  tokens: int
  needed_flops: float

  @property
  def chip(self) -> chips.Chip:
    return chips.of(self.topology)

  @property
  def peak(self) -> float:
    """bf16 operations a second of a chip."""
    return dict(flops.PEAKS)[self.topology.split(":")[0]]

  @property
  def needed(self) -> float:
    """Bytes a chip: all that is resident, and the temporaries of the program that needs most."""
    return sum(self.resident.values()) + max(program.temporaries for program in self.programs)

  @property
  def fits(self) -> bool:
    return not any(program.error for program in self.programs) and self.needed <= self.chip.hbm

  def seconds(self, program: Program) -> tuple[float, str]:
    """(the least a call can take, what bounds it)."""
    chip = self.chip
    return max((program.flops / self.peak, "compute"), (program.hbm / chip.bandwidth, "hbm"),
               (program.sent / chip.interconnect, "ici"))

  @property
  def step_s(self) -> float:
    """The least a training step can take: nothing overlaps, nothing waits."""
    return sum(program.calls * self.seconds(program)[0] for program in self.programs)

  def to_json(self) -> dict[str, Any]:
    found = dataclasses.asdict(self) | dict(
      needed=self.needed, capacity=self.chip.hbm, fits=self.fits, step_s=self.step_s,
      tokens_per_second=self.tokens / self.step_s, mfu=self.mfu)
    for row, program in zip(found["programs"], self.programs):
      row["seconds"], row["bound"] = self.seconds(program)
    return found

  @property
  def mfu(self) -> float:
    """Of the learner's programs at the roofline, remat's second pass counted as work that was not asked for."""
    mine = [program for program in self.programs if program.name.startswith("learner")]
    seconds = sum(program.calls * self.seconds(program)[0] for program in mine)
    return self.needed_flops / (seconds * self.peak) if seconds else 0.0


def check(
  config, topology: str, *, slices: int = 1, shape: str = "", fill: float = 0.5, only: tuple[str, ...] = (),
) -> Report:
  """Compiles everything a run of this config executes on the slice.

  Args:
    config: of the run; config.mesh must fit the slice.
    topology: "v5e:16x16".
    slices: of that topology, joined by the data centre's network.
    shape: a key of SHAPES; else the shape of config.model.path's config.json, or of config.model.shape.
    fill: an episode's tokens over config.rollout.context, in the mean.
    only: names of programs to compile; all if empty. The others are left out of the report.

  Raises:
    ValueError: a config or a slice that cannot be, with the reason.
    RuntimeError: libtpu is missing.
  """
  config_lib.validate(config)
  devices = aot.devices(topology, slices)
  mesh = mesh_lib.make(devices, **config.mesh.to_dict())
  model_shape = shape_of(config, shape)
  model = abstract_model(config, model_shape, mesh)
  compiled = _Compiler(config, mesh, model, model_shape, fill, only)
  compiled.learner()
  compiled.engine()
  hosts = len({device.process_index for device in devices})
  return Report(
    topology, slices, len(devices), hosts, dict(mesh.shape), _count(nnx.state(model)), compiled.resident,
    tuple(compiled.programs), config.rollout.rows + MAX_PROMPTS, compiled.tokens, compiled.needed_flops)


def shape_of(config, name: str) -> DecoderConfig:
  """The model's shape, without its weights.

  Raises:
    ValueError: a name that is not in SHAPES.
  """
  if name:
    if name not in SHAPES:
      raise ValueError(f"shape {name!r}: it must be one of {', '.join(SHAPES)}.")
    return SHAPES[name]
  if config.model.path:
    where = pathlib.Path(config.model.path) / "config.json"
    return DecoderConfig.from_hf(hf.read_json(where), str(where))
  return DecoderConfig.from_shape(151_936, **config.model.shape.to_dict())


def abstract_model(config, shape: DecoderConfig, mesh: jax.sharding.Mesh) -> Decoder:
  """The decoder of ShapeDtypeStructs, with its adapters."""
  settings = config.model

  def make():
    made = Decoder(shape, rngs=nnx.Rngs(0), param_dtype=jnp.dtype(settings.param_dtype),
                   dtype=jnp.dtype(settings.dtype), remat=settings.remat)
    if settings.lora.rank:
      lora.add(made, rank=settings.lora.rank, alpha=settings.lora.alpha, layers=settings.lora.layers, seed=0)
    return made

  model = nnx.eval_shape(make)
  model.mesh = mesh
  return model


class _Compiler:
  """Lowers and compiles one program after another and adds up what stays."""

  def __init__(self, config, mesh, model, shape, fill, only):
    self.config, self.mesh, self.model, self.shape, self.only = config, mesh, model, shape, only
    self.programs: list[Program] = []
    self.resident: dict[str, int] = {}
    r = config.rollout
    episodes = r.prompts_per_step * r.group_size
    self.length = fill * r.context
    self.tokens = int(episodes * self.length)
    self.episodes = episodes

  def add(self, name: str, lower, *, calls: int, work: float, hbm: float) -> None:
    """Compiles it. work and hbm are of all chips together, and of one chip."""
    if self.only and name not in self.only:
      return
    began = time.perf_counter()
    try:
      compiled = lower().compile()
    except jax.errors.JaxRuntimeError as error:
      if "RESOURCE_EXHAUSTED" not in str(error):
        raise
      self.programs.append(Program(
        name, time.perf_counter() - began, calls=calls, error=" ".join(str(error).split())[:400]))
      return
    seconds = time.perf_counter() - began
    memory, moved = compiled.memory_analysis(), aot.collectives(compiled.as_text())
    kinds: dict[str, int] = {}
    for one in moved:
      kinds[one.kind] = kinds.get(one.kind, 0) + one.times
    devices = self.mesh.size if name.startswith("learner") else self.mesh.local_mesh.size
    self.programs.append(Program(
      name, seconds, memory.temp_size_in_bytes, memory.peak_memory_in_bytes, work / devices, hbm,
      float(sum(one.bytes * one.times for one in moved)), kinds, calls))

  def learner(self) -> None:
    config, mesh = self.config, self.mesh
    settings = settings_lib.from_config(config)
    made = learner.Learner(
      self.model, settings, settings_lib.optimizer_from_config(config), mesh=mesh,
      reference=rules.place(mesh, nnx.state(self.model, lora.trainable(self.model))))
    rows, length = config.learner.micro_rows, max(config.learner.row_lengths)
    packed = math.ceil(self.tokens / length)
    blocks = max(1, math.ceil(packed / rows)) * settings.epochs
    block = self._block(rows, length, config.learner.share_prompts)

    # One block's work: its rows hold episodes of the mean length.
    tokens = rows * length
    size = dict(tokens=tokens, pairs=tokens * (self.length + 1) / 2, scored=tokens)
    forward = flops.forward(self.shape, **size)
    remat = forward * bool(config.model.remat)
    self.needed_flops = blocks * 3 * forward / mesh.size
    chip_tokens = tokens / (mesh.shape["data"] * mesh.shape["fsdp"] * mesh.shape["sequence"])

    trained = dict(learner=made.trained) | ({} if made.critic is None else {"learner critic": made.critic})
    for name, one in trained.items():
      self._trained(name, one, block, calls=(blocks, settings.steps), work=3 * forward + remat, tokens=chip_tokens)
    scores = settings.scores_old + settings.needs_reference
    if settings.needs_reference and not made.adapters:
      self.resident["reference"] = _bytes(made.trained.params)
    if scores:
      self.add("learner: score", lambda: made._score.lower(made.trained.params, made.trained.frozen, block),
               calls=scores * blocks // settings.epochs, work=forward, hbm=self.train_bytes(chip_tokens) / 4)

  def _trained(self, name: str, trained: Trained, block: Batch, *, calls, work: float, tokens: float) -> None:
    """One model's accumulate and apply, and what it keeps."""
    whole = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())
    number = lambda *size: jax.ShapeDtypeStruct(size, jnp.float32, sharding=whole)
    state = rules.place(self.mesh, jax.eval_shape(lambda p: trained.init(p, 0), trained.params))
    sums = dict.fromkeys(("loss",) if "critic" in name else step.SUMS, number())
    grads = state.params
    self.resident |= {
      f"{name}: parameters": _bytes(state.params) + _bytes(trained.frozen),
      f"{name}: moments": _bytes(state.opt_state), f"{name}: gradients": _bytes(grads)}
    self.add(f"{name}: accumulate", lambda: trained.accumulate.lower(
      grads, sums, state.params, trained.frozen, block, number(2), state.kl_coef),
             calls=calls[0], work=work, hbm=self.train_bytes(tokens))
    self.add(f"{name}: apply", lambda: trained.apply.lower(state, grads, sums), calls=calls[1], work=0.0,
             hbm=7.0 * _bytes(grads))

  def _block(self, rows: int, length: int, shared: bool) -> Batch:
    at = rules.batch_sharding(self.mesh)
    ways = rules.ways(self.mesh, rules.MESH_AXES["batch"])
    if rows % ways:
      raise ValueError(f"config.learner.micro_rows={rows}: {ways} shares of data and fsdp must divide it "
                       f"(config.mesh={dict(self.mesh.shape)}).")
    fields = {field.name: jax.ShapeDtypeStruct((rows, length), KINDS.get(field.name, jnp.float32), sharding=at)
              for field in dataclasses.fields(Batch)}
    return Batch(**fields | ({} if shared else dict(prefix_ids=None)))

  def train_bytes(self, tokens: float) -> float:
    """HBM bytes of a chip in one block's loss and gradient, at the least.

    Each of three passes (four with remat) reads the gathered weights; the gradient is read and written in float32;
    each layer writes and reads its activations once a pass; logits are written and read in float32 twice.
    """
    c, passes = self.shape, 3 + bool(self.config.model.remat)
    tensor, width = self.mesh.shape["tensor"], jnp.dtype(self.config.model.dtype).itemsize
    weights = flops.matmul_parameters(c) / tensor * width * passes
    gradient = 8.0 * _count(nnx.state(self.model)) / (self.mesh.shape["fsdp"] * tensor)
    per_token = 6 * c.d_model + (2 * c.num_heads + 2 * c.num_kv_heads) * c.head_dim / tensor + 3 * c.d_ff / tensor
    activations = 2.0 * tokens * c.num_layers * per_token * width * passes
    return weights + gradient + activations + 16.0 * tokens * c.vocab_size / tensor

  def engine(self) -> None:
    """Of one host: its own devices, its share of the episodes."""
    config, here, c = self.config, self.mesh.local_mesh, self.shape
    r, hosts = config.rollout, max(1, self.mesh.size // self.mesh.local_mesh.size)
    sampler = nnx.merge(*nnx.split(self.model))
    sampler.mesh = here
    graphdef, params = nnx.split(sampler)
    dtype = jnp.dtype(config.model.dtype)
    params = rules.place(here, jax.eval_shape(programs.caster(dtype, params, None, own=True), params))
    at = cache_lib.sharding_like(params, c)
    length, total = -(-r.context // r.block) * r.block, r.rows + MAX_PROMPTS
    cache = jax.eval_shape(lambda: cache_lib.allocate(c, total, length, dtype))
    cache = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), cache)
    table = stops.Table(jnp.zeros((STATES, c.vocab_size), jnp.uint8), jnp.zeros((STATES,), jnp.int32),
                        jnp.full((STATES, 1), -1, jnp.int32))
    made = programs.Programs(graphdef, table, chunk=r.chunk, block=r.block, sharding=at)
    self.resident |= {"engine: weights": _bytes(params), "engine: cache": _bytes(cache)}
    whole = jax.sharding.NamedSharding(here, jax.sharding.PartitionSpec())
    ints = lambda *size: jax.ShapeDtypeStruct(size, jnp.int32, sharding=whole)

    rows = 4  # the engine's: rows of one extension
    mine = self.tokens / hosts
    prompt, drawn = mine / 2, mine / 2  # half of an episode is read, half is drawn
    fills = math.ceil(prompt / (rows * r.prefill))
    steps = math.ceil(drawn / r.lanes)
    weights = _bytes(params)
    seen = _bytes(cache) * (r.lanes / total) * (self.length / 2 / length)  # the lanes' rows, half full in the mean
    one = flops.forward(c, tokens=1, pairs=self.length / 2, scored=1)
    self.add("engine: prefill", lambda: made.extend.lower(params, cache, ints(rows, r.prefill), ints(rows, 3)),
             calls=fills, work=one * rows * r.prefill, hbm=weights + seen * rows / r.lanes)
    self.add("engine: extend", lambda: made.extend.lower(
      params, cache, ints(4 * rows, r.prefill // 4), ints(4 * rows, 3)),
             calls=0, work=one * rows * r.prefill, hbm=weights + seen * rows / r.lanes)
    self.add("engine: decode", lambda: made.decode.lower(params, cache, ints(r.lanes, programs.COLUMNS), ints(2)),
             calls=math.ceil(steps / r.chunk), work=one * r.lanes * r.chunk, hbm=r.chunk * (weights + seen))




def _bytes(tree: Any) -> int:
  """A chip's share of arrays or ShapeDtypeStructs that know their sharding."""
  return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _count(tree: Any) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(tree))
