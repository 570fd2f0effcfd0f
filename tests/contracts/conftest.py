"""Folders, tokenizers and servers are those of the rooms they belong to."""

import pathlib
import sys

for room in ("models", "prompting", "judging"):
  sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / room))
