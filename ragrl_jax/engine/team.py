"""One engine over several hosts. The first one plays the episodes and decides; the others run its programs with it.

JAX starts a program on each host by itself, so all hosts of a mesh must start the same programs, in one order, with the
same arguments. Outside of a session (new weights, warm-up) all hosts make the same calls. Within one, only the first
host knows what comes next, so it tells the others before it starts a program:

    first host                                   the others
    step → KVCache._run("extend", tokens, …) ──► follow → KVCache._run("extend", tokens, …)
    a piece of the learner's work            ──► the same piece
    its episodes have ended                  ──► follow returns

Weights, cache and results stay on the devices: only page tables, lanes and new tokens are sent, and pages that come
back from the first host's memory. What the first host reads is whole on every host (`Programs`).
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ragrl_jax.parallel import hosts, links, mesh

BEGIN, PIECE, DONE, END = "begin", "piece", "done", "end"  # what is sent besides the names of programs


class Team:
  """The hosts of one engine.

  Args:
    link: between them.
    mesh: the engine's.

  Attributes:
    size: number of hosts.
    leads: whether this host is the first one.
    run: runs a program by its name; the cache sets it.
  """

  def __init__(self, link: links.Link, mesh: Mesh):
    self._link, self._split = link, NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    self.size, self.leads, self.run = hosts.count_of(mesh), link.leads, _no_cache
    self._session = False

  # ---- programs ------------------------------------------------------------------------------------------------------

  def share(self, name: str, arrays: tuple[np.ndarray, ...]) -> list[jax.Array]:
    """The arrays that a program is given, split over the replicas on all hosts; the others are told to run it, too."""
    if self.leads and self._session:
      self._link.send(name, *arrays)
    return [jax.make_array_from_callback(x.shape, self._split, lambda part, x=x: x[part]) for x in arrays]

  # ---- sessions ------------------------------------------------------------------------------------------------------

  @contextlib.contextmanager
  def session(self) -> Iterator[None]:
    """From the first program to the last of a run of episodes; on all hosts of the engine.

    Raises:
      links.Lost: one of the hosts is lost.
    """
    with self._link.busy():
      if self.leads:
        self._link.send(BEGIN)
      else:
        while self._link.receive().name != BEGIN:
          pass  # what a session that failed on all hosts has left behind
      self._session = True
      try:
        yield
      finally:
        self._session = False
      # After an error nobody waits: all hosts have raised it, or this one ends and the others see that.
      if self.leads:
        self._link.send(END)
      else:
        self._follow(END, None)

  def done(self) -> None:
    """Tells the others that the episodes which `follow` waits for have ended. On the first host."""
    self._link.send(DONE)

  def piece(self) -> None:
    """Tells the others to do a piece of their other work now. On the first host."""
    self._link.send(PIECE)

  def follow(self, advance: Callable[[], Any] | None) -> None:
    """Runs what the first host says, until its episodes have ended. On the others.

    Args:
      advance: does a piece of other work, if there is any.

    Raises:
      links.Lost: the first host is lost.
    """
    self._follow(DONE, advance)

  def _follow(self, until: str, advance: Callable[[], Any] | None) -> None:
    while (message := self._link.receive()).name != until:
      if message.name == PIECE:
        assert advance is not None  # the first host has the same other work
        advance()
      else:
        self.run(message.name, *message.arrays)


def _no_cache(name: str, *_: np.ndarray) -> None:
  raise ValueError(f"{name}: the engine has no cache: load weights first.")


def of(learner: Mesh | None, **sizes: int) -> Team | None:
  """The hosts of this host's engine; None if it runs on one alone. All hosts call it.

  Args:
    learner: the mesh over all hosts.
    **sizes: `config.rollout.mesh`.
  """
  here = mesh.of_engine(learner, **sizes)
  if here is None or (size := hosts.count_of(here)) == 1:
    return None
  return Team(links.connect(size), here)
