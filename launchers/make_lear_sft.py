"""`ragrl make-lear-sft` from a checkout; the code is in ragrl_jax/cli/make_lear_sft.py."""

from ragrl_jax.cli import main

if __name__ == "__main__":
  main.start("make_lear_sft")
