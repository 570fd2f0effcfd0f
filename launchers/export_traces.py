"""`ragrl export-traces` from a checkout; the code is in ragrl_jax/cli/export_traces.py."""

from ragrl_jax.cli import main

if __name__ == "__main__":
  main.start("export_traces")
