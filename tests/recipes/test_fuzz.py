"""A hundred thousand made-up transcripts for every preset of a recipe. VERITAS and When to Search have their own."""

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
  # The transcripts include right and complete replies. LEAR's length term never reaches 1.
  assert counts["right"] > 1000 and (counts["full"] > 100 or name == "lear")
