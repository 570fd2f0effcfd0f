"""`ragrl make-rejection-sft` from a checkout; the code is in ragrl_jax/cli/make_rejection_sft.py."""

from ragrl_jax.cli import main

if __name__ == "__main__":
  main.start("make_rejection_sft")
