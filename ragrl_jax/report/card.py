"""The model card of a trained checkpoint as Markdown, made from the files of its run and its evaluations.

All names and values are escaped, so the card shows them as plain text. It shows only the last part of local paths, and
no addresses.
"""

import fnmatch
import pathlib
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

import huggingface_hub

from ragrl_jax import recipes
from ragrl_jax.core.text.forms import safe
from ragrl_jax.data import readers
from ragrl_jax.models import hub
from ragrl_jax.report import metric_tables, page as page_lib
from ragrl_jax.run import rollback
from ragrl_jax.settings import Settings, fields
from ragrl_jax.store import changes, jsonl, metrics, row_files, sums, versions

_SIGNS = re.compile("([" + re.escape("".join(sorted(set(string.punctuation) - set(" ,.'\"-/%=?;")))) + "])")
_LINK = re.compile(r"(?<=www)\.", re.IGNORECASE)  # GitHub's Markdown makes links of bare addresses
_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_LOCAL = re.compile(r"[~./]|[A-Za-z]:\\")
_FOLDERS = re.compile(r"(?<!\S)[~./][^\s|]*/")
_ADDRESS = re.compile(r"(localhost|[\w-]+(\.[\w-]+)+):\d+(/|$)")
# Settings that the card shows elsewhere, or that are paths on the machine.
_ELSEWHERE = ("recipe", "preset", "switches*", "data.train", "data.hard", "data.evaluate", "model.path", "steps")
SETS = {"train": "trained on", "hard": "trained on, hard", "evaluate": "held out during training"}


def markdown(text: Any) -> str:
  """The text escaped for Markdown: it is shown unchanged, in one line, also in a cell of a table."""
  line = safe(" ".join(str(text).split()))
  return _LINK.sub(r"\\.", _SIGNS.sub(r"\\\1", line))


def write(
  run: str | pathlib.Path,
  step: int,
  *,
  config: Settings,
  name: str,
  baseline: Settings,
  scores: Sequence[tuple[str, Mapping[str, Any] | None, Mapping[str, Any]]],
  licence: str = "",
  base: str = "",
) -> str:
  """The text of README.md.

  Args:
    baseline: the settings of the recipe's preset; the card lists the run's differences from them.
    scores: (name of the questions, metrics before training or None, metrics of these weights) for each evaluation. The
      metrics are those of `evaluation.harness`.
    licence: the licence's identifier on the hub; "" if there is none.
    base: the base model's name on the hub; "" if it is unknown.

  Raises:
    ValueError: a file in the folder is damaged, or `base` is not a name of the hub.
  """
  run = pathlib.Path(run)
  if base and not _HUB.fullmatch(base):
    raise ValueError(f"--base_model={base}: name a model of the hub, as in OWNER/NAME.")
  hub_name, commit = hub.parts(config.model.path)
  base = base or (hub_name if commit else "")
  rows = [row for row in metrics.read_metrics(run) if 0 < row["step"] <= step]
  tuned = bool(rows) and not any("reward" in row for row in rows)
  head = huggingface_hub.ModelCardData(
    license=licence or None,
    base_model=base or None,
    library_name="transformers",
    pipeline_tag="text-generation",
    tags=["ragrl_jax", "retrieval-augmented-generation", "fine-tuning" if tuned else "reinforcement-learning"],
  )
  parts = [
    f"---\n{head.to_yaml()}\n---",
    f"# {markdown(name)}",
    _lead(config, base, tuned=tuned),
    "## Training\n\n" + _table(("", ""), _training(run, config, rows, step, tuned=tuned)),
    "## Data\n\n" + _data(config),
    "## Settings\n\n" + _settings(run, config, baseline, step),
    "## Scores\n\n" + _scores(scores),
    "## Limits\n\n" + "\n".join(f"- {line}" for line in _limits(config, scores)),
    "## Licence\n\n" + (markdown(licence) if licence else "None was given."),
  ]
  return "\n\n".join(parts) + "\n"


def differing(config: Settings, baseline: Settings) -> list[tuple[str, Any, Any]]:
  """The settings that affect training and differ from the baseline: (setting, run's value, baseline's value) for each.

  Switches are compared with those of the preset; of a recipe that the package does not have, all are listed. The
  baseline's value is None if the baseline lacks the setting.
  """
  was = dict(page_lib.flat(fields.plain(baseline)))
  free = (*changes.FREE, *_ELSEWHERE)
  differences = [
    (path, value, was.get(path))
    for path, value in page_lib.flat(fields.plain(config))
    if value != was.get(path) and not any(fnmatch.fnmatchcase(path, pattern) for pattern in free)
  ]
  preset = recipes.get(config.recipe, config.preset).switches if config.recipe in recipes.RECIPES else {}
  switches = {name: value for name, value in config.switches.items() if value is not None}
  return [(f"switches.{n}", v, preset.get(n)) for n, v in switches.items() if v != preset.get(n)] + differences


