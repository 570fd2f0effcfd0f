"""`ragrl serve-index`, run by this path: on a TPU VM or a cluster."""

from ragrl_jax.cli import main

if __name__ == "__main__":
  main.start("serve-index")
