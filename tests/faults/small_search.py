"""The config of the small search run: launchers/train.py --config tests/faults/small_search.py:WORLD_FOLDER

The quickstart's settings over the tiny world; the retriever and the judge are asked over HTTP. A tool that fails stops
the run: what is masked would give other weights, and nobody would hear of it.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[2]
for folder in ("configs", "tests", "tests/faults"):
  sys.path.insert(0, str(ROOT / folder))

import plans  # noqa: E402
import quickstart  # noqa: E402
import tiny_world  # noqa: E402

TIMEOUT_S = 4.0  # of one call to a tool


def get_config(variant: str):
  config = tiny_world.config(pathlib.Path(variant), quickstart.get_config)
  config.steps, config.data.evaluate = plans.STEPS, ""
  config.checkpoint.update(dict(every=plans.EVERY, keep=3))
  config.loss.kl, config.loss.kl_coef = "k2", 0.01  # a reference policy has to come back, too
  config.retrieval.update(dict(timeout_s=TIMEOUT_S, retries=3, wait_s=3.0, max_failed_share=0.0))
  config.judge.update(
    dict(kind="llm", model="scripted", timeout_s=TIMEOUT_S, retries=3, concurrency=4, max_failed_share=0.0)
  )
  return config