def _lead(config: Settings, base: str, *, tuned: bool) -> str:
  method = "fine-tuned on transcripts" if tuned else "trained by reinforcement learning to use retrieved documents"
  origin = f"[{markdown(base)}](https://huggingface.co/{base})" if base else markdown(_model(config)) or "a new model"
  return (
    f"A language model {method}, with ragrl\\_jax. Recipe: "
    f"{markdown(config.recipe)}, preset {markdown(config.preset)}. Initial model: {origin}."
  )


def _training(run: pathlib.Path, config: Settings, rows, step: int, *, tuned: bool) -> list[tuple[str, str]]:
  rows_before = [row for row in versions.read(run) if row["step"] < step] or [{}]
  code = list(dict.fromkeys(_code(row) for row in rows_before))
  episodes = config.rollout.prompts_per_step * config.rollout.group_size
  tokens = sum(row.get("tokens") or 0 for row in rows)
  cost = metrics.cost_of_rows(rows, config.log.price_per_hour)
  hours, price = cost.get("cost/hours", 0.0), cost.get("cost/price")
  phases = [f"{n.removeprefix('cost/hours/')} {cost[n]:.2f}".replace("_", " ") for n in cost if "/hours/" in n]
  returns = sum(rollback.TO in row for row in rows)
  groups = [sum(row.get(f"groups/{name}") or 0 for row in rows) for name in ("drawn", "trained")]
  drawn, trained = (f"{config.rollout.group_size * number:,.0f}" for number in groups)
  kept = f"; dynamic sampling drew {drawn} and kept {trained}" if groups[0] > groups[1] else ""
  return [
    ("Steps", f"{step:,} of {config.steps:,}"),
    *([("Returns to earlier weights", f"{returns}, each at half the learning rate")] if returns else []),
    *([] if tuned else [("Episodes", f"{step * episodes:,}, {episodes:,} per step{kept}")]),
    *([("Trained tokens", f"{tokens:,.0f}")] if tokens else []),
    *([("Time", f"{hours:.2f} h" + f" ({', '.join(phases)})" * (len(phases) > 1))] if hours else []),
    *([("Price", f"{price:,.2f} at {config.log.price_per_hour:g} an hour")] if price else []),
    ("Seed", str(config.seed)),
    ("Devices", markdown("; ".join(dict.fromkeys(row.get("devices") or "not recorded" for row in rows_before)))),
    ("Code", "; ".join(code)),
  ]


def _code(row: Mapping[str, Any]) -> str:
  if not row:
    return "not recorded"
  commit = f"commit {row['commit']}" if row.get("commit") else "commit unknown"
  return markdown(f"ragrl_jax {row['ragrl_jax']} ({commit}), JAX {row['jax']}, Python {row['python']}")


def _data(config: Settings) -> str:
  lines = []
  for field, role in SETS.items():
    for part in filter(None, readers.parts(getattr(config.data, field))):
      lines += [(markdown(role), *cells) for cells in _sources(part)]
  note = "\n\nThe numbers and SHA-256 sums were computed for this card." if any(line[3] for line in lines) else ""
  return _table(("Role", "Questions", "Number", "SHA-256"), lines) + note if lines else "The run has no data files."


def _sources(part: str) -> list[tuple[str, str, str]]:
  """(name, number of questions, SHA-256) of each file that this part of a setting names."""
  if part.startswith("hf:"):
    local = _LOCAL.match(part.removeprefix("hf:"))
    return [("a local data set" if local else markdown(part), "", "")]
  try:
    files = [file for path in readers.files(part) for file in row_files.saved(path) or [path]]
    return [
      (markdown(file.name), f"{sum(1 for _ in readers.read_examples(file)):,}", f"`{sums.digest(file)}`")
      for file in files
    ]
  except FileNotFoundError:
    return [(markdown(pathlib.PurePath(part).name), "the file no longer exists", "")]


