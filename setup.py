"""What pyproject.toml cannot say: the found packages, and configs/ as ragrl_jax/configs inside a wheel.

In an editable install, and where PYTHONPATH names the checkout, the configs are read where they lie.
"""

from setuptools import find_namespace_packages, setup

setup(
  packages=[*find_namespace_packages(include=["ragrl_jax*"]), "ragrl_jax.configs"],
  package_dir={"ragrl_jax.configs": "configs"},
)
