"""Builds everything that plays a recipe from a config: tokenizer, model, retriever, judges, engine."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from ragrl_jax import judging, recipes
from ragrl_jax import settings as settings_lib
from ragrl_jax.data import readers
from ragrl_jax.engine import engine as engine_lib
from ragrl_jax.engine import sizes as engine_sizes
from ragrl_jax.engine import stops, team
from ragrl_jax.learner import row_layout
from ragrl_jax.learner import settings as learner_settings
from ragrl_jax.models import cache as cache_lib
from ragrl_jax.models import hub, lora, weights
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import hosts, rules
from ragrl_jax.parallel import mesh as mesh_lib
from ragrl_jax.prompting import chat, declared
from ragrl_jax.prompting import tokenizer as tokenizer_lib
from ragrl_jax.prompting.tokenizer import tokenless
from ragrl_jax.recipes.recipe import Recipe
from ragrl_jax.rollout import collect, dispatch, multihost
from ragrl_jax.run import devices as devices_lib
from ragrl_jax.run import environment_tools
from ragrl_jax.store import trackers


class Answerer(Protocol):
  """The interface of a Player and of a model behind a server (`endpoint_player.EndpointPlayer`)."""

  tokenizer: Any
  recipe: Recipe
  retriever: Any
  judges: Mapping[str, judging.Judge]
  rollout: Any


@dataclasses.dataclass
class Sampler:
  """A model with the engine that samples from it.

  Attributes:
    tokenizer, recipe: as the config names them.
    model: the decoder with its initial weights.
    config: the decoder's config.
    engine: has no weights until `engine.load(params, version)`.
    mesh: the devices of all hosts that share weights and rows; None for one device.
    base: fingerprint of the frozen base of adapters, see `evaluate.load`; "" without adapters.
  """

  tokenizer: Any
  recipe: Recipe
  model: Decoder
  config: DecoderConfig
  engine: engine_lib.Engine
  mesh: jax.sharding.Mesh | None
  base: str = dataclasses.field(default="", kw_only=True)


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


def tokenizer(config):
  """The tokenizer of config.prompting, or of the model's folder.

  Raises:
    ValueError: there is no tokenizer; config.prompting.chat is set and it has no chat template; or the recipe cannot
      use the template.
  """
  where = config.prompting.tokenizer or config.model.path
  if not where:
    raise ValueError(
      "config.prompting.tokenizer is empty and so is config.model.path: name the folder, the "
      "Hugging Face name or the .model file that holds the tokenizer."
    )
  setting, part = ("prompting.tokenizer", "tokenizer") if config.prompting.tokenizer else ("model.path", "config")
  how = config.prompting
  check = recipe(config).tool_tokens or chat.check_append_only
  made = tokenizer_lib.load_tokenizer(
    hub.folder(where, f"config.{setting}", part=part),
    chat=how.chat,
    markers=how.markers,
    thinking=how.thinking,
    check=check,
  )
  if config.prompting.chat and where != "bytes" and getattr(made, "markers", None) is None:
    raise ValueError(
      f"config.prompting.chat=True, but the tokenizer at {where} has no chat template: set config.prompting.chat=False "
      "for bare text, or, for a Hugging Face folder, config.prompting.markers='own' for this library's role markers."
    )
  return made


def recipe(config) -> Recipe:
  """The recipe of the config, with its preset and switches. Raises ValueError as `recipes.get` does."""
  return recipes.get(config.recipe, config.preset, **config.switches.to_dict())


def mesh(config) -> jax.sharding.Mesh | None:
  """The devices of config.mesh; None if that is one device. Without a -1 among the sizes, the first devices are used.

  Raises:
    ValueError: there are too few devices, or JAX has none of the requested platform.
  """
  sizes = config.mesh.to_dict()
  devices = devices_lib.found()
  asked = math.prod(size for size in sizes.values() if size != -1)
  if asked > len(devices):
    raise ValueError(
      f"config.mesh={sizes} asks for {asked} devices, and JAX sees {len(devices)} ({devices[0].platform}): lower the "
      "sizes, or install JAX for the accelerators (pip install 'ragrl_jax[cuda]' or 'ragrl_jax[tpu]')."
    )
  if -1 not in sizes.values():
    devices = devices[:asked]
  if missing := hosts.count() - len({device.process_index for device in devices}):
    raise ValueError(
      f"config.mesh={sizes}: these {len(devices)} devices leave {missing} of {hosts.count()} hosts "
      "without any: set one size to -1, or let the sizes multiply to all devices."
    )
  return None if len(devices) == 1 else mesh_lib.make(devices, **sizes)


def model(config, tokenizer, mesh: jax.sharding.Mesh | None = None) -> tuple[Decoder, DecoderConfig]:
  """The decoder of config.model.path, or a new one of config.model.shape, on the mesh, with its adapters."""
  made, shape = _base(config, tokenizer, mesh)
  made.tokenless = tokenless(tokenizer, shape.vocab_size)
  settings = config.model.lora
  if settings.path:
    base = hub.folder(config.model.path, "config.model.path") if config.model.path else ""
    lora.load_adapters(made, hub.folder(settings.path, "config.model.lora.path"), base=base)
  elif settings.rank:
    lora.add(made, rank=settings.rank, alpha=settings.alpha, layers=settings.layers, seed=config.seed)
  return made, shape


def _base(config, tokenizer, mesh) -> tuple[Decoder, DecoderConfig]:
  settings = config.model
  dtype, param_dtype = jnp.dtype(settings.dtype), jnp.dtype(settings.param_dtype)
  if settings.path:
    made, shape = weights.load_pretrained(
      hub.folder(settings.path, "config.model.path"),
      dtype=param_dtype,
      compute_dtype=dtype,
      remat=settings.remat,
      mesh=mesh,
    )
    if shape.vocab_size < tokenizer.vocab_size:
      raise ValueError(
        f"{settings.path}: the model has {shape.vocab_size} token rows, the tokenizer "
        f"{tokenizer.vocab_size} ids: they do not belong together (config.prompting.tokenizer)."
      )
    return made, shape
  shape = DecoderConfig.from_shape(tokenizer.vocab_size, **settings.shape.to_dict())
  made = Decoder(
    shape, rngs=nnx.Rngs(config.seed), param_dtype=param_dtype, dtype=dtype, remat=settings.remat, mesh=mesh
  )
  if mesh is not None:
    rules.check_vocab(mesh.shape["tensor"], shape.vocab_size, "config.mesh.tensor")
    nnx.update(made, jax.device_put(nnx.state(made), rules.shardings(mesh, nnx.state(made))))
  return made, shape


def check(config, *, training: bool = True) -> None:
  """Makes every check that needs neither weights, index nor questions. It is fast.

  Args:
    config: all settings.
    training: whether a learner will be made too.

  Raises:
    ValueError: settings that do not fit each other, the model or this machine.
  """
  chosen = recipe(config)
  if training and not chosen.trainable:
    raise ValueError(
      f"{chosen.name} with these switches joins several conversations in an episode, so that no policy can be trained "
      "on it: evaluate it, or train another recipe (config.recipe, config.preset)."
    )
  if training and config.endpoint.model:
    raise ValueError(
      f"config.endpoint.model={config.endpoint.model!r}: a model behind a server can be evaluated, not trained. "
      "Leave it empty."
    )
  check_tools(config, chosen)
  if training:
    trackers.check(trackers.chosen(config.log))
    learner_settings.from_config(config)
    learner_settings.optimizer_from_config(config)
    _check_masters(config)
    for name in ("train", "hard", "evaluate"):
      if path := config.data[name]:
        readers.check(path, f"config.data.{name}")
  check_engine(config, training=training)


def check_engine(config, *, training: bool = False) -> None:
  """The checks of model, devices and sizes: everything but recipe, tools and learner.

  Raises:
    ValueError: see `check`.
  """
  check_context(config)
  _check_adapters(config)
  _check_mesh(config, training=training)
  _check_sizes(config)


def check_tools(config, recipe: Recipe) -> None:
  """Raises a ValueError if the recipe needs a retriever, an encoder or a judge that the config does not name."""
  if recipe.searches and not recipe.needs_passages and not config.retrieval.index:
    raise ValueError(
      f"config.retrieval.index is empty, but the recipe {recipe.name} searches: name a folder of "
      "`ragrl index`, or the http://… address of a retriever."
    )
  environment_tools.remote(config.retrieval)
  index = config.retrieval.index
  if index and "://" not in index and not pathlib.Path(index).exists():
    raise ValueError(
      f"config.retrieval.index={index!r}: no index here ({pathlib.Path(index).absolute()}): build one with "
      "`ragrl index`, or name its folder; a run's relative paths begin at the folder it was trained in."
    )
  if recipe.encodes and not config.retrieval.query_encoder:
    raise ValueError(
      f"config.retrieval.query_encoder is empty, but the recipe {recipe.name} compares the vectors of queries: name "
      "an encoder, a folder or a name on the hub, or compare their characters (config.switches.similarity='ngrams')."
    )
  environment_tools.check_judges(config, recipe.judged)


def check_sft(config) -> None:
  """`check` for supervised fine-tuning, which neither samples nor searches."""
  recipe(config)
  trackers.check(trackers.chosen(config.log))
  learner_settings.from_config(config, objective="sft")
  learner_settings.optimizer_from_config(config, total_steps=config.steps)
  _check_masters(config)
  _check_adapters(config)
  _check_mesh(config, training=True)


def _check_masters(config) -> None:
  # A step changes a weight by about the learning rate. Of 1 with steps of 1e-6, bfloat16 keeps 1.
  if config.model.param_dtype != "float32" and not (config.model.lora.rank or config.model.lora.path):
    raise ValueError(
      f"config.model.param_dtype={config.model.param_dtype!r} without adapters: the trained weights must be float32, "
      "because changes as small as a learning rate are lost in this dtype. Set it to 'float32' (config.model.dtype is "
      "that of the matmuls), or train adapters (config.model.lora.rank)."
    )


def _check_adapters(config) -> None:
  if config.model.lora.rank:
    lora.select_matrices(config.model.lora.layers, lora.matrices(_shape(config)))


def _check_mesh(config, *, training: bool) -> None:
  devices, shape = mesh(config), _shape(config)
  platform = (devices_lib.found() if devices is None else devices.devices.flat)[0].platform
  slides = shape.window is not None and shape.window < row_layout.longest_row(config)
  if training and platform == "tpu" and config.learner.share_prompts and slides:
    raise ValueError(
      f"config.learner.share_prompts=True with a model whose layers have a window of {shape.window} tokens: the TPU's "
      "attention kernel does not take both. Set config.learner.share_prompts=False."
    )
  if devices is not None:
    blocks = dict(micro_rows=config.learner.micro_rows, row_lengths=config.learner.row_lengths) if training else {}
    vocab = shape.vocab_size if config.model.path else None  # a new model's comes with the tokenizer
    heads = dict(heads=shape.num_heads, kv_heads=shape.num_kv_heads)
    rules.check(devices.shape, **heads, vocab=vocab, experts=shape.num_experts, **blocks)


def _check_sizes(config) -> None:
  devices = mesh(config)
  here = mesh_lib.of_engine(devices, **config.rollout.mesh.to_dict())
  sizes, shape = engine_sizes.from_settings(settings_lib.of(config).rollout, here), _shape(config)
  tensor = config.rollout.mesh.tensor
  vocab = shape.vocab_size if config.model.path else None
  engine_sizes.check_model(shape.num_kv_heads, vocab, tensor, experts=shape.num_experts)
  platform = (devices_lib.found() if devices is None else devices.devices.flat)[0].platform
  layout = cache_lib.layout(shape, sizes.page, config.model.dtype, platform, tensor, kv_dtype=sizes.kv_dtype)
  layout.check(sizes.cache_pages, tensor)


def _shape(config) -> DecoderConfig:
  """The decoder's shape, from its folder, or from the config for a new model, whose vocabulary is not known yet."""
  if not config.model.path:
    return DecoderConfig.from_shape(1, **config.model.shape.to_dict())
  return weights.config_of(hub.folder(config.model.path, "config.model.path", part="config"))


