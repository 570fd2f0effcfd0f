"""The holders of each page: bookkeeping on the host, over random histories, without a model."""

import numpy as np
import pytest
from refusals import refused

from ragrl_jax.engine.lanes import Counters
from ragrl_jax.engine.messages import NO_SLOT, ConversationState, Group, Turn
from ragrl_jax.engine.pages import Pages, Prompts
from ragrl_jax.engine.prefill import extension
from ragrl_jax.engine.replica import Replica, run_copies
from ragrl_jax.engine.sizes import Sizes


def test_a_page_is_free_after_its_last_holder_has_released_it():
  pages = Pages(2)
  a, b = pages.take(), pages.take()
  refused("all 2 pages are held", pages.take)
  assert pages.share([a]) == [a] and pages.shared(a) and not pages.shared(b)
  pages.release([a, b])
  assert pages.free == 1 and not pages.shared(a)
  refused(rf"\[{b}\] are free", pages.release, [b])
  refused("are free", pages.share, [b])
  pages.release([a])
  assert pages.free == 2


def test_a_prompt_is_kept_until_its_last_sample_has_left():
  prompts, group = Prompts(), Group(5, size=3)
  samples = [ConversationState(n, [1, 2, 3], (0, n), n, group=group) for n in range(3)]
  prompt = prompts.find(samples[0])
  assert prompts.fills == [prompt] and len(prompts) == 1 and prompts.has(samples[1])
  assert prompts.find(ConversationState(9, [1, 2, 4], (0, 9), 9, group=group)) is not prompt  # other tokens
  assert prompts.leave(group) == [] and prompts.find(samples[1]) is prompt
  assert prompts.leave(group) == [] and prompts.find(samples[2]) is prompt  # the last one still shares it
  assert prompt in prompts.leave(group) and len(prompts) == 0
  # The last sample of a group has nothing to share with, and a prompt of one token needs no pages.
  assert prompts.find(ConversationState(0, [1, 2], (0, 0), 0, group=Group(7, size=1))) is None
  assert prompts.find(ConversationState(0, [1], (0, 0), 0, group=Group(8, size=2))) is None


def test_a_computed_prompt_is_given_up_before_an_unfinished_one():
  prompts = Prompts()
  first, second = (prompts.find(ConversationState(n, [n, 1], (0, n), n, group=Group(n, 4))) for n in range(2))
  prompts.fills.remove(second)
  assert prompts.drop() is second and prompts.drop() is None and len(prompts) == 1 and first in prompts.fills


def test_an_extension_takes_all_but_the_newest_token():
  long, short = ConversationState(0, list(range(10, 20)), (0, 0), 0), ConversationState(1, [7, 8], (0, 1), 1)
  long.cached, long.pages = 3, [4, 5]
  assert extension(long, 4) == ([13, 14, 15, 16], 3, [4, 5], NO_SLOT) and extension(short, 4).tokens == [7]


class Device:
  """The cache as a list of the contents of each page, and of the tokens in each memory, instead of device arrays."""

  def __init__(self, sizes, hybrid):
    self.places = [[None] * sizes.page for _ in range(sizes.cache_pages)]
    self.slots = sizes.slots if hybrid else 0
    self.memories = [[] for _ in range(self.slots)]

  def take_memory(self, replica, slot):
    return tuple(self.memories[slot])

  def put_memory(self, replica, slot, saved):
    self.memories[slot] = list(saved)

  def take(self, replica, pages):
    return tuple(list(self.places[page]) for page in pages)

  def put(self, replica, pages, saved):
    for page, content in zip(pages, saved, strict=True):
      self.places[page] = list(content)

  def copy(self, pairs, memory=False):
    ((_, copied),) = pairs.items()
    places = self.memories if memory else self.places
    contents = [list(places[source]) for source, _ in copied]
    assert len({target for _, target in copied}) == len(copied), "two copies go to one place"
    for (_, target), content in zip(copied, contents):
      places[target] = content


