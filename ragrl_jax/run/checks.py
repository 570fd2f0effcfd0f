"""Checks of the settings against recipe, model and machine. `prepared.prepare` calls them; none reads weights.

Each raises a ValueError that says which setting does not fit, and what to change.
"""

import dataclasses
import logging
import pathlib
from typing import Any

import jax

from ragrl_jax import judging, recipes, retrieval
from ragrl_jax.data import readers
from ragrl_jax.engine import sizes as engine_sizes
from ragrl_jax.learner import row_layout, settings as learner_settings
from ragrl_jax.models import cache as cache_lib, hub, lora, weights
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.parallel import mesh as mesh_lib, rules
from ragrl_jax.recipes.recipe import Recipe
from ragrl_jax.run import detectors, environment_tools
from ragrl_jax.settings import Settings, fields, learning
from ragrl_jax.store import addresses, trackers

PLUGINS = {"cuda": "cuda", "gpu": "cuda", "tpu": "tpu"}  # name in JAX_PLATFORMS → extra of this package with its plugin
DEFAULTS = Settings()
# Settings, the one that decides whether RL reads them, and for which of its values it does. Those that variants of our
# configs leave unread (loss.kl_in, optimizer.final_share) are not among them.
READ: fields.Reads = (
  ("advantage.std advantage.std_floor advantage.eps", "advantage.kind", lambda kind: kind == "group_relative"),
  ("advantage.gamma", "advantage.kind", lambda kind: kind in learning.COUNTED),
  ("advantage.lam advantage.whiten", "advantage.kind", lambda kind: kind == "gae"),
  ("critic.learning_rate critic.warmup_steps critic.clip", "critic.kind", lambda kind: kind != "none"),
  ("critic.coef", "critic.kind", lambda kind: kind == "shared"),
  ("optimizer.muon_scale", "optimizer.kind", lambda kind: kind == "muon"),
  ("rollout.filter.tolerance rollout.filter.max_draws rollout.filter.surplus", "rollout.filter.metric",
   lambda metric: metric != "none"),
  ("model.lora.alpha model.lora.layers", "model.lora.rank", bool),
  ("guard.most_rollbacks guard.ignored", "guard.rollback", bool),
)  # fmt: skip


def unread(config: Settings) -> None:
  """Says which settings, or switches of a preset, were changed although nothing in RL reads them beside the others."""
  switches = recipes.chosen(config.recipe, config.preset, **config.switches)
  usual = dataclasses.replace(DEFAULTS, switches=recipes.chosen(config.recipe, config.preset))
  config = dataclasses.replace(config, switches=switches)
  for names, decides, reads in (*READ, *switches.reads()):
    decision = fields.at(config, decides)
    for name in () if reads(decision) else names.split():
      if (value := fields.at(config, name)) != fields.at(usual, name):
        logging.warning("config.%s=%r has no effect with config.%s=%r.", name, value, decides, decision)


