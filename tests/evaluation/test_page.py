"""The report page in a browser: its content security policy, its controls and its layout.

`make browser` runs these tests if there is a Chromium; $CHROMIUM names another one.
"""

import html
import json
import os
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest

from ragrl_jax.report import page as page_lib, rendering, side_by_side

FOUND = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
BROWSER = os.environ.get("CHROMIUM") or next(FOUND, None)
FLAGS = ["--headless", "--no-sandbox", "--no-first-run", "--hide-scrollbars"]
FLAGS += [f"--disable-{what}" for what in "gpu quic background-networking component-update sync".split()]
FILE_BUDGET = "--virtual-time-budget=4000"  # ms: a page in a file needs no server, so that its clock may run ahead
PICTURES = pathlib.Path(__file__).parents[2] / "out" / "browser"  # screenshots for a person
pytestmark = [
  pytest.mark.browser,
  pytest.mark.slow,  # each test starts a browser
  pytest.mark.skipif(BROWSER is None, reason="no chromium here: the page is not opened in a browser"),
]

ACTIONS = pathlib.Path(__file__).with_name("page.js").read_text(encoding="utf-8")
# Frames, because a frame can be as narrow as a phone and a headless window cannot.
HOST = """<!doctype html>
{}<pre id="result"></pre>
<script>
const result = document.getElementById("result"), seen = {{}};
onmessage = (event) => {{
  const frame = [...document.querySelectorAll("iframe")].find((frame) => frame.contentWindow === event.source);
  seen[frame.name] = JSON.parse(event.data);
  result.textContent = JSON.stringify(seen);
}};
</script>"""
FRAME = '<iframe name="{0} {1}" src="{0}.html" width="{1}" height="900" style="border:0"></iframe>\n'
WIDTHS = (1400, 390)  # as in conftest.py


def opened(path, folder, *flags, size=(1400, 1000), budget=FILE_BUDGET):
  """The document after the browser has run its scripts; without a budget, once everything in it has loaded."""
  flags = [*filter(None, [budget]), *(flags or ["--dump-dom"]), f"--window-size={size[0]},{size[1]}"]
  words = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, path.as_uri()]
  done = subprocess.run(words, capture_output=True, text=True, timeout=250)
  assert done.returncode == 0, done.stderr[-2000:]
  return done.stdout


@pytest.fixture(scope="module")
def page(fake_run):
  return page_lib.write_report(fake_run)


@pytest.fixture(scope="module")
def several(fake_run, tmp_path_factory):
  """The page of ten runs of different lengths."""
  folder = tmp_path_factory.mktemp("several")
  rows = (fake_run / "metrics.jsonl").read_text().splitlines(keepends=True)
  more = [(f"seed_{seed}", rows[seed:]) for seed in range(7)]
  for name, kept in (("first", rows), ("second", rows[:40]), ("third </script>", rows[:20] + rows[30:]), *more):
    shutil.copytree(fake_run, folder / name.replace("/", ""), ignore=shutil.ignore_patterns("episodes", "*.html"))
    (folder / name.replace("/", "") / "metrics.jsonl").write_text("".join(kept))
  return side_by_side.write(sorted(folder.iterdir()), folder / "runs.html")


def test_the_pages_run_under_their_own_policy(page, several, tmp_path):
  dom = opened(page, tmp_path)
  assert dom.count("<svg") >= 14 and 'class="segment model"' in dom
  dom = opened(several, tmp_path)
  assert dom.count("<svg") >= 14 and dom.count('aria-pressed="true"') == 10
  assert 'aria-label="Reward: first from' in dom and "third &lt;" in dom


@pytest.fixture(scope="module")
def seen(page, several, tmp_path_factory):
  """{"page 390": the recorded view, …}: three pages at two widths, in one browser."""
  pages = {name: path.read_text(encoding="utf-8") for name, path in (("page", page), ("runs", several))}
  pages["long"] = rendering.run(too_long(page_lib.gather(page.parent, max_bytes=50_000)))
  return recorded(pages, ACTIONS, tmp_path_factory.mktemp("seen"))


