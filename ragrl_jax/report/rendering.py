"""Renders plain data as the HTML of a page.

A page loads nothing from elsewhere, and its content security policy allows only its own script. Text from models and
corpora is embedded as JSON in data blocks and shown as text nodes, never as markup.
"""

import base64
import gzip
import hashlib
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import markupsafe

from ragrl_jax.core.text.forms import well_formed
from ragrl_jax.report import kept_traces
from ragrl_jax.store import jsonl

TEMPLATES = pathlib.Path(__file__).parent / "assets"
CURVES = ("base.js", "curves.js", "learning.js")
SCRIPTS = (*CURVES, "stack.js", "episode.js", "browser.js", "answers.js")
ASKING = ("base.js", "trace.js", "ask.js")
QUESTIONS = ("base.js", "sorting.js", "trace.js", "questions.js")
_MARKUP = re.compile("[<>&\u2028\u2029]")


def run(data: Mapping[str, Any]) -> str:
  """The HTML of one run's page, from `page.gather`."""
  index, steps = split(data["episodes"])
  blocks = {"all-groups": packed(index)} | {f"step-{place}": packed(groups) for place, groups in enumerate(steps)}
  payload = {name: data[name] for name in ("curves", "time")}
  if data["answers"] is not None:
    blocks["answers-rows"] = packed(data["answers"]["rows"])
    payload["answers"] = {"counts": data["answers"]["counts"]}
  return _page("run.html.jinja", SCRIPTS, payload, blocks=blocks, **data)


def runs(data: Mapping[str, Any]) -> str:
  """The HTML of a page of several runs, from `side_by_side.gather`."""
  return _page("runs.html.jinja", CURVES, {"curves": data["curves"]}, blocks={}, **data)


def evaluation(data: Mapping[str, Any]) -> str:
  """The HTML of the page of one or two evaluations, from `evaluation_page.gather`."""
  blocks = {"questions-index": packed(data["index"])}
  blocks |= {f"traces-{number}": packed(block) for number, block in enumerate(data["blocks"])}
  payload = {name: data[name] for name in ("names", "measures", "counts")} | {"block": kept_traces.BLOCK}
  contents = {name: value for name, value in data.items() if name not in ("index", "blocks")}
  return _page("evaluation.html.jinja", QUESTIONS, payload, blocks=blocks, **contents)


def asking_page(
  names: Sequence[str],
  facts: Sequence[tuple[str, str]],
  *,
  samples: Sequence[int],
  longest: int,
  examples: Sequence[str] = (),
) -> str:
  """The HTML of the page that asks checkpoints.

  Args:
    facts: (label, value) pairs to show.
  """
  contents = dict(names=names, facts=facts, samples=samples, longest=longest, examples=examples)
  return _page("ask.html.jinja", ASKING, {"names": names}, blocks={}, **contents)


def _page(template: str, scripts: Sequence[str], payload: Any, **data: Any) -> str:
  """Renders a template with its style, its scripts, and a content security policy that allows only these."""
  loader, undefined = jinja2.FileSystemLoader(TEMPLATES), jinja2.StrictUndefined
  environment = jinja2.Environment(
    loader=loader, undefined=undefined, autoescape=True, trim_blocks=True, lstrip_blocks=True
  )
  style = (TEMPLATES / "page.css").read_text(encoding="utf-8")
  script = "\n".join((TEMPLATES / name).read_text(encoding="utf-8") for name in scripts)
  page = environment.get_template(template).render(
    **data, style=markupsafe.Markup(style), script=markupsafe.Markup(script), payload=data_block(payload),
    style_hash=hash_of(style), script_hash=hash_of(script),
  )  # fmt: skip
  return well_formed(page)


def split(episodes: Mapping[str, Any]) -> tuple[dict[str, Any], list[list[Any]]]:
  """(list of all groups, prompts and samples of each step). The page decompresses a step when the reader opens it."""
  heavy = ("prompt", "samples")
  light = lambda group: (
    {name: value for name, value in group.items() if name not in heavy} | {"held": group["samples"] is not None}
  )
  index = dict(episodes) | {"steps": [step | {"groups": [*map(light, step["groups"])]} for step in episodes["steps"]]}
  return index, [[{name: group[name] for name in heavy} for group in step["groups"]] for step in episodes["steps"]]


def packed(value: Any) -> str:
  """The value as compressed JSON in base64, which contains no markup."""
  return base64.b64encode(gzip.compress(data_block(value).encode(), compresslevel=6, mtime=0)).decode()


def data_block(value: Any) -> markupsafe.Markup:
  """The value as JSON for a <script> element. Characters that could open or close markup are escaped.

  Halves of surrogate pairs become U+FFFD, since browsers may fail on them.
  """
  return markupsafe.Markup(well_formed(jsonl.escaped(value, _MARKUP)))


def hash_of(text: str) -> str:
  """The hash of a script or style in the form of a content security policy."""
  return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
