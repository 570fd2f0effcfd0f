"""Models by their names on the hub: download, commits, a broken connection, and what is said when there is none."""

import json
import sys

import hf_folders
import hub as hub_kit
import numpy as np
import pytest
import small_tokenizers
from decoders import made as decoder
from huggingface_hub import constants

from ragrl_jax import config as config_lib, settings
from ragrl_jax.cli import commands, import_hf
from ragrl_jax.jobs import checkpoints
from ragrl_jax.models import hub, lora, weights
from ragrl_jax.retrieval import encoders, fusion
from ragrl_jax.run import player, prepared, saving
from ragrl_jax.settings import fields
from ragrl_jax.store import changes

NAME = "org/tiny"


@pytest.fixture
def model(tmp_path):
  config = hf_folders.DECODERS["qwen2"] | dict(vocab_size=300)
  folder = hf_folders.write(tmp_path / "made" / "tiny", config, hf_folders.decoder_shapes(config))
  return small_tokenizers.bare_bytes(folder, "<|end|>")


@pytest.fixture
def server(tmp_path, monkeypatch):
  hub._say.cache_clear()
  monkeypatch.chdir(tmp_path)
  with hub_kit.reached(monkeypatch, tmp_path / "cache") as made:
    yield made


def refused(where=NAME, **how):
  with pytest.raises(ValueError) as caught:
    hub.folder(where, "config.model.path", **how)
  assert "\n" not in (said := str(caught.value)) and said.startswith(f"config.model.path={str(where)!r}: ")
  return said


def test_only_safetensors_settings_and_tokenizer_are_fetched_and_the_size_is_said_first(server, model, capsys):
  others = {"pytorch_model.bin": "pickle", "modeling_tiny.py": "code", "onnx/model.safetensors": "x", "README.md": "y"}
  commit = server.serve(NAME, model, **others)
  size = lambda *names: sum((model / name).stat().st_size for name in names)
  small = hub.folder(NAME, "config.model.path", part="config")
  names = lambda: {file.name for file in small.iterdir()}
  assert names() == {"config.json", "tokenizer.json", "tokenizer_config.json"}
  said = capsys.readouterr().err
  first, heavy = size("config.json", "tokenizer.json", "tokenizer_config.json"), size("model.safetensors")
  assert f"config.model.path='org/tiny': downloads {first / 1000:.3g} kB of org/tiny at {commit} into " in said
  assert f"; the weights, {heavy / 1000:.3g} kB, follow when they are read." in said
  assert said.index("downloads") < said.index("100%")  # then the bar
  whole = hub.folder(NAME, "config.model.path")
  assert whole == small and whole.name == commit
  assert "model.safetensors" in names() and len(names()) == 4
  assert f"downloads {heavy / 1000:.3g} kB of org/tiny" in capsys.readouterr().err
  rows = weights.load_pretrained(whole)[0].embedding[...]
  np.testing.assert_array_equal(rows, hf_folders.tensor("model.embed_tokens.weight", rows.shape))
  before = len(server.seen)
  assert hub.folder(f"{NAME}@{commit}", "x") == whole and len(server.seen) == before  # a commit needs no question
  shard = "model.safetensors-00001-of-00001.safetensors"  # as Qwen3.5's are named
  (model / "model.safetensors").rename(model / shard)
  more = {"model.safetensors.index.json": "{}", "additional_chat_templates/tool_use.jinja": "{{ tools }}"}
  more["2_Dense/model.safetensors"] = "x"
  server.serve(NAME, model, **more)
  whole = hub.folder(NAME, "config.model.path")
  assert all((whole / name).is_file() for name in (shard, *more))


def test_a_revision_is_a_branch_a_tag_or_a_commit(server, model):
  old = server.serve(NAME, model, "v1")
  new = server.serve(NAME, model, **{"generation_config.json": "{}"})
  assert hub.with_commit(NAME, "x") == f"{NAME}@{new}"
  assert hub.with_commit(f"{NAME}@v1", "x") == f"{NAME}@v1@{old}"
  assert hub.with_commit(f"{NAME}@{old}", "x") == f"{NAME}@{old}" and hub.with_commit("/a/b/c", "x") == "/a/b/c"
  assert hub.parts(f"{NAME}@v1@{old}") == (NAME, old) == hub.parts(hub.folder(f"{NAME}@v1", "x"))
  assert (hub.folder(NAME, "x") / "generation_config.json").is_file()
  assert not (hub.folder(f"{NAME}@v1@{old}", "x") / "generation_config.json").exists()


