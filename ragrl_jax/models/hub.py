"""Models by their names on the Hugging Face hub: OWNER/NAME or OWNER/NAME@REVISION, a branch, a tag or a commit.

The files are kept in the hub's cache. Only safetensors, settings and tokenizers are fetched: no pickles and no code. A
run stores names with their commits, OWNER/NAME@COMMIT or OWNER/NAME@REVISION@COMMIT, and so reads the same files again.
"""

import fnmatch
import functools
import os
import pathlib
import re
import sys
from typing import Any

from tqdm import tqdm

from ragrl_jax.models import hf
from ragrl_jax.parallel import hosts
from ragrl_jax.settings import Settings, fields

MODEL = ("model.safetensors", "model*-of-*.safetensors", "adapter_model.safetensors")
WEIGHTS = (*MODEL, "?_*/model.safetensors")  # of sentence-transformers' Dense modules
# "artifact.metadata" has ColBERT's settings; modules.json and the names after it say how an encoder makes a vector.
FILES = tuple(
  "config.json generation_config.json adapter_config.json model.safetensors.index.json tokenizer.json "
  "tokenizer_config.json tokenizer.model spiece.model special_tokens_map.json added_tokens.json vocab.json vocab.txt "
  "merges.txt chat_template.jinja chat_template.json additional_chat_templates/*.jinja modules.json ?_*/config.json "
  "sentence_bert_config.json config_sentence_transformers.json artifact.metadata".split()
)
# Settings that may be such names. Those of config.judges are added.
SETTINGS = {
  "model.path": "config",
  "model.lora.path": "config",
  "loss.teacher.path": "config",
  "prompting.tokenizer": "tokenizer",
  "retrieval.query_encoder": "config",
  "judge.path": "config",
}

_NAME = re.compile(r"(\w[\w.-]*/\w[\w.-]*)(?:@([^@\s]+))??(?:@([0-9a-f]{40}))?")
_CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)/snapshots/([0-9a-f]{40})")
_HERE = ("config.json", "adapter_config.json", "tokenizer.json", "tokenizer.model")  # a folder with one is a model's


def is_name(where: str | os.PathLike) -> bool:
  """Whether this is a name on the hub: it is written like one, and there is no model's folder of that name here."""
  return bool(_NAME.fullmatch(str(where))) and not _is_here(where)


def parts(name: str | os.PathLike) -> tuple[str, str]:
  """(OWNER/NAME, commit) of a name with a commit or of a folder in the hub's cache; "" for what is not known."""
  if match := _CACHED.search(pathlib.Path(name).as_posix()):
    return f"{match[1]}/{match[2]}", match[3]
  match = _NAME.fullmatch(str(name)) if is_name(name) else None
  return (match[1], match[3] or "") if match else ("", "")


def folder(where: str | os.PathLike, setting: str, *, part: str = "model") -> pathlib.Path:
  """The folder of a model: one here, or else one in the hub's cache, where what is missing is downloaded.

  Args:
    part: "model": all; "config": all but the weights, which must exist; "tokenizer": files that need no weights, and a
      path need not be a folder.

  Raises:
    ValueError: there is no such folder, and the hub does not give it.
  """
  path, match = pathlib.Path(where), _NAME.fullmatch(str(where))
  if (path / "checkpoints").is_dir() and not any(path.glob("*.safetensors")):
    raise ValueError(
      f"{setting}={str(where)!r}: this is a run's folder: use {where}/model of a finished run, or write a model's "
      f"folder with `ragrl export --checkpoint {where} --out FOLDER`. Adapters are named by config.model.lora.path."
    )
  if match is None and part != "tokenizer" and not path.is_dir():
    raise ValueError(
      f"{setting}={str(where)!r}: there is no such folder, and it is no name on the Hugging Face hub (OWNER/NAME or "
      "OWNER/NAME@REVISION). A model is a folder with config.json, *.safetensors and tokenizer."
    )
  if match is None:
    return path
  if _is_here(path):
    _say(f"{setting}={where}: the folder here is used, not a model of that name on the hub.")
    return path
  return _fetched(f"{setting}={str(where)!r}", *match.groups(), part)


def with_commit(where: str, setting: str, part: str = "config") -> str:
  """A name with its commit, for a name on the hub; other paths as they are. Raises ValueError as `folder` does."""
  if not is_name(where) or parts(where)[1]:
    return where
  return f"{where}@{folder(where, setting, part=part).name}"


def stored(known: Any, where: str, setting: str) -> str:
  """`known`, if it is a name with a commit that was stored for the name `where`; else ""."""
  commit = parts(known)[1] if isinstance(known, str) else ""
  if not commit or (known != f"{where}@{commit}" and parts(known) != parts(where)):
    return ""
  _say(f"{setting}={where}: the commit that is stored is used, {commit}.")
  return known


def in_cache(where: str | os.PathLike) -> pathlib.Path:
  """The folder of a name with its commit in the hub's cache, if its config.json is there; other paths as they are."""
  import huggingface_hub

  repo, commit = parts(where)
  path = huggingface_hub.try_to_load_from_cache(repo, "config.json", revision=commit) if commit else None
  return pathlib.Path(path).parent if isinstance(path, str) else pathlib.Path(where)


def pinned(config: Settings, workdir: str | os.PathLike | None = None, *, training: bool = True) -> Settings:
  """The settings, in which names have their commits: those of the run in `workdir`, else the present ones.

  It downloads settings and tokenizers, but no weights. With several hosts, all must call it. Without `training` no
  teacher is looked for.

  Raises:
    ValueError: see `folder`; or the run's config.json is damaged.
  """
  settings_named = SETTINGS | {f"judges.{term}.path": "config" for term in config.judges}
  commits = {}
  for setting, part in settings_named.items():
    where = fields.at(config, setting) if training or setting != "loss.teacher.path" else ""
    if where and is_name(where):
      commits[setting] = _of_run(workdir, setting, where) or with_commit(where, f"config.{setting}", part)
    elif where and part != "tokenizer" and _NAME.fullmatch(where):
      folder(where, f"config.{setting}")  # says that it is the folder here
  return fields.replaced(config, hosts.exchange(commits)[0])


