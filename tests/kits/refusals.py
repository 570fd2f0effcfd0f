"""A call that is refused, in one line of a test."""

import pytest


def refused(says, call, *given, error=ValueError, **more):
  """`call(*given, **more)` raises `error`, in whose message the pattern `says` is found."""
  with pytest.raises(error, match=says):
    call(*given, **more)
