"""What a run consists of before weights, index and questions are read. Made and checked once, then passed on."""

import dataclasses
import filecmp
import functools
import hashlib
import inspect
import json
import logging
import math
import pathlib
import shlex
import textwrap
from collections.abc import Callable
from typing import Any

import jax

from ragrl_jax import config as config_lib, recipes, structs
from ragrl_jax.models import hub, weights
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.parallel import cores, hosts, mesh as mesh_lib
from ragrl_jax.prompting import chat, tokenizer as tokenizer_lib
from ragrl_jax.recipes.recipe import Recipe
from ragrl_jax.run import checks
from ragrl_jax.settings import Settings, fields, stored_paths
from ragrl_jax.store import jsonl

_TEXT = "Question: Who wrote “Ulysses” in 1922? Answer: James Joyce"  # of which two tokenizers are compared
Reward = Callable[[structs.Example, structs.Episode], float | None]


@dataclasses.dataclass(frozen=True)
class Prepared:
  """The settings and what follows from them alone.

  Attributes:
    tokenizer: of config.prompting, or of the model's folder.
    mesh: the devices of all hosts that share weights and rows; None for one device.
    reward: digest of the user's own reward (`with_reward`); "" for the recipe's.
  """

  settings: Settings
  recipe: Recipe
  tokenizer: Any
  shape: DecoderConfig
  mesh: jax.sharding.Mesh | None
  reward: str = ""


def prepare(
  config: config_lib.Config | Settings | Prepared, workdir: str | pathlib.Path | None = None, *, purpose: str = "rl"
) -> Prepared:
  """Makes every check that needs neither weights, index nor questions, and what is returned.

  Args:
    config: all settings, or what was prepared earlier in this process, which is returned as it is.
    workdir: the run's folder: names on the hub keep their commits. None changes no name.
    purpose: "rl" or "sft" for a learner; "play" for playing the recipe, "sample" for the model alone.

  Raises:
    ValueError: settings that do not fit each other, the model or this machine; or there is no tokenizer.
  """
  if isinstance(config, Prepared):
    return config
  settings = config_lib.validate(config, training=purpose == "rl")
  if workdir is not None:
    checks.written(settings, pathlib.Path(workdir) / "model", "--workdir")
    settings = hub.pinned(settings, workdir)
  method = recipe(settings)
  if purpose == "rl":
    checks.trainable(settings, method)
    checks.unread(settings)
  if purpose in ("rl", "play"):
    checks.tools(settings, method)
  if purpose in ("rl", "sft"):
    checks.learner(settings, purpose)
  decoder = shape(settings)
  if purpose != "sft":
    checks.context(settings, decoder)
  checks.adapters(settings, decoder)
  found = len({device.process_index for device in checks.devices()})
  if found > 1 and purpose in ("play", "sample"):  # all of them would write the results
    raise ValueError(
      f"JAX sees {found} hosts, and only ragrl train and ragrl sft use several: take a machine or a slice of one host."
    )
  devices = mesh(settings)
  checks.mesh(settings, decoder, devices, training=purpose in ("rl", "sft"))
  if purpose != "sft":
    checks.engine(settings, decoder, devices)
  encoding = tokenizer(settings, method)
  if settings.model.path:
    checks.rows(settings, decoder, encoding)
  else:
    decoder = shape(settings, encoding.vocab_size)
  return Prepared(settings, method, encoding, decoder, devices)


def with_reward(prepared: Prepared, reward: Reward) -> Prepared:
  """The same run with a function of one's own in place of the recipe's terms: one term, "reward", of weight 1.

  Prompt, play and outcome stay the recipe's.

  Args:
    reward: (example, episode) → a number, or None for an episode that cannot be scored. It must be pure: it is called
      in another thread, beside the rollout. A run records the digest of its text, and is not continued with another.

  Raises:
    ValueError: it cannot be called with these two.
  """
  try:
    inspect.signature(reward).bind("example", "episode")
  except TypeError as error:
    raise ValueError(f"reward={reward!r:.80}: it must be a function reward(example, episode) ({error}).") from None
  except ValueError:  # not written in Python, so its arguments are unknown
    pass
  digest = hashlib.sha256(_text(reward).encode()).hexdigest()[:16]
  return dataclasses.replace(prepared, recipe=_rewarded(prepared.recipe, reward), reward=digest)


def _text(function: Any) -> str:
  """A function's text; of an object that is called, its class's; of functools.partial, with the values that it sets."""
  if isinstance(function, functools.partial):
    kind = lambda value: type(value).__qualname__  # of a value that JSON lacks
    return _text(function.func) + json.dumps([function.args, function.keywords], skipkeys=True, default=kind)
  try:
    return textwrap.dedent(inspect.getsource(function if inspect.isroutine(function) else type(function)))
  except (OSError, TypeError):  # typed into a console, or not written in Python
    return getattr(function, "__qualname__", type(function).__qualname__)


def _rewarded(recipe: Recipe, reward: Reward) -> Recipe:
  number = lambda value: value.item() if getattr(value, "shape", None) == () else value  # of NumPy's and JAX's scalars
  again = lambda change: None if change is None else lambda old: _rewarded(change(old), reward)
  return dataclasses.replace(
    recipe,
    score=lambda example, episode: {"reward": number(reward(example, episode))},
    weights=lambda step: {"reward": 1.0},
    credit=None,
    pooled=None,
    unearned=None,
    next_recipe=again(recipe.next_recipe),
    paced=again(recipe.paced),
  )


