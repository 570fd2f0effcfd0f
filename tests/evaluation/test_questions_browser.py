"""The page of an evaluation in a browser: filters, sorting, links, marks and layout. See test_page.py."""

import html
import json
import pathlib
import re

import fake_evaluation
import pytest
from test_page import FRAME, HOST, PICTURES, WIDTHS, opened, pictured
from test_page import pytestmark as pytestmark

from ragrl_jax.evaluation.tables import filling, papers, writing
from ragrl_jax.report import evaluation_page, rendering

NUMBER = 150
ACTIONS = pathlib.Path(__file__).with_name("questions.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
  folder = tmp_path_factory.mktemp("evaluations")
  folders = fake_evaluation.make(folder, NUMBER)
  return {
    "one": evaluation_page.write(folders[1:]),
    "two": evaluation_page.write(folders, folder / "two.html"),
    "data": evaluation_page.gather(folders),
  }


@pytest.fixture(scope="module")
def seen(pages, tmp_path_factory):
  """{"one 390": the recorded view, …}: three pages at two widths, in one browser."""
  folder = tmp_path_factory.mktemp("seen")
  shown = {name: pages[name].read_text(encoding="utf-8") for name in ("one", "two")}
  shown["long"] = rendering.evaluation(too_long(json.loads(json.dumps(pages["data"]))))
  for name, text in shown.items():
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    (folder / f"{name}.html").write_text(
      text.replace("</body>", f"<script>{ACTIONS}</script></body>"), encoding="utf-8"
    )
  frames = "".join(FRAME.format(name, width) for name in shown for width in WIDTHS)
  (folder / "host.html").write_text(HOST.format(frames), encoding="utf-8")
  dom = opened(folder / "host.html", folder)
  return json.loads(html.unescape(re.search(r'<pre id="result">(.*?)</pre>', dom, re.S)[1]))


def too_long(data):
  """The page's data with very long words and lines."""
  long = "Donaudampfschiff" * 40
  data["names"] = [long[:120], "x" + long[:120]]
  data["settings"][0] |= {"path": long[:90], "values": [long, long]}
  data["terms"][0]["name"] = data["parts"][1]["name"] = long[:200]
  for run in data["runs"]:
    run |= {"name": long[:120], "facts": [["Checkpoint", long, long]]}
  for side in data["index"]["sides"]:
    side["said"] = [long] * NUMBER
  data["index"] |= {"question": [long] * NUMBER, "golds": [[long, long]] * NUMBER}
  for trace in (trace for block in data["blocks"] for sides in block for trace in sides):
    trace["facts"], trace["failure"] = long, long
    for step in trace["judged"]:
      step |= {"claim": long, "basis": "one line\n" * 90}
    for segment in trace["segments"]:
      segment["query"] = long
      if "runs" in segment:
        segment["runs"] = [[long], [long, "found", long]]
      for passage in segment.get("found") or ():
        passage |= {"title": long, "runs": [[long, "near", long]]}
  return data


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_screenshots(pages, seen, tmp_path, width, scheme):
  for name in ("one", "two"):
    height = seen[f"{name} {width}"]["height"]
    picture = pictured(pages[name], tmp_path, f"evaluation_{name}", width, height, scheme)
    assert picture.startswith(b"\x89PNG") and len(picture) > 50_000


def test_the_page_runs_under_its_own_policy(pages, tmp_path):
  dom = opened(pages["two"], tmp_path)
  assert dom.count("<tr data-at=") == 100 and 'class="segment model"' in dom


@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.parametrize("width", WIDTHS)
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
  head, *lines = seen["csv"].splitlines()
  assert head.startswith("id,set,hops,question,golds,result,") and len(lines) == 3
  assert all(",failed" in line for line in lines)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_text_is_too_long_for_the_page(seen, width):
  assert seen[f"long {width}"]["outside"] == [] and seen[f"long {width}"]["wide"] == [width, width]


def test_hostile_text_is_not_executed(pages, tmp_path):
  data = json.loads(json.dumps(pages["data"]))
  attack = (
    "</script><script>document.title='OWNED'</script><img src=x onerror=\"document.title='OWNED'\">"
    "<a href=\"javascript:document.title='OWNED'\">\u2028\u202e\u200b{{ 7 * 7 }}"
  )
  data["names"] = [attack, "x" + attack]
  data["index"] |= {name: [attack] * NUMBER for name in ("question", "id")} | {"golds": [[attack]] * NUMBER}
  data["index"] |= {"sources": [attack] * 3, "ends": [attack] * len(data["index"]["ends"])}
  for side in data["index"]["sides"]:
    side["said"] = [attack] * NUMBER
  for part in data["parts"]:
    part |= {"group": attack, "name": attack}
  for trace in (trace for block in data["blocks"] for sides in block for trace in sides):
    trace |= {"facts": attack, "failure": attack}
    for step in trace["judged"]:
      step |= {"term": attack, "claim": attack, "basis": attack}
    for segment in trace["segments"]:
      segment |= {"query": attack, "stop": attack}
      if "runs" in segment:
        segment["runs"] = [[attack], [attack, "found", attack]]
      for passage in segment.get("found") or ():
        passage |= {"title": attack, "runs": [[attack, "cited", attack]]}
  bad = tmp_path / "bad.html"
  bad.write_text(rendering.evaluation(data), encoding="utf-8")
  dom = opened(bad, tmp_path)
  title = html.unescape(re.search(r"<title>(.*?)</title>", dom)[1])
  assert title.startswith("</script><script>document.title='OWNED'") and title != "OWNED"
  assert 'class="segment model"' in dom and "<img" not in dom and '<a href="java' not in dom
  # Invisible characters, and those that change the direction of text, are shown as escapes.
  episode = dom[dom.index('class="segment model"') : dom.index('id="settings"')]
  assert "\\u{202e}\\u{200b}" in episode and not re.search("[\u202e\u200b\u2028]", episode)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_papers_tables(tmp_path, width, scheme):
  paper = papers.PAPERS["veritas"]
  (tmp_path / "tables.html").write_text(writing.FORMATS["html"](paper, filling.fill(paper, [])), encoding="utf-8")
  (tmp_path / "host.html").write_text(
    f'<!doctype html><body style="margin:0"><iframe src="tables.html" width="{width}" height="2400" '
    'style="border:0;display:block"></iframe>'
  )
  out = PICTURES / f"tables_{width}_{scheme}.png"
  PICTURES.mkdir(parents=True, exist_ok=True)
  out.unlink(missing_ok=True)
  dark = [f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"]
  opened(tmp_path / "host.html", tmp_path, *dark, f"--screenshot={out}", size=(max(500, width), 2400))
  assert out.read_bytes().startswith(b"\x89PNG") and out.stat().st_size > 50_000
