"""Processes that a test may kill: forks of one that has imported the library, which saves seconds at every start."""

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["ragrl_jax.jobs.train", "ragrl_jax.jobs.evaluate", "ragrl_jax.report.page"])
