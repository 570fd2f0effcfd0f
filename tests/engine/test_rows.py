"""Who holds which cache row: bookkeeping on the host, without a model."""

from ragrl_jax.engine.conversations import NO_ROW, ConversationState
from ragrl_jax.engine.messages import Group, Turn
from ragrl_jax.engine.rows import Rows, extension


def conversation(number, ids=(1, 2, 3), episode=None, group=None):
  return ConversationState(number, list(ids), (0, number), number if episode is None else episode, group=group)


def test_a_released_row_is_free_once_no_copy_reads_it():
  rows = Rows(2, prompts=0)
  parent, fork, third = (conversation(n) for n in range(3))
  assert rows.acquire(parent) and rows.acquire(fork) and not rows.acquire(third)
  rows.copies.append((parent.row, fork.row, 2))
  rows.release(parent)
  assert parent.row == NO_ROW and rows.free == 0 and not rows.acquire(third)
  rows.finish_copies()
  assert rows.free == 1 and rows.acquire(third) and third.row == 0
  rows.release(third)  # nothing is to be copied: free at once
  assert rows.free == 1


def test_the_victim_is_of_the_episode_or_the_least_recently_used_and_always_idle():
  rows = Rows(4, prompts=0)
  some = [conversation(0), conversation(1, episode=7), conversation(2), conversation(3, episode=7)]
  for one in some:
    rows.acquire(one)
  rows.touch(some[0])
  some[1].turn = Turn(1)
  assert rows.victim(7) is some[3]
  assert rows.victim(None) is some[2]
  for one in some:
    one.turn = Turn(one.number)
  assert rows.victim(7) is None


def test_a_prompts_row_lives_until_its_last_sample_has_left():
  rows, group = Rows(4, prompts=1), Group(5, size=3)
  samples = [conversation(n, group=group) for n in range(3)]
  other = conversation(9, group=Group(6, size=2))
  prompt = rows.prompt_of(samples[0])
  assert prompt.row == 4 and rows.prompt_fills == [prompt] and rows.prompts == 1
  assert rows.prompt_of(other) is None  # no row is left for another prompt: it computes its own
  rows.leave(group)
  assert rows.prompt_of(samples[1]) is prompt
  rows.leave(group)
  assert rows.prompt_of(samples[2]) is prompt  # the last one still copies it
  rows.copies.append((prompt.row, 0, 2))
  rows.leave(group)
  assert rows.prompts == 0 and rows.prompt_row_is_pending
  rows.finish_copies()
  assert rows.prompt_of(other).row == 4
  # The last sample of a group shares with nobody.
  rows.leave(other.group)
  assert Rows(4, prompts=1).prompt_of(conversation(0, group=Group(7, size=1))) is None


def test_an_extension_takes_all_but_the_newest_token():
  long, short = conversation(0, ids=range(10, 20)), conversation(1, ids=(7, 8))
  long.row, long.cached, short.row = 2, 3, 1
  tokens, table = extension([long, short], rows=3, width=4, absent=9)
  assert tokens.tolist() == [[13, 14, 15, 16], [7, 0, 0, 0], [0] * 4]
  assert table.tolist() == [[2, 3, 4], [1, 0, 1], [9, 0, 0]]
