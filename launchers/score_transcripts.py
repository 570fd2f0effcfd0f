"""`ragrl score` from a checkout; the code is in ragrl_jax/cli/score_transcripts.py."""

from ragrl_jax.cli import main

if __name__ == "__main__":
  main.start("score_transcripts")
