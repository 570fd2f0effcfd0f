"""A stand-in for the Hugging Face hub on loopback: it makes repositories and takes commits."""

import base64
import contextlib
import http.server
import json
import threading


class Hub(http.server.ThreadingHTTPServer):
  """Keeps what it is sent.

  Attributes:
    token: the one token that it accepts.
    made: the bodies of requests for a new repository.
    files: path → content of every file that was committed.
    seen: the paths of all requests.
  """

  daemon_threads = True

  def __init__(self, token):
    super().__init__(("127.0.0.1", 0), Handler)
    self.token, self.made, self.files, self.seen = token, [], {}, []

  @property
  def address(self):
    return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
  def do_POST(self):
    hub, raw = self.server, self.rfile.read(int(self.headers["Content-Length"]))
    hub.seen.append(self.path)
    if self.headers.get("Authorization") != f"Bearer {hub.token}":
      return self.answer(401, {"error": "Invalid credentials"})
    if self.path == "/api/repos/create":
      hub.made.append(json.loads(raw))
      return self.answer(200, {"url": f"{hub.address}/me/policy"})
    if self.path == "/api/validate-yaml":
      return self.answer(200, {"errors": [], "warnings": []})
    if self.path == "/api/models/me/policy/preupload/main":
      files = [
        {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(raw)["files"]
      ]
      return self.answer(200, {"files": files})
    if self.path == "/api/models/me/policy/commit/main":
      for line in map(json.loads, raw.splitlines()):
        if line["key"] == "file":
          hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        else:
          hub.files["the message"] = line["value"]["summary"].encode()
      commit = "0" * 40
      return self.answer(200, {"commitUrl": f"{hub.address}/me/policy/commit/{commit}", "commitOid": commit})
    return self.answer(404, {"error": f"no {self.path} here"})

  def do_GET(self):
    self.server.seen.append(self.path)
    self.answer(404, {"error": f"no {self.path} here"})

  def answer(self, status, body):
    data = json.dumps(body).encode()
    self.send_response(status)
    self.send_header("Content-Type", "application/json")
    self.send_header("Content-Length", str(len(data)))
    self.end_headers()
    self.wfile.write(data)

  def log_message(self, *_):
    pass


@contextlib.contextmanager
def serving(token="right"):
  """A running hub."""
  hub = Hub(token)
  thread = threading.Thread(target=hub.serve_forever, daemon=True)
  thread.start()
  try:
    yield hub
  finally:
    hub.shutdown()
    hub.server_close()
    thread.join()
