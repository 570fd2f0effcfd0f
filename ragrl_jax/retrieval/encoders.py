"""The encoder of an index: chosen when the index is built, loaded again when it is searched."""

from __future__ import annotations

import inspect
import json
import os
import pathlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ragrl_jax.models import hub
from ragrl_jax.retrieval import bm25, checksums
from ragrl_jax.retrieval.api import Encoder
from ragrl_jax.retrieval.hashing import HashingEncoder
from ragrl_jax.retrieval.tokenize import RULE
from ragrl_jax.structs import Passage

FITTED = "encoder.json"


def named(
  encoder: str | os.PathLike | Encoder, options: Mapping[str, Any] | None, before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
  """The encoder's entry in build.json and index.json (JSON).

  Args:
    encoder, options: as for `build_index`.
    before: the entry of an earlier call. The hub's commits in it are kept.

  Raises:
    ValueError: `encoder` is not a known name, a model or an encoder, or it has no such option. Values of
      options are checked for "bm25" and "hashing".
  """
  options = dict(options or {})
  if not isinstance(encoder, str | os.PathLike):
    if options:
      raise ValueError("encoder_options are for an encoder given by name or folder, not for an encoder object.")
    return dict(kind="given", settings=dict(encoder.settings), dim=encoder.dim)
  try:
    json.dumps(options)
  except TypeError:
    raise ValueError(
      f"encoder_options={options!r:.200}: they must be JSON, since they are stored with the index; otherwise pass "
      "an encoder object."
    ) from None
  # Wrong options are found now, before the corpus is stored.
  if str(encoder) == "bm25":
    _check("bm25", options, bm25.checked)
    bm25.checked(**options)
    return dict(kind="bm25", options=options, words=RULE)
  if str(encoder) == "hashing":
    _check("hashing", options, HashingEncoder, given=("rows", "mean_length"))
    HashingEncoder({}, rows=0, mean_length=0.0, **options)
    return dict(kind="hashing", options=options, words=RULE)
  if not hub.is_name(encoder) and not (pathlib.Path(encoder) / "config.json").is_file():
    raise ValueError(
      f"encoder={str(encoder)!r}: it must be 'bm25', 'hashing', or a folder (or OWNER/NAME on the hub) with a "
      "config.json and safetensors of a BERT-type encoder or of a decoder for embeddings."
    )
  from ragrl_jax.models.encoder import load_encoder  # takes a while, and bm25 and hashing do not need it

  _check("model", options, load_encoder, given=("mesh",))

  def at(where: str | os.PathLike, known: Any) -> str:
    if not hub.is_name(where):
      return str(pathlib.Path(where).resolve())
    return hub.stored(known, str(where), "encoder") or hub.with_commit(str(where), "encoder")

  before = before or {}
  if second := options.get("passage_path"):
    options["passage_path"] = at(second, before.get("options", {}).get("passage_path"))
  return dict(kind="model", path=at(encoder, before.get("path")), options=options)


def _check(kind: str, options: Mapping[str, Any], made_by: Callable[..., Any], given: Collection[str] = ()) -> None:
  """Refuses an option that is no keyword of `made_by`, or one that is `given` by the index."""
  keywords = [p.name for p in inspect.signature(made_by).parameters.values() if p.kind is p.KEYWORD_ONLY]
  known = [name for name in keywords if name not in given]
  if unknown := sorted(map(str, options.keys() - set(known))):
    raise ValueError(
      f"encoder_options: unknown {', '.join(unknown)}: for this encoder ({kind}) use only {', '.join(known)}."
    )


def fitted(
  encoder: str | os.PathLike | Encoder, chosen: Mapping[str, Any], corpus: Iterable[Passage], out: pathlib.Path
) -> Encoder:
  """The encoder for this corpus. "hashing" counts the corpus's words and stores them in the index's folder."""
  if chosen["kind"] == "given":
    return encoder
  if chosen["kind"] == "model":
    return load_model(chosen["path"], spread=True, **chosen["options"])
  if not (out / FITTED).is_file():
    HashingEncoder.fit(corpus, **chosen["options"]).save(out / FITTED)
  return HashingEncoder.load(out / FITTED)


def again(card: Mapping[str, Any], folder: pathlib.Path, given: str | os.PathLike | Encoder | None) -> Encoder:
  """The encoder for queries to a finished index.

  Args:
    card: the contents of index.json.
    folder: the index's folder.
    given: the encoder, or its folder or hub name if it was moved; None loads the encoder that the index names.

  Raises:
    ValueError: there is no encoder, or the vectors were made by another one.
  """
  kind = card["encoder"]["kind"]
  if kind == "hashing":
    with checksums.opening(folder / FITTED):
      encoder = HashingEncoder.load(folder / FITTED)
  elif given is not None and not isinstance(given, str | os.PathLike):
    encoder = given
  elif kind == "model":
    path = given or card["encoder"]["path"]
    if not pathlib.Path(path).is_dir() and not hub.is_name(path):
      raise ValueError(f"{folder}: its encoder is no longer at {path}: name it (load_index(…, encoder=PATH_OR_NAME)).")
    options = dict(card["encoder"]["options"], stored=card["encoder"]["settings"])
    encoder = load_model(path, setting=f"{folder}, encoder", **options)
  else:
    raise ValueError(f"{folder}: it was built with an encoder object: pass the object, load_index(…, encoder=…).")
  settings, stored = dict(encoder.settings), card["encoder"]["settings"]
  differs = [
    f"{name}: {settings.get(name)!r}, the index {stored.get(name)!r}"
    for name in sorted(stored.keys() - {"path"})
    if settings.get(name) != stored.get(name)
  ]
  if differs or encoder.dim != card["dim"]:
    raise ValueError(f"{folder}: its vectors were made with another encoder ({'; '.join(differs)}): pass that encoder.")
  return encoder


def called(card: Mapping[str, Any]) -> str:
  """The name of an index's encoder: that of its folder, else its kind. `card` is the contents of index.json."""
  chosen = card["encoder"]
  return pathlib.Path(chosen["path"]).name.partition("@")[0] if chosen["kind"] == "model" else chosen["kind"]


def load_model(
  path: str | os.PathLike,
  *,
  setting: str = "encoder",
  spread: bool = False,
  stored: Mapping[str, Any] | None = None,
  **options: Any,
) -> Encoder:
  """A Flax text encoder from a Hugging Face folder or a name on the hub.

  Args:
    path: the folder or name.
    setting: what names it, for messages.
    spread: split each batch over this process's devices.
    stored: the settings that an index stores. They decide, whatever the folder declares or is called now.
    **options: those of `models.encoder.load_encoder`.
  """
  import jax  # imported here, since only such an index needs JAX and the models

  from ragrl_jax.models import encoder, encoder_settings
  from ragrl_jax.parallel import mesh

  if stored is not None:
    options |= dict(settings=encoder_settings.stored(stored), query_prefix=None)
  devices = jax.local_devices()
  if spread and len(devices) > 1:
    options["mesh"] = mesh.make(devices)
  if options.get("passage_path"):
    options["passage_path"] = hub.folder(options["passage_path"], setting)
  return encoder.load_encoder(hub.folder(path, setting), **options)
