"""Two engines of this process, one of which leads, in place of two hosts. With real hosts: tests/test_teams.py."""

import threading

import jax
import numpy as np
import pytest
import small_engine as kit
from linked import pair

from ragrl_jax.engine import team
from ragrl_jax.engine.engine import Engine
from ragrl_jax.engine.sizes import Sizes
from ragrl_jax.parallel import links, mesh as mesh_lib

MESH = mesh_lib.of_engine(mesh_lib.make(jax.devices()[:2], data=2), tensor=2)
SIZES = kit.SIZES | dict(rows=8, pages=8)
engine = lambda of: kit.loaded(kit.model(), mesh=MESH, team=of, **SIZES)


class Follower(threading.Thread):
  """The other host: runs the programs of one session, and records them."""

  def __init__(self, of, engine):
    super().__init__(daemon=True)
    self.team, self.programs, self.pieces, self.error = of, [], 0, None
    run = engine._kv._run
    of.run = lambda name, *arrays: (self.programs.append(name), run(name, *arrays))

  def piece(self):
    self.pieces += 1

  def run(self):
    try:
      with self.team.session():
        self.team.run_programs(self.piece)
    except links.Lost as error:
      self.error = error


@pytest.mark.long  # compiles two engines
def test_the_others_run_the_first_hosts_programs_to_the_bit():
  first, other, _ = pair()
  teams = team.Team(first, MESH), team.Team(other, MESH)
  assert teams[0].leads and not teams[1].leads
  leading, following = (engine(one) for one in teams)
  first.send("copy")  # left over from a session that failed on both hosts
  follower = Follower(teams[1], following)
  follower.start()
  played = kit.rollout(leading)
  with teams[0].session(), played.session() as session:
    episodes = session.finish(session.start(kit.requests(2, 4), step=0))
    teams[0].piece()
    teams[0].done()
  follower.join(timeout=60)
  assert follower.error is None and follower.pieces == 1
  # Every program but those of the warm-up, which each host runs by itself.
  assert set(follower.programs) == {"extend", "decode", "copy", "take", "put"} and played.report.engine.swapped_rows
  assert follower.programs.count("decode") == played.report.engine.chunks
  for mine, theirs in zip(leading._kv.cache, following._kv.cache, strict=True):
    assert np.asarray(mine).tobytes() == np.asarray(theirs).tobytes() and np.asarray(mine).any()
  alone = kit.rollout(engine(None)).run(kit.requests(2, 4), step=0)
  assert [kit.drawn(e) for e in episodes] == [kit.drawn(e) for e in alone]


def test_an_error_on_the_first_host_leaves_nobody_waiting_and_a_session_can_follow():
  first, other, (own, _) = pair()
  teams = team.Team(first, MESH), team.Team(other, MESH)
  for one in teams:
    with pytest.raises(KeyError), one.session():
      raise KeyError("raised on all hosts")
  ran = []
  teams[1].run = lambda name, *arrays: ran.append((name, [x.tolist() for x in arrays]))
  with teams[0].session():
    teams[0].tell("extend", (np.arange(2, dtype=np.int32),))
    teams[0].done()
  teams[0].tell("copy", (np.arange(2, dtype=np.int32),))  # outside of a session all hosts call it
  with teams[1].session():
    teams[1].run_programs(None)
  assert ran == [("extend", [[0, 1]])]
  own.shutdown(2)
  with pytest.raises(links.Lost, match="host 0"), teams[1].session():
    pass


def test_a_program_needs_weights():
  of = team.Team(pair()[0], MESH)
  Engine(None, kit.TOKENIZER, kit.stops(), Sizes(**SIZES), mesh=MESH, team=of)
  with pytest.raises(ValueError, match="the engine has no weights"):
    of.run("extend")
