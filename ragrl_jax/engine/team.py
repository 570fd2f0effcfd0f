"""One engine over several hosts. The first host plays the episodes and decides. The others run its programs with it.

Each host starts JAX programs by itself, so all hosts of a mesh must start the same programs, in the same order, with
the same arguments. Outside of a session (new weights, warm-up) all hosts make the same calls. Within a session only the
first host knows the next program, so it tells the others before it starts one:

    first host                                   the others
    step → KVCache._run("extend", tokens, …) ──► run_programs → KVCache._run("extend", tokens, …)
    a piece of the learner's work            ──► the same piece
    its episodes have ended                  ──► run_programs returns

Weights, cache and results stay on the devices. Only page tables, lanes, new tokens and swapped pages are sent. Results
that the first host reads are whole on every host (`Programs`).
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jax.sharding import Mesh

from ragrl_jax.parallel import hosts, links, mesh

BEGIN, PIECE, DONE, END = "begin", "piece", "done", "end"  # messages that are not names of programs


class Team:
  """The hosts of one engine.

  Attributes:
    leads: whether this host is the first one.
    run: runs a program by its name; the cache sets it.
  """

  run: Callable[..., Any]

  def __init__(self, link: links.Link, mesh: Mesh):
    self._link, self.size, self.leads, self._session = link, hosts.count_of(mesh), link.leads, False

  # ---- programs ------------------------------------------------------------------------------------------------------

  def tell(self, name: str, arrays: tuple[np.ndarray, ...]) -> None:
    """Tells the other hosts to run a program with these arguments."""
    if self.leads and self._session:
      self._link.send(name, *arrays)

  # ---- sessions ------------------------------------------------------------------------------------------------------

  @contextlib.contextmanager
  def session(self) -> Iterator[None]:
    """Lasts from a run's first program to its last; all hosts of the engine enter it.

    Raises links.Lost if the connection to a host is lost.
    """
    with self._link.busy():
      if self.leads:
        self._link.send(BEGIN)
      else:
        while self._link.receive().name != BEGIN:
          pass  # skips messages of a session that failed on all hosts
      self._session = True
      try:
        yield
      finally:
        self._session = False
      # After an error no host waits: either all hosts raised it, or this host ends and the others notice.
      if self.leads:
        self._link.send(END)
      else:
        self._run_until(END, None)

  def done(self) -> None:
    """Ends the other hosts' `run_programs`, because the episodes have ended. Called on the first host."""
    self._link.send(DONE)

  def piece(self) -> None:
    """Tells the other hosts to do a piece of the learner's work now. Called on the first host."""
    self._link.send(PIECE)

  def run_programs(self, advance: Callable[[], Any] | None) -> None:
    """Runs the programs that the first host names, until its episodes have ended. Called on the other hosts.

    Args:
      advance: does a piece of the learner's work; None if there is none.

    Raises:
      links.Lost: the connection to the first host is lost.
    """
    self._run_until(DONE, advance)

  def _run_until(self, until: str, advance: Callable[[], Any] | None) -> None:
    while (message := self._link.receive()).name != until:
      if message.name == PIECE:
        assert advance is not None  # all hosts have the same work of the learner
        advance()
      else:
        self.run(message.name, *message.arrays)


def for_mesh(learner: Mesh | None, **sizes: int) -> Team | None:
  """The team of this host's engine; None if the engine is on one host. All hosts call it."""
  engine_mesh = mesh.of_engine(learner, **sizes)
  if engine_mesh is None or (size := hosts.count_of(engine_mesh)) == 1:
    return None
  return Team(links.connect(size), engine_mesh)
