"""import_hf and export_hf as a user calls them, in this process."""

import importlib
import json
import sys

import decoders
import hf_folders
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_tokenizers
from decoder_shapes import equal
from flax import nnx

from ragrl_jax import config as config_lib, settings as settings_lib
from ragrl_jax.cli import commands, export_hf
from ragrl_jax.jobs import checkpoints
from ragrl_jax.learner import learner, settings
from ragrl_jax.models import lora, mapping, weights
from ragrl_jax.prompting.tokenizer import load_tokenizer
from ragrl_jax.run import saving
from ragrl_jax.store import changes, checkpoint


def run(name, monkeypatch, capsys, **arguments):
  """(exit status, stdout, stderr)."""
  module = importlib.import_module(f"ragrl_jax.cli.{name}")
  words = [word for key, value in arguments.items() for word in (f"--{key}", str(value))]
  monkeypatch.setattr(sys, "argv", [name, *words])
  try:
    status = commands.guarded(module.main) or 0
  except SystemExit as ended:
    status = ended.code
  return status, *capsys.readouterr()


def model_folder(path, rows=300):
  """A model of so many rows with a byte-level tokenizer of 256 + 1 ids."""
  config = hf_folders.DECODERS["qwen2"] | dict(vocab_size=rows)
  return small_tokenizers.bare_bytes(hf_folders.write(path, config, hf_folders.decoder_shapes(config)))


def test_import(tmp_path, monkeypatch, capsys):
  folder = model_folder(tmp_path / "in")
  where = dict(model=folder, out=tmp_path / "out", dtype="float32", shard_bytes=20_000)
  status, out, _ = run("import_hf", monkeypatch, capsys, **where)
  said = json.loads(out)
  assert status == 0 and (said["family"], said["vocabulary"], said["token_ids"]) == ("qwen2", 300, 257)
  equal(*(weights.load_pretrained(path)[0] for path in (folder, tmp_path / "out")))
  assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_import_of_a_model_whose_template_rewrites_turns(tmp_path, monkeypatch, capsys):
  folder = model_folder(tmp_path / "in", rows=600)
  small_tokenizers.byte_level(folder, template=small_tokenizers.FORGETFUL)
  (tmp_path / "out" / saving.NAMED_TEMPLATES).mkdir(parents=True)
  for name in ("chat_template.jinja", f"{saving.NAMED_TEMPLATES}/tool_use.jinja"):
    (tmp_path / "out" / name).write_text("an earlier model's")
  status, _, said = run("import_hf", monkeypatch, capsys, model=folder, out=tmp_path / "out")
  assert status == 0, said
  assert "</think>" in json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["chat_template"]
  assert not (tmp_path / "out" / "chat_template.jinja").exists()
  assert not (tmp_path / "out" / saving.NAMED_TEMPLATES).exists()


def test_import_of_a_gguf_file(tmp_path, monkeypatch, capsys):
  pytest.importorskip("gguf")
  import gguf_files  # needs gguf

  config = hf_folders.DECODERS["qwen2"] | dict(vocab_size=259)
  tensors = {name: hf_folders.tensor(name, shape) for name, shape in hf_folders.decoder_shapes(config).items()}
  named = {f"tokenizer.chat_template.{name}": "{{ tools }}" for name in ("tool_use", "../outside")}
  path = gguf_files.write(tmp_path / "m.gguf", config, tensors, fields=gguf_files.byte_level(**named))
  where = dict(model=path, out=tmp_path / "new" / "out", dtype="float32")
  status, out, err = run("import_hf", monkeypatch, capsys, **where)
  assert status == 0, err
  said = json.loads(out)
  assert (said["family"], said["token_ids"], said["eos_ids"]) == ("qwen2", 259, [258])
  got, _ = weights.load_pretrained(tmp_path / "new" / "out")
  np.testing.assert_array_equal(got.embedding[...], tensors["model.embed_tokens.weight"])
  assert load_tokenizer(tmp_path / "new" / "out").eos_ids == (258,)
  assert [path.name for path in (tmp_path / "new" / "out" / saving.NAMED_TEMPLATES).iterdir()] == ["tool_use.jinja"]
  assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]  # what was unpacked is gone
  path.write_bytes(path.read_bytes()[:999])
  status, _, err = run("import_hf", monkeypatch, capsys, **where)
  assert status == 2 and "m.gguf is not a whole GGUF file" in err.splitlines()[-1]


