"""The commands of `ragrl`: a module each, and what they share."""

import os

os.environ.setdefault("JAX_TRACEBACK_FILTERING", "off")  # before JAX is imported: a filtered traceback hides the origin
