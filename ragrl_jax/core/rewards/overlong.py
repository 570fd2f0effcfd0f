"""DAPO's soft penalty for responses that come near their limit, or pass it."""


def overlong_penalty(tokens: int, *, limit: int, buffer: int, factor: float = 1.0) -> float:
  """What is added to the reward of a response of `tokens` tokens: between −factor and 0.

    0                                    tokens ≤ limit − buffer
    −factor · (tokens − (limit − buffer)) / buffer    in the buffer
    −factor                              tokens ≥ limit

  Args:
    tokens: that the policy sampled in the whole episode.
    limit: tokens at which the penalty is whole.
    buffer: tokens before the limit over which it grows, 1 to `limit`.
    factor: the whole penalty, at least 0.

  Raises:
    ValueError: a buffer outside 1..limit, or a negative factor, which would pay for length.

  Source: DAPO (arXiv 2503.14476) eq. 13, there with factor 1.
  """
  if not 1 <= buffer <= limit:
    raise ValueError(f"buffer={buffer}: it must lie between 1 and limit={limit} tokens.")
  if factor < 0:
    raise ValueError(f"factor={factor}: it must be at least 0; a penalty that pays rewards length.")
  beyond = min(max(tokens - (limit - buffer), 0), buffer)
  return -factor * beyond / buffer if beyond else 0.0