@pytest.mark.parametrize("rows", [300, 257])  # there is room for both tokens, or for none
def test_tokens_are_added(tmp_path, monkeypatch, capsys, rows):
  folder = model_folder(tmp_path / "in", rows)
  where = dict(model=folder, out=tmp_path / "out", dtype="float32")
  status, out, _ = run("import_hf", monkeypatch, capsys, add_tokens="<retrieval> </retrieval>", **where)
  said = json.loads(out)
  assert status == 0 and (said["token_ids"], said["vocabulary"]) == (259, max(rows, 259))
  before, after = load_tokenizer(folder, chat=False), load_tokenizer(tmp_path / "out", chat=False)
  text = "a <retrieval>b</retrieval>"
  assert after.encode(text) == [*before.encode("a "), 257, *before.encode("b"), 258]
  assert after.decode(after.encode(text)) == text and after.encode("<think>") == before.encode("<think>")
  (want, _), (got, config) = weights.load_pretrained(folder), weights.load_pretrained(tmp_path / "out")
  assert config.vocab_size == max(rows, 259)
  for name, table in mapping.named(nnx.split(got)[1]):
    old = np.asarray(dict(mapping.named(nnx.split(want)[1]))[name])
    if name in ("embedding", "lm_head"):
      np.testing.assert_array_equal(table[:257], old[:257])
      np.testing.assert_allclose(table[257:259], np.stack([old[:257].mean(axis=0)] * 2), rtol=1e-5, atol=1e-7)
      np.testing.assert_array_equal(table[259:], old[259:])
    else:
      np.testing.assert_array_equal(table, old, err_msg=name)
  assert np.isfinite(np.asarray(got(jnp.asarray([after.encode(text)])))).all()


@pytest.mark.parametrize("rows, tokens, said", [
  (300, "a", "'a' is a token of"), (300, "<|endoftext|>", "is a token of"), (300, "<new> <new> b", "'b' is a token"),
  (200, "", "has 257 ids, the model 200 rows"),
])  # fmt: skip
def test_tokens_that_are_there_or_have_no_row_are_refused_first(tmp_path, monkeypatch, capsys, rows, tokens, said):
  where = dict(model=model_folder(tmp_path / "in", rows), out=tmp_path / "out")
  status, _, complaint = run("import_hf", monkeypatch, capsys, **where, add_tokens=tokens)
  assert status == 2 and said in complaint and not (tmp_path / "out").exists()


def saved(folder, config, step, state, kind="rl"):
  """A run's folder with a checkpoint."""
  folder.mkdir(exist_ok=True)
  changes.write(folder, config, kind)
  checkpoints = checkpoint.Checkpoints(folder / "checkpoints", keep=1)
  checkpoints.save(step, state, dict(step=step))
  checkpoints.close()
  return folder


@pytest.mark.slow  # compiles a learner's first state
def test_export(tmp_path, monkeypatch, capsys):
  config = config_lib.default_config()
  config.model.path, config.prompting.chat = str(model_folder(tmp_path / "in")), False
  model, shape, tokenizer, config = decoders.made(config)
  assert model.tokenless == ((257, 300),)  # rows without a token, which are exported as they are
  graphdef, params = nnx.split(model)
  trained = nnx.merge(graphdef, jax.tree.map(lambda x: x + 1.0, params))
  made = learner.Learner(trained, settings.from_config(config), settings.optimizer_from_config(config))
  run_folder = saved(tmp_path / "0", config, 7, made.init(0))  # a run's folder may be named by its seed
  saving.save(trained, shape, tokenizer, config, run_folder / "model")
  (run_folder / "finished.json").write_text(json.dumps(dict(step=7, reached=False)))
  for source, number in ((run_folder, "out"), (run_folder / "checkpoints" / "7", "again")):
    status, out, complaint = run("export_hf", monkeypatch, capsys, checkpoint=source, out=tmp_path / number)
    assert status == 0, complaint
    assert json.loads(out)["step"] == 7
    equal(trained, weights.load_pretrained(tmp_path / number)[0])
    assert (tmp_path / number / "tokenizer.json").exists()
    assert json.loads((tmp_path / number / "generation_config.json").read_text()) == dict(eos_token_id=256)


def test_further_fields_of_a_shape_are_exported(tmp_path):
  more = dict(num_experts=4, experts_per_token=2)
  config = settings_lib.of(dict(model=dict(shape=dict(family="qwen3_moe", **more))))
  changes.write(tmp_path, config, "rl")
  assert export_hf.settings_of(tmp_path).model.shape.more == more
  assert checkpoints._as_trained(settings_lib.Settings(), tmp_path).model.shape.more == more