def recipe(config: Settings) -> Recipe:
  """The recipe of the config, with its preset and switches.

  Raises:
    ValueError: as `recipes.get` does; or a setting of a run that was copied is withheld (`checkpoints.config_of`).
  """
  words = [f"--config.{name}={value}" for name, value in jsonl.flat(fields.plain(config))]
  if withheld := [word.replace(stored_paths.WITHHELD, "") for word in words if f"={stored_paths.WITHHELD}" in word]:
    raise ValueError(
      "this run was copied here, or someone else made it, and its config.json names programs to run, or environment "
      f"variables whose values to send. If you trust it, name them yourself: {shlex.join(withheld)}"
    )
  return recipes.get(config.recipe, config.preset, **config.switches)


def tokenizer(config: Settings, recipe: Recipe | None) -> Any:
  """The tokenizer of config.prompting, or of the model's folder.

  With a recipe of None no conversations are rendered, and the chat template is not checked.

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
  prompting = config.prompting
  setting, part = ("prompting.tokenizer", "tokenizer") if prompting.tokenizer else ("model.path", "config")
  check = (lambda tokenizer: None) if recipe is None else recipe.tool_tokens or chat.check_append_only
  result = tokenizer_lib.load_tokenizer(
    hub.folder(where, f"config.{setting}", part=part),
    chat=prompting.chat,
    markers=prompting.markers,
    thinking=prompting.thinking,
    check=check,
  )
  if prompting.chat and where != "bytes" and getattr(result, "markers", None) is None:
    raise ValueError(
      f"config.prompting.chat=True, but the tokenizer at {where} has no chat template: set config.prompting.chat=False "
      "for bare text, or, for a Hugging Face folder, config.prompting.markers='own' for this library's role markers."
    )
  if config.model.path and prompting.tokenizer not in ("", config.model.path):
    _say_other_tokenizer(config, result)
  return result


def _say_other_tokenizer(config: Settings, tokenizer: Any) -> None:
  """Warns if the model's own tokenizer, where it is here, gives a text other ids: the model has not learned these."""
  folder, other = hub.in_cache(config.model.path), pathlib.Path(config.prompting.tokenizer)
  name = next((name for name in ("tokenizer.json", "tokenizer.model") if (folder / name).is_file()), "")
  other = other / name if other.is_dir() else other
  if not name or (other.is_file() and filecmp.cmp(folder / name, other, shallow=False)):
    return
  try:
    own = tokenizer_lib.load_tokenizer(folder, chat=False, check=lambda tokenizer: None)
  except Exception as error:  # noqa: BLE001 – the library tokenizers raises no narrower ones
    logging.warning(
      "config.model.path=%s: its own tokenizer cannot be read (%s), so config.prompting.tokenizer=%s is not compared "
      "with it.",
      config.model.path,
      " ".join(str(error).split()) or type(error).__name__,
      config.prompting.tokenizer,
    )
    return
  if own.encode(_TEXT) != tokenizer.encode(_TEXT):
    logging.warning(
      "config.prompting.tokenizer=%s gives other ids than the tokenizer of config.model.path=%s: the model would read "
      "and write other words. Leave it empty for the model's own.",
      config.prompting.tokenizer,
      config.model.path,
    )


def shape(config: Settings, vocab: int = 1) -> DecoderConfig:
  """The decoder's shape: from its folder, or for a new model, with this size of the vocabulary, from the config."""
  if not config.model.path:
    return DecoderConfig.from_shape(vocab, **fields.plain(config.model.shape))
  return weights.config_of(hub.folder(config.model.path, "config.model.path", part="config"))


def mesh(config: Settings) -> jax.sharding.Mesh | None:
  """The devices of config.mesh; None if that is one device. Without a -1 among the sizes, the first devices are used.

  Raises:
    ValueError: there are too few devices, or JAX has none of the requested platform.
  """
  sizes, devices = vars(config.mesh), checks.devices()
  count = math.prod(size for size in sizes.values() if size != -1)
  if count > len(devices):
    raise ValueError(
      f"config.mesh={sizes} asks for {count} devices, and JAX sees {len(devices)} ({devices[0].platform}): lower the "
      "sizes, or install JAX for the accelerators (pip install 'ragrl_jax[cuda]' or 'ragrl_jax[tpu]')."
    )
  if -1 not in sizes.values():
    devices = devices[:count]
  if missing := hosts.count() - len({device.process_index for device in devices}):
    raise ValueError(
      f"config.mesh={sizes}: these {len(devices)} devices leave {missing} of {hosts.count()} hosts "
      "without any: set one size to -1, or let the sizes multiply to all devices."
    )
  if devices[0].platform == "cpu" and len(devices) > hosts.count() and cores.threads() < 4 * len(devices):
    text = "config.mesh: %d simulated CPU devices with %d XLA threads may wait for each other for ever: set NPROC=%d."
    logging.warning(text, len(devices), cores.threads(), 8 * len(devices))
  return None if len(devices) == 1 else mesh_lib.make(devices, **sizes)