def trainable(config: Settings, recipe: Recipe) -> None:
  """A policy of this process can be trained on the recipe's episodes, which have the turns that credit needs."""
  if not recipe.trainable:
    raise ValueError(
      f"{recipe.name} with these switches joins several conversations in an episode, so that no policy can be trained "
      "on it: evaluate it, or train another recipe (config.recipe, config.preset)."
    )
  if config.endpoint.model:
    raise ValueError(
      f"config.endpoint.model={config.endpoint.model!r}: a model behind a server can be evaluated, not trained. "
      "Leave it empty."
    )
  for term, changes in config.judges.items():
    if term not in recipe.judged and any(value is not None for value in changes.values()):
      logging.warning(
        "config.judges.%s: training asks no judge about this term: %s with these switches asks about %s. `ragrl "
        "settings %s` lists the switches.",
        term,
        recipe.name,
        ", ".join(recipe.judged) or "none",
        recipe.name,
      )
  if config.advantage.informs and (recipe.needs_passages or not (recipe.searches or recipe.tool_tokens)):
    raise ValueError(
      f"config.advantage.credit='information': {recipe.name} with these switches plays one turn, and a gain is "
      "measured between two. Set credit='episode', or train a recipe that searches."
    )
  if config.advantage.gain_over == "random" and config.rollout.prompts_per_step < 2 * config.loss.minibatches:
    raise ValueError(
      f"config.advantage.gain_over='random' with config.rollout.prompts_per_step={config.rollout.prompts_per_step}, "
      f"config.loss.minibatches={config.loss.minibatches}: the results of another question are drawn within a "
      "mini-batch, so each needs two prompts. Raise prompts_per_step."
    )
  if config.loss.teacher.tokens == "queries" and (recipe.needs_passages or not recipe.searches):
    raise ValueError(
      f"config.loss.teacher.tokens='queries': {recipe.name} with these switches asks no queries, so no token would be "
      "taught. Set tokens to 'all', 'thought' or 'answers', or train a recipe that searches."
    )
  if recipe.switches.get("turn_credit") and config.advantage.compares and config.advantage.credit == "episode":
    raise ValueError(
      f"config.switches.turn_credit=True with config.advantage.kind={config.advantage.kind!r}, credit='episode': all "
      "turns of an episode get the same advantage, so the switch changes nothing. Set config.advantage.credit='turn', "
      "or turn_credit to False."
    )
  begins = config.reward.overlong_limit - config.reward.overlong_buffer
  unit, most = ("turn", "max_new_tokens") if recipe.needs_passages else ("conversation", "context")
  if config.reward.overlong_limit and begins >= (longest := getattr(config.rollout, most)):
    logging.warning(
      "config.reward.overlong_limit=%d: its penalty begins above %d model tokens (config.reward.overlong_buffer), and "
      "an episode of one %s, with at most %d (config.rollout.%s), never gets it. Lower the limit, or raise the buffer.",
      config.reward.overlong_limit, begins, unit, longest, most,
    )  # fmt: skip
  loss, how = config.loss, config.advantage
  penalised = loss.teacher.in_reward or (loss.kl_in == "reward" and loss.kl_coef > 0)
  if how.credit == "turn" and how.compares and recipe.credit is None and not penalised:
    text = "config.advantage.credit='turn': %s with these switches pays at an episode's end alone, so it is 'episode'."
    logging.warning(text, recipe.name)
  if penalised and how.kind == "group_relative" and how.std != "none" and not how.std_floor:
    logging.warning(
      "config.advantage.std=%r with a penalty in the reward (config.loss.kl_in, or teacher.kind='k1'): a group of "
      "equal rewards is compared by its penalties alone, and the division makes these as large as any reward, whatever "
      "their coefficient is. Set config.advantage.std_floor, or std='none'.",
      how.std,
    )


def tools(config: Settings, recipe: Recipe) -> None:
  """The config names the retriever, the encoder and the judges that the recipe needs."""
  if recipe.searches and not recipe.needs_passages and not config.retrieval.index:
    raise ValueError(
      f"config.retrieval.index is empty, but the recipe {recipe.name} searches: name a folder of "
      "`ragrl index`, or the http://… address of a retriever."
    )
  environment_tools.remote(config.retrieval)
  index = config.retrieval.index
  if index and not retrieval.is_served(index) and not pathlib.Path(index).exists():
    raise ValueError(
      f"config.retrieval.index={index!r}: no index here ({pathlib.Path(index).absolute()}): build one with "
      "`ragrl index`, or name its folder. A run's own is looked for beside the run, then at its old place."
    )
  if index and not recipe.searches:
    logging.warning(
      "config.retrieval.index=%r: %s with these switches never searches, so nothing is retrieved. `ragrl retrieve` "
      "attaches an index's passages to questions; `ragrl settings %s` lists the switches.",
      addresses.without_credentials(index),
      recipe.name,
      recipe.name,
    )
  own = recipe.switches.get("top_k")
  if index and own and own != config.retrieval.top_k:
    raise ValueError(
      f"config.retrieval.top_k={config.retrieval.top_k} with config.switches.top_k={own}: {recipe.name} searches for "
      "the passages of its switch, and scores record the setting. Set both to the same number."
    )
  if recipe.encodes and not config.retrieval.query_encoder:
    raise ValueError(
      f"config.retrieval.query_encoder is empty, but the recipe {recipe.name} compares the vectors of queries: name "
      "an encoder, a folder or a name on the hub, or compare their characters (config.switches.similarity='ngrams')."
    )
  if config.retrieval.query_encoder:
    hub.folder(config.retrieval.query_encoder, "config.retrieval.query_encoder", part="config")
    if not recipe.encodes:
      text = "config.retrieval.query_encoder: %s with these switches compares no queries; an index has its own encoder."
      logging.warning(text, recipe.name)
  environment_tools.check_judges(config, recipe.judged)
  if recipe.judges_golds:
    judging.check_of_answers(config.judge, f"{recipe.name} with these switches has answers judged, but ")


