"""Parity tests share the model folders of tests/models."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "models"))
