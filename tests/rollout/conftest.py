"""The small engine is its own room's."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "engine"))
