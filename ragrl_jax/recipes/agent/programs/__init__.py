"""Programs to begin with: copy one, and change it. Their agent libraries are not installed with ragrl_jax."""
