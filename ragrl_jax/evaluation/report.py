"""A run's folder → one self-contained page: summary, curves, where the time went, an episode browser.

The page loads nothing, and its content policy admits only the script it was written with. Text of models and corpora
reaches it as JSON in a data block and as text nodes, never as markup.
"""

import base64
import datetime
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import markupsafe

from ragrl_jax import config as config_lib
from ragrl_jax.evaluation import excerpt, panels, tables
from ragrl_jax.store import jsonl, metrics

TEMPLATES = pathlib.Path(__file__).parent / "page"
_MARKUP = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
FIGURES = (("em", "Exact match"), ("searches", "Searches per question"), ("wasted_searches", "Wasted searches"))
SCRIPTS = ("base.js", "charts.js", "episodes.js")


def write_report(
    workdir: str | os.PathLike, out: str | os.PathLike | None = None, *, max_episodes: int = 480,
    max_bytes: int = 12_000_000,
) -> pathlib.Path:
  """Writes the page of a finished or running run.

  Args:
    workdir: holds config.json and metrics.jsonl, and maybe episodes/ and summary.json.
    out: the page's file; `workdir/report.html` if None.
    max_episodes: so many episodes are put into the page at most.
    max_bytes: and so many bytes of them.

  Raises:
    ValueError: the folder holds no run, or a file in it is damaged (named with its line).
  """
  page = render(gather(workdir, max_episodes=max_episodes, max_bytes=max_bytes))
  out = pathlib.Path(out) if out is not None else pathlib.Path(workdir) / "report.html"
  with jsonl.whole(out) as part:
    part.write_text(page, encoding="utf-8")
  return out


def gather(workdir: str | os.PathLike, **limits: int) -> dict[str, Any]:
  """Everything the page says, as plain data."""
  workdir = pathlib.Path(workdir)
  config = _json(workdir / "config.json")
  rows = metrics.read_metrics(workdir)
  if config is None and not rows:
    raise ValueError(f"{workdir} holds neither config.json nor {metrics.FILE}: give the --workdir of a training run.")
  summary = _json(workdir / "summary.json") or {}
  return {
    "run": _run(workdir, config or {}, rows, summary),
    "headline": headline(summary, rows),
    "table": tables.comparison(summary.get("before"), summary.get("after")),
    "curves": panels.curves(rows),
    "time": panels.breakdown(rows),
    "episodes": excerpt.excerpt(workdir, **limits),
    "settings": settings(config or {}),
  }


def render(data: Mapping[str, Any]) -> str:
  """The page's HTML."""
  environment = jinja2.Environment(
      loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
      lstrip_blocks=True)
  style = (TEMPLATES / "page.css").read_text(encoding="utf-8")
  script = "\n".join((TEMPLATES / name).read_text(encoding="utf-8") for name in SCRIPTS)
  payload = {name: data[name] for name in ("curves", "time", "episodes")}
  return environment.get_template("report.html.jinja").render(
      **data, style=markupsafe.Markup(style), script=markupsafe.Markup(script), payload=data_block(payload),
      style_hash=_hash(style), script_hash=_hash(script))


def data_block(value: Any) -> markupsafe.Markup:
  """JSON that can stand in a <script> element whatever text it holds: no character in it opens or closes markup."""
  return markupsafe.Markup(jsonl.escaped(value, _MARKUP))


def headline(summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """The big numbers: [{"label", "before", "after"}] from summary.json, else from the first and last evaluated rows."""
  held_out = [row for row in rows if any(name.startswith("evaluation/") for name in row)]
  found = []
  for name, label in FIGURES:
    before, after = (summary.get(f"{name}_{when}", (summary.get(when) or {}).get(name)) for when in ("before", "after"))
    if after is None and held_out:
      before, after = held_out[0].get(f"evaluation/{name}"), held_out[-1].get(f"evaluation/{name}")
    if after or before:  # a recipe that never searches has nothing to say of searches
      found.append({"label": label, "before": before, "after": after})
  return found


def settings(config: Mapping[str, Any]) -> list[dict[str, Any]]:
  """Every setting as {"path", "value", "default", "changed"}; a setting the library does not know counts as changed."""
  known = dict(_flat(config_lib.default_config().to_dict()))
  return [
    {"path": path, "value": json.dumps(value, ensure_ascii=False), "changed": path not in known or known[path] != value,
     "default": json.dumps(known[path]) if path in known else ""}
    for path, value in _flat(config)]


def _flat(config: Mapping[str, Any], prefix: str = ""):
  for name, value in config.items():
    if isinstance(value, Mapping) and value:
      yield from _flat(value, f"{prefix}{name}.")
    else:
      yield prefix + name, list(value) if isinstance(value, tuple) else value


def _run(workdir: pathlib.Path, config, rows, summary) -> dict[str, Any]:
  """The page's head: what ran, how far, how long."""
  times = [row["time"] for row in rows]
  bad = [row["step"] for row in rows if row.get("nulls")]
  return {
    "name": workdir.resolve().name, "recipe": config.get("recipe", ""), "preset": config.get("preset", ""),
    "seed": config.get("seed", summary.get("seed")), "steps": rows[-1]["step"] if rows else 0,
    "of_steps": config.get("steps"), "model": _model(config.get("model") or {}),
    "began": _clock(times[0]) if times else "",
    "seconds": summary.get("seconds") or (times[-1] - times[0] if times else 0),
    "written": _clock(datetime.datetime.now(datetime.UTC).timestamp()),
    "nulls": {"rows": len(bad), "first": bad[0]} if bad else None, "warnings": _warnings(rows),
  }


def _warnings(rows) -> list[dict[str, Any]]:
  """What the run said aloud, each once: {"text", "first", "times"}."""
  found: dict[str, dict[str, Any]] = {}
  for row in rows:
    for name, text in row.items():
      if name.startswith("warning/") and text:
        found.setdefault(name, {"text": str(text), "first": row["step"], "times": 0})["times"] += 1
  return list(found.values())


def _model(model: Mapping[str, Any]) -> str:
  if model.get("path"):
    return str(model["path"])
  shape = model.get("shape") or {}
  return f"{shape['family']}, {shape['num_layers']} layers of {shape['d_model']}" if "d_model" in shape else ""


def _clock(seconds: float) -> str:
  return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%-d %B %Y, %H:%M UTC")


def _json(path: pathlib.Path) -> Any:
  if not path.exists():
    return None
  try:
    value = json.loads(path.read_text(encoding="utf-8"))
  except ValueError as error:
    raise ValueError(f"{path}: not JSON ({error}); the page needs it whole, or absent.") from error
  if not isinstance(value, dict):
    raise ValueError(f"{path}: a {type(value).__name__}, where a JSON object must be.")
  return value


def _hash(text: str) -> str:
  return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
