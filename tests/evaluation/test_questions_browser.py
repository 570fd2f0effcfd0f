"""The page of an evaluation in a browser: filters, sorting, links, marks and layout. See test_page.py."""

import json
import pathlib

import fake_evaluation
import pytest
from test_page import ATTACK, opened, picture_of, pictured, pytestmark as pytestmark, recorded, withstood

from ragrl_jax.evaluation.tables import filling, papers, writing
from ragrl_jax.report import evaluation_page, rendering

NUMBER = 150
ACTIONS = pathlib.Path(__file__).with_name("questions.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
  folder = tmp_path_factory.mktemp("evaluations")
  folders = fake_evaluation.make(folder, NUMBER)
  one, two = evaluation_page.write(folders[1:]), evaluation_page.write(folders, folder / "two.html")
  return dict(one=one, two=two, data=evaluation_page.gather(folders))


@pytest.fixture(scope="module")
def seen(pages, tmp_path_factory):
  """{"one 390": the recorded view, …}: three pages at two widths, in one browser."""
  folder = tmp_path_factory.mktemp("seen")
  shown = {name: pages[name].read_text(encoding="utf-8") for name in ("one", "two")}
  data, long = json.loads(json.dumps(pages["data"])), "Donaudampfschiff" * 40  # with very long words and lines
  data["names"] = [long[:120], "x" + long[:120]]
  data["settings"][0] |= {"path": long[:90], "values": [long, long]}
  data["terms"][0]["name"] = data["parts"][1]["name"] = long[:200]
  for run in data["runs"]:
    run |= {"name": long[:120], "facts": [["Checkpoint", long, long]]}
  for trace in spoiled(data, long, "near"):
    trace["judged"] = [step | {"claim": long, "basis": "one line\n" * 90} for step in trace["judged"]]
  return recorded(shown | dict(long=rendering.evaluation(data)), ACTIONS, folder)


def spoiled(data, text, kind):
  """Every trace of the page's data, with this text in all that was asked, found and said; passages have such marks."""
  for side in data["index"]["sides"]:
    side["said"] = [text] * NUMBER
  data["index"] |= {"question": [text] * NUMBER, "golds": [[text, text]] * NUMBER}
  for trace in (trace for block in data["blocks"] for sides in block for trace in sides):
    trace |= {"facts": text, "failure": text}
    for segment in trace["segments"]:
      segment |= {"query": text} | ({"runs": [[text], [text, "found", text]]} if "runs" in segment else {})
      for passage in segment.get("found") or ():
        passage |= {"title": text, "runs": [[text, kind, text]]}
    yield trace


def test_screenshots(pages, seen, tmp_path, width, scheme):
  for name in ("one", "two"):
    pictured(pages[name], tmp_path, f"evaluation_{name}", width, seen[f"{name} {width}"]["height"], scheme)


def test_the_page_runs_under_its_own_policy(pages, tmp_path):
  dom = opened(pages["two"], tmp_path)
  assert dom.count("<tr data-at=") == 100 and 'class="segment model"' in dom


@pytest.mark.parametrize("name", ["one", "two"])
def test_what_a_reader_does(pages, seen, name, width):
  index, seen = pages["data"]["index"], seen[f"{name} {width}"]
  assert "error" not in seen, seen["error"]
  assert seen["wide"] == [width, width] and seen["outside"] == [] and seen["named"] is None
  assert seen["first"] == [100, index["question"][0], "150 questions"] and seen["more"] == NUMBER
  assert seen["marks"][0] and len(seen["marks"][0]) == (2 if name == "two" else 1) == len(seen["marks"][2])
  assert all(quote in seen["marks"][0] for quote in seen["marks"][1])
  assert len(seen["judged"]) == (4 if name == "two" else 2) and "thought after results" in seen["judged"][0]
  # Tables: sorted by n, and back.
  assert seen["byNumber"][0][0] == "all questions" and seen["byNumber"][1] == "descending"
  assert seen["back"] == seen["parts"] and len(seen["parts"]) == 7
  # Filters.
  kind = "▲ won" if name == "two" else "✗ wrong"
  assert seen["filtered"] == [kind] and 0 < seen["count"] < NUMBER
  assert seen["both"] and all(pair == [index["sources"][1], 2] for pair in seen["both"])
  assert seen["searched"] == [index["question"][77]] and seen["none"] == [0, "0 of 150 questions"]
  assert seen["falling"] == sorted(seen["falling"], reverse=True) and seen["rising"] == sorted(seen["falling"])
  assert seen["unsorted"] == [0, 1, 2]
  # Links to a question.
  assert seen["linked"] == [index["question"][30], 1]
  assert seen["next"] == [index["question"][31], "#question=hotpotqa%2Fq31"]
  assert seen["failed"] == "the index at http://x is down" and seen["scheme"] in ("dark", "light")
  assert seen["unjudged"] == "unjudged"
  head, *lines = seen["csv"].splitlines()
  assert head.startswith("id,set,hops,question,golds,result,") and len(lines) == 3
  assert all(",failed" in line for line in lines)


def test_no_text_is_too_long_for_the_page(seen, width):
  assert seen[f"long {width}"]["outside"] == [] and seen[f"long {width}"]["wide"] == [width, width]


def test_hostile_text_is_not_executed(pages, tmp_path):
  data = json.loads(json.dumps(pages["data"]))
  data["names"] = [ATTACK, "x" + ATTACK]
  for trace in spoiled(data, ATTACK, "cited"):
    trace["judged"] = [step | {"term": ATTACK, "claim": ATTACK, "basis": ATTACK} for step in trace["judged"]]
    trace["segments"] = [segment | {"stop": ATTACK} for segment in trace["segments"]]
  data["index"] |= {"id": [ATTACK] * NUMBER, "sources": [ATTACK] * 3, "ends": [ATTACK] * len(data["index"]["ends"])}
  data["parts"] = [part | {"group": ATTACK, "name": ATTACK} for part in data["parts"]]
  withstood(rendering.evaluation(data), tmp_path)


def test_a_papers_tables(tmp_path, width, scheme):
  paper = papers.PAPERS["veritas"]
  (tmp_path / "tables.html").write_text(writing.FORMATS["html"](paper, filling.fill(paper, [])), encoding="utf-8")
  dark = f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"
  picture_of("tables", tmp_path, width, 2400, f"tables_{width}_{scheme}", dark)
