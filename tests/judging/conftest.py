"""Model folders and tokenizers are those of tests/models and tests/prompting."""

import pathlib
import sys

for room in ("models", "prompting"):
  sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / room))
