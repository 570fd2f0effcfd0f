"""The devices a run is made for: asked for once, by whoever builds it, and handed on as a mesh."""

import jax

PLUGINS = {"cuda": "cuda", "gpu": "cuda", "tpu": "tpu"}  # what JAX_PLATFORMS says → the extra that brings it


def asked_platforms() -> str:
  """What JAX was told to compute on, "" if nothing."""
  return jax.config.jax_platforms or ""


def found() -> list[jax.Device]:
  """All devices, of all hosts.

  Raises:
    ValueError: what the environment variable JAX_PLATFORMS asks for is not here.
  """
  try:
    return jax.devices()
  except (RuntimeError, AssertionError) as error:
    if not (asked := asked_platforms()):
      raise
    extras = [f"pip install 'ragrl_jax[{PLUGINS[name]}]'" for name in asked.split(",") if name in PLUGINS]
    raise ValueError(
      f"JAX_PLATFORMS={asked}: JAX finds no such device here. It takes the hardware, its driver, and JAX's plugin"
      f"{': ' if extras else ''}{' or '.join(extras)}. JAX_PLATFORMS=cpu runs without."
    ) from error
