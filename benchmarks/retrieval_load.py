"""Requests per second of the retriever's server, over the passages of the made-up world, with 1 to 1,000 clients.

    python benchmarks/retrieval_load.py [--against CHECKOUT] [--encoder hashing]

Server and clients are two processes on this machine. With --against, the server of another checkout (its PYTHONPATH) is
measured in turn with this one, and the ratio is printed. On a busy machine, only this ratio and the CPU time per
request are meaningful. A client keeps its connection and asks for three passages for one question per request. After
status 429 (503 of older versions) it repeats the request when the server says. Any other status fails the benchmark.
"""

import argparse
import asyncio
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import time

import psutil

from ragrl_jax.data import synthetic
from ragrl_jax.retrieval import build_index

ROOT = pathlib.Path(__file__).parents[1]
LOADS = ((1, 300), (50, 2000), (200, 2000), (1000, 3000))  # clients, requests


async def client(port: int, bodies: list[bytes], times: list[float], failures: list[bytes]) -> None:
  reader, writer = await asyncio.open_connection("127.0.0.1", port)
  while bodies:
    body = bodies.pop()
    head = f"POST /retrieve HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    begun = time.perf_counter()
    while True:
      writer.write(head + body)
      said = (await reader.readuntil(b"\r\n\r\n")).lower()
      await reader.readexactly(int(said.split(b"content-length: ")[1].split(b"\r\n")[0]))
      if not said.startswith((b"http/1.1 429", b"http/1.1 503")):
        break
      await asyncio.sleep(float(said.split(b"retry-after: ")[1].split(b"\r\n")[0]))
    times.append(time.perf_counter() - begun)
    if not said.startswith(b"http/1.1 200"):
      failures.append(said)
  writer.close()


async def load(port: int, clients: int, bodies: list[bytes]) -> dict[str, float]:
  times, failures, count = [], [], len(bodies)
  begun = time.perf_counter()
  done = await asyncio.gather(*(client(port, bodies, times, failures) for _ in range(clients)), return_exceptions=True)
  seconds = time.perf_counter() - begun
  p50, p99 = (1000 * sorted(times)[int(share * len(times))] for share in (0.5, 0.99))
  failed = len(failures) + sum(isinstance(result, Exception) for result in done)
  return dict(rate=count / seconds, p50=p50, p99=p99, failed=failed)


def served(checkout: pathlib.Path, index: pathlib.Path) -> tuple[subprocess.Popen, int]:
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  command = [sys.executable, "-m", "ragrl_jax", "serve-index", "--index", index, "--port", str(port)]
  server = subprocess.Popen(command, env=os.environ | dict(PYTHONPATH=str(checkout)), stdout=subprocess.DEVNULL)
  while True:
    try:
      socket.create_connection(("127.0.0.1", port)).close()
      return server, port
    except ConnectionRefusedError:
      if server.poll() is not None:
        raise SystemExit(f"the server of {checkout} ended with {server.returncode}") from None
      time.sleep(0.1)


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--against", type=pathlib.Path, help="another checkout, whose server is the peer")
  parser.add_argument("--encoder", default="hashing", choices=("hashing", "bm25"))
  parser.add_argument("--rounds", type=int, default=3, help="of every load; the best counts")
  args = parser.parse_args()
  world = synthetic.build(synthetic.Settings())
  asked = [example.question for example in synthetic.questions(world, 1000, distinct=False)]
  draw, failed = random.Random(0), 0
  with tempfile.TemporaryDirectory() as folder:
    index = build_index(world.passages, args.encoder, pathlib.Path(folder) / "index", progress=False)
    sides = dict(here=ROOT) | (dict(against=args.against.resolve()) if args.against else {})
    servers = {name: served(checkout, index) for name, checkout in sides.items()}
    print(f"{len(world.passages)} passages, {args.encoder}")
    for clients, requests in LOADS:
      best: dict[str, dict[str, float]] = {}
      for _ in range(args.rounds):
        for name, (server, port) in servers.items():
          bodies = [
            json.dumps(dict(queries=[draw.choice(asked)], topk=3, return_scores=True)).encode() for _ in range(requests)
          ]
          before = sum(psutil.Process(server.pid).cpu_times()[:2])
          row = asyncio.run(load(port, clients, bodies))
          row["cpu"] = 1000 * (sum(psutil.Process(server.pid).cpu_times()[:2]) - before) / requests
          failed += int(row["failed"])
          best[name] = max(best.get(name, row), row, key=lambda row: row["rate"])
      for name, row in best.items():
        print(
          f"{clients:5d} clients, {name:8s}: {row['rate']:6.0f} requests/s, p50 {row['p50']:6.1f} ms, "
          f"p99 {row['p99']:7.1f} ms, {row['cpu']:5.2f} ms of a core a request",
          flush=True,
        )
      if args.against:
        here, peer = best["here"], best["against"]
        print(f"{'':15s}ratio: {here['rate'] / peer['rate']:.2f}, of a core's time {peer['cpu'] / here['cpu']:.2f}")
    for server, _ in servers.values():
      server.terminate()
      server.wait()
  print(f"failures: {failed}")
  return 1 if failed else 0


if __name__ == "__main__":
  sys.exit(main())
