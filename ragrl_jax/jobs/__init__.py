"""The jobs that `import ragrl_jax` offers, one file each: train, sft, evaluate, ask."""
