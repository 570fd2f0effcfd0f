"""`ragrl check` from a checkout; the code is in ragrl_jax/cli/compile_check.py."""

from ragrl_jax.cli import main

if __name__ == "__main__":
  main.start("compile_check")
