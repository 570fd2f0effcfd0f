"""Damaged or malicious folders give a one-line error with the file's name, and nothing is allocated."""

import json
import random
import time

import hf_folders
import pytest

from ragrl_jax.models import tensors, weights

QWEN = hf_folders.DECODERS["qwen2"]
Q0 = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return hf_folders.write(tmp_path_factory.mktemp("qwen2"), QWEN, hf_folders.decoder_shapes(QWEN))


DAMAGED = r"model\.safetensors is truncated, damaged, or not a safetensors file \(.*Fetch it again"


@pytest.fixture
def rewritten(folder, tmp_path):
  """header → None: writes a folder with this header over the valid folder's data, and config.json beside it."""
  whole = (folder / "model.safetensors").read_bytes()
  length = 8 + int.from_bytes(whole[:8], "little")

  def write(header):
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(encoded).to_bytes(8, "little") + encoded + whole[length:])
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    return tmp_path

  write.header = json.loads(whole[8:length])
  return write


def changed(header, **entry):
  return header | {Q0: header[Q0] | entry}


def test_a_tensor_that_is_named_twice(rewritten):
  header, other = json.dumps(rewritten.header), changed(rewritten.header, data_offsets=[0, 2048])[Q0]
  assert other != rewritten.header[Q0]
  with pytest.raises(ValueError, match=DAMAGED):
    weights.load_pretrained(rewritten(f'{header[:-1]}, "{Q0}": {json.dumps(other)}}}'.encode()))


def test_invalid_headers(rewritten):
  entries = [dict(data_offsets=[-2048, 0]), dict(data_offsets=[2048, 0]), dict(data_offsets=None), dict(dtype=None)]
  entries += [dict(shape=[-32, -16]), dict(shape=[32.0, 16]), dict(shape=[10**15, 16]), dict(data_offsets=[0, 10**12])]
  other = next(name for name in rewritten.header if name != Q0 and name.endswith("q_proj.weight"))
  entries += [dict(data_offsets=rewritten.header[other]["data_offsets"])]  # two tensors overlap
  headers = [changed(rewritten.header, **entry) for entry in entries]
  for header in (*headers, b"[" * 100_000, b'{"x": 1}', b"\xff\xfe", b"null"):
    with pytest.raises(ValueError, match=DAMAGED):
      tensors.TensorFolder(rewritten(header))


def test_hundreds_of_fuzzed_headers_load_or_are_refused_by_name(rewritten):
  rng = random.Random(0)
  odd = [-1, 0, 2**63, 2**70, 1.5, None, True, "F32", [], {}, [0], [[0, 8]], "\ud800", float("nan"), [8, 0], [-8, 8]]

  def fuzzed():
    header = json.loads(json.dumps(rewritten.header))
    for _ in range(rng.randint(1, 3)):
      name = rng.choice(sorted(header))
      kind = rng.randrange(5)
      if kind == 0:
        header[name] = rng.choice(odd)
      elif kind == 1 and isinstance(header[name], dict):
        header[name][rng.choice(["dtype", "shape", "data_offsets", "more"])] = rng.choice(odd)
      elif kind == 2 and isinstance(header[name], dict) and isinstance(header[name].get("data_offsets"), list):
        header[name]["data_offsets"] = [rng.randint(-9, 9999), rng.randint(-9, 9999)]
      elif kind == 3:
        header.pop(name)
      else:
        return rng.randbytes(rng.randint(0, 200)) + json.dumps(header).encode()[: rng.randint(0, 4000)]
    return header

  refused = 0
  for _ in range(400):
    where = rewritten(fuzzed())
    try:
      found = tensors.TensorFolder(where)
      for name, shape in hf_folders.decoder_shapes(QWEN).items():
        found.open(name, shape)
    except ValueError as error:
      refused += 1
      assert str(where) in str(error) and "\n" not in str(error), error
  assert refused > 300


ABSURD = dict(num_hidden_layers=(10**9, 2**40, "two", -1), hidden_size=(2**30, 1.5), vocab_size=(10**30, True))
ABSURD |= dict(
  intermediate_size=(2**30,), head_dim=([8],), rms_norm_eps=("small",), rope_theta=([1],), layer_types=(7,)
)
ABSURD |= dict(rope_scaling=([1],), model_type=(["qwen2"],), eos_token_id=("end",), max_position_embeddings=("long",))


@pytest.mark.parametrize("change", [{name: value} for name, values in ABSURD.items() for value in values])
def test_a_config_with_absurd_sizes_is_refused_before_anything_is_allocated(folder, tmp_path, change):
  (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
  (tmp_path / "config.json").write_text(json.dumps(QWEN | change))
  begin = time.thread_time()
  with pytest.raises(ValueError, match=rf"{tmp_path}.*({next(iter(change))}|tensor)"):
    weights.load_pretrained(tmp_path)
  assert time.thread_time() - begin < 60  # it used to take minutes and all memory


@pytest.mark.parametrize("text", ["[" * 100_000, '{"num_hidden_layers": ' + "9" * 5000 + "}"])
def test_json_that_exhausts_its_parser(folder, tmp_path, text):
  (tmp_path / "config.json").write_text(text)
  with pytest.raises(ValueError, match="config.json is not JSON"):
    weights.load_pretrained(tmp_path)


def test_an_index_that_names_no_files(folder, tmp_path):
  (tmp_path / "config.json").write_text(json.dumps(QWEN))
  for weight_map in ({Q0: 1}, [Q0], "model.safetensors", {Q0: None}):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(dict(weight_map=weight_map)))
    with pytest.raises(ValueError, match="index.json: weight_map must name a file"):
      weights.load_pretrained(tmp_path)
