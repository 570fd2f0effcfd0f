"""A run's config.json: writes the settings, and decides which of them may change when the run is resumed."""

import contextlib
import fnmatch
import hashlib
import json
import pathlib
import re
import time
from collections.abc import Mapping
from typing import Any

from ragrl_jax import config as config_lib
from ragrl_jax.settings import Settings, fields, stored_paths
from ragrl_jax.store import addresses, jsonl

FILE, CHANGES = "config.json", "changes.jsonl"
CONTENTS = "contents.json"  # setting → digest of the files that it names (run/contents.py)
WORDINGS = "wordings.json"  # the texts of settings that are "file:PATH", as they were when the run began

# Patterns of the settings that do not change the trained weights, each with the reason. All others may change them, if
# only by the order of a sum, as the mesh, lanes and block sizes do. config.steps is free unless the learning rate, the
# weight of a teacher's term, a curriculum or the last step's sampling (rollout.ahead) depends on it.
FREE = {
  "log.*": "only what is logged",
  "checkpoint.*": "only when it is saved",
  "evaluate.*": "held-out questions are played greedily beside training, and do not affect it",
  "data.evaluate": "as evaluate",
  "data.evidence": "as evaluate",
  "data.noise": "as evaluate",
  "data.cut_middle": "as evaluate",
  "retrieval.*_s": "only how long to wait for an answer, not its content",
  "judge.*_s": "as retrieval",
  "judges.*_s": "as retrieval",
  "*.retries": "as retrieval",
  "*.max_failed_share": "only when the run stops",
  "judge*.concurrency": "only how many requests run at a time",
  "judge*.cache": "cached verdicts equal the judge's",
  "judge*.key_variable": "only which account pays",
  "retrieval.key_variable": "only the token of the same server",
  "loss.teacher.key_variable": "as retrieval",
}

# Setting → what runs did that lack it, if that is not its default.
BEFORE = {"loss.reference": "base"}

# They change the held-out metrics.
HELD_OUT = ("evaluate.", "data.evaluate", "data.evidence", "data.noise", "data.cut_middle")


def write(workdir: pathlib.Path, config: Settings, objective: str) -> None:
  """Writes the settings and the run's kind to config.json, as ASCII, and the user's own wordings to wordings.json.

  Addresses are written without user and password.
  """
  values_made = values(config)
  if texts := wordings(values_made):
    jsonl.write_text(workdir / WORDINGS, json.dumps(texts, indent=1, ensure_ascii=False))
  else:
    (workdir / WORDINGS).unlink(missing_ok=True)  # of settings before accepted changes
  jsonl.write_text(workdir / FILE, json.dumps(values_made | {config_lib.OBJECTIVE: objective}, indent=1))
  stored_paths.note(workdir)


def wordings(settings: Mapping[str, Any]) -> dict[str, str]:
  """Setting → the text of its file, of each setting that is "file:PATH" (prompting/wording.py).

  A folder of wordings has one entry SETTING/NAME.txt for each file. Functions FILE.py:NAME of a switch, and a command's
  FILE.py, have one entry SETTING/FILE.py for each file (see `_programs`).

  Raises:
    ValueError: a file that cannot be read.
  """
  result = {}
  for name, value in dict(jsonl.flat(settings)).items():
    files = {}
    if isinstance(value, str) and name.startswith("switches."):
      files = {f"{name}/{key}": path for key, path, _ in _programs(value) if path.suffix == ".py" and path.is_file()}
    if isinstance(value, str) and value.startswith(fields.FILE):
      path = pathlib.Path(value.removeprefix(fields.FILE)).expanduser()
      files = {f"{name}/{file.name}": file for file in sorted(path.glob("*.txt"))} if path.is_dir() else {name: path}
    try:
      result |= {setting: file.read_text(encoding="utf-8-sig") for setting, file in files.items()}
    except (OSError, UnicodeDecodeError) as error:
      why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
      raise ValueError(f"config.{name}={value}: the file cannot be read ({why}).") from None
  return result


def _programs(value: str) -> list[tuple[str, pathlib.Path, str]]:
  """(key, file, name of the function) of each part of "FILE.py:NAME,…", and of each FILE.py in commands (name "").

  The key is the file's name. Where files of several folders share it, the last one has it alone, and those before have
  numbers: "2/tools.py". So a moved run keeps its keys, and runs recorded before the numbers still compare.
  """
  keys: dict[pathlib.Path, str] = {}
  parts = [part.strip().rpartition(":")[::2] for part in value.split(",")]
  words = re.split(r"[\s|]+", value.removeprefix("command:"))
  parts += [(word, "") for word in words if word.endswith(".py")]
  for path in (pathlib.Path(file) for file, _ in reversed(parts)):
    same = sum(other.name == path.name for other in keys)
    keys.setdefault(path, f"{same + 1}/{path.name}" if same else path.name)
  return [(keys[path], path, name) for path, name in ((pathlib.Path(file), name) for file, name in parts)]


def wordings_of(workdir: pathlib.Path) -> dict[str, str]:
  """Setting → its file's text when the run began; {} if no setting was "file:PATH"."""
  return jsonl.read_object(workdir / WORDINGS)


def digests(texts: Mapping[str, str]) -> dict[str, str]:
  """Setting → a short hash of its text."""
  return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()}


