"""Prints the XLA flags with which tests compile quickly: python tests/xla_flags.py

LLVM's optimizer and the fusion emitters take most of a compilation. The workers use all cores, so a program is
compiled in one piece. XLA ends a process whose XLA_FLAGS has a flag that it does not know, so the flags depend on the
version.
"""

from jaxlib import version

FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if version.__version_info__ < (0, 11):  # newer versions have no other way to compile
  FLAGS.append("--xla_cpu_use_fusion_emitters=false")

if __name__ == "__main__":
  print(" ".join(FLAGS))