def check_context(config) -> None:
  """Raises a ValueError if config.rollout.context exceeds the model's positions, including a stretched rope's."""
  path, shape = config.model.path, _shape(config)
  if config.rollout.context > shape.reach:
    raise ValueError(
      f"config.rollout.context={config.rollout.context} is more than the {shape.reach} positions that the model was "
      f"made for ({path or 'config.model.shape'}: max_position{'_embeddings' if path else ''}): lower it, or use a "
      "model with a longer context."
    )


def build(config, *, seed: int | None = None, training: bool = True, judged: Sequence[str] = ()) -> Player:
  """Builds a player from a config. Its engine is warmed up at the first use.

  Args:
    config: all settings; they are checked before weights and index are read.
    seed: seed of the sampling; config.seed by default.
    training: whether a learner will be made from the same config.
    judged: terms that need a judge although the recipe asks none about them.

  Raises:
    ValueError: see `check` and `tokenizer`; or an input cannot be read.
  """
  check(config, training=training)
  environment_tools.check_judges(config, (*recipe(config).judged, *judged))
  made, members = _sampler(config)
  chosen, queue = made.recipe, dispatch.Dispatch()
  here = None if made.mesh is None else made.mesh.local_mesh  # judges do not wait for other hosts
  retriever, judges, used = environment_tools.tools(config, chosen, queue, here, judged=judged)
  rollout = collect.Rollout(
    made.engine,
    chosen.play,
    used,
    seed=config.seed if seed is None else seed,
    sampling=settings_lib.of(config).rollout.sampling,
    reserve=config.rollout.reserve or None,
    dispatch=queue,
  )
  if hosts.count() > 1:
    rollout = multihost.MultiHostRollout(rollout, members)
  return Player(**vars(made), retriever=retriever, judges=judges, rollout=rollout)


