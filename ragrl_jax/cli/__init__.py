"""The commands of `ragrl`, one module each, and shared modules."""

import os

os.environ.setdefault("JAX_TRACEBACK_FILTERING", "off")  # before JAX is imported: a filtered traceback hides the origin
