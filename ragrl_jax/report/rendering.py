"""Plain data → the HTML of a page.

A page loads nothing, and its content policy admits only the script it was written with. Text of models and corpora
reaches it as JSON in data blocks and as text nodes, never as markup.
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

from ragrl_jax.core.text.surrogates import well_formed
from ragrl_jax.store import jsonl

TEMPLATES = pathlib.Path(__file__).parent / "assets"
CURVES = ("base.js", "curves.js", "learning.js")
SCRIPTS = (*CURVES, "stack.js", "episode.js", "browser.js", "answers.js")
_MARKUP = re.compile("[<>&\u2028\u2029]")


def run(data: Mapping[str, Any]) -> str:
  """The page of what `report.gather` found."""
  index, steps = split(data["episodes"])
  blocks = {"all-groups": packed(index)} | {f"step-{place}": packed(groups) for place, groups in enumerate(steps)}
  payload = {name: data[name] for name in ("curves", "time")}
  if data["answers"] is not None:
    blocks["answers-rows"] = packed(data["answers"]["rows"])
    payload["answers"] = {"counts": data["answers"]["counts"]}
  return _page("run.html.jinja", SCRIPTS, payload, blocks=blocks, **data)


def runs(data: Mapping[str, Any]) -> str:
  """The page of what `side_by_side.gather` found."""
  return _page("runs.html.jinja", CURVES, {"curves": data["curves"]}, blocks={}, **data)


def _page(template: str, scripts: Sequence[str], payload: Any, **data: Any) -> str:
  """A template with its style, its scripts, and the policy that admits these alone."""
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  style = (TEMPLATES / "page.css").read_text(encoding="utf-8")
  script = "\n".join((TEMPLATES / name).read_text(encoding="utf-8") for name in scripts)
  page = environment.get_template(template).render(
    **data,
    style=markupsafe.Markup(style),
    script=markupsafe.Markup(script),
    payload=data_block(payload),
    style_hash=hash_of(style),
    script_hash=hash_of(script),
  )
  return well_formed(page)


def split(episodes: Mapping[str, Any]) -> tuple[dict[str, Any], list[list[Any]]]:
  """The list of all groups, and step by step their prompts and samples: the browser opens a step when it is asked."""
  heavy = ("prompt", "samples")
  light = lambda group: (
    {name: value for name, value in group.items() if name not in heavy} | {"held": group["samples"] is not None}
  )
  index = dict(episodes) | {"steps": [step | {"groups": [*map(light, step["groups"])]} for step in episodes["steps"]]}
  return index, [[{name: group[name] for name in heavy} for group in step["groups"]] for step in episodes["steps"]]


def packed(value: Any) -> str:
  """JSON, compressed, in letters that open and close nothing."""
  return base64.b64encode(gzip.compress(data_block(value).encode(), compresslevel=6, mtime=0)).decode()


def data_block(value: Any) -> markupsafe.Markup:
  """JSON that can stand in a <script> element whatever text it holds: no character in it opens or closes markup.

  Halves of surrogate pairs become U+FFFD: a browser may stumble over them.
  """
  return markupsafe.Markup(well_formed(jsonl.escaped(value, _MARKUP)))


def hash_of(text: str) -> str:
  """As a content policy names what it admits."""
  return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
