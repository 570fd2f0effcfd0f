"""Example programs: copy one and change it. Their agent libraries are not installed with ragrl_jax."""