def sampler(config) -> Sampler:
  """Builds an engine from a config, without retriever and judges. `engine.load` warms it up.

  Raises:
    ValueError: see `build`.
  """
  check_engine(config)
  return _sampler(config)[0]


def _sampler(config) -> tuple[Sampler, team.Team | None]:
  chosen, encoding, devices = recipe(config), tokenizer(config), mesh(config)
  base = hub.folder(config.model.path, "config.model.path", part="config") if config.model.path else ""
  declared.say_sampling(str(base), config.rollout.to_dict())
  decoder, shape = model(config, encoding, devices)
  automaton = stops.Stops(encoding, chosen.stops, rows=shape.vocab_size)
  graphdef, _, frozen = lora.split(decoder)
  spread = config.rollout.mesh.to_dict()
  engine_mesh, members = mesh_lib.of_engine(devices, **spread), team.for_mesh(devices, **spread)
  engine = engine_lib.Engine(
    graphdef,
    encoding,
    automaton,
    engine_sizes.from_settings(settings_lib.of(config).rollout, engine_mesh),
    mesh=engine_mesh,
    every=mesh_lib.engines(devices, **spread) if hosts.count() > 1 else None,
    team=members,
    frozen=frozen,
    own_weights=config.rollout.ahead > 0,
  )
  return Sampler(encoding, chosen, decoder, shape, engine, devices), members
