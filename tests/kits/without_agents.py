"""A plugin of pytest: `ragrl_jax.agents` cannot be imported, as if its folder were not there."""

import sys

sys.modules["ragrl_jax.agents"] = None  # Python then looks for it nowhere
