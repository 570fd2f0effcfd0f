"""`ragrl split` from a checkout; the code is in ragrl_jax/cli/split_questions.py."""

from ragrl_jax.cli import main

if __name__ == "__main__":
  main.start("split_questions")
