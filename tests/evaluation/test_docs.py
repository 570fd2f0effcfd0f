"""docs/metrics.md explains what is logged."""

import pathlib
import re

from ragrl_jax import structs
from ragrl_jax.evaluation import harness
from ragrl_jax.learner import advantages, blocks, learner, packing, settings, step
from ragrl_jax.rollout import groups, timings
from ragrl_jax.run import rewards, watch

ROOT = pathlib.Path(__file__).parents[2]
EPISODE = structs.Episode(
  (structs.Segment(structs.ENVIRONMENT, (1, 2), "?"), structs.Segment(structs.MODEL, (3,), "!", (-1.0,))),
  ended="answer",
)


def logged():
  example, ones = structs.Example("q", "?", ("!",)), {"answer": 1.0}
  scored = rewards.Scored(example, EPISODE, ones, ones, 1.0, 1.0, (1.0,), 0.5)
  packed = packing.pack_items([packing.of_episode(EPISODE, (0.5,))], rows=1, lengths=(8,))
  counted = blocks.whole_batch([blocks.count(packed.blocks, settings.Settings())])
  names = [*step.SUMS, *learner.OF_CRITIC, *advantages.FOUND, *rewards.summarise([scored])]
  names += [f"engine/{name}" for name in timings.Timings().metrics()]
  names += [name for name in counted if name not in learner.NOT_SHOWN]
  names += re.findall(r'"(groups/\w+|staleness)"', pathlib.Path(groups.__file__).read_text())
  names += re.findall(r'say\(\s*"(\w+)"', pathlib.Path(watch.__file__).read_text())
  names += [name.removeprefix("evaluation/") for name in harness.flat(harness.summarise([]))]
  return sorted({re.sub(r"^(term|weight)/.*", r"\1/NAME", re.sub(r"^ended/.*", "ended/WHY", name)) for name in names})


def test_every_metric_is_explained():
  for name in logged():
    assert f"`{name}`" in (ROOT / "docs" / "metrics.md").read_text(), f"docs/metrics.md does not explain {name}"


def test_there_are_names_to_look_for():
  found = set(logged())
  assert {"reward", "term/NAME", "loss", "mask_coverage", "engine/decode_s", "no_signal", "groups/draws", "n"} <= found