def test_adapters_are_merged_by_import_and_export(tmp_path, monkeypatch, capsys, caplog):
  config = config_lib.default_config()
  config.model.path, config.prompting.chat = str(model_folder(tmp_path / "base")), False
  (tmp_path / "base" / "chat_template.jinja").write_text(small_tokenizers.CHATML)
  config.model.lora.update(dict(rank=2, alpha=3.0, layers="k|up"))
  model, shape, tokenizer, config = decoders.made(config)
  draw = np.random.default_rng(0)
  trained = jax.tree.map(lambda x: jnp.asarray(draw.normal(0, 0.3, x.shape), x.dtype), lora.split(model)[1])
  saved(tmp_path / "run", config, 3, dict(params=trained))  # nothing of the base
  nnx.update(model, trained)
  saving.save(model, shape, tokenizer, config, tmp_path / "adapters")
  assert lora.find_base(tmp_path / "adapters", "") == config.model.path
  assert (tmp_path / "adapters" / "tokenizer.json").exists()

  calls = dict(
    export_hf=dict(checkpoint=tmp_path / "run"),
    import_hf=dict(model=config.model.path, adapters=tmp_path / "adapters", dtype="float32"),
  )
  want = dict(mapping.named(nnx.split(lora.merged(model))[1]))
  base = dict(mapping.named(nnx.split(weights.load_pretrained(config.model.path)[0])[1]))
  for name, arguments in calls.items():
    status, _, complaint = run(name, monkeypatch, capsys, out=tmp_path / name, **arguments)
    assert status == 0, complaint
    got = dict(mapping.named(nnx.split(weights.load_pretrained(tmp_path / name)[0])[1]))
    for parameter, leaf in got.items():
      np.testing.assert_allclose(leaf, want[parameter], atol=1e-6, err_msg=parameter)
      assert (parameter in ("layers/k", "layers/up")) == (np.abs(leaf - base[parameter]).max() > 0.01), parameter
  assert caplog.text.count("prompts that other programs write with the template are not those of the training") == 1
  for name, said in dict(import_hf="write to another one", export_hf="these files would be lost").items():
    status, _, complaint = run(name, monkeypatch, capsys, out=config.model.path, **calls[name])
    assert status == 2 and said in complaint


@pytest.mark.parametrize("rank, tuned", [(0, False), (2, False), (0, True)])
def test_export_of_a_policy_with_a_value_head(tmp_path, monkeypatch, capsys, rank, tuned):
  """A fine-tuned checkpoint of the same config has no value head."""
  config = config_lib.default_config()
  config.model.path, config.prompting.chat = str(model_folder(tmp_path / "base")), False
  config.model.lora.update(dict(rank=rank, layers="q down"))
  config.critic.kind, config.advantage.kind = "shared", "gae"
  model, shape, tokenizer, config = decoders.made(config)
  trained = learner.Learner(model, settings.from_config(config), settings.optimizer_from_config(config))
  draw = np.random.default_rng(0)
  params = jax.tree.map(lambda x: jnp.asarray(draw.normal(0, 0.3, x.shape), x.dtype), trained.params)
  assert "value_head" in params and bool(rank) == bool(trained.adapters)
  state = dict(params=trained.policy(params) if tuned else params)
  saved(tmp_path / "run", config, 3, state, "sft" if tuned else "rl")
  status, _, complaint = run("export_hf", monkeypatch, capsys, checkpoint=tmp_path / "run", out=tmp_path / "out")
  assert status == 0, complaint
  nnx.update(model, trained.policy(params))
  want = dict(mapping.named(nnx.split(lora.merged(model))[1]))
  for name, leaf in mapping.named(nnx.split(weights.load_pretrained(tmp_path / "out")[0])[1]):
    np.testing.assert_allclose(leaf, want[name], atol=1e-6, err_msg=name)


@pytest.mark.parametrize("mark", ["metrics.jsonl", "settings.json", "metrics.json", "index.json"])
def test_a_model_is_not_written_into_a_run_an_evaluation_or_an_index(tmp_path, monkeypatch, capsys, mark):
  out = tmp_path / "out"
  out.mkdir()
  (out / "config.json").write_text('{"seed": 0}')
  (out / mark).write_text("{}")
  (tmp_path / "run" / "checkpoints" / "1").mkdir(parents=True)
  calls = dict(import_hf=dict(model=model_folder(tmp_path / "in")), export_hf=dict(checkpoint=tmp_path / "run"))
  for name, given in calls.items():
    status, _, complaint = run(name, monkeypatch, capsys, out=out, **given)
    assert status == 2 and f"--out={out}: this folder holds" in complaint and f"({mark})" in complaint
    assert (out / "config.json").read_text() == '{"seed": 0}' and len(list(out.iterdir())) == 2


def test_export_of_nothing(tmp_path, monkeypatch, capsys):
  status, _, complaint = run("export_hf", monkeypatch, capsys, checkpoint=tmp_path, out=tmp_path / "out")
  assert status == 2 and "RUN/checkpoints/STEP" in complaint