def recorded(pages, actions, folder):
  """{"page 390": what a reader saw, …} of pages at two widths, in one browser; the reader is a script."""
  for name, text in pages.items():
    # The policy forbids other scripts, so the reader's script goes into a copy without the policy.
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    text = text.replace("</body>", f"<script>{actions}</script></body>")
    (folder / f"{name}.html").write_text(text, encoding="utf-8")
  frames = [FRAME.format(name, width) for name in pages for width in WIDTHS]
  (folder / "host.html").write_text(HOST.format("".join(frames)), encoding="utf-8")
  dom = opened(folder / "host.html", folder)
  return json.loads(html.unescape(re.search(r'<pre id="result">(.*?)</pre>', dom, re.S)[1]))


def picture_of(name, folder, width, height, out, *flags):
  """Takes a picture of the page NAME.html of a folder, in a frame of this size; it is also in PICTURES for a person."""
  frame = f'<iframe src="{name}.html" width="{width}" height="{height}" style="border:0;display:block"></iframe>'
  (folder / "host.html").write_text(f'<!doctype html><body style="margin:0">{frame}')  # with its page's own policy
  taken(folder / "host.html", folder, width, height, out, *flags)


def taken(shown, folder, width, height, out, *flags, **how):
  PICTURES.mkdir(parents=True, exist_ok=True)
  out = PICTURES / f"{out}.png"
  out.unlink(missing_ok=True)
  opened(shown, folder, *flags, f"--screenshot={out}", size=(max(500, width), height), **how)
  picture = out.read_bytes()
  assert picture.startswith(b"\x89PNG") and len(picture) > 50_000


def pictured(path, folder, name, width, height, scheme):
  """Takes the whole page's picture in a scheme: PICTURES/NAME_WIDTH_SCHEME.png."""
  text = path.read_text(encoding="utf-8").replace('<html lang="en">', f'<html lang="en" data-scheme="{scheme}">')
  (folder / "shown.html").write_text(text, encoding="utf-8")
  picture_of("shown", folder, width, height, f"{name}_{width}_{scheme}")


def test_screenshots(page, several, seen, tmp_path, width, scheme):
  for name, shown, path in (("run", "page", page), ("runs", "runs", several)):
    pictured(path, tmp_path, name, width, seen[f"{shown} {width}"]["height"], scheme)


def too_long(data):
  """The page's data with very long words, lists and lines."""
  long, lines = "Donaudampfschiff" * 40, "one line\n" * 60
  data["run"] |= {"name": long[:120], "model": "/models/" + long, "recipe": long[:60]}
  data["run"]["warnings"] = [{"text": long, "first": 1, "times": 2, "over": 2, "episode": "#episode-1-0-0"}]
  data["settings"][0] |= {"changed": True, "value": long, "path": long[:80]}
  for _, sample in spoiled(data, long, lines + long):
    sample["terms"] |= {f"a term with a long name {i} {long[:30]}": 0.123 for i in range(8)}
    sample["facts"] = {long: [long] * 30}
  return data


def spoiled(data, text, body):
  """Every group and sample of the page's data, with this text in all that was asked, found and said (`body`)."""
  for group in (group for step in data["episodes"]["steps"] for group in step["groups"]):
    group["question"], group["golds"] = text, [text]
    for sample in group["samples"] or ():
      group["prompt"]["text"], sample["failure"] = body, text
      for segment in sample["segments"]:
        segment["query"], segment["text"] = text, body
        if "pieces" in segment:
          segment["pieces"][0] = text
        for passage in segment.get("found") or ():
          passage["title"] = passage["text"] = text
      yield group, sample


