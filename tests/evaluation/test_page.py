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
seen.charts = all("#curves svg").length;
seen.words = document.body.innerText;
seen.wide = [document.documentElement.scrollWidth, innerWidth];
seen.outside = all("main *").filter((e) => !e.closest(".scroll, svg, details, .groups") &&
  e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.tagName + "." + e.className);
const box = document.querySelector("#curves .chart svg").parentElement, at = box.getBoundingClientRect();
const middle = at.left + LEFT + (at.width - LEFT - RIGHT) / 2;
box.dispatchEvent(new PointerEvent("pointermove", {clientX: middle, clientY: at.top + 50}));
seen.reads = all("#curves .read").map((e) => e.textContent);
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
# A frame may be as narrow as a telephone, a headless window may not.
HOST = """<!doctype html>
<iframe src="page.html" width="{}" height="900" style="border:0"></iframe><pre id="result"></pre>
<script>onmessage = (event) => {{ document.getElementById("result").textContent = event.data; }};</script>"""


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


@pytest.mark.parametrize("width", [1280, 420])
def test_what_a_reader_does(page, tmp_path, width):
  text = page.read_text(encoding="utf-8")
  # The policy forbids every other script, so the reader's comes into a copy without one.
  text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
  copy = tmp_path / "page.html"
  copy.write_text(text.replace("</body>", f"<script>{ACTIONS}</script></body>"), encoding="utf-8")
  host = tmp_path / "host.html"
  host.write_text(HOST.format(width), encoding="utf-8")
  dom = opened(host, tmp_path)
  seen = json.loads(html.unescape(re.search(r'<pre id="result">(.*?)</pre>', dom, re.S)[1]))
  assert seen["charts"] == len(report.gather(page.parent)["curves"]["panels"])
  assert seen["wide"][1] == width
  assert seen["wide"][0] <= seen["wide"][1] and seen["outside"] == []
  # The middle of one chart is step 30 of 60, and is read off all that have a value there.
  assert all(re.match(r"step \d+: ", text) for text in seen["reads"])
  assert {re.match(r"step (\d+)", text)[1] for text in seen["reads"][:3]} == {"30"}
  assert seen["shaded"] > 0 and seen["unlikely"] > 0
  assert "log-probability" in seen["tip"] and "advantage" in seen["tip"]
  assert seen["wrong"] and all(text.startswith("✗") for text in seen["wrong"])
  assert seen["ended"] in ([], ["ended by eos"])
  assert re.fullmatch(r"#episode-\d+-\d+-\d+", seen["address"]) and seen["scheme"] in ("dark", "light")
  for word in ("NaN", "undefined", "[object", "null"):
    assert word not in seen["words"]


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
