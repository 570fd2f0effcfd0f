"""The device arrays of the cache, and the programs that change them. It handles pages and knows no conversations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from ragrl_jax.engine.lanes import Chunk
from ragrl_jax.engine.loader import NO_WEIGHTS, Loader, Weights
from ragrl_jax.engine.programs import Programs
from ragrl_jax.engine.sizes import Sizes
from ragrl_jax.engine.stops import Stops
from ragrl_jax.engine.team import Team
from ragrl_jax.models import cache as cache_lib
from ragrl_jax.parallel import hosts

MOVED = 16  # most pages per transfer between device and host


class Extension(NamedTuple):
  """The next tokens of one conversation.

  Attributes:
    tokens: at most the width of the extension.
    cached: number of tokens already in the cache.
    pages: the conversation's pages, with room for the tokens.
    slot: of the conversation's memories, in a model that has them.
  """

  tokens: Sequence[int]
  cached: int
  pages: Sequence[int]
  slot: int


class KVCache:
  """Runs the engine's programs. Each call serves all replicas: argument r of a list is replica r's.

  Args:
    loader: holds the weights of the programs. The first ones give the shapes of the cache and of the programs.
    team: the hosts of the engine, if there are several. They run every program together.

  Attributes:
    programs: compiled for the cache's shapes, by the first `restore` with weights.
    cache: the device arrays. They are donated to every program that changes them, which returns new ones.
  """

  programs: Programs

  def __init__(
    self, graphdef: nnx.GraphDef, loader: Loader, stops: Stops, sizes: Sizes, mesh: Mesh | None, team: Team | None
  ):
    self._graphdef, self._loader, self._stops, self._sizes = graphdef, loader, stops, sizes
    self._mesh, self._team = mesh, team
    self._moved = min(MOVED, sizes.table)
    self._copies = max(1, sizes.lanes // sizes.replicas)  # of one program call
    self._allocate: Callable[[], cache_lib.Cache] | None = None  # makes an empty cache; None before the first weights
    self.cache: cache_lib.Cache = ()
    if team is not None:
      team.run = self._run

  @property
  def slots(self) -> int:
    """Memories of each delta layer per replica; 0 without such layers, and before the first weights."""
    config = self._loader.config
    return self._sizes.slots if config is not None and config.traits.hybrid else 0

  @property
  def weights(self) -> Weights | None:
    """The weights with which the programs run."""
    return self._loader.whole

  def _run(self, name: str, *arrays: np.ndarray) -> Any:
    """Runs a program on the cache, on all hosts of the engine together. Returns its result without the cache."""
    # Every host of a team runs every program here. The first host is called by a method below, the others by
    # `Team.run_programs`.
    if self.weights is None:
      raise ValueError(NO_WEIGHTS)
    if self._team is not None:
      self._team.tell(name, arrays)
    inputs = hosts.put(arrays, self._at)
    state = (self.weights, self.cache) if name in ("extend", "decode") else (self.cache,)
    result = getattr(self.programs, name)(*state, *inputs)
    if name.startswith("take"):
      return result
    self.cache, output = result if name == "decode" else (result, None)
    return output

  def release(self) -> None:
    """Frees the cache's memory, until `restore`."""
    for pages in self.cache:
      pages.delete()

  def restore(self) -> None:
    """Makes the cache usable: before its first use, after `release`, and after an interrupted program took its arrays.

    Does nothing without weights.
    """
    if self._allocate is None:
      if self.weights is not None:
        self._build(self.weights)
    elif any(x.is_deleted() for x in self.cache):
      self.cache = self._allocate()

  def _build(self, weights: Weights) -> None:
    """Compiles the programs, allocates the cache and runs every program once, so that nothing compiles later."""
    sizes, config, dtype = self._sizes, self._loader.config, self._loader.dtype
    at = Programs.cache_sharding(self._mesh) or jax.tree.leaves(weights)[0].sharding
    platform, tensor = next(iter(at.device_set)).platform, 1 if self._mesh is None else self._mesh.shape["tensor"]
    layout = cache_lib.layout(config, sizes.page, dtype, platform, tensor, kv_dtype=sizes.kv_dtype)
    self.programs = Programs(
      self._graphdef,
      self._stops.table,
      layout,
      chunk=sizes.chunk,
      speculate=sizes.speculate,
      routes=config.num_layers * config.experts_per_token,
      mesh=self._mesh,
    )
    self._allocate = lambda: layout.allocate(sizes.cache_pages * sizes.replicas, at, self.slots * sizes.replicas)
    self.cache = self._allocate()
    self._at = self.programs.split or self.cache[0].sharding
    for _ in range(2):  # the second time with the cache that the first one returned, whose layout may differ
      self.warm_up()
    self.block_until_ready()

  def warm_up(self) -> None:
    """Runs every program once, so that none compiles later."""
    nobody = [[] for _ in range(self._sizes.replicas)]
    for width in self._sizes.widths:
      self.extend(nobody, width)
    self._copy("copy", {})
    self.put(0, [0], self.take(0, [0]))
    if self.slots:
      self._copy("copy_memory", {})
      self.put_memory(0, 0, self.take_memory(0, 0))
    lanes = np.zeros((self._sizes.lanes, self._sizes.columns), np.int32)
    self.decode(lanes, np.zeros((self._sizes.lanes, self._sizes.table), np.int32), [1] * self._sizes.replicas)

  def extend(self, batches: Sequence[Sequence[Extension]], width: int) -> None:
    """Adds each replica's extensions to the cache. Returns no logits: see `Programs`."""
    n = self._sizes.widths[width]
    tokens = np.zeros((len(batches) * n, width), np.int32)
    counts = np.zeros((len(batches) * n, 3), np.int32)
    table = np.zeros((len(batches) * n, self._sizes.table), np.int32)
    for replica, batch in enumerate(batches):
      for row, extension in enumerate(batch, start=replica * n):
        # Unused rows of an extension keep zeros: 0 tokens cached, 0 new ones, slot 0, which then stays as it is.
        tokens[row, : len(extension.tokens)] = extension.tokens
        counts[row] = extension.cached, len(extension.tokens), extension.slot
        table[row, : len(extension.pages)] = extension.pages
    self._run("extend", tokens, counts, table)

  def decode(self, lanes: np.ndarray, table: np.ndarray, min_live: Sequence[int]) -> Chunk:
    """Samples a chunk of tokens; `lanes` is a packed LaneTable, `table` the pages of each lane's conversation."""
    limits = np.array([(self._sizes.chunk, live) for live in min_live], np.int32)
    # It waits for the result: on a CPU the program may share the memory of `lanes` and `table`, which then change.
    return Chunk.unpack(jax.device_get(self._run("decode", lanes, table, limits)), self.programs.routes)

  def copy(self, pairs: Mapping[int, Sequence[tuple[int, int]]], *, memory: bool = False) -> None:
    """Copies pages, or slots of memories: number of a replica → (from, to) of each."""
    for at in range(0, max(map(len, pairs.values())), self._copies):
      part = {replica: copies[at : at + self._copies] for replica, copies in pairs.items()}
      self._copy("copy_memory" if memory else "copy", part)

  def _copy(self, name: str, pairs: Mapping[int, Sequence[tuple[int, int]]]) -> None:
    rows = self._sizes.replicas * self._copies
    table = np.full((rows, 2), cache_lib.DROPPED, np.int32)  # out of range: not written
    for replica, copies in pairs.items():
      if copies:
        table[replica * self._copies :][: len(copies)] = copies
    self._run(name, table)

  def take(self, replica: int, pages: Sequence[int]) -> tuple[np.ndarray, ...]:
    """The keys and values of these pages of a replica, on the host."""
    arrays: list[np.ndarray] = []
    for at in range(0, len(pages), self._moved):
      part = pages[at : at + self._moved]
      # The program returns pages of every replica. Those of the others are ignored.
      fetched = jax.device_get(self._run("take", self._only(replica, part, self._moved)))
      arrays += [page.copy() for page in fetched[replica * self._moved :][: len(part)]]
    return tuple(arrays)

  def put(self, replica: int, pages: Sequence[int], saved: Sequence[np.ndarray]) -> None:
    """Writes the result of `take` to these pages of a replica, bit for bit."""
    for at in range(0, len(pages), self._moved):
      part = pages[at : at + self._moved]
      moved = np.zeros((self._sizes.replicas, self._moved, *saved[0].shape), saved[0].dtype)
      moved[replica, : len(part)] = saved[at : at + self._moved]
      self._run("put", self._only(replica, part, self._moved), moved.reshape(-1, *saved[0].shape))

  def take_memory(self, replica: int, slot: int) -> tuple[np.ndarray, ...]:
    """The memories in this slot of a replica, on the host."""
    arrays = jax.device_get(self._run("take_memory", self._only(replica, [slot], 1)))
    return tuple(np.copy(x[replica : replica + 1]) for x in arrays)

  def put_memory(self, replica: int, slot: int, saved: Sequence[np.ndarray]) -> None:
    """Writes the result of `take_memory` to this slot of a replica, bit for bit."""
    self._run(
      "put_memory", self._only(replica, [slot], 1), *(np.repeat(x, self._sizes.replicas, axis=0) for x in saved)
    )

  def _only(self, replica: int, places: Sequence[int], width: int) -> np.ndarray:
    """These places of one replica, and none of the others', `width` each."""
    table = np.full((self._sizes.replicas, width), cache_lib.DROPPED, np.int32)  # out of range: not written
    table[replica, : len(places)] = places
    return table.reshape(-1)

  def block_until_ready(self) -> None:
    """Waits for the device, so that prefill's time is not counted as decode's."""
    jax.block_until_ready(self.cache)
