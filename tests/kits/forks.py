"""Processes that a test may kill: forks of one that has imported the library, which saves seconds at every start.

A process has one such server, so this list is the only one. What is not found on PYTHONPATH would be left out silently.
"""

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
NAMES = "cli.commands jobs.train jobs.evaluate report.page judging.llm retrieval.remote".split()
FORKS.set_forkserver_preload([f"ragrl_jax.{name}" for name in NAMES])
