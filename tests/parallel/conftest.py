"""The small learner and engine of other rooms' tests."""

import pathlib
import sys

TESTS = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "learner"), str(TESTS / "engine")]
