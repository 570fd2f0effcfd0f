"""A stand-in for the Hugging Face hub on loopback: it makes repositories and takes commits, and it serves models."""

import base64
import contextlib
import hashlib
import json
import re
import time

import served
from huggingface_hub import constants


class Hub(served.Threads):
  """Keeps what it is sent.

  Attributes:
    token: the one token that it accepts.
    made: the bodies of requests for a new repository.
    files: path → content of every file that was committed.
    seen: the paths of all requests.
    revisions: OWNER/NAME → revision or commit → commit, of the models that it serves.
    trees: commit → {path: content}.
    gated: OWNER/NAME of the models whose files it refuses.
    broken: path → bytes after which the connection ends, in the next answers with this file.
    ranges: the Range of every request for a part of a file.
  """

  def __init__(self, token="right"):
    super().__init__(Handler)
    self.token, self.made, self.files, self.seen = token, [], {}, []
    self.revisions, self.trees, self.gated, self.broken, self.ranges = {}, {}, set(), {}, []

  def serve(self, name, folder, revision="main", **more):
    """Makes the files of a folder, and more {path: content}, a commit to which the revision points; returns it."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files |= {path: content.encode() for path, content in more.items()}
    commit = hashlib.sha1(repr((name, sorted(files.items()))).encode()).hexdigest()
    self.trees[commit] = files
    self.revisions.setdefault(name, {}).update({revision: commit, commit: commit})
    return commit


class Handler(served.Handler):
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
      files = [dict(path=one["path"], uploadMode="regular", shouldIgnore=False) for one in json.loads(raw)["files"]]
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
    hub, path = self.server, self.path.partition("?")[0]
    hub.seen.append(self.path)
    asked = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path)
    file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
    if not asked and not file:
      return self.answer(404, {"error": f"no {self.path} here"})
    name, revision = asked.group(1, 3) if asked else file.group(1, 2)
    if name not in hub.revisions:
      return self.answer(401, {"error": "Invalid username or password."}, X_Error_Code="RepoNotFound")
    if (commit := hub.revisions[name].get(revision or "main")) is None:
      return self.answer(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
    files = hub.trees[commit]
    if asked and asked[2] == "tree":
      return self.answer(200, [dict(type="file", path=p, size=len(c), oid=_etag(c)) for p, c in files.items()])
    if asked:
      siblings = [dict(rfilename=path, size=len(content)) for path, content in files.items()]
      return self.answer(200, dict(id=name, sha=commit, siblings=siblings, tags=[]))
    if name in hub.gated:
      return self.answer(403, {"error": "Access is restricted"}, X_Error_Code="GatedRepo")
    if file[3] not in files:
      return self.answer(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
    self.file(file[3], files[file[3]], commit)

  do_HEAD = do_GET

  def answer(self, status, body, **headers):
    self.reply(status, json.dumps(body).encode(), content_type="application/json", **headers)

  def file(self, path, content, commit):
    hub, size = self.server, len(content)
    first = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
    start = int(first[1]) if first else 0
    if first:
      hub.ranges.append(first[0])
    self.send_response(206 if first else 200)
    self.send_header("ETag", f'"{_etag(content)}"')
    self.send_header("X-Repo-Commit", commit)
    self.send_header("Content-Length", str(size - start))
    if first:
      self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
    self.end_headers()
    if self.command == "GET":
      self.wfile.write(content[start : hub.broken.get(path)])


def _etag(content):
  return hashlib.sha1(content).hexdigest()


@contextlib.contextmanager
def reached(monkeypatch, cache):
  """A running hub that huggingface_hub takes for the public one, with its cache in a new folder."""
  with Hub() as made:
    for name, value in places(made.address, cache).items():
      monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 512)
    monkeypatch.setattr(time, "sleep", lambda s: None)
    yield made


def places(address, cache):
  """The constants by which huggingface_hub takes this address for the public hub's, {name: value}."""
  template = address + "/{repo_id}/resolve/{revision}/{filename}"
  return dict(HF_HUB_OFFLINE=False, HF_HUB_CACHE=str(cache), ENDPOINT=address, HUGGINGFACE_CO_URL_TEMPLATE=template)
