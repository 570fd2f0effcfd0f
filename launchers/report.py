"""`ragrl report` from a checkout; the code is in ragrl_jax/cli/report.py."""

from ragrl_jax.cli import main

if __name__ == "__main__":
  main.start("report")
