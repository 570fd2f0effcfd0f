"""Finds stop strings on the device, exactly: one byte automaton, compiled over the vocabulary.

A token is a sequence of bytes. It may complete a stop string in its middle, complete two of them, or contain a whole
one. So the Aho-Corasick automaton of all stop strings is run once over the bytes of every token, from every state:

    state    the longest prefix of a stop string that the text so far ends with; 0 at the start of a model segment
    outcome  the effect of a token in a state: the next state, and the stops that it completes, in the order of their
             last bytes (of two that end on the same byte, the longer comes first)

    stops "</a>" and "b", text "x<":   token "/a>b" completes "</a>", then "b"

A lane's stops are known only at run time. The first of them in this order is the one that a plain search of the text
would find.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ragrl_jax.prompting.tokenizer import Tokenizer

EOS = "eos"
MAX_STOPS = 30  # with EOS they are the bits of a non-negative int32


class Table(NamedTuple):
  """The compiled automaton: arrays for jitted code.

  Attributes:
    outcome: [S, rows] small unsigned int: the outcome of each token in each state.
    state: [O] int32: the next state of an outcome.
    order: [O, K] int32: the stops that an outcome completes, in order; then -1.
  """

  outcome: jax.Array
  state: jax.Array
  order: jax.Array


def advance(table: Table, state: jax.Array, token: jax.Array, accept: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Advances the automaton of each lane by one token.

  Args:
    table: `Stops(...).table`.
    state: [W] int32, from the last call; 0 at the start of a model segment.
    token: [W] int32, in [0, rows).
    accept: [W] int32, each lane's stops as bits (`Stops.mask`).

  Returns:
    (state [W] int32, stop [W] int32): the number of the accepted stop that the token completes first (an index into
    `Stops.names`), or -1.
  """
  outcome = table.outcome[state, token].astype(jnp.int32)
  order = table.order[outcome]  # [W, K]
  # accept 0b101 and order [1, 2, -1]: stop 1 is not accepted, stop 2 is, so it ends the turn.
  accepted = (order >= 0) & (((accept[:, None] >> jnp.maximum(order, 0)) & 1) == 1)
  first = jnp.argmax(accepted, axis=1)
  stop = jnp.take_along_axis(order, first[:, None], axis=1)[:, 0]
  return table.state[outcome], jnp.where(accepted.any(axis=1), stop, -1)


class Stops:
  """The stop strings that turns may use, compiled over a tokenizer's vocabulary.

  Args:
    tokenizer: gives each token's bytes and the EOS ids.
    strings: every stop string of the run, at most 30, in any order.
    rows: rows of the model's embedding. Rows beyond the tokenizer's vocabulary have no bytes and change nothing.

  Attributes:
    names: the stops by number: the strings, then "eos".
    table: the device arrays for `advance`.
    rows: as given.

  Raises:
    ValueError: a string is empty, "eos" or given twice; there are too many; or the vocabulary has more ids than rows.
  """

  def __init__(self, tokenizer: Tokenizer, strings: Sequence[str], *, rows: int):
    _check(strings, rows, tokenizer)
    self.rows = rows
    self.names = (*strings, EOS)
    self._bit = {name: 1 << i for i, name in enumerate(self.names)}
    # Embedding rows beyond the vocabulary are padding: they have no bytes and change no state.
    tokens = [tokenizer.token_bytes(i) if i < tokenizer.vocab_size else b"" for i in range(rows)]
    outcome, state, order = compile_table(tokens, [s.encode() for s in strings], tokenizer.eos_ids)
    self.table = Table(jnp.asarray(outcome), jnp.asarray(state), jnp.asarray(order))

  def mask(self, strings: Sequence[str]) -> int:
    """The accept mask of a turn that stops on these strings and on EOS. Raises ValueError for one not compiled."""
    unknown = [s for s in strings if s not in self._bit]
    if unknown:
      raise ValueError(
        f"stop strings {unknown} were not compiled: the engine knows {list(self.names[:-1])}; "
        "name them in the recipe's `stops`."
      )
    return sum(self._bit[s] for s in {EOS, *strings})


def _check(strings: Sequence[str], rows: int, tokenizer: Tokenizer) -> None:
  if "" in strings or EOS in strings or len(set(strings)) != len(strings):
    raise ValueError(
      f"stop strings {list(strings)}: each must be given once, be non-empty, and not be {EOS!r} "
      "(the name that EOS goes by)."
    )
  if len(strings) > MAX_STOPS:
    raise ValueError(f"{len(strings)} stop strings: at most {MAX_STOPS} fit into a mask; drop some.")
  if rows < tokenizer.vocab_size:
    raise ValueError(
      f"rows={rows}: the tokenizer knows {tokenizer.vocab_size} ids, so some would have no embedding; "
      "give the model's own tokenizer (config.prompting.tokenizer)."
    )


