"""The engine: samples tokens for many conversations over a few lanes (continuous batching). One thread, no asyncio.

A conversation keeps its pages of the cache from its first turn until it is closed. It has a lane only while it samples.
So one that waits for a search keeps its cache, and another uses its lane. `ConversationState` draws its states.

  messages.py  requests and results             replica.py pages.py            who waits, samples and shares pages
  lanes.py     inputs and outputs of decode     kv_cache.py prefill.py         the cache, and running programs on it
  loader.py    weights on the devices           programs.py stops.py sizes.py  compiled programs

On several devices the engine has replicas: each has all weights, its own lanes and its own pages. A replica may itself
be split over devices ("tensor"), an engine over hosts (team.py). A group of samples stays with one replica.

The newest token of a conversation is never in the cache: the step that samples the next token adds it. So prefill needs
no logits, and a prompt that is computed once serves every sample of its group.

Next: ragrl_jax/core/losses.py.
"""

import time
from typing import Any

import jax
import numpy as np
from flax import nnx

from ragrl_jax.engine.kv_cache import KVCache
from ragrl_jax.engine.lanes import Counters, LaneTable
from ragrl_jax.engine.loader import Loader
from ragrl_jax.engine.messages import ConversationState, Group, Open, Turn, TurnEnded
from ragrl_jax.engine.prefill import prefill
from ragrl_jax.engine.programs import REPLICAS
from ragrl_jax.engine.replica import Replica, ReplicaTurns, run_copies
from ragrl_jax.engine.sizes import Sizes
from ragrl_jax.engine.stops import Stops
from ragrl_jax.engine.team import Team
from ragrl_jax.prompting.tokenizer import Tokenizer


