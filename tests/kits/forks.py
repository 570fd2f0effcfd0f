"""Processes that a test may kill: forks of one that has imported the library, which saves seconds at every start.

A process has one such server, so this list is the only one. What is not found on PYTHONPATH would be left out silently.
"""

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
  [
    "ragrl_jax.cli.commands",
    "ragrl_jax.jobs.train",
    "ragrl_jax.jobs.evaluate",
    "ragrl_jax.report.page",
    "ragrl_jax.judging.llm",
    "ragrl_jax.retrieval.remote",
  ]
)
