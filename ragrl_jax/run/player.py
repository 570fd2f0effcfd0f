"""The model and the engine of a run, and everything that plays its recipe: retriever, judges, tools, rollout."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from ragrl_jax import judging
from ragrl_jax.engine import engine as engine_lib, sizes as engine_sizes, stops, team
from ragrl_jax.models import hub, lora, weights
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import hosts, mesh as mesh_lib, rules
from ragrl_jax.prompting import declared
from ragrl_jax.prompting.tokenizer import tokenless
from ragrl_jax.recipes.recipe import Recipe
from ragrl_jax.rollout import collect, dispatch, multihost
from ragrl_jax.run import environment_tools
from ragrl_jax.run.prepared import Prepared
from ragrl_jax.settings import Settings


class Answerer(Protocol):
  """The interface of a Player and of a model behind a server (`endpoint_player.EndpointPlayer`)."""

  recipe: Recipe
  retriever: Any
  judges: Mapping[str, judging.Judge]
  rollout: Any

  @property
  def tokenizer(self) -> Any:
    """Counts and cuts texts."""


@dataclasses.dataclass
class Sampler:
  """A model with the engine that samples from it.

  Attributes:
    recipe: the recipe. One whose schedule depends on the run is replaced during it.
    model: the decoder with its initial weights.
    engine: has no weights until `engine.load(params, version)`.
    base: fingerprint of the frozen base of adapters, see `jobs.checkpoints.load`; "" without adapters.
  """

  prepared: Prepared
  recipe: Recipe
  model: Decoder
  config: DecoderConfig
  engine: engine_lib.Engine
  base: str = dataclasses.field(default="", kw_only=True)

  @property
  def settings(self) -> Settings:
    """All settings."""
    return self.prepared.settings

  @property
  def tokenizer(self) -> Any:
    """The tokenizer."""
    return self.prepared.tokenizer

  @property
  def mesh(self) -> jax.sharding.Mesh | None:
    """The devices of all hosts that share weights and rows; None for one device."""
    return self.prepared.mesh


@dataclasses.dataclass
class Player(Sampler):
  """The parts that play a recipe.

  Attributes:
    retriever: None for recipes that never search.
    judges: by term, "" for terms without their own; empty for recipes that need no verdicts.
    rollout: plays many episodes at once. On several hosts, each host plays its share.
  """

  retriever: Any
  judges: Mapping[str, judging.Judge]
  rollout: collect.Rollout | multihost.MultiHostRollout


def build(prepared: Prepared, *, seed: int | None = None, judged: Sequence[str] = ()) -> Player:
  """Builds a player. Its engine is warmed up at the first use.

  Args:
    seed: seed of the sampling; config.seed by default.
    judged: terms that need a judge although the recipe asks none about them.

  Raises:
    ValueError: weights, index or a judge cannot be read, or do not fit.
  """
  config, recipe, queue = prepared.settings, prepared.recipe, dispatch.Dispatch()
  environment_tools.check_judges(config, (*recipe.judged, *judged))
  # First, as a server that is down, or a moved encoder, is a more frequent mistake than weights that cannot be read.
  local_mesh = None if prepared.mesh is None else prepared.mesh.local_mesh  # judges do not wait for other hosts
  retriever, judges, episode_tools = environment_tools.tools(config, recipe, queue, local_mesh, judged=judged)
  parts, members = _sampler(prepared)
  rollout = collect.Rollout(
    parts.engine,
    recipe.play,
    episode_tools,
    seed=config.seed if seed is None else seed,
    sampling=config.rollout.sampling,
    reserve=config.rollout.least_room,
    dispatch=queue,
  )
  if hosts.count() > 1:
    rollout = multihost.MultiHostRollout(rollout, members)
  return Player(**vars(parts), retriever=retriever, judges=judges, rollout=rollout)


def sampler(prepared: Prepared) -> Sampler:
  """Builds an engine, without retriever and judges. `engine.load` warms it up.

  Raises:
    ValueError: the weights cannot be read, or do not fit.
  """
  return _sampler(prepared)[0]


def _sampler(prepared: Prepared) -> tuple[Sampler, team.Team | None]:
  config, devices = prepared.settings, prepared.mesh
  base = hub.folder(config.model.path, "config.model.path", part="config") if config.model.path else ""
  declared.say_sampling(str(base), vars(config.rollout))
  automaton = stops.Stops(prepared.tokenizer, prepared.recipe.stops, rows=prepared.shape.vocab_size)
  decoder, shape = model(config, prepared.tokenizer, prepared.shape, devices)
  graphdef, _, frozen = lora.split(decoder)
  spread = vars(config.rollout.mesh)
  engine_mesh, members = mesh_lib.of_engine(devices, **spread), team.for_mesh(devices, **spread)
  engine = engine_lib.Engine(
    graphdef,
    prepared.tokenizer,
    automaton,
    engine_sizes.from_settings(config.rollout, engine_mesh),
    mesh=engine_mesh,
    engines=mesh_lib.engines(devices, **spread) if hosts.count() > 1 else None,
    team=members,
    frozen=frozen,
    own_weights=config.rollout.ahead > 0,
  )
  return Sampler(prepared, prepared.recipe, decoder, shape, engine), members


def model(
  config: Settings, tokenizer: Any, shape: DecoderConfig, mesh: jax.sharding.Mesh | None = None
) -> tuple[Decoder, DecoderConfig]:
  """The decoder of config.model.path, or a new one of this shape, on the mesh, with its adapters; and its shape."""
  decoder, shape = _base(config, shape, mesh)
  decoder.tokenless = tokenless(tokenizer, shape.vocab_size)
  adapters = config.model.lora
  if adapters.path:
    base = hub.folder(config.model.path, "config.model.path") if config.model.path else ""
    folder = hub.folder(adapters.path, "config.model.lora.path")
    if config.prompting.chat and config.prompting.markers == "template":
      own = config.prompting.tokenizer
      source = hub.folder(own, "config.prompting.tokenizer", part="tokenizer") if own else base
      declared.say_other_template(folder, source)
    lora.load_adapters(decoder, folder, base=base)
  elif adapters.rank:
    lora.add(decoder, rank=adapters.rank, alpha=adapters.alpha, layers=adapters.layers, seed=config.seed)
  return decoder, shape


def _base(config: Settings, shape, mesh) -> tuple[Decoder, DecoderConfig]:
  settings = config.model
  dtype, param_dtype = jnp.dtype(settings.dtype), jnp.dtype(settings.param_dtype)
  if settings.path:
    return weights.load_pretrained(
      hub.folder(settings.path, "config.model.path"),
      dtype=param_dtype,
      compute_dtype=dtype,
      remat=settings.remat,
      mesh=mesh,
    )
  decoder = Decoder(
    shape, rngs=nnx.Rngs(config.seed), param_dtype=param_dtype, dtype=dtype, remat=settings.remat, mesh=mesh
  )
  if mesh is not None:
    rules.check_vocab(mesh.shape["tensor"], shape.vocab_size, "config.mesh.tensor")
    nnx.update(decoder, jax.device_put(nnx.state(decoder), rules.shardings(mesh, nnx.state(decoder))))
  return decoder, shape
