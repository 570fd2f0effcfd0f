"""1,000 clients search on the retriever's server for a minute: failures, response times, and the server's memory.

    taskset -c 1 python benchmarks/retrieval_soak.py [--clients 1000] [--seconds 60] [--passages 100000]

The first index is BM25, the second has dense vectors (hashing, exact search); both have the passages of a made-up
world. Server and clients are two processes on this machine. Shares are CPU time over wall time: of the server, of the
clients, and of other work on the core. Each client keeps its connection and asks for three passages for one question
per request. After status 429, it repeats the request when the server says. Memory is the server's RssAnon, without the
memory-mapped files of the index. The exit status is 1 if a request failed, or if the mean memory of the last quarter is
more than 5 % above that of the second.
"""

import argparse
import asyncio
import json
import os
import pathlib
import random
import sys
import tempfile
import time

import numpy as np
import psutil
import retrieval_load

from ragrl_jax.data import synthetic
from ragrl_jax.retrieval import build_index

PER_ENTITY = 3.2  # least number of passages per entity of the made-up world


def own_memory(process: int) -> float:
  """RssAnon in MB."""
  lines = pathlib.Path(f"/proc/{process}/status").read_text().splitlines()
  return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


async def client(port: int, draw, until: float, times: list[float], refused: list[float]) -> None:
  reader, writer = await asyncio.open_connection("127.0.0.1", port)
  while time.perf_counter() < until:
    begun, body = time.perf_counter(), draw()
    head = f"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    writer.write(head + body)
    said = (await reader.readuntil(b"\r\n\r\n")).lower()
    answer = await reader.readexactly(int(said.split(b"content-length: ")[1].split(b"\r\n")[0]))
    if said.startswith(b"http/1.1 429"):
      refused.append(begun)
      await asyncio.sleep(float(said.split(b"retry-after: ")[1].split(b"\r\n")[0]))
      continue
    if not said.startswith(b"http/1.1 200") or len(json.loads(answer)["result"][0]) != 3:
      raise RuntimeError(f"{said[:80]!r} {answer[:200]!r}")
    times.append(time.perf_counter() - begun)
  writer.close()


async def watched(server: psutil.Process, until: float, memory: list[float]) -> None:
  while time.perf_counter() < until:
    memory.append(own_memory(server.pid))
    await asyncio.sleep(0.5)


async def soak(port: int, process: int, clients: int, seconds: float, draw) -> bool:
  """Prints the results of one index. Returns whether no request failed and memory stayed flat."""
  server, own, core = psutil.Process(process), psutil.Process(), sorted(os.sched_getaffinity(0))[0]
  times, refused, memory = [], [], []
  spent = lambda: [sum(one.cpu_times()[:2]) for one in (server, own)] + [psutil.cpu_times(percpu=True)[core].idle]
  before, begun = spent(), time.perf_counter()
  until = begun + seconds
  work = [client(port, draw, until, times, refused) for _ in range(clients)]
  done = await asyncio.gather(*work, watched(server, until, memory), return_exceptions=True)
  took = time.perf_counter() - begun
  served, asked, idle = ((now - then) / took for now, then in zip(spent(), before))
  failures = [result for result in done if isinstance(result, BaseException)]
  p50, p99 = (1000 * float(np.quantile(times, share)) for share in (0.5, 0.99))
  quarter = len(memory) // 4
  second, last = np.mean(memory[quarter : 2 * quarter]), np.mean(memory[-quarter:])
  rest = max(1 - served - asked - idle, 0)
  print(
    f"  {clients} clients, {took:.0f} s: {len(times)} answers ({len(times) / took:.0f}/s), {len(failures)} failures, "
    f"{len(refused)} times 429; p50 {p50:.0f} ms, p99 {p99:.0f} ms\n"
    f"  shares of core {core}: server {served:.0%}, clients {asked:.0%}, other work {rest:.0%}"
    f"\n  memory: second quarter {second:.1f} MB, last {last:.1f} MB, most {max(memory):.1f} MB",
    flush=True,
  )
  for failure in failures[:3]:
    print(f"  {type(failure).__name__}: {failure}")
  return not failures and last <= 1.05 * second


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--clients", type=int, default=1000)
  parser.add_argument("--seconds", type=float, default=60)
  parser.add_argument("--passages", type=int, default=100_000)
  args = parser.parse_args()
  world = synthetic.build(synthetic.Settings(entities=round(args.passages / PER_ENTITY)))
  passages, draws, fine = world.passages[: args.passages], random.Random(0), True
  bodies = [
    json.dumps(dict(queries=[example.question], topk=3, return_scores=True)).encode()
    for example in synthetic.questions(world, 1000, distinct=False)
  ]
  with tempfile.TemporaryDirectory() as folder:
    for encoder in ("bm25", "hashing"):
      index = build_index(passages, encoder, pathlib.Path(folder) / encoder, progress=False)
      server, port = retrieval_load.served(retrieval_load.ROOT, index)
      print(f"{encoder}, {len(passages)} passages", flush=True)
      fine &= asyncio.run(soak(port, server.pid, args.clients, args.seconds, lambda: draws.choice(bodies)))
      server.terminate()
      server.wait()
  return 0 if fine else 1


if __name__ == "__main__":
  sys.exit(main())
