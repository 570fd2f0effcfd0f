"""`ragrl push` from a checkout; the code is in ragrl_jax/cli/push_hf.py."""

from ragrl_jax.cli import main

if __name__ == "__main__":
  main.start("push_hf")