def _of_run(workdir: str | os.PathLike | None, setting: str, where: str) -> str:
  """`stored` of the setting in this folder's config.json."""
  if workdir is None or not (file := pathlib.Path(workdir) / "config.json").is_file():
    return ""
  within = lambda values, key: values.get(key) if isinstance(values, dict) else None
  return stored(functools.reduce(within, setting.split("."), hf.read_json(file)), where, f"config.{setting}")


def _is_here(path: str | os.PathLike) -> bool:
  path = pathlib.Path(path)
  return path.is_file() or any((path / name).is_file() for name in _HERE)


def _fetched(what: str, repo: str, revision: str | None, commit: str | None, part: str) -> pathlib.Path:
  import huggingface_hub as hub  # takes a while, and folders do not need it
  from huggingface_hub import errors

  patterns = [*FILES, *(WEIGHTS if part == "model" else ())]

  def cached(at: str | None, *, known: bool = True) -> pathlib.Path | None:
    """The snapshot, if it is complete. `known`: only if it is known which files there are."""
    try:
      if known:
        hub.get_cached_repo_tree(repo, revision=at)
      return pathlib.Path(hub.snapshot_download(repo, revision=at, allow_patterns=patterns, local_files_only=True))
    except (errors.CachedRepoTreeNotFoundError, errors.LocalEntryNotFoundError):
      return None

  if commit and (path := cached(commit)):
    return path
  api = hub.HfApi()
  # httpx raises an ImportError if it lacks its package for a SOCKS proxy.
  failures = errors.HTTPError, errors.HFValidationError, errors.LocalEntryNotFoundError, ConnectionError, ImportError
  try:
    info = api.model_info(repo, revision=commit or revision, files_metadata=True)
    if commit is None:
      api.resolve_revision(repo, revision=revision)  # the cache notes the commit, for a start without network
    if path := cached(info.sha):
      return path
    _announce(what, repo, info, patterns, part)
    return pathlib.Path(hub.snapshot_download(repo, revision=info.sha, allow_patterns=patterns))
  except failures as error:
    if reason := _refusal(repo, commit or revision, error):
      raise ValueError(f"{what}: {reason}") from error
    if path := cached(commit or revision, known=False):
      _say(f"{what}: {_reason(error)}, so the cache's commit is used, {path.name}.")
      return path
    raise ValueError(
      f"{what}: there is no such folder, {_reason(error)}, and the cache {hub.constants.HF_HUB_CACHE} does not have "
      "all of it. Connect and give the same command, which fetches the missing files, or name a folder."
    ) from error


def _announce(what: str, repo: str, info: Any, patterns: list[str], part: str) -> None:
  """Says what will be downloaded; refuses a repository without safetensors."""
  import huggingface_hub as hub

  size = {file.rfilename: file.size or 0 for file in info.siblings}
  chosen = lambda patterns: [name for name in size if any(fnmatch.fnmatchcase(name, one) for one in patterns)]
  if part != "tokenizer" and not chosen(MODEL):
    others = sorted(name for name in size if name.endswith((".bin", ".pt", ".pth", ".ckpt", ".h5", ".gguf")))
    raise ValueError(
      f"{what}: {repo} has no safetensors" + (f", only {', '.join(others[:3])}" if others else "") + ": pickles are "
      "never opened. Name a revision or a copy that has them, or convert it (transformers' save_pretrained)."
    )
  missing = lambda patterns: sum(
    size[name] for name in chosen(patterns) if not hub.try_to_load_from_cache(repo, name, revision=info.sha)
  )
  later = missing(WEIGHTS) if part == "config" else 0
  _say(
    f"{what}: downloads {_bytes(missing(patterns))} of {repo} at {info.sha} into {hub.constants.HF_HUB_CACHE}"
    + (f"; the weights, {_bytes(later)}, follow when they are read." if later else ".")
  )


def _refusal(repo: str, revision: str | None, error: Exception) -> str:
  """What the hub answers; "" if it gives no answer about this model."""
  from huggingface_hub import constants, errors

  login, where = "`hf auth login`, or set HF_TOKEN", f"{constants.ENDPOINT}/{repo}"
  if isinstance(error, errors.GatedRepoError):
    return f"{where} is gated: ask for access there, then {login}."
  if isinstance(error, errors.RevisionNotFoundError):
    return f"{where} has no revision {revision!r}: name a branch, a tag or a whole commit."
  if isinstance(error, errors.RepositoryNotFoundError):
    return f"there is no such folder, and no {where}, or it is private: correct the name, or {login}."
  return f"there is no such folder, and {error}" if isinstance(error, errors.HFValidationError) else ""


def _reason(error: Exception) -> str:
  """Why the hub gives no answer."""
  from huggingface_hub import errors

  if isinstance(error, errors.OfflineModeIsEnabled):
    return "HF_HUB_OFFLINE is set"
  return f"the hub cannot be reached ({' '.join(str(error).split()) or type(error).__name__})"


def _bytes(size: float) -> str:
  for unit in ("bytes", "kB", "MB"):
    if size < 1000:
      return f"{size:.3g} {unit}"
    size /= 1000
  return f"{size:,.1f} GB"


@functools.cache
def _say(text: str) -> None:
  """Prints a line once."""
  tqdm.write(text, file=sys.stderr)
