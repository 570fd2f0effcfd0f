"""A hundred thousand made-up transcripts through every preset of a recipe; VERITAS and When to Search have theirs."""

import json
import subprocess
import sys

import fuzz_child
import pytest


@pytest.mark.long  # a hundred thousand transcripts
@pytest.mark.parametrize("name", ["arena", "care", "lear", "search_r1"])
def test_no_transcript_breaks_anything(name):
  child = subprocess.run([sys.executable, fuzz_child.__file__, name, "100000"], capture_output=True, text=True)
  assert child.returncode == 0, child.stderr
  counts = json.loads(child.stdout)
  # The pieces do make right and whole replies, too; LEAR's length is never worth all of 1.
  assert counts["right"] > 1000 and (counts["full"] > 100 or name == "lear")
