"""One of several hosts that play on engines over several of them:

    python tests/team_child.py NUMBER COUNT PORT DEVICES MESH OUT

DEVICES are this host's own, MESH is config.rollout.mesh as JSON. Host 0 writes what was drawn to OUT, JSON. With more
arguments the last host ends itself in the midst of an episode.
"""

import json
import os
import pathlib
import sys

import conftest  # noqa: F401  (the tests' settings, the compilation cache among them)
import jax
import small_engine as kit
from flax import nnx

from ragrl_jax.engine import team
from ragrl_jax.parallel import hosts, mesh as mesh_lib, rules
from ragrl_jax.rollout import dispatch, multihost

# Eight pages hold two conversations and some: others are swapped out in the midst of their turns.
SIZES = kit.SIZES | dict(lanes=4, rows=8, pages=8)


def played(learner, sizes, made=None):
  """(of every episode its ids, log-probabilities and version; conversations that were swapped out).

  The episodes are of two batches, the second one beside other work, and greedy ones by later weights.
  """
  here = mesh_lib.of_engine(learner, **sizes)
  params = rules.place(learner, nnx.state(kit.model()))
  every = mesh_lib.engines(learner, **sizes) if hosts.count() > 1 else None
  how = dict(replicas=here.shape["data"], mesh=here, engines=every, team=made)
  engine = kit.loaded(kit.model(), params=params, **SIZES | how)
  many = multihost.MultiHostRollout(kit.rollout(engine), made)
  work = dispatch.Work(pieces(params))
  with many.session() as session:
    started = [session.start(kit.requests(2, 4, first=2 * batch), step=batch) for batch in (0, 1)]
    episodes = session.finish(started[0]) + session.finish(started[1], work)
  assert work.finish() == 3
  swapped = many.report.engine.swapped_rows
  engine.load(params, version=2)
  greedy = many.run(kit.requests(1, 2), step=2, greedy=True)
  return [_plain(e) for e in episodes + greedy], swapped


def pieces(params):
  """Programs over all hosts, as the learner's."""
  add = jax.jit(lambda x: x.sum())
  for _ in range(3):
    yield add(jax.tree.leaves(params)[0])
  return 3


def _plain(episode):
  model = [s for s in episode.segments if s.owner == "model"]
  return [list(s.ids) for s in model], [x for s in model for x in s.logprobs], episode.version


if __name__ == "__main__":
  number, count, port, devices = (int(x) for x in sys.argv[1:5])
  sizes, out, fails = json.loads(sys.argv[5]), pathlib.Path(sys.argv[6]), len(sys.argv) > 7
  jax.config.update("jax_num_cpu_devices", devices)
  with hosts.Joined(f"127.0.0.1:{port}", count, number, wait_s=120, heartbeat_s=30):
    learner = mesh_lib.make(jax.devices(), data=1, fsdp=-1)
    made = team.for_mesh(learner, **sizes)
    if fails and number == count - 1:
      tell, calls = made.tell, []
      ends = lambda name: calls.append(name) or calls.count("decode") > 4
      made.tell = lambda name, arrays: os._exit(9) if ends(name) else tell(name, arrays)
    found = played(learner, sizes, made)
    if number == 0:
      out.write_text(json.dumps(found))