def _settings(run: pathlib.Path, config: Settings, baseline: Settings, step: int) -> str:
  lines = [(f"`{path}`", _value(is_now), _value(was)) for path, is_now, was in differing(config, baseline)]
  texts = [f"The text of `{path}` is from the user's own file." for path in changes.wordings_of(run)]
  if jsonl.read_object(run / changes.CONTENTS).get("reward.function"):
    texts.append("The reward is a function of the user's own, in place of the recipe's terms.")
  made = [row for row in changes.accepted(run) if row["step"] < step]
  texts += [f"Changed after step {row['step']}: {', '.join(f'`{name}`' for name in row['changes'])}." for row in made]
  what = "differ from those of the recipe's preset"
  table = _table(("Setting", "This run", "Preset"), lines)
  return "\n\n".join([f"These settings {what}:\n\n{table}" if lines else f"No settings {what}.", *texts])


def _value(value: Any) -> str:
  """A setting's value for the card: only the last part of a path, and no address."""
  if isinstance(value, str) and ("://" in value or _ADDRESS.match(value)):
    return "an address"
  if isinstance(value, str):
    value = value.removeprefix(fields.FILE)
    if "/" in value and (_LOCAL.match(value) or pathlib.Path(value).exists()):
      value = pathlib.PurePath(value).name
    value = _FOLDERS.sub("", value)  # of each word, as in a command
  return markdown(page_lib.said(value))


def _scores(scores) -> str:
  if not scores:
    return "These weights have not been evaluated."
  note = "Means with 95 % bootstrap intervals over the questions; n is the number of questions."
  return "\n\n".join([note, *(_score(*score) for score in scores)])


def _score(questions: str, before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> str:
  lines = []
  for row in metric_tables.comparison(before, after):
    sides = [row["before"], row["after"]] if before else [row["after"]]
    lines.append((markdown(row["label"]), *(_side(side) for side in sides), "" if row["n"] is None else str(row["n"])))
  heads = ("", "Before training", "These weights", "n") if before else ("", "These weights", "n")
  settings, notes = after.get("settings") or {}, []
  if retrieval := settings.get("retrieval"):
    notes.append(f"Retriever: {_value(str(retrieval.get('index')))}, {markdown(retrieval.get('top_k'))} passages.")
  if sampling := settings.get("sampling"):
    notes.append("Answers: " + markdown(sampling if isinstance(sampling, str) else page_lib.said(sampling)) + ".")
  if after.get("seeds"):
    notes.append(f"Means over {after['seeds']} seeds.")
  if "seconds" in after and (where := metric_tables.spent(after)):
    notes.append(f"Time: {after['seconds']:,.0f} s for {after['seconds_cover']:,} answers {markdown(where)}.")
  for name, text in (("failed", "questions failed and are left out"), ("unjudged", "answers got no verdict")):
    if after.get(name):
      notes.append(f"{after[name]:g} {text}.")
  return "\n\n".join(filter(None, [f"### {markdown(questions)}", _table(heads, lines), " ".join(notes)]))


def _side(side: Mapping[str, float | None] | None) -> str:
  if side is None or side["value"] is None:
    return "–"
  digits = 3 if side["value"] < 10 else 1
  bounds = "" if side["low"] is None else f" [{side['low']:.3f}, {side['high']:.3f}]"
  return f"{side['value']:.{digits}f}{bounds}"


def _limits(config: Settings, scores) -> list[str]:
  searches = bool(config.retrieval.index)
  lines = [
    "The model answers from the given passages. If they are wrong, the answer is wrong, too. The model has not been "
    "tested for bias, safety or other uses.",
    f"The model was trained with one seed ({config.seed}); another seed gives another model.",
  ]
  if searches:
    lines.append(
      f"The model was trained with one retriever ({_value(config.retrieval.index)}, {config.retrieval.top_k} passages "
      "per search). Its scores with another retriever or corpus are unknown."
    )
  asked = [config.judge.kind, *(judge.get("kind") for judge in config.judges.values())]
  kinds = [kind for kind in dict.fromkeys(asked) if kind not in (None, "none")]
  if kinds:
    lines.append(
      f"A judge ({markdown(', '.join(kinds))}) was a part of the reward, so the model may exploit faults of the judge."
    )
  if scores:
    lines.append(
      "The intervals cover the draw of the questions, but not other seeds or other data. It is unknown whether the "
      "base model has seen the questions before."
    )
  else:
    lines.append("The model has not been evaluated: evaluate it on your own questions first.")
  return lines


def _model(config: Settings) -> str:
  path = config.model.path
  return pathlib.PurePath(path).name if path else page_lib.model_of(fields.plain(config.model))


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
  return "\n".join(f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *lines))
