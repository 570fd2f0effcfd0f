"""Made-up transcripts for every preset of a recipe: no text breaks anything, and every term stays in its range."""

import json
import subprocess
import sys

import fuzz_child
import pytest

NAMES = ["arena", "care", "lear", "search_r1", "veritas", "when_to_search"]


def enough(name, counts, share):
  """Whether the transcripts include right, complete and unknown ones. LEAR's length term never reaches 1."""
  kind = dict(veritas="unknown", when_to_search="unknown", lear="right").get(name, "full")
  return counts["right"] > 1000 * share and counts[kind] > 100 * share


@pytest.mark.parametrize("name", NAMES)
def test_no_transcript_breaks_anything(name):
  assert enough(name, fuzz_child.scored(name, 1000), 0.003)


@pytest.mark.long  # a hundred thousand transcripts
@pytest.mark.parametrize("name", NAMES)
def test_none_of_very_many_transcripts_breaks_anything(name):
  child = subprocess.run([sys.executable, fuzz_child.__file__, name, "100000"], capture_output=True, text=True)
  assert child.returncode == 0, child.stderr
  assert enough(name, json.loads(child.stdout), 1.0)
