"""The stop automaton against a plain text search, at every token, over two real vocabularies."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_tokenizers as small

from ragrl_jax.engine import stops

STRINGS = ("</search>", "</answer>", "</think>", "\n\nQuestion:", "Observation:")  # as runs use them
STRINGS += ("search>", "er></", "\u6771\u4eac", "</", " is")  # ends, beginnings and parts of other strings
LONG = range(5)  # only the first five are counted as long
SEQUENCES, LENGTH, CUT = 2_000, 48, 1_000  # the first CUT sequences are cut from planted text


class Qwen:
  """Qwen's ids: the tokens of its file, then the control tokens. The embedding has further rows."""

  def __init__(self):
    self.pieces = small.qwen_vocabulary()
    self.pad_id = len(self.pieces)  # <|endoftext|>
    self.eos_ids = (self.pad_id, self.pad_id + 2)
    self.vocab_size = self.pad_id + 3

  def token_bytes(self, token):
    return self.pieces[token] if token < len(self.pieces) else b""


def planted_text(rng, words):
  """Stop strings, near misses and other bytes, about as long as LENGTH tokens."""
  parts = []
  while sum(map(len, parts)) < 50:
    kind, stop = rng.randrange(5), rng.choice(STRINGS).encode()
    at = rng.randrange(len(stop))
    if kind < 2:  # followed by text with which tokens often merge
      parts += [stop, rng.choice([b"", b"\n", b"\n\n", b"</", b"(", b"."])]
    elif kind == 2:  # one byte changed, doubled or removed, or the rest removed
      before, after = stop[:at], stop[at + 1 :]
      parts.append(rng.choice([before + b"x" + after, stop[: at + 1] + stop[at:], before + after, before]))
    else:
      parts.append(rng.choice(words))
  return b"".join(parts)


def cut_at_random(rng, text, known):
  """Ids of random tokens whose bytes join to a beginning of the text."""
  ids = []
  while text and len(ids) < LENGTH:
    fits = [n for n in range(1, 17) if text[:n] in known and n <= len(text)]
    n = rng.choice(fits)
    ids.append(known[text[:n]])
    text = text[n:]
  return ids


def sequences(tokenizer, rows, seed):
  """[SEQUENCES, LENGTH] ids: CUT from planted texts; the others random, half of them near the tags."""
  rng = random.Random(seed)
  pieces = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
  known = {piece: i for i, piece in enumerate(pieces) if piece}
  words = [p for p in rng.sample(list(known), min(500, len(known))) if len(p) < 12]
  tagged = [i for piece, i in known.items() if set(piece) & set(b"<>/\n:") or piece.lower() in (b"search", b"think")]
  silent = [*tokenizer.eos_ids, tokenizer.pad_id, rows - 1]
  out = np.full((SEQUENCES, LENGTH), rows - 1, np.int32)  # a row without a matching token is filled up
  for row in range(SEQUENCES):
    if row < CUT:
      ids = cut_at_random(rng, planted_text(rng, words), known)
    else:
      ids = rng.choices(tagged if row % 2 else range(tokenizer.vocab_size), k=LENGTH)
    if rng.random() < 0.2:
      ids[rng.randrange(len(ids))] = rng.choice(silent)
    out[row, : len(ids)] = ids
  return out


def searched(tokenizer, rows, ids, accepted):
  """By `bytes.find`: the stop that each token completes first (-1: none), and whether a long one ends inside."""
  named, inside = np.full(len(ids), -1), False
  pieces = [tokenizer.token_bytes(i) if i < tokenizer.vocab_size else b"" for i in ids]
  eos = [t for t, i in enumerate(ids) if i in tokenizer.eos_ids]
  for begin, end in zip([0, *(t + 1 for t in eos)], [*eos, len(ids)]):  # after EOS a new text begins
    text, ends = b"".join(pieces[begin:end]), np.cumsum([len(p) for p in pieces[begin:end]])
    best = {}  # token → (end of the stop, -its length, its number); the smallest is named
    for number in accepted:
      stop, at = STRINGS[number].encode(), -1
      while (at := text.find(stop, at + 1)) >= 0:
        token = int(np.searchsorted(ends, at + len(stop)))
        best[token] = min(best.get(token, (len(text) + 1, 0, 0)), (at + len(stop), -len(stop), number))
    for token, (last, _, number) in best.items():
      named[begin + token] = number
      inside |= number in LONG and last < ends[token]
  named[eos] = len(STRINGS)
  return named, inside


@jax.jit
def walk(table, ids, accept):
  """[N, T] stops of N rows."""
  _, stop = jax.lax.scan(lambda s, token: stops.advance(table, s, token, accept), jnp.zeros(len(ids), jnp.int32), ids.T)
  return stop.T


def test_the_table_of_the_real_vocabulary_is_small():
  # 151,646 ids. Two stops of 9 bytes share "</", so there are 1 + 9 + 7 = 17 states; one byte per entry.
  table = stops.Stops(Qwen(), ["</search>", "</answer>"], rows=152_064).table
  assert table.outcome.shape == (17, 152_064) and table.outcome.dtype == np.uint8


@pytest.mark.parametrize("vocabulary", ["byte-level BPE, 150k", "sentencepiece"])
def test_equals_a_text_search_at_every_token(vocabulary, tmp_path):
  if vocabulary == "sentencepiece":
    tokenizer, rows = small.small_sentencepiece(tmp_path / "a.model"), 600
  else:
    tokenizer, rows = Qwen(), 152_064
  automaton = stops.Stops(tokenizer, STRINGS, rows=rows)
  ids = sequences(tokenizer, rows, seed=3)
  rng = random.Random(4)
  accepted = [[n for n in range(len(STRINGS)) if rng.random() < 0.75] for _ in ids]
  accept = np.array([automaton.mask([STRINGS[n] for n in some]) for some in accepted], np.int32)

  got = np.asarray(walk(automaton.table, ids, accept))

  expected = [searched(tokenizer, rows, row, some) for row, some in zip(ids.tolist(), accepted)]
  np.testing.assert_array_equal(got, [named for named, _ in expected])
  with_stop = sum(bool(np.isin(named, LONG).any()) for named, _ in expected)
  inside = sum(bool(within) for _, within in expected)
  print(f"{vocabulary}: {with_stop} of {len(ids)} sequences contain a stop, {inside} end one inside a token")
  assert with_stop >= 600 and inside >= 100
