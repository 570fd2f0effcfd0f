"""Times the opening of a report page in Chromium, until its questions are drawn and can be searched.

    python tests/evaluation/fake_evaluation.py out/fake 50000 long
    ragrl report --workdir out/fake/before --workdir out/fake/after --out out/fake/two.html
    CHROMIUM=$(.ci/chromium) python benchmarks/page_opening.py out/fake/two.html

This process serves the page to a headless browser, with a script that reports times: from the start of the navigation
to the drawn table, and then of one search, one sort and the opening of one question. All three openings are printed,
because times vary on a busy machine.
"""

import argparse
import functools
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading

REPORT = """
<script>
(async () => {
  const shown = await questioned, said = {opened: performance.now()};
  const timed = async (name, work) => {
    const begin = performance.now();
    await work();
    document.body.getBoundingClientRect();
    said[name] = performance.now() - begin;
  };
  await timed("search", () => { shown.chosen.words = "guild 77"; shown.show(); });
  await timed("search again", () => { shown.chosen.words = "guild 777"; shown.show(); });
  await timed("sort", () => { shown.chosen.words = ""; shown.sort = {column: 1, down: false}; shown.show(); });
  await timed("question", () => shown.open(shown.found[0], true));
  await fetch("/seen", {method: "POST", body: JSON.stringify(said)});
})();
</script></body>"""


class Server(http.server.BaseHTTPRequestHandler):
  """Serves one page, and receives the times that its script reports."""

  def __init__(self, page: bytes, seen: list, done: threading.Event, *args):
    self.page, self.seen, self.done = page, seen, done
    super().__init__(*args)

  def do_GET(self):
    if self.path != "/":
      self.send_error(404)
      return
    self.send_response(200)
    self.send_header("Content-Type", "text/html; charset=utf-8")
    self.send_header("Content-Length", str(len(self.page)))
    self.end_headers()
    self.wfile.write(self.page)

  def do_POST(self):
    self.seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
    self.send_response(204)
    self.end_headers()
    self.done.set()

  def log_message(self, *_):
    pass


def opened(browser: str, page: bytes) -> dict[str, float]:
  """The times of one opening, in milliseconds."""
  seen, done = [], threading.Event()
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, page, seen, done))
  threading.Thread(target=server.serve_forever, daemon=True).start()
  with tempfile.TemporaryDirectory() as profile:
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    address = f"http://127.0.0.1:{server.server_port}/"
    flags += [f"--user-data-dir={profile}", "--remote-debugging-port=0", address]  # the port keeps Chromium running
    process = subprocess.Popen([browser, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
      if not done.wait(120):
        raise TimeoutError("the page did not report within two minutes: is it a page of an evaluation?")
    finally:
      process.terminate()
      process.wait()
      server.shutdown()
  return seen[0]


def main():
  cli = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  cli.add_argument("page", type=pathlib.Path)
  args = cli.parse_args()
  browser = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
  if browser is None:
    raise SystemExit("no Chromium: set CHROMIUM to one, or run .ci/chromium")
  text = args.page.read_text(encoding="utf-8")
  text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)  # it allows no other script
  page = text.replace("</body>", REPORT).encode()
  print(f"{args.page}: {len(page) / 2**20:.1f} MiB")
  for _ in range(3):
    print("  " + ", ".join(f"{name} {took:.0f} ms" for name, took in opened(browser, page).items()))


if __name__ == "__main__":
  main()