def test_what_a_reader_does_with_charts_episodes_and_questions(page, seen, width):
  seen, data = seen[f"page {width}"], page_lib.gather(page.parent)
  assert "error" not in seen, seen["error"]
  assert seen["charts"] == len(data["curves"]["panels"])
  assert seen["wide"] == [width, width] and seen["outside"] == []
  # The middle of one chart is step 30 of 60. All charts with a value there show it.
  assert all(re.match(r"step \d+: ", text) for text in seen["reads"])
  assert {re.match(r"step (\d+)", text)[1] for text in seen["reads"][1:4]} == {"30"}
  # A question from right to left: its last sign is at the left. An axis says its scale, and no number is too wide.
  assert seen["reads_left"] == [True, True]
  assert seen["ticks"] == [[-0.5, 0, 0.5], ["0.9985", "0.999", "0.9995", "1"], ["−5M", "−4M"]]
  assert len({*seen["room"]}) == 1 and seen["top"] < 30
  assert seen["control"] == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]
  assert seen["shaded"] > 0 and seen["unlikely"] > 0 and "log-probability" in seen["tip"] and "advantage" in seen["tip"]
  assert seen["wrong"] and all(text.startswith("✗") for text in seen["wrong"])
  assert seen["ended"] in ([], ["ended by eos"])
  assert re.fullmatch(r"#episode-\d+-\d+-\d+", seen["address"]) and seen["scheme"] in ("dark", "light")
  assert seen["linked"][0] == seen["linked"][1]  # the episode that shows what moved
  assert not [word for word in ("NaN", "undefined", "[object", "null") if word in seen["words"]]
  # Held-out questions can be filtered by kind and words.
  counts = data["answers"]["counts"]
  assert seen["answers"][0] == 100 and sum(counts.values()) == 149  # of 150 questions one has failed
  assert f"{counts['gained']} gained, {counts['lost']} lost" in seen["answers"][1]
  assert seen["gained"] == ["gained"] and len(seen["one"]) == 1 and "number 149," in seen["one"][0]


def test_each_tokens_shade_is_its_own_advantage(page, seen):
  """The page's groups have one advantage per episode, one per token (a critic), or one per turn."""
  groups = [g for step in page_lib.gather(page.parent)["episodes"]["steps"] for g in step["groups"] if g["samples"]]
  written = lambda sample: [segment for segment in sample["segments"] if segment["owner"] == "model"]
  kinds = set()
  for group, shown in zip(groups, seen[f"page {WIDTHS[0]}"]["shades"], strict=True):
    turns = written(group["samples"][0])
    for turn, shades in zip(turns, shown, strict=True):
      own = np.broadcast_to(turn["advantages"], turn["tokens"])
      np.testing.assert_allclose(shades, np.sign(own) * (0.06 + 0.34 * np.abs(own)), atol=2e-3)
      kinds.add("token" if isinstance(turn["advantages"], list) else len({str(turn["advantages"]) for turn in turns}))
  assert {"token", 1, 2} <= kinds


def test_curves_can_be_smoothed_and_episodes_found_and_paged_through(page, seen, width):
  seen = seen[f"page {width}"]
  # The norm of step 37 is not finite: a gap. Evaluations, ten steps apart, are connected. Unused endings are 0.
  assert seen["parts"] == [2, 1, 1]
  assert seen["rough"] == 0 and seen["smooth"][0] > 10 and seen["smooth"][1] == "mean of 5 steps"
  head, first, second = (line.split(",") for line in seen["csv"])
  assert head[0] == "step" and {"reward", "evaluation/em", "ended/length"} <= set(head) and head[1:] == sorted(head[1:])
  cells = dict(zip(head, second))
  assert first[0] == "0" and cells["step"] == "1" and float(cells["reward"]) > 0 and cells["evaluation/em"] == ""
  steps = page_lib.gather(page.parent)["episodes"]["steps"]
  # The mean is from the step's row in metrics.jsonl, not from the groups on the page.
  assert seen["steps"][-1] == f"60 · reward {steps[-1]['reward']:.3g}"
  questions = [group["question"] for step in [steps[-1], *steps[:-1]] for group in step["groups"]]
  assert 1 < len(seen["found"]) < len(questions)
  assert seen["found"] == [question for question in questions if "Kelmut" in question]
  assert "No group of other steps" in seen["none"] and "None of the others does." in seen["none"]
  assert seen["keys"] == [[12, 0, 0], [12, 0, 1], [12, 1, 0], [12, 0, 5], [12, 0, 5]]
  for place, shown in ((11, seen["before"]), (0, seen["first"])):
    assert shown[0] == place and shown[1] in [group["question"] for group in steps[place]["groups"]]


