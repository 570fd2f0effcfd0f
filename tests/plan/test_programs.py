from ragrl_jax import config as config_lib
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.plan import temporaries
from ragrl_jax.plan.memory import Axes

# A layer's matrices: 4 · 8 · 8 + 3 · 8 · 16 = 640 parameters. The table: 16 · 8. Norms: 2 · (16 + 8) + 8 = 56.
SHAPE = DecoderConfig(
  vocab_size=16, d_model=8, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=4, d_ff=16, rope_theta=1e4
)
WIDE = 3 * 16 + 2 * 4 * 4  # of one token: the MLP's three, queries, keys, values, their output


def small(**learner):
  config = config_lib.default_config()
  config.learner.update(dict(micro_rows=4, row_lengths=(50, 100), logprob_chunk=10) | learner)
  config.rollout.update(dict(lanes=6, rows=6, chunk=5))
  return config


def test_tokens_of_a_chip():
  assert temporaries.chip_tokens(small(), Axes(data=2, fsdp=2, tensor=2)) == 100
  assert temporaries.chip_tokens(small(), Axes(fsdp=2, sequence=4)) == 4 * 100 / 8


def test_room_of_a_gradient():
  axes = Axes(fsdp=4, tensor=2)  # 100 tokens per chip
  mine = 2 * 640 / 8 + 16 * 8 / 8 + 56
  inputs = 2 * 100 * 8 * 2  # of two layers, in bf16
  kept = 4 * mine + inputs  # with the new gradient
  layer = inputs + 2 * 2 * 640 / 2 + 100 * (7.5 * 4 * 8 + WIDE / 2)
  assert temporaries.accumulate_room(SHAPE, small(), axes, head=False) == kept + layer
  # The head: 10 tokens per chip and part, 8 parts of two words each, in a slab of 80 of the 400 gathered tokens.
  head = 80 * (6 * 8 + 2 * 4 * 16 / 8) + 2 * 4 * 100 * 8
  assert temporaries.accumulate_room(SHAPE, small(), axes) == kept + max(layer, head)
  config = small(logprob_chunk=1000)  # all 400 tokens are one slab
  head = 400 * (6 * 8 + 2 * 4 * 16 / 8) + 2 * 4 * 100 * 8
  assert temporaries.accumulate_room(SHAPE, config, axes) == kept + max(layer, head)
  scored = 400 * (2 * 8 + 4 * 16 / 8) + 2 * 4 * 100 * 8
  assert temporaries.score_room(SHAPE, config, axes) == max(layer - inputs, scored)


def test_traffic_of_a_gradient():
  looked_up = 4 * 4 * 400 * 8
  assert temporaries.accumulate_sent(SHAPE, small(micro_rows=4), Axes()) == 0
  assert temporaries.accumulate_sent(SHAPE, small(), Axes(tensor=2), head=False) == looked_up + 2 * 400 * 8 * 22
  data = temporaries.accumulate_sent(SHAPE, small(micro_rows=8), Axes(data=2), head=False)
  assert data == 4 * (2 * 640 + 16 * 8 + 56)  # a gradient in float32
  fsdp = temporaries.accumulate_sent(SHAPE, small(micro_rows=16), Axes(fsdp=4))
  # Matrices in bf16 twice, gradients in float32 once; 1,600 hidden states in bf16 twice, their gradient in float32.
  assert fsdp == looked_up + 2 * 640 * 8 + 1600 * 8 * 8
  scored = temporaries.score_sent(SHAPE, small(micro_rows=16), Axes(fsdp=4))
  assert scored == looked_up / 2 + 2 * 640 * 2 + 1600 * 8 * 2


def test_rows_sharded_by_sequence_gather_their_keys():
  with_, without = (
    temporaries.accumulate_sent(SHAPE, small(micro_rows=rows), Axes(sequence=cut), head=False)
    for rows, cut in ((8, 2), (4, 1))
  )
  assert with_ - without == 3 * 2 * 2 * 800 * 2 * 2 * 4  # passes, layers, bytes, tokens, k and v, heads, width


def test_the_engines_part():
  here = Axes(data=2, tensor=2)  # three of the six lanes per replica
  heads = 2 * 2 * (2 + 2 * 2) * 4 / 2  # queries, keys and values twice, in bf16
  assert temporaries.extend_room(SHAPE, here, 6) == 6 * (2 * 4 * 8 + heads + 2 * 3 * 16 / 2)
  assert temporaries.decode_room(SHAPE, small(), here) == temporaries.extend_room(SHAPE, here, 3) + 4 * 4 * 3 * 16 / 2
  assert temporaries.extend_sent(SHAPE, here, 6) == (2 * 2 + 1) * 6 * 8 * 2  # two sums per layer, one before, in bf16
  assert temporaries.decode_sent(SHAPE, small(), here) == 5 * (2 * 2 + 1) * 3 * 8 * 4  # and in float32
  assert temporaries.extend_sent(SHAPE, Axes(), 6) == temporaries.decode_sent(SHAPE, small(), Axes()) == 0
  drafting = small()
  drafting.rollout.speculate = 3  # four places a lane
  assert temporaries.decode_room(SHAPE, drafting, here) == 4 * temporaries.decode_room(SHAPE, small(), here)
  assert temporaries.decode_sent(SHAPE, drafting, here) == 4 * temporaries.decode_sent(SHAPE, small(), here)
