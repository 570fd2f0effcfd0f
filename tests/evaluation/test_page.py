"""The page in a browser: it runs under its own policy, answers the reader, and fits its window."""

import html
import json
import re
import shutil
import subprocess

import pytest

from ragrl_jax.evaluation import report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
         "--disable-component-update --disable-sync --hide-scrollbars --virtual-time-budget=4000").split()
pytestmark = [
    pytest.mark.slow,  # a browser starts for each test
    pytest.mark.skipif(BROWSER is None, reason="no chromium here: the page is not opened in a browser"),
]

# What a reader does, and what the page is like after it.
ACTIONS = """
const seen = {}, all = (selector) => [...document.querySelectorAll(selector)];
const set = (title, value) => {
  const select = all(".tools label").find((label) => label.textContent.startsWith(title)).querySelector("select");
  select.value = value;
  select.dispatchEvent(new Event("change"));
};
seen.charts = all("#curves svg, #featured svg").length;
seen.words = document.body.innerText;
seen.wide = [document.documentElement.scrollWidth, innerWidth];
seen.outside = all("main *").filter((e) => !e.closest(".scroll, svg, details, .groups") &&
  e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.tagName + "." + e.className);
const box = document.querySelector("#curves .chart svg").parentElement, at = box.getBoundingClientRect();
const middle = at.left + LEFT + (at.width - LEFT - RIGHT) / 2;
box.dispatchEvent(new PointerEvent("pointermove", {clientX: middle, clientY: at.top + 50}));
seen.reads = all("#curves .read, #featured .read").map((e) => e.textContent);
seen.shaded = all(".token.positive, .token.negative").length;
set("Shade", "probability");
seen.unlikely = all(".segment .token.unlikely").length;
const token = document.querySelector(".segment .token[data-tip]");
token.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
seen.tip = document.getElementById("tip").textContent;
set("Outcome", "wrong");
seen.wrong = all(".samples button").map((e) => e.textContent);
set("Ended", "eos");
seen.ended = all(".chip").map((e) => e.textContent).filter((text) => text.startsWith("ended"));
set("Outcome", ""); set("Ended", "");
all(".group > button").at(-1).click();
seen.address = location.hash;
document.getElementById("more").open = true;
document.getElementById("scheme").click();
seen.scheme = document.documentElement.dataset.scheme;
parent.postMessage(JSON.stringify(seen), "*");
"""
# Frames, for they may be as narrow as a telephone, which a headless window may not.
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
WIDTHS = (1280, 420)


def opened(path, folder):
  done = subprocess.run(
      [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000", "--dump-dom",
       path.as_uri()], capture_output=True, text=True, timeout=120)
  return done.stdout


@pytest.fixture(scope="module")
def page(fake_run):
  return report.write_report(fake_run)


def test_it_runs_under_its_own_policy(page, tmp_path):
  dom = opened(page, tmp_path)
  assert dom.count("<svg") >= 14 and 'class="segment model"' in dom


@pytest.fixture(scope="module")
def seen(page, tmp_path_factory):
  """{"page 420": what the reader saw, …}: two pages at two widths, in one browser."""
  folder = tmp_path_factory.mktemp("seen")
  pages = {"page": page.read_text(encoding="utf-8"), "long": report.render(too_long(report.gather(page.parent)))}
  for name, text in pages.items():
    # The policy forbids every other script, so the reader's comes into a copy without one.
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    (folder / f"{name}.html").write_text(
        text.replace("</body>", f"<script>{ACTIONS}</script></body>"), encoding="utf-8")
  frames = "".join(FRAME.format(name, width) for name in pages for width in WIDTHS)
  (folder / "host.html").write_text(HOST.format(frames), encoding="utf-8")
  dom = opened(folder / "host.html", folder)
  return json.loads(html.unescape(re.search(r'<pre id="result">(.*?)</pre>', dom, re.S)[1]))


def too_long(data):
  """The page's data with words, lists and lines beyond all measure."""
  long, lines = "Donaudampfschiff" * 40, "one line\n" * 60
  data["run"] |= {"name": long[:120], "model": "/models/" + long, "recipe": long[:60]}
  data["run"]["warnings"] = [{"text": long, "first": 1, "times": 2}]
  data["settings"][0] |= {"changed": True, "value": long, "path": long[:80]}
  for step in data["episodes"]["steps"]:
    for group in step["groups"]:
      group["question"], group["golds"], group["prompt"]["text"] = long, [long], lines + long
      for sample in group["samples"]:
        sample["terms"] |= {f"a term with a long name {i} {long[:30]}": 0.123 for i in range(8)}
        sample["facts"], sample["failure"] = {long: [long] * 30}, long
        for segment in sample["segments"]:
          segment["query"], segment["text"] = long, lines + long
          if "pieces" in segment:
            segment["pieces"][0] = long
          for passage in segment.get("found") or ():
            passage["title"] = passage["text"] = long
  return data


@pytest.mark.parametrize("width", WIDTHS)
def test_what_a_reader_does(page, seen, width):
  seen = seen[f"page {width}"]
  assert seen["charts"] == len(report.gather(page.parent)["curves"]["panels"])
  assert seen["wide"] == [width, width] and seen["outside"] == []
  # The middle of one chart is step 30 of 60, and is read off all that have a value there.
  assert all(re.match(r"step \d+: ", text) for text in seen["reads"])
  assert {re.match(r"step (\d+)", text)[1] for text in seen["reads"][1:4]} == {"30"}
  assert seen["shaded"] > 0 and seen["unlikely"] > 0
  assert "log-probability" in seen["tip"] and "advantage" in seen["tip"]
  assert seen["wrong"] and all(text.startswith("✗") for text in seen["wrong"])
  assert seen["ended"] in ([], ["ended by eos"])
  assert re.fullmatch(r"#episode-\d+-\d+-\d+", seen["address"]) and seen["scheme"] in ("dark", "light")
  for word in ("NaN", "undefined", "[object", "null"):
    assert word not in seen["words"]


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_too_long_for_the_page(seen, width):
  assert seen[f"long {width}"]["outside"] == [] and seen[f"long {width}"]["wide"] == [width, width]


def test_hostile_text_runs_nothing(page, tmp_path):
  data = report.gather(page.parent)
  attack = "</script><script>document.title='OWNED'</script><img src=x onerror=\"document.title='OWNED'\">"
  for step in data["episodes"]["steps"]:
    for group in step["groups"]:
      group["question"], group["golds"], group["prompt"]["text"] = attack, [attack], attack
      for sample in group["samples"]:
        sample["facts"], sample["ended"] = {attack: attack}, attack
        for segment in sample["segments"]:
          segment["text"], segment["stop"], segment["query"] = attack, attack, attack
          if "pieces" in segment:
            segment["pieces"][0] = attack
          for passage in segment.get("found") or ():
            passage["title"] = passage["text"] = attack
  bad = tmp_path / "bad.html"
  bad.write_text(report.render(data), encoding="utf-8")
  dom = opened(bad, tmp_path)
  assert "<title>fake" in dom and "OWNED" not in re.search(r"<title>(.*?)</title>", dom)[1]
  assert 'class="segment model"' in dom and "<img" not in dom
