"""Reads questions as Examples, from files (`store.row_files`) and from the Hugging Face hub."""

import collections
import contextlib
import glob
import itertools
import logging
import os
import pathlib
import random
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from huggingface_hub import errors

from ragrl_jax.data import layouts
from ragrl_jax.store import row_files
from ragrl_jax.structs import Example


def read_examples(
  path: str | pathlib.Path, *, max_examples: int = 0, setting: str = "config.data, --data"
) -> Iterator[Example]:
  """Streams the examples of one or more files or Hugging Face data sets.

  Rows may be our own (`layouts.ours`), FlashRAG's, the training files of Search-R1 and verl, those of HotpotQA,
  2WikiMultihopQA, MuSiQue and LongBench as published, or those of DROP and MS MARCO on the hub.

  Args:
    path: a file of `row_files.KINDS`; a glob; a folder of such files, or one that `datasets` saved;
      "hf:NAME/SUBSET/SPLIT", with an empty subset for the default one ("hf:owner/name//train"), where NAME may be a
      folder; or several of these with commas between them. "hf:NAME/SUBSET/SPLIT~COUNT" draws COUNT rows at random,
      always the same ones (the first rows of a set may be of one kind).
    max_examples: stop after this number; 0 reads all.
    setting: what names the path, for the message on a set that the hub does not give.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: a row cannot be read or repeats an id (with file and line); or there are no rows.
  """
  if max_examples < 0:
    raise ValueError(f"max_examples={max_examples}: it must be 0 (all) or more (config.data.max_examples).")
  if not str(path):
    raise ValueError("no file to read questions from: name one (config.data.train, config.data.evaluate).")
  seen: dict[tuple[str, str], str] = {}
  for source, rows in _sources(str(path), setting):
    for number, (where, row) in enumerate(rows):
      try:
        example = layouts.example(row, identity=f"{source}-{number}", source=source)
      except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
      key = example.source, example.id
      if key in seen:
        raise ValueError(
          f"{where}: the id {example.id!r} occurs twice, first at {seen[key]}: ids must be unique within a source "
          f"({example.source!r})."
        )
      seen[key] = where
      yield example
      if len(seen) == max_examples:
        return
  if not seen:
    raise ValueError(f"{path}: there are no questions in it (config.data, --data).")


def _sources(path: str, setting: str) -> Iterator[tuple[str, Iterator[tuple[str, dict[str, Any]]]]]:
  """Yields (name, rows with their locations) for every source that the path names.

  A file's name without its suffix is that of its source. Files of the same name, such as nq/test.jsonl and
  hotpotqa/test.jsonl, also have their folder's, and those of folders above where folders have the same name, too.
  """
  named_parts = parts(path)
  paths = [[] if part.startswith("hf:") else files(part) for part in named_parts]
  names = _names(itertools.chain(*paths))
  for part, part_paths in zip(named_parts, paths):
    if part.startswith("hf:"):
      yield _from_hub(part, setting)
    for file in part_paths:
      yield names[os.path.abspath(file)], row_files.read_rows(file)


def _names(paths: Iterable[pathlib.Path]) -> dict[str, str]:
  """Absolute path → name of the source. A file that is named in two ways is one source."""
  bare: dict[str, pathlib.Path] = {}  # without the suffix, as it is named first
  for file in paths:
    # A version stays: musique_ans_v1.0_dev.jsonl and …_train.jsonl are two sources.
    bare.setdefault(os.path.abspath(file), file.parent / file.name[: len(file.name) - len(row_files.kind(file))])
  stems = collections.Counter(path.name for path in bare.values())
  names = {path: path.name if stems[path.name] == 1 else f"{path.parent.name}/{path.name}" for path in bare.values()}
  for parts in range(3, max((len(path.parts) for path in names), default=0) + 1):
    counts = collections.Counter(names.values())
    names = {
      path: name if counts[name] == 1 else "/".join(path.parts[-parts:]).lstrip("/") for path, name in names.items()
    }
  return {file: names[path] for file, path in bare.items()}


def files(path: str | pathlib.Path) -> list[pathlib.Path]:
  """The files that a path names, sorted by name: a file, the readable files of a folder, or the matches of a glob.

  A folder that `datasets` saved counts as one file.

  Raises:
    FileNotFoundError: the folder has no readable file, or nothing matches the glob.
    ValueError: the folder is one that `datasets` saved, with several splits.
  """
  source = pathlib.Path(path)
  if source.is_dir() and not row_files.saved(source):
    shown = [file for file in sorted(source.iterdir()) if not file.name.startswith(".")]
    matches = [file for file in shown if row_files.kind(file)]
    if packed := [file.name for file in shown if row_files.left_out(file)]:
      logging.warning("%s: left out: %s: %s are read.", path, ", ".join(packed[:3]), row_files.SAID)
    if not matches:
      raise FileNotFoundError(
        f"{path}: the folder holds none of {', '.join('*' + kind for kind in row_files.KINDS)}. A copy of a data set "
        "of the hub, with folders inside, is named hf:FOLDER//SPLIT."
      )
    return matches
  if not source.exists() and glob.has_magic(str(path)):
    matches = [pathlib.Path(match) for match in sorted(glob.glob(str(path)))]
    if not matches:
      raise FileNotFoundError(f"{path}: no file matches (config.data, --data).")
    return matches
  return [source]