class World:
  """Random conversations on one replica: groups, forks, several turns, and closing during a turn."""

  def __init__(self, seed, hybrid=False, **sizes):
    self.rng = np.random.default_rng(seed)
    self.sizes = Sizes(rows=5, context=24, chunk=4, prefill=32, page=4, prefill_rows=2, **sizes)
    self.device, self.counters, self.open, self.next = Device(self.sizes, hybrid), Counters(), {}, 0
    table = np.zeros((self.sizes.lanes, self.sizes.table), np.int32)
    packed = np.zeros((self.sizes.lanes, self.sizes.columns), np.int32)
    self.replica = Replica(0, self.sizes, packed, table, self.device, self.counters)
    self.histories = 0
    self.letters = int(self.rng.choice([1, 2, 99]))  # with one, samples of a group stay equal over turns

  def act(self):
    """Sends one message to the replica, or makes one step."""
    self.histories += 1
    idle = [c for c in self.open.values() if c.turn is None]
    kind = self.rng.choice(["open", "submit", "submit", "fork", "close", "step", "step", "step"])
    if kind == "open" and len(self.open) < 12:
      size, ids = int(self.rng.integers(1, 4)), self.rng.integers(0, 99, int(self.rng.integers(1, 14))).tolist()
      group = Group(self.next, size) if size > 1 else None
      for _ in range(size):
        self.add(ids, group)
    elif kind == "submit" and idle:
      for one in idle if self.letters == 1 else [idle[self.rng.integers(len(idle))]]:
        self.submit(one)
    elif kind == "fork" and idle and len(self.open) < 14:
      parent = idle[self.rng.integers(len(idle))]
      size, slots = int(self.rng.integers(1, len(parent.ids) + 1)), self.replica.slots
      taken = [slots.take() for _ in range(slots.free)] if slots and self.letters == 2 else []
      child = self.add(parent.ids[: None if taken else size], None, parent.episode)
      parent.urgent = child.urgent = True
      self.replica.fork(parent, child)
      if taken:
        slots.release(taken)
        assert child.cached == parent.cached  # not computed anew for want of a slot
    elif kind == "close" and self.open:
      one = list(self.open.values())[self.rng.integers(len(self.open))]
      one.closed = True
      if one.turn is None:
        self.end(one)
    else:
      self.step()
    self.check()

  def add(self, ids, group, episode=None):
    number, self.next = self.next, self.next + 1
    self.open[number] = ConversationState(number, list(ids), (0, 0), episode or number, group=group)
    return self.open[number]

  def submit(self, one):
    room = self.sizes.context - len(one.ids)
    if room < 1:
      return
    alike = self.letters == 1
    new = self.rng.integers(0, self.letters, min(3, room - 1) if alike else int(self.rng.integers(0, min(room, 6))))
    budget = 1 if alike else int(self.rng.integers(1, room - len(new) + 1))
    one.ids += new.tolist()
    one.turn, one.logprobs = Turn(one.number, tuple(new), budget=budget), []
    self.replica.submit(one)

  def end(self, one):
    del self.open[one.number]
    self.replica.release(one)

  def flush(self):
    run_copies([self.replica], self.device)

  def write(self, one, place, token):
    page = one.pages[place // self.sizes.page]
    assert not self.replica.pages.shared(page), "a page that others hold was written to"
    self.device.places[page][place % self.sizes.page] = token

  def remember(self, one, tokens):
    """The memory takes in these tokens, which follow the cached ones. A text's first token forgets what was there."""
    if self.device.slots:
      memory = self.device.memories
      assert sum(c.slot == one.slot for c in self.holders()) == 1, "a slot has two holders"
      memory[one.slot] = (memory[one.slot] if one.cached else []) + list(tokens)

  def holders(self):
    return [*self.open.values(), *self.replica.prompts._prompts.values()]

  def extend(self, batch, width):
    self.flush()
    for one in batch:
      tokens, at, *_ = extension(one, width)
      self.remember(one, tokens)
      for offset, token in enumerate(tokens):
        self.write(one, at + offset, token)
      one.cached += len(tokens)

  def step(self):
    replica = self.replica
    replica.seat()
    for width in self.sizes.widths:
      while fills := replica.fills(width):
        self.extend(fills, width)
    replica.join()
    for width in self.sizes.widths:
      while batch := replica.batch(width):
        self.extend(batch, width)
        replica.extended(batch)
    replica.take_lanes()
    self.flush()
    for one in list(replica.drawing()):
      assert not one.missing and (replica._lanes.slot[one.lane] == one.slot or not self.device.slots)
      assert replica._table[one.lane, : len(one.pages)].tolist() == one.pages
      self.read(one)
      most = min(self.sizes.ahead, one.budget)
      for place in range(one.cached, one.cached + most):
        self.write(one, place, None)  # drafts; not all of them are kept
      for _ in range(int(self.rng.integers(min(self.sizes.chunk, most), most + 1))):
        self.write(one, one.cached, one.ids[-1])
        self.remember(one, one.ids[-1:])
        one.ids.append(int(self.rng.integers(self.letters)))
        one.logprobs.append(0.0)
        one.cached += 1
      if not one.budget:
        replica.empty(one)
        one.turn = None
        if one.closed:
          self.end(one)

  def read(self, one):
    content = [self.device.places[page] for page in one.pages] if one.pages else list(one.swapped)
    cached = [content[i // self.sizes.page][i % self.sizes.page] for i in range(one.cached)]
    assert cached == one.ids[: one.cached]
    if self.device.slots and one.cached:
      assert list(self.device.memories[one.slot] if one.pages else one.memory) == cached

  def check(self):
    for one in self.open.values():
      if one not in [c for c, _ in self.replica.joining]:
        self.flush()
        self.read(one)
    held = {page for one in self.holders() for page in one.pages}
    assert self.replica.pages.free == self.sizes.cache_pages - len(held), "a page was lost"
    if self.device.slots:
      taken = [one.slot for one in self.holders() if one.slot != NO_SLOT]
      assert self.replica.slots.free == self.device.slots - len(taken) and len(set(taken)) == len(taken)

  def finish(self):
    """Ends everything, and checks that every page is free again."""
    for _ in range(500):
      if not any(one.turn for one in self.open.values()):
        break
      if not self.replica.can_step:  # new episodes wait for the open ones
        idle = [one for one in self.open.values() if one.turn is None]
        assert idle, "turns wait, and nothing can be done"
        self.end(idle[0])
      self.step()
      self.check()
    else:
      raise AssertionError("turns did not end")
    for one in list(self.open.values()):
      self.end(one)
    assert self.replica.pages.free == self.sizes.cache_pages and not len(self.replica.prompts)


@pytest.mark.parametrize("histories", [2_000, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("hybrid", [False, True])
def test_random_histories_lose_no_page_and_never_write_to_a_shared_one(hybrid, histories):
  done = swapped = shared = 0
  for seed in range(10**6):
    rng = np.random.default_rng(seed)
    pages, drafts = int(rng.choice([6, 7, 9, 16, 40])), int(rng.choice([0, 2]))
    world = World(seed, hybrid, pages=pages, speculate=drafts, lanes=int(rng.choice([1, 3])))
    for _ in range(40):
      world.act()
    world.finish()
    done, swapped = done + world.histories, swapped + world.counters.swapped_rows
    shared += world.counters.shared_tokens
    if done >= histories:
      break
  assert swapped > histories / 100 and shared > histories / 10
