"""Episodes as bytes, to send them from host to host: ids as int32, log-probabilities as float32, the rest as JSON.

    sizes of the parts, int32 | ids | log-probabilities | routes | JSON

Each part is compressed. Before that, the bytes of the numbers are regrouped: all lowest bytes, then all second ones,
and so on. Ids are small and log-probabilities are close to each other, so their high bytes repeat. A text that equals
its decoded ids is left out. A passage that several episodes have found is written once.
"""

import io
import itertools
import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ragrl_jax import structs
from ragrl_jax.store import lossless_json

LEVEL = 1  # compression level of the numbers: higher levels save 1 %, and take several times as long
PARTS = 4

Decode = Callable[[Sequence[int]], str]


def pack(episodes: Sequence[structs.Episode], decode: Decode) -> bytes:
  """The episodes as bytes.

  Args:
    episodes: the episodes; `unpack` restores them exactly, facts included.
    decode: ids → text; `unpack` must get the same function.

  Raises:
    ValueError: a fact that cannot be saved exactly (`store/lossless_json.py`).
  """
  ids, logprobs, routes, passages, rows = [], [], [], {}, []
  for episode in episodes:
    for segment in episode.segments:
      ids += segment.ids
      logprobs += segment.logprobs
      routes.append(segment.routes)
    segments = [_segment(segment, decode, passages) for segment in episode.segments]
    rows.append(
      [*(getattr(episode, name) for name in _PLAIN), episode.starts, lossless_json.encode(episode.facts), segments]
    )
  texts = json.dumps([rows, list(passages)], separators=(",", ":")).encode()
  numbers = _squeezed(np.asarray(ids, "<i4")), _squeezed(np.asarray(logprobs, "<f4"))
  parts = *numbers, zlib.compress(b"".join(routes), LEVEL), zlib.compress(texts)
  return np.asarray([len(part) for part in parts], "<i4").tobytes() + b"".join(parts)


def unpack(packed: bytes, decode: Decode) -> list[structs.Episode]:
  """The episodes from the bytes of `pack`; `decode` must be the same as for `pack`."""
  at, parts = 4 * PARTS, []
  for size in np.frombuffer(packed, "<i4", PARTS).tolist():
    parts.append(zlib.decompress(packed[at : at + size]))
    at += size
  ids, logprobs = iter(_numbers(parts[0], "<i4")), iter(_numbers(parts[1], "<f4"))
  routes, (rows, passages) = io.BytesIO(parts[2]), json.loads(parts[3])
  found = [structs.Passage(*passage) for passage in passages]
  take = lambda numbers, count: tuple(itertools.islice(numbers, count))

  def segment(row: list[Any]) -> structs.Segment:
    own, num_ids, num_logprobs, num_routes, text, stop, query, places = row
    mine = take(ids, num_ids)
    return structs.Segment(
      structs.MODEL if own else structs.ENVIRONMENT,
      mine,
      decode(mine) if text is None else text,
      take(logprobs, num_logprobs),
      stop,
      query,
      None if places is None else tuple(found[place] for place in places),
      routes.read(num_routes),
    )

  return [
    structs.Episode(
      tuple(segment(one) for one in segments),
      facts=lossless_json.decode(facts),
      starts=tuple(starts),
      **dict(zip(_PLAIN, plain, strict=True)),
    )
    for *plain, starts, facts, segments in rows
  ]


_PLAIN = ("version", "ended", "failure", "prompt_index", "sample", "example_id")


def _segment(segment: structs.Segment, decode: Decode, passages: dict[tuple, int]) -> list[Any]:
  """A segment without its numbers, as JSON values; adds its new passages to `passages`."""
  places = None
  if segment.found is not None:
    places = [passages.setdefault((p.id, p.title, p.text, p.score), len(passages)) for p in segment.found]
  text = None if segment.text == decode(segment.ids) else segment.text
  own = segment.owner == structs.MODEL
  sizes = len(segment.ids), len(segment.logprobs), len(segment.routes)
  return [own, *sizes, text, segment.stop, segment.query, places]


def _squeezed(numbers: np.ndarray) -> bytes:
  """Numbers of four bytes, compressed."""
  # 0x00000102 0x00000103 → 02 03, 01 01, 00 00, 00 00.
  return zlib.compress(numbers.view(np.uint8).reshape(-1, 4).T.tobytes(), LEVEL)


def _numbers(raw: bytes, dtype: str) -> list[Any]:
  return np.ascontiguousarray(np.frombuffer(raw, np.uint8).reshape(4, -1).T).view(dtype).ravel().tolist()