def parts(path: str) -> list[str]:
  """The sources that commas separate; a file may have commas in its name."""
  # Path.exists raises an error for a list that is too long to be a name. An empty part would be the present folder.
  return [path] if os.path.exists(path) else [part for part in map(str.strip, path.split(",")) if part]


def named(path: str) -> list[pathlib.Path]:
  """All files that a path names (see `read_examples`); none for data sets on the hub.

  Raises:
    FileNotFoundError: see `files`.
  """
  return [file for part in parts(path) if not part.startswith("hf:") for file in files(part)]


def check(path: str, setting: str) -> None:
  """Refuses a path that names a file that does not exist. Data sets on the hub are not looked for.

  Raises:
    FileNotFoundError: there is no such file; the message names the setting.
  """
  for file in named(path):
    if not file.exists():
      raise FileNotFoundError(f"{setting}={path}: there is no file {file}.")


def _no_answer(path: str, name: str) -> str:
  """Asks the hub for a data set once, and says so: the datasets library tries for minutes. "" if it answers."""
  import huggingface_hub.constants  # it reads the environment once, when it is imported

  if huggingface_hub.constants.HF_HUB_OFFLINE:
    return "HF_HUB_OFFLINE is set, and the cache has none"
  print(f"{path}: asks {huggingface_hub.constants.ENDPOINT}", file=sys.stderr)
  try:
    huggingface_hub.HfApi().dataset_info(name, timeout=10)
  except errors.HfHubHTTPError:
    return ""  # there is none, or it is private: loading says which
  except (errors.HTTPError, OSError, ImportError) as error:  # as in models/hub.py
    return f"no answer: {error}; and the cache has none"
  return ""


@contextlib.contextmanager
def _offline():
  """Only the cache is read, whatever the environment says."""
  import datasets
  import huggingface_hub.constants

  places = (datasets.config, huggingface_hub.constants)
  before = [place.HF_HUB_OFFLINE for place in places]
  try:
    for place in places:
      place.HF_HUB_OFFLINE = True
    yield
  finally:
    for place, value in zip(places, before):
      place.HF_HUB_OFFLINE = value


def _from_hub(path: str, setting: str) -> tuple[str, Iterator[tuple[str, dict[str, Any]]]]:
  name, _, split = path.removeprefix("hf:").rpartition("/")
  split, sampled, count = split.partition("~")
  name, _, subset = name.rpartition("/")
  if sampled and not count.isdecimal():
    raise ValueError(
      f"{path!r}: after ~ there must be the number of rows to draw, such as {split}~1000 (config.data, --data)."
    )
  if not name or not split:
    raise ValueError(
      f"{path!r}: a Hugging Face dataset is named hf:NAME/SUBSET/SPLIT, with an empty subset for the default one, "
      "e.g. hf:hotpotqa/hotpot_qa/distractor/validation or hf:owner/name//train (config.data, --data)."
    )
  if os.path.exists(local := path.removeprefix("hf:").partition("~")[0]):
    raise ValueError(
      f"{path!r}: {local} is here: name it without hf:. A copy of a data set of the hub, with folders inside, is named "
      f"hf:FOLDER//SPLIT ({setting})."
    )
  import datasets  # takes a second or two, and files do not need it

  silent = "" if os.path.isdir(name) else _no_answer(path, name)
  try:
    with _offline() if silent else contextlib.nullcontext():
      table = datasets.load_dataset(name, subset or None, split=split)
  except (OSError, ValueError, errors.HTTPError, datasets.exceptions.DatasetsError) as error:
    cause = error.__cause__ if isinstance(error, datasets.exceptions.DatasetGenerationError) else None
    why = " ".join(f"{silent or error}{f': {cause}' if cause else ''}".split())
    if os.path.isdir(name):
      raise ValueError(
        f"{path!r}: it cannot be loaded by the datasets library ({why:.500}). Name its files, or the folder of a split "
        f"that `datasets` saved, without hf: ({setting})."
      ) from error
    spare = ", which may be empty" if setting in ("config.data.hard", "config.data.evaluate") else ""
    raise ValueError(
      f"{path!r}: it cannot be loaded from the Hugging Face hub ({why}). Name a file instead ({setting}{spare}), "
      "or let this machine reach the hub."
    ) from error
  numbers = range(len(table))
  if sampled:
    if int(count) > len(table):
      raise ValueError(f"{path!r}: it has {len(table)} rows, so draw at most that many (config.data, --data).")
    numbers = sorted(random.Random(f"sample/{path}").sample(numbers, int(count)))
    table = table.select(numbers)
  # The subsets of a repository may use the same ids, as FlashRAG's do.
  source = pathlib.PurePath(name).name + (f"/{subset}" if subset else "")
  return source, ((f"{path} row {number}", row) for number, row in zip(numbers, table))
