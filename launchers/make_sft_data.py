"""`ragrl make-care-sft` from a checkout; the code is in ragrl_jax/cli/make_sft_data.py."""

from ragrl_jax.cli import main

if __name__ == "__main__":
  main.start("make_sft_data")
