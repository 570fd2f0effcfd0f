"""`ragrl tables` from a checkout; the code is in ragrl_jax/cli/tables.py."""

from ragrl_jax.cli import main

if __name__ == "__main__":
  main.start("tables")
