"""`ragrl make-lear-generator` from a checkout; the code is in ragrl_jax/cli/make_generator_data.py."""

from ragrl_jax.cli import main

if __name__ == "__main__":
  main.start("make_generator_data")
