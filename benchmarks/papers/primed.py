"""First weights with which a small decoder copies: two layers begin as the circuit that training would have to find.

From random weights, a decoder of this size needs hundreds of steps before it repeats a name it has never seen, and the
number differs by a factor of two between seeds. What it then has is known as an induction head (Olsson et al. 2022,
arXiv 2209.11895): one layer notes at each position what stood just before, the next looks for the position before which
its own token stood, and repeats what follows. Weights that begin near a useful shape ("mimetic initialization",
Trockman and Kolter 2023, arXiv 2305.09828) train as any others; nothing is frozen.

The residual stream's first half holds embeddings. The second half holds what the first layer's heads noted.
"""

import numpy as np

from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder

# Of each head of the first layer: how many tokens it looks back, how sharply, and the width of its note. The last two
# look at several tokens at once: their notes tell the neighbourhood of a position, whatever its wording.
LOOK_BACK = ((1.0, 8.0, 20), (2.0, 8.0, 12), (1.5, 2.2, 16), (3.0, 1.2, 16))
FAST = 8  # pairs of a head that turn fast enough to tell neighbours apart; from SLOW on they hardly turn in a context
SLOW = 10
NOTE, REPEAT = 0.4, 0.6  # how strongly notes are written, and the token that follows
SAME_TOKEN, SAME_NEIGHBOURS = 2.0, 0.6  # weights of the two comparisons
FINAL_GAIN = 0.2  # of the final norm: a repeated token has a probability of about a half at first

SHAPE = dict(
  family="qwen2",  # attention with biases, which a fixed look back needs
  d_model=128,
  num_layers=4,
  num_heads=4,
  num_kv_heads=4,
  head_dim=64,
  d_ff=256,
  rope_theta=1e8,  # more than half of a head's pairs hardly turn, so that a match does not depend on the distance
  tied=True,
)


def prime(model: Decoder, shape: DecoderConfig, seed: int) -> None:
  """Changes the weights of the first two layers, of the embedding and of the final norm, in place.

  Raises:
    ValueError: a shape without what this needs: attention biases, and SHAPE's sizes.
  """
  wanted = {name: SHAPE[name] for name in ("d_model", "num_heads", "num_kv_heads", "head_dim")}
  if not shape.attention_bias or any(getattr(shape, name) != size for name, size in wanted.items()):
    raise ValueError(f"primed weights need attention biases and {wanted}: the shape is {shape}.")
  rng, half = np.random.default_rng(seed), shape.d_model // 2
  layers, sizes = model.layers, dict(q=(-1, 4, 64), k=(-1, 4, 64), v=(-1, 4, 64), o=(4, 64, -1))
  weights = {name: np.array(getattr(layers, name)[...]) for name in sizes}
  views = {name: weights[name].reshape(len(weights[name]), *size) for name, size in sizes.items()}
  biases = {name: np.zeros((shape.num_layers, 4, 64), np.float32) for name in ("q_bias", "k_bias")}

  notes = _look_back(rng, half, shape, {name: view[0] for name, view in views.items()}, biases)
  _match(half, notes, {name: view[1] for name, view in views.items()})

  embedding = np.array(model.embedding[...])
  embedding[:, half:] = 0.0
  model.embedding[...] = embedding * 2.0**0.5  # as long as before
  model.final_norm[...] = np.full(shape.d_model, FINAL_GAIN, np.float32)
  for name, values in weights.items():
    getattr(layers, name)[...] = values
  for name, values in biases.items():
    getattr(layers, name)[...] = values.reshape(shape.num_layers, -1)


def _look_back(rng, half: int, shape: DecoderConfig, layer, biases) -> list[tuple[np.ndarray, slice]]:
  """The first layer's heads; of each, (the projection of a token that it notes [half, width], where the note is)."""
  turns = shape.rope_theta ** (-np.arange(FAST) * 2 / shape.head_dim)  # radians a token
  notes, at = [], half
  for head, (back, sharpness, width) in enumerate(LOOK_BACK):
    # Keys all point one way and queries the same way, turned back: the rotation makes them meet `back` tokens earlier.
    layer["q"][:, head] *= 0.1
    layer["k"][:, head] *= 0.1
    biases["k_bias"][0, head, :FAST] = sharpness
    biases["q_bias"][0, head, :FAST] = sharpness * np.cos(back * turns)
    biases["q_bias"][0, head, shape.head_dim // 2 :][:FAST] = -sharpness * np.sin(back * turns)
    projection, place = np.linalg.qr(rng.normal(size=(half, width)))[0], slice(at, at + width)
    layer["v"][:, head], layer["o"][head] = 0.0, 0.0
    layer["v"][:half, head, :width] = projection
    layer["o"][head, :width, place] = NOTE * np.eye(width)
    notes.append((projection, place))
    at += width
  return notes


def _match(half: int, notes, layer) -> None:
  """The second layer's heads: they compare a token with the notes, and repeat the token at the position they find."""
  slow = [*range(SLOW, 32), *range(32 + SLOW, 64)]
  (token, before), width = notes[0], LOOK_BACK[0][2]
  for head in range(4):
    layer["q"][:, head] *= 0.1
    layer["k"][:, head] *= 0.1
    layer["q"][:half, head][:, slow[:width]] += SAME_TOKEN * token
    layer["k"][before, head][:, slow[:width]] += SAME_TOKEN * np.eye(width)
    near = notes[2 + head % 2][1]
    more = slow[width : width + near.stop - near.start]
    for name in ("q", "k"):
      layer[name][near, head][:, more] += SAME_NEIGHBOURS * np.eye(len(more))
    layer["v"][:, head], layer["o"][head] = 0.0, 0.0
    layer["v"][:half, head, :half] = np.eye(half)
    layer["o"][head, :half, :half] = REPEAT * np.eye(half)
