"""Digests of the files that a run's settings name: contents decide, not places."""

import json
import shutil
import types

import numpy as np
import pytest

from ragrl_jax import config as config_lib, recipes, settings
from ragrl_jax.models import hub, lora, tensors
from ragrl_jax.retrieval import api
from ragrl_jax.run import contents
from ragrl_jax.structs import Example, Passage


def model(folder, value=0.0):
  folder.mkdir(parents=True)
  (folder / "config.json").write_text("{}")
  (folder / "tokenizer.json").write_text('{"a": 1}')
  (folder / "README.md").write_text(str(folder))  # is not read
  tensors.write(folder, [("w", (3,), lambda: np.array([1.0, 2.0, value], np.float32))], np.float32, shard_bytes=10**9)
  return folder


def test_a_folder_is_its_weights_and_what_is_read_beside_them(tmp_path):
  one = model(tmp_path / "a" / "one")
  assert contents.of_folder(str(model(tmp_path / "b" / "two"))) == contents.of_folder(str(one))
  assert contents.of_folder(str(one)).partition("+")[0] == tensors.TensorFolder(one).fingerprint()
  found = {contents.of_folder(str(one)), contents.of_folder(str(model(tmp_path / "c", value=1e-30)))}
  (one / "tokenizer.json").write_text('{"a": 2}')
  found.add(contents.of_folder(str(one)))
  (one / "1_Pooling").mkdir()
  (one / "1_Pooling" / "config.json").write_text("{}")  # of an encoder
  found.add(contents.of_folder(str(one)))
  shutil.copy(one / "model.safetensors", one / "1_Pooling")  # as of a Dense module
  found.add(contents.of_folder(str(one)))
  (one / "rl" / "checkpoints").mkdir(parents=True)  # a run on this model
  (one / "rl" / "config.json").write_text("{}")
  assert len(found) == 5 and contents.of_folder(str(one)) in found
  shutil.move(one / "model.safetensors", one / "adapter_model.safetensors")
  (one / lora.CONFIG).write_text(json.dumps(dict(base_model_name_or_path="x", r=4)))
  first = contents.of_folder(str(one))
  (one / lora.CONFIG).write_text(json.dumps(dict(base_model_name_or_path="y", r=4)))
  assert contents.of_folder(str(one)) == first  # the base's path is no content; the rank is
  (one / lora.CONFIG).write_text(json.dumps(dict(base_model_name_or_path="y", r=8)))
  assert contents.of_folder(str(one)) != first
  assert contents.of_folder(str(tmp_path / "none")) == ""


def test_every_model_that_training_reads_is_compared(tmp_path):
  names = ("base", "lora", "encoder", "judge", "teacher")
  folders = {name: str(model(tmp_path / name, value)) for value, name in enumerate(names)}
  config = config_lib.default_config()
  config.model.path, config.model.lora.path = folders["base"], folders["lora"]
  config.retrieval.query_encoder, config.loss.teacher.path = folders["encoder"], folders["teacher"]
  config.judge.update(judge := dict(kind="nli", prompt="think_answer", path=folders["judge"]))
  config = settings.of(config)
  read = ("model.path", "model.lora.path", "retrieval.query_encoder", "judge.path", "loss.teacher.path")
  assert contents.of_folders(config, ()) == {one: contents.of_folder(folders[name]) for one, name in zip(read, names)}
  tuned = {"model.path", "model.lora.path", "loss.teacher.path"}
  assert contents.of_folders(config).keys() == tuned  # fine-tuning asks no judge
  of_terms = config_lib.default_config()
  of_terms.judge, of_terms.judges = judge, dict(b=dict(kind="exact"))
  assert contents.of_folders(settings.of(of_terms), ("a", "b")) == {"judge.path": contents.of_folder(folders["judge"])}
  shutil.move(f"{folders['judge']}/model.safetensors", f"{folders['judge']}/adapter_model.safetensors")
  with open(f"{folders['judge']}/{lora.CONFIG}", "w") as file:
    json.dump(dict(base_model_name_or_path=folders["base"]), file)
  of_terms.judge = judge | dict(kind="reward_model")
  found = contents.of_folders(settings.of(of_terms), ("a", "b"))
  assert found.pop("judge.path (its base)") == contents.of_folder(folders["base"]) and [*found] == ["judge.path"]
  assert contents.base(config) == tensors.TensorFolder(folders["base"]).fingerprint()


def test_a_registered_recipe_is_the_text_of_its_file_without_settings(tmp_path, monkeypatch):
  monkeypatch.setattr(recipes, "RECIPES", dict(recipes.RECIPES))
  file, found = tmp_path / "mine.py", []
  text = "A = 1\n\n\ndef get_config(\n  variant,\n):\n  # steps\n  return 3\n\n\ndef build(switches):\n  return 4\n"
  for was, now in (("", ""), ("return 3", "return 5"), ("A = 1", "A = 2"), ("return 4", "return A")):
    file.write_text(text.replace(was, now))
    exec(compile(file.read_text(), file, "exec"), names := {})
    room = types.SimpleNamespace(Switches=recipes.Switches, PRESETS={"paper": {}}, build=names["build"])
    recipes.register("mine", room)
    found.append(contents.of_recipe("mine"))
  assert found[0] == found[1] and len({*found}) == 3 and contents.of_recipe("care") == ""


def test_questions_are_their_texts_golds_and_passages():
  of = lambda source="s", golds=("yes",), text="t": contents.of_questions(
    [Example(f"{source}-1", "Q?", golds, (Passage("p", "T", text),), (), source)]
  )
  assert of() == of(source="renamed") and len({of(), of(golds=("no",)), of(text="u")}) == 3


def test_a_described_server_is_known_by_its_retriever():
  index = dict(kind="bm25", checksum="c")
  remote = lambda address, server: dict(kind="remote", address=address, server=server)
  one = api.placeless(remote("http://a", dict(status="ok", retriever=index, limits=dict(rows=1))))
  assert one == api.placeless(remote("http://b", dict(status="ok", retriever=index, limits=dict(rows=2)))) == index
  silent = [api.placeless(remote(address, {})) for address in ("http://a", "http://b")]  # they describe nothing
  assert silent[0] != silent[1]


def test_a_runs_folder_is_no_model(tmp_path):
  (tmp_path / "run" / "checkpoints").mkdir(parents=True)
  with pytest.raises(ValueError, match=r"config.model.path='.*run': this is a run's folder: use .*run/model.* export"):
    hub.folder(tmp_path / "run", "config.model.path")
