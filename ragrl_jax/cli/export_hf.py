"""Writes a run's checkpoint and tokenizer as a Hugging Face folder, which `transformers` and servers load.

    ragrl export --checkpoint RUN[/checkpoints/STEP] --out FOLDER [--dtype bfloat16]

RUN contains the config.json that training wrote. Without STEP the newest checkpoint is exported. Only the weights are
read, not the optimizer's state or the value head of a shared critic. LoRA adapters are merged into their base model.
"""

import dataclasses
import json
import pathlib

import jax.numpy as jnp
from flax import nnx

from ragrl_jax import config as config_lib, settings
from ragrl_jax.cli import commands
from ragrl_jax.jobs import checkpoints
from ragrl_jax.models import hf, lora
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.prompting import declared
from ragrl_jax.run import checks, player, prepared, saving
from ragrl_jax.settings import stored_paths
from ragrl_jax.store import folders

DTYPES = ("float32", "bfloat16", "float16")


def settings_of(run: pathlib.Path) -> settings.Settings:
  """The run's settings of model, tokenizer and critic, and defaults for all others."""
  stored = hf.read_json(run / "config.json")
  kept_settings = {name: stored[name] for name in ("seed", "model", "prompting", "critic")}
  return settings.of(stored_paths.in_settings(kept_settings, run))


@dataclasses.dataclass(frozen=True)
class Exported:
  """An exported checkpoint.

  Attributes:
    weights: `checkpoints.fingerprint` of the policy. Evaluations store the same fingerprint.
  """

  run: pathlib.Path
  step: int
  family: str
  weights: str


def export(
  checkpoint: str | pathlib.Path,
  out: str | pathlib.Path,
  *,
  dtype: str,
  read_as: str = "",
  config: settings.Settings | None = None,
) -> Exported:
  """Writes a run's checkpoint and tokenizer as a Hugging Face folder.

  Args:
    checkpoint: RUN, or RUN/checkpoints/STEP.
    read_as: dtype in which the weights are read; `dtype` if empty. The fingerprint depends on it.
    config: the run's settings; None: those that it needs are read from config.json.

  Raises:
    FileNotFoundError: there is no such checkpoint.
    ValueError: the checkpoint is damaged, or it is of another model; or `out` holds a run, an evaluation or an index,
      or the run's base.
  """
  folders.refuse_others(out)
  path = pathlib.Path(checkpoint)
  checkpoints.refuse_others(path)
  path = path / "checkpoints" if config_lib.step_of(path) is None else path
  if not path.is_dir():
    raise FileNotFoundError(f"{path}: there is no such folder: name a run, or RUN/checkpoints/STEP (--checkpoint).")
  _, steps, step = checkpoints.locate(path)
  config = config or settings_of(steps.parent)
  checks.written(config, pathlib.Path(out), "--out")
  tokenizer = prepared.tokenizer(config, None)
  shape = prepared.shape(config, tokenizer.vocab_size)
  if config.model.lora.rank or config.model.lora.path:
    model, shape = player.model(config, tokenizer, shape)
  else:
    model = nnx.eval_shape(lambda: Decoder(shape, rngs=nnx.Rngs(0), param_dtype=jnp.dtype(read_as or dtype)))
  graphdef, like, frozen = lora.split(model)
  model = nnx.merge(graphdef, checkpoints.trained(steps, step, like, config), frozen)
  weights = checkpoints.fingerprint(nnx.split(model)[1])
  saving.save(lora.merged(model, dtype), shape, tokenizer, config, pathlib.Path(out), dtype=jnp.dtype(dtype))
  if config.prompting.markers == "own" or not config.prompting.chat:
    declared.say_unused_template(out)
  return Exported(steps.parent, step, shape.family, weights)


def main() -> None:
  commands.on_cpu()
  parser = commands.Parser(__doc__)
  parser.add_argument("--checkpoint", required=True, help="RUN or RUN/checkpoints/STEP")
  parser.add_argument("--out", required=True)
  parser.add_argument("--dtype", default="float32", choices=DTYPES)
  arguments = parser.parse_args()
  exported = export(arguments.checkpoint, arguments.out, dtype=arguments.dtype)
  print(json.dumps(dict(model=arguments.out, step=exported.step, dtype=arguments.dtype, family=exported.family)))
