"""`ragrl recall` from a checkout; the code is in ragrl_jax/cli/answer_recall.py."""

from ragrl_jax.cli import main

if __name__ == "__main__":
  main.start("answer_recall")
