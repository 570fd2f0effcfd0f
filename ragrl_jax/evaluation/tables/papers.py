"""The papers whose tables can be filled, by name."""

from collections.abc import Mapping

from ragrl_jax.evaluation.tables import arena, care, lear, search_r1, veritas, when_to_search
from ragrl_jax.evaluation.tables.layout import Paper

PAPERS: Mapping[str, Paper] = {
  room.PAPER.name: room.PAPER for room in (arena, care, veritas, lear, when_to_search, search_r1)
}
