"""Settings that pyproject.toml cannot express: the list of packages, and configs/ as ragrl_jax/configs inside a wheel.

An editable install reads the configs from the checkout, and so does a process whose PYTHONPATH names the checkout.
"""

from setuptools import find_namespace_packages, setup

setup(
  packages=[*find_namespace_packages(include=["ragrl_jax*"]), "ragrl_jax.configs"],
  package_dir={"ragrl_jax.configs": "configs"},
)
