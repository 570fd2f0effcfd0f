"""The config of the small search run: ragrl train --config tests/faults/small_search.py:WORLD_FOLDER

It needs tests/faults and tests/kits on the path: the tests set it; otherwise set PYTHONPATH=tests/faults:tests/kits.

The quickstart's settings over the tiny world, with retriever and judge over HTTP. A failed tool stops the run, because
leaving episodes out would change the weights without an error.
"""

import pathlib

import plans
import tiny_world

QUICKSTART = pathlib.Path(__file__).parents[2] / "configs" / "quickstart.py"
TIMEOUT_S = 4.0  # of one call of a tool


def get_config(variant: str):
  config = tiny_world.config(pathlib.Path(variant), QUICKSTART)
  config.steps, config.data.evaluate = plans.STEPS, ""
  config.checkpoint.update(dict(every=plans.EVERY, keep=3))
  # Step 6 returns to the weights of step 2 (child.py): two steps before the last healthy one, if it was sampled ahead.
  tiny_world.guarded(config)
  config.loss.kl, config.loss.kl_coef = "k2", 0.01  # so that a reference policy is restored too
  config.retrieval.update(dict(timeout_s=TIMEOUT_S, retries=3, wait_s=3.0, max_failed_share=0.0))
  config.judge.update(dict(kind="llm", model="scripted", retries=3, concurrency=4))
  config.judge.update(dict(timeout_s=TIMEOUT_S, max_failed_share=0.0))
  return config