class Engine:
  """Samples tokens for many conversations at once. All methods are called from one thread.

  Args:
    graphdef: the decoder's, from `nnx.split`.
    mesh: the engine's devices, "data" for replicas and "tensor" within one; None leaves the weights where they are.
    **weights: `engines`, `frozen` and `own_weights`, see `Loader`.

  It raises ValueError if sizes and mesh have different numbers of replicas.
  """

  def __init__(
    self,
    graphdef: nnx.GraphDef,
    tokenizer: Tokenizer,
    stops: Stops,
    sizes: Sizes,
    *,
    mesh: jax.sharding.Mesh | None = None,
    team: Team | None = None,
    **weights: Any,
  ):
    if sizes.replicas != (1 if mesh is None else mesh.shape[REPLICAS]):
      raise ValueError(f"sizes for {sizes.replicas} replicas, on a mesh {mesh}: they must be equal.")
    self.tokenizer, self.stops, self.sizes, self.mesh, self.context = tokenizer, stops, sizes, mesh, sizes.context
    self.version, self.counters = 0, Counters()
    self._loader = Loader(graphdef, mesh, **weights)
    self._kv = KVCache(graphdef, self._loader, stops, sizes, mesh, team)
    self._packed = np.zeros((sizes.lanes, sizes.columns), np.int32)
    self._table = np.zeros((sizes.lanes, sizes.table), np.int32)
    self._lanes = LaneTable.unpack(self._packed)  # views, so writing to a field writes to the array
    self.reset()

  # ---- weights -------------------------------------------------------------------------------------------------------

  def load(self, params: Any, version: int) -> None:
    """Loads new weights, and discards everything computed with the old ones.

    Args:
      params: the decoder's weights except the frozen ones, on any devices; or an earlier value of `weights`.
      version: stored in the episodes that are sampled with them.

    Raises:
      ValueError: conversations are open. All tokens of an episode must have one version.
    """
    if self._conversations:
      raise ValueError(
        f"weights of version {version} came while {len(self._conversations)} conversations are open: "
        "end the run first; an episode is sampled by one version."
      )
    self._loader.load(params)
    self.version = version
    self.reset()

  def release(self) -> None:
    """Frees the memory of weights and cache for the learner, until the next `load`. No conversation is open."""
    self._loader.release()
    self._kv.release()

  def reset(self) -> None:
    """Discards every conversation and turn: after an error, and for new weights."""
    self._conversations: dict[int, ConversationState] = {}  # by the callers' numbers
    self._packed[:] = 0
    self._table[:] = 0
    given = self.sizes, self._packed, self._table, self._kv, self.counters
    self._replicas = [Replica(number, *given) for number in range(self.sizes.replicas)]
    self._turns = ReplicaTurns(self.sizes.replicas)
    self._kv.restore()

  @property
  def weights(self) -> Any:
    """The weights that were loaded last, without the frozen ones. `load` accepts them."""
    return self._loader.weights

  def check(self) -> None:
    """Raises ValueError if there are no weights, or if they were donated after loading."""
    self._loader.check(self.version)

  def restart_counters(self) -> Counters:
    """Resets the counters; returns the record that counts from now on."""
    self.counters = Counters()
    for replica in self._replicas:
      replica.counters = self.counters
    return self.counters

  # ---- messages ------------------------------------------------------------------------------------------------------

  def open(self, message: Open) -> None:
    """Opens a conversation. Raises ValueError: its number is in use, it has no tokens, or its parent is not open."""
    if message.conversation in self._conversations or not message.ids:
      raise ValueError(f"{message}: it needs a number that no open conversation has, and at least one token.")
    parent = None if message.parent is None else self._find(message.parent)
    episode = message.conversation if message.first is None else message.first
    ids, urgent = list(message.ids), message.first is not None
    conversation = ConversationState(
      message.conversation, ids, message.key, episode=episode, urgent=urgent, group=message.group
    )
    sibling = parent or self._conversations.get(episode)
    conversation.replica = self._turns.replica(message.group) if sibling is None else sibling.replica
    if sibling is not None:
      sibling.urgent = True
    self._conversations[conversation.number] = conversation
    if parent is not None:
      self._replicas[conversation.replica].fork(parent, conversation)

  def submit(self, turn: Turn) -> None:
    """Starts a turn, which `step` returns when it ends. Raises ValueError if its conversation is not open and idle."""
    conversation = self._find(turn.conversation)
    if conversation.turn is not None:
      raise ValueError(f"{turn}: conversation {turn.conversation} has a turn under way; submit it when that has ended.")
    conversation.turn, conversation.logprobs, conversation.routes = turn, [], b""
    conversation.automaton = conversation.automaton if turn.resumed else 0  # the environment's text completes no stop
    conversation.ids += turn.new_ids
    self._replicas[conversation.replica].submit(conversation)

  def close(self, number: int) -> None:
    """Ends a conversation, after its present turn if that has begun. After `reset` it is closed already."""
    conversation = self._conversations.get(number)
    if conversation is not None:
      conversation.closed = True
      if conversation.turn is not None and self._replicas[conversation.replica].withdraw(conversation):
        conversation.turn = None
      self._release_closed(conversation)

  def leave(self, group: Group) -> None:
    """Tells the engine that one sample of the group will never open a conversation."""
    self._replicas[self._turns.replica(group)].leave(group)

  def _find(self, number: int) -> ConversationState:
    if number not in self._conversations:
      raise ValueError(f"conversation {number} is not open: open it first.")
    return self._conversations[number]

  def _release_closed(self, conversation: ConversationState) -> None:
    if conversation.closed and conversation.turn is None:
      del self._conversations[conversation.number]
      self._replicas[conversation.replica].release(conversation)

  # ---- steps ---------------------------------------------------------------------------------------------------------

  @property
  def busy(self) -> bool:
    """Whether `step` has work now. If not, new episodes may still wait for room."""
    return any(replica.can_step for replica in self._replicas)

  def step(self) -> list[TurnEnded]:
    """Decodes at most `chunk` steps for every lane; returns the turns that ended."""
    begin = time.perf_counter()
    # 1. Seat waiting conversations, with the tokens that are already in the cache.
    for replica in self._replicas:
      replica.seat()
    # 2. Prefill missing tokens; prompts first, because samples wait for them.
    if prefill(self._replicas, self._kv, self.sizes, self.counters):
      self._kv.block_until_ready()
      self.counters.prefill_s += time.perf_counter() - begin
    # 3. Give free lanes to conversations that are ready, and pages to all that sample.
    for replica in self._replicas:
      replica.take_lanes()
    run_copies(self._replicas, self._kv)
    if not any(replica.live for replica in self._replicas):
      return []
    begin = time.perf_counter()
    # 4. Sample a chunk of tokens on the device.
    chunk = self._kv.decode(self._packed, self._table, [replica.min_live() for replica in self._replicas])
    self._lanes.advance(chunk)
    self.counters.add_chunk(chunk, self.sizes.replicas)
    # 5. Append the tokens to their conversations, and end the turns that are complete.
    ended = [turn for replica in self._replicas for turn in replica.append(chunk)]
    for turn in ended:
      self._release_closed(self._conversations[turn.conversation])
    self.counters.decode_s += time.perf_counter() - begin
    return ended
