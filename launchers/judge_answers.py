"""`ragrl judge` from a checkout; the code is in ragrl_jax/cli/judge_answers.py."""

from ragrl_jax.cli import main

if __name__ == "__main__":
  main.start("judge_answers")