def learner(config: Settings, purpose: str) -> None:
  """Trackers, objective and optimiser of a run, the dtype of its weights, teacher, and files of questions ("rl")."""
  trackers.check(trackers.chosen(config.log))
  tuning = purpose == "sft"
  learner_settings.from_config(config, objective="sft" if tuning else "policy")
  learner_settings.optimizer_from_config(config, total_steps=config.steps if tuning else None)
  adapted = config.model.lora.rank or config.model.lora.path
  if adapted and config.optimizer.kind == "muon":
    logging.warning(
      "config.optimizer.kind='muon' with adapters (config.model.lora): Muon is for whole matrices, AdamW trains these."
    )
  # A step changes a weight by about the learning rate. Of 1 with steps of 1e-6, bfloat16 keeps 1.
  if config.model.param_dtype != "float32" and not adapted:
    raise ValueError(
      f"config.model.param_dtype={config.model.param_dtype!r} without adapters: the trained weights must be float32, "
      "because changes as small as a learning rate are lost in this dtype. Set it to 'float32' (config.model.dtype is "
      "that of the matmuls), or train adapters (config.model.lora.rank)."
    )
  if config.loss.teacher.local:
    weights.config_of(hub.folder(config.loss.teacher.path, "config.loss.teacher.path", part="config"))
  guard(config, purpose)
  for name in ("train", "hard", "evaluate"):
    if purpose == "rl" and (path := getattr(config.data, name)):
      readers.check(path, f"config.data.{name}")


def guard(config: Settings, purpose: str) -> None:
  """config.guard.rollback has detectors that can hold, and checkpoints to return to."""
  now, watched = config.guard, sorted({detector.metric for detector in detectors.DETECTORS})
  if unknown := sorted({*now.ignored} - {*watched}):
    raise ValueError(
      f"config.guard.ignored={now.ignored}: no detector watches {unknown[0]!r}, but {', '.join(watched)}."
    )
  if not now.rollback:
    return
  setting = f"config.guard.rollback={now.rollback}"
  if purpose == "sft" or {*watched} == {*now.ignored}:
    reason = "fine-tuning has no detectors" if purpose == "sft" else f"config.guard.ignored={now.ignored} leaves none"
    raise ValueError(f"{setting} waits for a detector, and {reason}: set rollback to 0, or ignore fewer.")
  if config.checkpoint.every >= config.steps:
    raise ValueError(
      f"{setting} returns to a checkpoint, and config.checkpoint.every={config.checkpoint.every} with config.steps="
      f"{config.steps} saves none before the end: lower `every`, best to a few times {now.rollback}."
    )


def context(config: Settings, shape: DecoderConfig) -> None:
  """config.rollout.context does not exceed the model's positions, including a stretched rope's."""
  path = config.model.path
  if config.rollout.context > shape.reach:
    raise ValueError(
      f"config.rollout.context={config.rollout.context} is more than the {shape.reach} positions that the model was "
      f"made for ({path or 'config.model.shape'}: max_position{'_embeddings' if path else ''}): lower it, or use a "
      "model with a longer context."
    )


def written(config: Settings, folder: pathlib.Path, flag: str) -> None:
  """No setting names the folder that a model is written to: its files would be lost. `flag` names the folder."""
  for name in ("model.path", "model.lora.path", "loss.teacher.path", "prompting.tokenizer"):
    place = pathlib.Path(value := fields.at(config, name)).resolve()
    if value and (place.parent if place.is_file() else place) == folder.resolve():
      raise ValueError(
        f"config.{name}={value}: these files would be lost, because a model is written to {folder}: name another "
        f"folder ({flag})."
      )