def reworded(workdir: pathlib.Path, settings: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
  """Setting → (old hash, new hash) of each file whose text has changed since the run began."""
  was = digests(wordings_of(workdir))
  now = digests(wordings(settings))
  return {name: (was[name], now[name]) for name in was.keys() & now.keys() if was[name] != now[name]}


def differences(workdir: pathlib.Path, config: Settings) -> dict[str, tuple[Any, Any]]:
  """Setting → (old value, new value), for each setting that differs from the folder's config.json.

  A setting that is missing in the file, because it is newer, had its value of BEFORE, or else its default. A switch
  that is None is unset, as one that is missing.

  Raises:
    ValueError: the file is missing or damaged.
  """
  path = workdir / FILE
  try:
    stored = json.loads(path.read_text(encoding="utf-8"))
    stored.pop(config_lib.OBJECTIVE, None)
    was = dict(jsonl.flat(values(Settings()))) | BEFORE
    was |= jsonl.flat(stored)
  except (FileNotFoundError, AttributeError, ValueError, RecursionError) as error:
    raise ValueError(
      f"{path} is missing or damaged ({error}), so the settings of the checkpoints beside it are unknown. "
      "Put it back, use another workdir, or remove it and resume with "
      "--accept_changes."
    ) from error
  current = values(config)
  now = dict(jsonl.flat(current))
  texts = {f"{name} (its text)": pair for name, pair in reworded(workdir, current).items()}
  kept, read = wordings_of(workdir), wordings(current)
  moved = {name.partition("/")[0] for name in kept.keys() & read.keys()} if kept.keys() == read.keys() else set()
  result = {name: (was.get(name), now.get(name)) for name in [*now, *(was.keys() - now.keys())]}
  return texts | {
    name: pair for name, pair in result.items() if pair[0] != pair[1] and not (name in moved and _only_moved(*pair))
  }


def _only_moved(was: Any, now: Any) -> bool:
  """Whether two values of a setting name files whose texts are compared (`wordings`), so that paths do not matter."""
  if not (isinstance(was, str) and isinstance(now, str)):
    return False
  names = lambda value: [(key, name) for key, _, name in _programs(value)]
  return was.startswith(fields.FILE) and now.startswith(fields.FILE) or ".py:" in was and names(was) == names(now)


def refuse_model(workdir: pathlib.Path) -> None:
  """Refuses to begin a run in the folder of a model, whose config.json it would overwrite.

  Raises:
    ValueError: the folder has a config.json, which is not a run's.
  """
  if (workdir / FILE).exists() and not (workdir / "checkpoints").exists() and not config_lib.is_run(workdir):
    raise ValueError(
      f"--workdir={workdir}: this folder holds a {FILE} that is not a run's, such as a model's, and would be "
      "overwritten. Nothing was written: name another folder (--workdir)."
    )


def refuse_other_kind(workdir: pathlib.Path, objective: str) -> None:
  """Refuses to continue a run of another kind. No flag allows it: the checkpoints hold other states.

  Raises:
    ValueError: the folder's config.json has another kind ("rl" or "sft").
  """
  kind_stored = None
  with contextlib.suppress(OSError, ValueError, AttributeError):  # `differences` refuses a missing or damaged file
    kind_stored = json.loads((workdir / FILE).read_text(encoding="utf-8")).get(config_lib.OBJECTIVE)
  if kind_stored not in (None, objective):
    commands = dict(rl="ragrl train", sft="ragrl sft")
    raise ValueError(
      f"{workdir} holds a run of the kind {kind_stored!r}, this is one of {objective!r}: continue it with "
      f"`{commands.get(kind_stored, kind_stored)}`, or use another workdir (--workdir)."
    )


def refuse_others(
  workdir: pathlib.Path, changes: Mapping[str, tuple[Any, Any]], config: Settings, waits_for_held_out: bool = False
) -> None:
  """Refuses to resume if the changes would change what is trained.

  Raises:
    ValueError: some change would; the message gives the old and the new value of each such setting.
  """
  bound = {name: pair for name, pair in changes.items() if not _is_free(name, config, waits_for_held_out)}
  if bound:
    listing = "; ".join(f"config.{name} was {was!r}, is {now!r}" for name, (was, now) in sorted(bound.items())[:12])
    more = f"; and {len(bound) - 12} more" if len(bound) > 12 else ""
    raise ValueError(
      f"{workdir} holds a run with other settings: {listing}{more}. Put them back, use another workdir, or resume with "
      f"--accept_changes (accept_changes=True); {CHANGES} then records the changes."
    )


def record(workdir: pathlib.Path, step: int, changes: Mapping[str, tuple[Any, Any]]) -> None:
  """Appends the settings that changed at this step to the folder's changes.jsonl."""
  jsonl.repair(workdir / CHANGES)
  with open(workdir / CHANGES, "a", encoding="utf-8", newline="\n") as file:
    file.write(jsonl.line(dict(step=step, time=round(time.time(), 3), changes=changes)))


def accepted(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """What `record` wrote to a run's folder, in its order."""
  path = workdir / CHANGES
  return [*jsonl.read(path, torn_end=True)] if path.is_file() else []


def _is_free(name: str, config: Settings, waits_for_held_out: bool) -> bool:
  name = name.partition(" (")[0]  # "data.train (its contents)"
  # Held-out questions are also measured at config.steps.
  if waits_for_held_out and (name == "steps" or name.startswith(HELD_OUT)):
    return False
  if name == "checkpoint.every" and config.guard.rollback:  # it decides which checkpoint the run returns to
    return False
  if name == "steps":
    taught, falls = config.loss.teacher, config.optimizer.schedule in ("cosine", "linear")
    fades = taught.final_coef is not None and not taught.final_step
    return not falls and not fades and not config.data.hard and not config.rollout.ahead
  return any(fnmatch.fnmatchcase(name, pattern) for pattern in FREE)


def values(config: Settings) -> dict[str, Any]:
  """The settings as JSON values, without credentials."""
  return addresses.everywhere(json.loads(json.dumps(fields.plain(config))))