def test_a_download_that_broke_off_goes_on_where_it_stopped(server, model, monkeypatch):
  server.serve(NAME, model)
  server.broken["model.safetensors"] = 2 * 512  # and no byte more, however often it is asked
  assert "the hub cannot be reached" in (said := refused()) and "which fetches the missing files" in said
  assert set(server.ranges) == {"bytes=1024-"}
  server.seen.clear()
  server.ranges.clear()
  monkeypatch.setattr(hub_kit.time, "sleep", lambda s: server.broken.clear())  # the connection is back
  whole = hub.folder(NAME, "config.model.path")
  assert server.ranges == ["bytes=1024-"]
  assert (whole / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
  assert not any("tokenizer.json" in path for path in server.seen)  # it was complete


def test_a_run_keeps_its_commit_though_the_branch_moves(server, model, tmp_path, capsys):
  first = server.serve(NAME, model)
  server.serve(NAME, model, "v1")
  config = config_lib.default_config()
  config.model.path, config.prompting.tokenizer = NAME, f"{NAME}@v1"
  run = tmp_path / "run"
  run.mkdir()
  pinned = lambda *folder: hub.pinned(settings.of(config), *folder)
  made = pinned(run)
  assert (made.model.path, made.prompting.tokenizer) == (f"{NAME}@{first}", f"{NAME}@v1@{first}")
  assert config.model.path == NAME  # the caller's config is left as it is
  changes.write(run, made, "rl")
  moved = {"generation_config.json": "{}"}
  second, _ = server.serve(NAME, model, **moved), server.serve(NAME, model, "v1", **moved)
  again = pinned(run)
  assert (again.model.path, again.prompting.tokenizer) == (made.model.path, made.prompting.tokenizer)
  assert f"config.model.path={NAME}: the commit that is stored is used, {first}." in capsys.readouterr().err
  assert pinned(tmp_path / "other").model.path == f"{NAME}@{second}"
  config.model.path = f"{NAME}@{second}"  # the user asks for the other one: the check of changed settings refuses it
  assert pinned(run).model.path == f"{NAME}@{second}"


def test_the_settings_of_a_config_that_are_names(server, model, tmp_path):
  commit = server.serve(NAME, model)
  config = config_lib.default_config()
  for section, field in ((config.model.lora, "path"), (config.retrieval, "query_encoder"), (config.judge, "path")):
    section[field] = NAME
  with config.unlocked():
    config.judges = dict(think_search=dict(kind="nli", path=NAME), other=dict(kind="exact"))
  made = hub.pinned(settings.of(config))
  found = (made.model.lora.path, made.retrieval.query_encoder, made.judge.path, made.judges["think_search"]["path"])
  assert set(found) == {f"{NAME}@{commit}"}


def test_without_network_the_cache_is_used_and_said_if_it_is_whole(server, model, monkeypatch, capsys):
  commit = server.serve(NAME, model)
  hub.folder(NAME, "x", part="config")
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
  assert hub.folder(NAME, "x", part="config").name == commit
  assert all("does not have all of it" in refused(name) for name in (NAME, f"{NAME}@{commit}"))
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
  hub.folder(NAME, "config.model.path")
  capsys.readouterr()  # what was said of the settings alone
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
  assert hub.folder(NAME, "config.model.path").name == commit
  assert f"HF_HUB_OFFLINE is set, so the cache's commit is used, {commit}." in capsys.readouterr().err
  said = refused("org/other")
  assert "there is no such folder, HF_HUB_OFFLINE is set, and the cache " in said and "name a folder" in said
  assert "HF_HUB_OFFLINE is set" in refused(f"{NAME}@v2")
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
  server.shutdown()
  server.server_close()  # nobody listens there any more
  assert hub.folder(NAME, "config.model.path").name == commit
  assert "the hub cannot be reached (" in capsys.readouterr().err
  assert "the hub cannot be reached (" in refused("org/other")


def test_refusals_of_the_hub_are_one_line(server, model):
  server.serve(NAME, model)
  server.gated.add(NAME)
  assert f"{server.address}/{NAME} is gated: ask for access there, then `hf auth login`, or set HF_TOKEN" in refused()
  assert f"there is no such folder, and no {server.address}/org/none, or it is private" in refused("org/none")
  assert f"{server.address}/{NAME} has no revision 'v9'" in refused(f"{NAME}@v9")
  assert f"has no revision {'0' * 40!r}" in refused(f"{NAME}@{'0' * 40}")
  assert "there is no such folder, and Cannot have -- or .." in refused("org/a--b")
  assert "it is no name on the Hugging Face hub" in refused("./a/b")
  (model / "model.safetensors").rename(model / "pytorch_model.bin")
  server.serve("org/pickled", model)
  said = refused("org/pickled", part="config")
  assert "org/pickled has no safetensors, only pytorch_model.bin: pickles are never opened" in said
  assert hub.folder("org/pickled", "x", part="tokenizer").is_dir()  # a tokenizer needs none
  assert not list(hub.folder("org/pickled", "x", part="tokenizer").glob("*.bin"))


def test_a_folder_of_that_name_wins_if_it_has_a_model(server, model, tmp_path, capsys):
  commit = server.serve(NAME, model)
  (tmp_path / NAME).mkdir(parents=True)
  assert hub.folder(NAME, "--model").name == commit
  (tmp_path / NAME / "config.json").write_text("{}")
  assert str(hub.folder(NAME, "--model")) == NAME and not hub.is_name(NAME)
  assert f"--model={NAME}: the folder here is used, not a model of that name on the hub." in capsys.readouterr().err
  config = config_lib.default_config()
  config.model.path = NAME
  assert hub.pinned(settings.of(config)).model.path == NAME


def test_import_takes_a_name(server, model, tmp_path, monkeypatch, capsys):
  named = "additional_chat_templates/tool_use.jinja"
  commit = server.serve(NAME, model, **{named: "{{ tools }}"})
  monkeypatch.setattr(sys, "argv", ["import", "--model", NAME, "--out", str(tmp_path / "out"), "--dtype", "float32"])
  commands.guarded(import_hf.main)
  assert json.loads(capsys.readouterr().out)["source"] == f"{NAME}@{commit}"
  assert weights.load_pretrained(tmp_path / "out")[1] == weights.load_pretrained(model)[1]
  assert (tmp_path / "out" / named).read_text() == "{{ tools }}"


def test_a_player_loads_a_name_and_checks_need_no_weights(server, model, tmp_path):
  server.serve(NAME, model)
  config = config_lib.default_config()
  config.model.path, config.prompting.chat, config.rollout.context = NAME, False, 128
  made = prepared.prepare(config, tmp_path / "run", purpose="sample")
  assert made.tokenizer.vocab_size == 257 and not any("model.safetensors" in path for path in server.seen)
  made, shape = player.model(made.settings, made.tokenizer, made.shape)
  assert shape == weights.config_of(model) and made.embedding.shape == (300, 16)


def test_adapters_name_their_base_by_its_commit_and_are_found_again(server, model, tmp_path):
  commit = server.serve(NAME, model)
  config = config_lib.default_config()
  config.model.path, config.model.lora.rank, config.prompting.chat = NAME, 2, False
  saving.save(*decoder(hub.pinned(settings.of(config))), tmp_path / "adapters")
  values = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
  assert (values["base_model_name_or_path"], values["revision"]) == (NAME, commit)  # as PEFT reads them
  assert (tmp_path / "adapters" / "tokenizer.json").is_file()
  server.serve(NAME, model, **{"generation_config.json": "{}"})
  assert lora.find_base(tmp_path / "adapters", "") == f"{NAME}@{commit}"

  adapters = server.serve("org/lora", tmp_path / "adapters")
  asked, source = checkpoints.chosen(settings.Settings(), "org/lora")
  assert source[2] == 0
  assert (asked.model.path, asked.model.lora.path) == (f"{NAME}@{commit}", f"org/lora@{adapters}")
  asked, _ = checkpoints.chosen(settings.Settings(), NAME)
  assert asked.model.path.startswith(f"{NAME}@") and not asked.model.lora.path
  decoder(fields.replaced(asked, {"prompting.chat": False}))
  with pytest.raises(ValueError, match="org/tiny: there is no such folder.*a model on the hub needs --config"):
    checkpoints.config_of(NAME)


def test_an_index_stores_the_commit_of_its_encoder(server, model, tmp_path):
  first = server.serve("org/encoder", model)
  entry = encoders.describe("org/encoder", {"settings": "minilm", "passage_path": "org/encoder"})
  assert entry["path"] == entry["options"]["passage_path"] == f"org/encoder@{first}"
  assert encoders.find_name(dict(encoder=entry)) == "encoder"
  moved = server.serve("org/encoder", model, **{"generation_config.json": "{}"})
  assert encoders.describe("org/encoder", entry["options"], entry) == entry  # a build that is continued
  assert encoders.describe("org/encoder", {})["path"] == f"org/encoder@{moved}"


def test_a_file_of_retrievers_must_give_the_commit_of_its_scorer(server, model, tmp_path):
  commit = server.serve("org/scorer", model)
  file = tmp_path / "fused.json"
  file.write_text(json.dumps(dict(indexes=["a"], rerank=dict(kind="cross-encoder", path="org/scorer"))))
  with pytest.raises(ValueError, match=f"rerank.path='org/scorer' may become another.*'org/scorer@{commit}'"):
    fusion.load(file, lambda *a, **k: None)
