"""The devices of a run. The code that builds the run asks for them once and passes them on as a mesh."""

import jax

PLUGINS = {"cuda": "cuda", "gpu": "cuda", "tpu": "tpu"}  # name in JAX_PLATFORMS → extra of this package with its plugin


def asked_platforms() -> str:
  """The platforms that JAX was told to use (JAX_PLATFORMS); "" if none were named."""
  return jax.config.jax_platforms or ""


def found() -> list[jax.Device]:
  """All devices of all hosts.

  Raises:
    ValueError: this machine has no device of the platforms in the environment variable JAX_PLATFORMS.
  """
  try:
    return jax.devices()
  except (RuntimeError, AssertionError) as error:
    if not (asked := asked_platforms()):
      raise
    extras = [f"pip install 'ragrl_jax[{PLUGINS[name]}]'" for name in asked.split(",") if name in PLUGINS]
    raise ValueError(
      f"JAX_PLATFORMS={asked}: JAX finds no such device here. It needs the hardware, its driver, and JAX's plugin"
      f"{': ' if extras else ''}{' or '.join(extras)}. JAX_PLATFORMS=cpu runs on the CPU."
    ) from error
