"""The hosted workflow has every step of .ci/run, and every step is a target of the Makefile."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]


def steps(path: str, pattern: str) -> set[str]:
  return set(re.findall(pattern, (ROOT / path).read_text(), re.MULTILINE))


def test_the_hosted_workflow_has_every_step_of_ci_run():
  parts = steps(".ci/run", r"^part ([a-z]+)")
  workflow = ".github/workflows/ci.yml"
  hosted = steps(workflow, r"^ +step: \[([a-z]+)\]") | steps(workflow, r"- \{step: ([a-z]+),")
  assert parts == hosted
  assert {"lint", "test", "long"} <= parts <= steps("Makefile", r"^([a-z-]+):")
