"""DAPO's soft penalty for responses whose length is near or above a limit."""


def overlong_penalty(tokens: int, *, limit: int, buffer: int) -> float:
  """The penalty of a response of `tokens` tokens, to be added to its reward: between −1 and 0.

    0                                    tokens ≤ limit − buffer
    −(tokens − (limit − buffer)) / buffer    in the buffer
    −1                                   tokens ≥ limit

  Args:
    tokens: number of tokens that the policy sampled in the whole episode.
    limit: number of tokens from which the penalty is full.
    buffer: number of tokens before the limit over which the penalty grows, 1 to `limit`.

  Raises:
    ValueError: a buffer outside 1..limit.

  Source: DAPO (arXiv 2503.14476) eq. 13.
  """
  if not 1 <= buffer <= limit:
    raise ValueError(f"buffer={buffer}: it must lie between 1 and limit={limit} tokens.")
  beyond = min(max(tokens - (limit - buffer), 0), buffer)
  return -beyond / buffer if beyond else 0.0
