"""`python -m ragrl_jax COMMAND`: the same as `ragrl COMMAND`."""

from ragrl_jax.cli import main

main.main()
