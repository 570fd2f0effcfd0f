"""DAPO's soft penalty for responses whose length is near or above a limit."""


def overlong_penalty(tokens: int, *, limit: int, buffer: int, factor: float = 1.0) -> float:
  """The penalty of a response of `tokens` tokens, to be added to its reward: between −factor and 0.

    0                                    tokens ≤ limit − buffer
    −factor · (tokens − (limit − buffer)) / buffer    in the buffer
    −factor                              tokens ≥ limit

  Args:
    tokens: number of tokens that the policy sampled in the whole episode.
    limit: number of tokens from which the penalty is full.
    buffer: number of tokens before the limit over which the penalty grows, 1 to `limit`.
    factor: the full penalty, at least 0.

  Raises:
    ValueError: a buffer outside 1..limit, or a negative factor, which would reward length.

  Source: DAPO (arXiv 2503.14476) eq. 13, there with factor 1.
  """
  if not 1 <= buffer <= limit:
    raise ValueError(f"buffer={buffer}: it must lie between 1 and limit={limit} tokens.")
  if factor < 0:
    raise ValueError(f"factor={factor}: it must be at least 0; a penalty that pays rewards length.")
  beyond = min(max(tokens - (limit - buffer), 0), buffer)
  return -factor * beyond / buffer if beyond else 0.0