def test_runs_can_be_hidden_and_no_text_is_too_long_for_a_page(seen, width):
  long, seen = seen[f"long {width}"], seen[f"runs {width}"]
  assert "error" not in seen, seen["error"]
  assert seen["wide"] == [width, width] and seen["outside"] == [] and seen["narrow"] == []
  assert seen["below"] == long["below"] == 0  # no name below its colour
  assert seen["switched"] == [seen["charts"]] * 2  # the first run's line is missing in every chart
  assert seen["csv"][0].startswith("run,step,") and seen["csv"][1].startswith("first,0,")
  assert long["outside"] == [] and long["wide"] == [width, width]


ATTACK = (
  "</script><script>document.title='OWNED'</script><img src=x onerror=\"document.title='OWNED'\">"
  "<a href=\"javascript:document.title='OWNED'\">\u2028\u202e\u200b\udc00{{ 7 * 7 }}"
)


def withstood(page, folder):
  """The document of a page that is full of ATTACK, which has done nothing."""
  (folder / "bad.html").write_text(page, encoding="utf-8")
  dom = opened(folder / "bad.html", folder)
  title = html.unescape(re.search(r"<title>(.*?)</title>", dom)[1])
  assert title.startswith("</script><script>document.title='OWNED'") and title != "OWNED"
  assert 'class="segment model"' in dom and "<img" not in dom and '<a href="java' not in dom
  # Invisible characters, and those that change the direction of text, are shown as escapes.
  episode = dom[dom.index('class="segment model"') : dom.index('id="settings"')]
  assert "\\u{202e}\\u{200b}" in episode and not re.search("[\u202e\u200b\u2028]", episode)
  return dom


def test_hostile_text_is_not_executed(page, tmp_path):
  data = page_lib.gather(page.parent)
  data["episodes"]["steps"][-1]["file"] = data["run"]["name"] = data["curves"]["runs"][0]["name"] = ATTACK
  data["curves"]["panels"][0] |= {"title": ATTACK, "note": ATTACK, "unit": ATTACK}
  for group, sample in spoiled(data, ATTACK, ATTACK):
    group["prompt"]["parts"], group["kinds"] = [ATTACK, ATTACK], [("right", ATTACK), ("wrong", ATTACK)]
    sample["facts"], sample["ended"] = {ATTACK: ATTACK}, ATTACK
    sample["terms"][ATTACK], sample["advantage"] = 1.0, 1e-9  # rounding; and there is no range for shading
    for segment in sample["segments"]:
      segment.pop("advantages", None)
      segment |= {"stop": ATTACK} | ({"control": {"1": ATTACK}} if "pieces" in segment else {})
  dom = withstood(rendering.run(data), tmp_path)
  assert "No advantage in this step" in dom and 'class="ramp"' not in dom


def test_a_wrong_answers_row_does_not_colour_its_question_and_gold():
  style = (rendering.TEMPLATES / "page.css").read_text(encoding="utf-8")
  assert style.index(".wrong { color") < style.index(".answers tr { color: inherit; }")
  scripts = [(rendering.TEMPLATES / f"{name}.js").read_text() for name in ("answers", "questions")]
  assert all('"table", "answers' in script for script in scripts)


def test_paper_is_white_and_every_line_can_be_read_as_text():
  style = (rendering.TEMPLATES / "page.css").read_text(encoding="utf-8")
  heads = re.findall(r"(.*)\n  --paper", style)
  assert [head.startswith("@media screen") for head in heads] == [False, True, True]

  def brightness(code):
    parts = np.array([int(code[2 * i : 2 * i + 2], 16) / 255 for i in range(3)])
    return 0.05 + np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ (0.2126, 0.7152, 0.0722)

  for scheme in re.findall(r"--paper: [^}]*", style):
    colours = dict(re.findall(r"--(\w+): #(\w+);", scheme.replace("#fff;", "#ffffff;")))
    for name in ("dim", "model", "environment", *(f"line{tone}" for tone in range(8))):  # WCAG AA
      one, other = sorted(brightness(colours[key]) for key in ("card", name))
      assert other / one >= 4.5, name
