"""The engine's sizes, which determine every shape of its programs."""

import dataclasses

import jax

from ragrl_jax.engine.lanes import COLUMNS
from ragrl_jax.models import attention
from ragrl_jax.parallel import rules
from ragrl_jax.settings import MAX_PROMPTS, PREFILL_ROWS, Rollout

MIN_WIDTH = 8  # tokens; narrower extensions save nothing
MIN_HALF = 64  # tokens; below it an extension of half the width is not worth a program of its own
CPU_TOKENS = 256  # of an extension on a CPU, which is as fast with as few and computes empty rows in full


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of an engine. `lanes`, `rows` and `pages` are totals over all replicas.

  Attributes:
    lanes: W, conversations that sample together.
    rows: C ≥ W, the most conversations in the cache. A new episode waits while the cache is full.
    context: the most tokens of a conversation.
    chunk: the most steps of a decode call. A step samples one token per lane, after the tokens kept from a draft.
    prefill: tokens that one extension prefills per conversation. If at most half or a quarter of that is missing, a
      narrower extension is used.
    page: tokens per page.
    pages: pages of the cache; 0: enough for `rows` conversations of `context` tokens, and for some prompts.
    prefill_rows: conversations per extension and replica. A narrower extension has two or four times as many.
    replicas: parts of the engine. Each has all weights, and its own lanes and pages.
    kv_dtype: dtype of keys and values, see `models.cache.layout`.
    speculate: tokens of a draft; 0: no drafts.

  Raises:
    ValueError: the sizes contradict each other.
  """

  lanes: int
  rows: int
  context: int
  chunk: int = Rollout.chunk
  prefill: int = Rollout.prefill
  page: int = Rollout.page
  pages: int = 0
  prefill_rows: int = PREFILL_ROWS
  replicas: int = 1
  kv_dtype: str = Rollout.kv_dtype
  speculate: int = Rollout.speculate

  def __post_init__(self):
    for name in ("lanes", "rows", "pages"):
      if getattr(self, name) % self.replicas:
        raise ValueError(
          f"{name}={getattr(self, name)} on {self.replicas} replicas: each gets an equal share, so choose a multiple "
          f"of {self.replicas} (config.rollout.{name})."
        )
    if self.pages and self.pages < self.replicas * self.table:
      raise ValueError(
        f"pages={self.pages} of {self.page} tokens: each of {self.replicas} replicas must hold a conversation of "
        f"context={self.context} tokens, {self.table} pages. Raise config.rollout.pages, or set it to 0."
      )

  @property
  def table(self) -> int:
    """Pages of the longest conversation."""
    return -(-self.context // self.page)

  @property
  def ahead(self) -> int:
    """The most tokens that one decode call samples for a lane."""
    return self.chunk * (self.speculate + 1)

  @property
  def columns(self) -> int:
    """Number of int32 per lane, see `lanes.LaneTable`."""
    return COLUMNS + (self.context if self.speculate else 0)

  @property
  def cache_pages(self) -> int:
    """Pages in a replica's cache."""
    return self.pages // self.replicas or (self.rows // self.replicas + MAX_PROMPTS) * self.table

  @property
  def slots(self) -> int:
    """Memories of each delta layer in a replica's cache."""
    return self.rows // self.replicas + MAX_PROMPTS

  @property
  def widths(self) -> dict[int, int]:
    """Width of an extension → its conversations per replica. The widest comes first."""
    # Each has as many tokens per call. Without the half, results of a search just above a quarter filled .3 of a row.
    least = {1: 1, 2: MIN_HALF, 4: MIN_WIDTH}
    return {
      self.prefill // part: self.prefill_rows * part for part, width in least.items() if self.prefill >= width * part
    }

  def width(self, missing: int) -> int:
    """Width of the extension for the next tokens. It depends only on the number of missing tokens."""
    # With widths 128, 64 and 32, 140 missing tokens are added as 128 + 32, 90 in one of 128, and 50 in one of 64.
    return min(width for width in self.widths if width == self.prefill or missing <= width)


def from_settings(rollout: Rollout, mesh: jax.sharding.Mesh | None) -> Sizes:
  """The sizes of config.rollout on the engine's mesh. Lanes, rows and pages are rounded up to equal shares."""
  replicas = 1 if mesh is None else mesh.shape["data"]
  on_cpu = attention.platform(mesh) == "cpu"
  share = lambda number: -(-number // replicas) * replicas
  return Sizes(
    lanes=share(rollout.lanes),
    rows=share(rollout.rows),
    context=rollout.context,
    chunk=rollout.chunk,
    prefill=rollout.prefill,
    page=rollout.page,
    pages=share(rollout.pages),
    prefill_rows=min(PREFILL_ROWS, max(1, CPU_TOKENS // rollout.prefill)) if on_cpu else PREFILL_ROWS,
    replicas=replicas,
    kv_dtype=rollout.kv_dtype,
    speculate=rollout.speculate,
  )


def check_model(heads: int, vocab: int | None, tensor: int, *, experts: int = 0, delta_heads: int = 0) -> None:
  """Raises ValueError if a replica cannot split the model's key-value heads, vocabulary or experts over its devices.

  Args:
    vocab: size of the vocabulary; None if it is not known yet.
    experts, delta_heads: as for `rules.check`.
  """
  if heads % tensor:
    raise ValueError(
      f"config.rollout.mesh.tensor={tensor}: the model's {heads} key-value heads cannot be split so. Choose a divisor "
      "of them; more replicas use the other devices."
    )
  if vocab is not None:
    rules.check_vocab(tensor, vocab, "config.rollout.mesh.tensor")
  rules.check_parts(tensor, "config.rollout.mesh.tensor", experts=experts, delta_heads=delta_heads)