def automaton(strings: Sequence[bytes]) -> tuple[np.ndarray, list[tuple[int, ...]]]:
  """Aho-Corasick: (goto [S, 256] int32, for each state the strings that end there, longest first)."""
  children: list[dict[int, int]] = [{}]
  ends: list[tuple[int, ...]] = [()]
  for number, string in enumerate(strings):
    at = 0
    for byte in string:
      if byte not in children[at]:
        children[at][byte] = len(children)
        children.append({})
        ends.append(())
      at = children[at][byte]
    ends[at] = (number,)
  goto = np.zeros((len(children), 256), np.int32)
  fail = [0] * len(children)
  queue = [0]
  for at in queue:  # breadth first: the failure state's row is complete before it is copied
    if at:
      goto[at] = goto[fail[at]]
      ends[at] += ends[fail[at]]  # shorter strings that are suffixes of this one
    # The failure state of a child is where its byte leads from the parent's: the longest proper suffix in the tree.
    for byte, child in children[at].items():
      fail[child] = int(goto[fail[at], byte]) if at else 0
      goto[at, byte] = child
      queue.append(child)
  return goto, ends


def compile_table(
  tokens: Sequence[bytes], strings: Sequence[bytes], eos_ids: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """(outcome [S, rows], state [O], order [O, K]) of `Table`, in numpy.

  In most states, most tokens have the same outcome as in state 0. Only the others are computed again.
  """
  goto, ends = automaton(strings)
  states, rows = len(goto), len(tokens)
  walk = _Walk(tokens, goto, ends)
  all_tokens = np.arange(rows)
  root_state, root_found = walk.run(np.zeros(rows, np.int32), all_tokens)
  length = walk.length
  first_byte = walk.data[np.minimum(walk.start, len(walk.data) - 1)]
  # Pair (state, found list) -> outcome. Every state with nothing found comes first: outcome s leads to state s.
  outcomes = {(s, 0): s for s in range(states)}
  table = np.zeros((states, rows), np.int32)
  table[0] = _number(root_state, root_found, outcomes)
  for s in range(1, states):
    table[s] = table[0]
    table[s, length == 0] = s  # a token without bytes does not appear in the text
    changed = goto[s] != goto[0]
    again = np.flatnonzero((length > 0) & changed[first_byte])
    table[s, again] = _number(*walk.run(np.full(len(again), s, np.int32), again), outcomes)
  # EOS has no bytes in the text. In every state it completes the stop "eos", whose number is after the strings'.
  lists = [*walk.lists, (len(strings),)]
  table[:, list(eos_ids)] = outcomes.setdefault((0, len(lists) - 1), len(outcomes))
  order = np.full((len(outcomes), max(map(len, lists))), -1, np.int32)
  for (_, list_number), row in outcomes.items():
    order[row, : len(lists[list_number])] = lists[list_number]
  state = np.array([s for s, _ in outcomes], np.int32)
  return table.astype(np.min_scalar_type(len(outcomes) - 1)), state, order


class _Walk:
  """Runs many (state, token) pairs through the automaton at once, one byte per step, and collects completed stops.

  `lists` has every list of completed strings so far, each once. lists[0] is the empty list.
  """

  def __init__(self, tokens, goto, ends):
    self.goto, self.ends = goto, ends
    self.length = np.array([len(t) for t in tokens], np.int64)
    self.start = np.concatenate([[0], np.cumsum(self.length)[:-1]])
    self.data = np.frombuffer(b"".join(tokens) or b"\0", np.uint8)
    self.ending = np.array([bool(e) for e in ends])
    self.lists: list[tuple[int, ...]] = [()]
    self._number: dict[tuple[int, ...], int] = {(): 0}

  def run(self, state: np.ndarray, token: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(state at the end [N], number of the list of completed strings [N]) of N pairs."""
    state, lists = state.copy(), np.zeros(len(token), np.int32)
    longest_first = np.argsort(-self.length[token], kind="stable")
    lengths, starts = self.length[token][longest_first], self.start[token][longest_first]
    for step in range(int(lengths[0]) if len(lengths) else 0):
      live = longest_first[: np.searchsorted(-lengths, -step, side="left")]  # those with length > step
      states = self.goto[state[live], self.data[starts[: len(live)] + step]]
      state[live] = states
      for i in live[self.ending[states]]:
        lists[i] = self._longer(int(lists[i]), self.ends[state[i]])
    return state, lists

  def _longer(self, number: int, completed: tuple[int, ...]) -> int:
    have = self.lists[number]
    longer = have + tuple(s for s in completed if s not in have)
    if longer not in self._number:
      self._number[longer] = len(self.lists)
      self.lists.append(longer)
    return self._number[longer]


def _number(state: np.ndarray, lists: np.ndarray, outcomes: dict[tuple[int, int], int]) -> np.ndarray:
  """The outcome of every (state, found list) pair; new ones are added to `outcomes`."""
  number = state.astype(np.int32)  # nothing found: outcome s leads to state s
  for i in np.flatnonzero(lists):
    number[i] = outcomes.setdefault((int(state[i]), int(lists[i])), len(outcomes))
  return number
