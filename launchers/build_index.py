"""`ragrl index` from a checkout; the code is in ragrl_jax/cli/build_index.py."""

from ragrl_jax.cli import main

if __name__ == "__main__":
  main.start("build_index")
