"""Writes a checkpoint as a Hugging Face folder with a model card, and uploads it if --to is given:

  ragrl push --checkpoint RUN[/checkpoints/STEP] --out FOLDER [--results DIR …]
  ragrl push --checkpoint RUN --out FOLDER --results DIR --license apache-2.0 --to USER/NAME

The model card, FOLDER/README.md, has recipe, data, settings, training, scores with intervals, and limits. The scores
are from the run's own held-out evaluation at this step, and from the evaluations that --results names. An evaluation of
other weights is refused. Without --to, nothing leaves this machine.
"""

import pathlib
import re
from typing import Any

import huggingface_hub
from huggingface_hub import constants, errors

from ragrl_jax import config as config_lib, settings as settings_lib
from ragrl_jax.cli import commands, export_hf
from ragrl_jax.evaluation import answer_files, harness
from ragrl_jax.report import card
from ragrl_jax.settings import Settings
from ragrl_jax.store import jsonl

README = "README.md"


def main() -> None:
  commands.on_cpu()
  parser = commands.Parser(__doc__)
  parser.add_argument("--checkpoint", required=True, help="RUN or RUN/checkpoints/STEP")
  parser.add_argument("--out", required=True, help="a new folder")
  parser.add_argument("--results", action="append", default=[], help="folder of an evaluation of this checkpoint")
  parser.add_argument("--license", default="", help="licence of the weights, by its name on the hub: apache-2.0, other")
  parser.add_argument("--base_model", default="", help="the base model's name on the hub")
  parser.add_argument("--dtype", default="bfloat16", choices=export_hf.DTYPES)
  parser.add_argument("--to", default="", help="upload to this repository of the hub, USER/NAME")
  parser.add_argument("--private", action="store_true", help="make the repository private, if it is new")
  arguments = parser.parse_args()
  out = pathlib.Path(arguments.out)
  if out.exists() and (not out.is_dir() or any(out.iterdir())):
    raise ValueError(f"--out={out} is not empty, and the whole folder would be uploaded: name a new folder.")
  token = allowed(arguments.to, arguments.license) if arguments.to else ""
  made = write(
    arguments.checkpoint, out, results=arguments.results, dtype=arguments.dtype, name=arguments.to.partition("/")[2],
    licence=arguments.license, base=arguments.base_model,
  )  # fmt: skip
  files = {str(path.relative_to(out)): path.stat().st_size for path in sorted(out.rglob("*")) if path.is_file()}
  size = f"{len(files)} files, {sum(files.values()) / 1e6:.1f} MB"
  print("\n".join(f"{count:>14,}  {file}" for file, count in files.items()))
  if not arguments.to:
    print(f"{out}: {size}, of step {made.step}. Nothing was uploaded: read {README}, then `hf upload USER/NAME {out}`.")
    return
  message = f"Step {made.step} of {made.run.resolve().name}"
  print(f"{size}: {upload(out, arguments.to, token=token, private=arguments.private, message=message)}")


def write(
  checkpoint: str, out: pathlib.Path, *, results: list[str], dtype: str, name: str, licence: str = "", base: str = ""
) -> export_hf.Exported:
  """Writes the folder: model, tokenizer and model card.

  Args:
    checkpoint: RUN or RUN/checkpoints/STEP.
    name, licence, base: see `card.write`; the name is the folder's of the run if it is empty.

  Raises:
    FileNotFoundError: see `export_hf.export`.
    ValueError: see `export_hf.export`; or an evaluation is unfinished, or of other weights.
  """
  evaluations = [(folder, answer_files.finished(folder)) for folder in results]
  config = settings_lib.of(config_lib.of_run(config_lib.run_of(checkpoint) or checkpoint))
  result = export_hf.export(checkpoint, out, dtype=dtype, read_as=config.model.param_dtype, config=config)
  scores = held_out(result)
  for folder, metrics in evaluations:
    settings = metrics.get("settings") or {}
    if settings.get("weights") != result.weights:
      raise ValueError(
        f"--results={folder} scores other weights ({settings.get('weights')}) than step {result.step} of {result.run} "
        f"({result.weights}): evaluate this checkpoint, or leave the folder out. {out} has no card yet."
      )
    files = ", ".join(pathlib.PurePath(part).name for part in str(settings.get("data")).split(","))
    scores.append((files, None, metrics))
  text = card.write(
    result.run, result.step, config=config, name=name or result.run.resolve().name, baseline=baseline(config),
    scores=scores, licence=licence, base=base,
  )  # fmt: skip
  jsonl.write_text(out / README, text)
  return result


def held_out(exported: export_hf.Exported) -> list[tuple[str, dict[str, Any] | None, dict[str, Any]]]:
  """The run's own held-out evaluation: [(name, metrics before training or None, metrics at the checkpoint's step)].

  The list is empty if the run was not evaluated at this step.
  """
  files = jsonl.step_files(exported.run / jsonl.EVALUATIONS)
  if exported.step not in files:
    return []
  of = lambda step: harness.summarise(list(jsonl.read(files[step])))
  return [("Held-out questions of the run", of(0) if 0 in files else None, of(exported.step))]


def baseline(config: Settings) -> Settings:
  """The settings of the package's config for the run's recipe and preset; the defaults if the package has none."""
  file = config_lib.folder() / f"{config.recipe}.py"
  if not file.is_file():
    return Settings()
  return settings_lib.of(config_lib.load(file, "" if config.preset == "paper" else config.preset))


def allowed(to: str, licence: str) -> str:
  """Checks what can be checked without a network, and returns the hub's token.

  Raises:
    ValueError: the name is not valid, there is no licence, HF_HUB_OFFLINE is set, or there is no token.
  """
  if not re.fullmatch(r"[\w.-]+/[\w.-]+", to):
    raise ValueError(f"--to={to}: name a repository of the hub, as in USER/NAME.")
  if not licence:
    raise ValueError(f"--to={to} needs --license, the licence of the weights ('other' for your own).")
  if constants.HF_HUB_OFFLINE:
    raise ValueError(f"--to={to}, but HF_HUB_OFFLINE is set in the environment: unset it to upload.")
  token = huggingface_hub.get_token()
  if not token:
    raise ValueError(f"--to={to}: there is no token of the hub: `hf auth login`, or set HF_TOKEN.")
  return token


def upload(
  folder: pathlib.Path, to: str, *, token: str, private: bool, message: str, endpoint: str | None = None
) -> str:
  """Uploads the folder to a model repository, which is created if needed, and returns the commit's address.

  Args:
    endpoint: the hub's address; None for the address in HF_ENDPOINT, or else the public hub.

  Raises:
    ValueError: the hub refuses the upload, or cannot be reached.
  """
  hub = huggingface_hub.HfApi(endpoint=endpoint, token=token)
  try:
    hub.create_repo(to, private=private, exist_ok=True)
    return str(hub.upload_folder(repo_id=to, folder_path=folder, commit_message=message))
  except errors.HTTPError as error:
    why = " ".join(str(error).split())
    raise ValueError(
      f"--to={to}: the upload failed ({why}). {folder} is complete: `hf upload {to} {folder}`."
    ) from error