def rows(config: Settings, shape: DecoderConfig, tokenizer: Any) -> None:
  """The model of config.model.path has a row for each of the tokenizer's ids."""
  if shape.vocab_size < tokenizer.vocab_size:
    raise ValueError(
      f"config.model.path={config.model.path}: the model has {shape.vocab_size} token rows, the tokenizer "
      f"{tokenizer.vocab_size} ids: they do not belong together (config.prompting.tokenizer)."
    )


def adapters(config: Settings, shape: DecoderConfig) -> None:
  """config.model.lora names matrices that the model has, or a folder of adapters for such a model."""
  if config.model.lora.rank:
    lora.select_matrices(config.model.lora.layers, lora.matrices(shape))
  elif config.model.lora.path:
    lora.check(hub.folder(config.model.lora.path, "config.model.lora.path", part="config"), shape)


def mesh(config: Settings, shape: DecoderConfig, mesh: jax.sharding.Mesh | None, *, training: bool) -> None:
  """The devices can share the model and, in `training`, the learner's rows."""
  slides = shape.window is not None and shape.window < row_layout.longest_row(config)
  if training and _platform(mesh) == "tpu" and config.learner.share_prompts and slides:
    raise ValueError(
      f"config.learner.share_prompts=True with a model whose layers have a window of {shape.window} tokens: the TPU's "
      "attention kernel does not take both. Set config.learner.share_prompts=False."
    )
  if shape.traits.hybrid and training and mesh is not None and mesh.shape["sequence"] > 1:
    raise ValueError(
      f"config.mesh.sequence={mesh.shape['sequence']} with a {shape.family} model: the memory of a delta layer goes "
      "through a row from its first token to its last, so a row cannot be split. Set config.mesh.sequence=1."
    )
  if mesh is not None:
    blocks = dict(micro_rows=config.learner.micro_rows, row_lengths=config.learner.row_lengths) if training else {}
    heads = dict(heads=shape.num_heads, kv_heads=shape.num_kv_heads)
    rules.check(mesh.shape, **heads, vocab=_vocab(config, shape), **shape.parts, **blocks)


def engine(config: Settings, shape: DecoderConfig, mesh: jax.sharding.Mesh | None) -> None:
  """The engine's devices can share the model, and its cache has a layout for them."""
  tensor = config.rollout.mesh.tensor
  sizes = engine_sizes.from_settings(config.rollout, mesh_lib.of_engine(mesh, **vars(config.rollout.mesh)))
  engine_sizes.check_model(shape.num_kv_heads, _vocab(config, shape), tensor, **shape.parts)
  layout = cache_lib.layout(shape, sizes.page, config.model.dtype, _platform(mesh), tensor, kv_dtype=sizes.kv_dtype)
  layout.check(sizes.cache_pages, tensor)


def _vocab(config: Settings, shape: DecoderConfig) -> int | None:
  """None for a new model, whose vocabulary comes with the tokenizer."""
  return shape.vocab_size if config.model.path else None


def devices() -> list[jax.Device]:
  """All devices of all hosts, if this machine has one of the platforms that JAX was told to use (JAX_PLATFORMS)."""
  try:
    return jax.devices()
  except (RuntimeError, AssertionError) as error:
    if not (platforms := jax.config.jax_platforms):
      raise
    extras = [f"pip install 'ragrl_jax[{PLUGINS[name]}]'" for name in platforms.split(",") if name in PLUGINS]
    raise ValueError(
      f"JAX_PLATFORMS={platforms}: JAX finds no such device here. It needs the hardware, its driver, and JAX's plugin"
      f"{': ' if extras else ''}{' or '.join(extras)}. JAX_PLATFORMS=cpu runs on the CPU."
    ) from error


def _platform(mesh: jax.sharding.Mesh | None) -> str:
  return (devices() if mesh is None else mesh.devices.flat)[0].platform
