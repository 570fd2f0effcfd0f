"""Settings of playing: model, prompts, questions, retriever, judge, rollout. Each comment gives unit and meaning."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ragrl_jax import structs
from ragrl_jax.settings import fields
from ragrl_jax.settings.fields import Rules, Section, setting

DTYPES = ("float32", "bfloat16", "float16")
FAMILIES = ("qwen2", "qwen3", "qwen3_moe", "llama", "mistral", "gemma3_text")  # those of models/families.py
JUDGES = ("none", "exact", "sub_em", "sub_em_words", "lexical", "nli", "llm", "reward_model")

# Sizes of the engine that no setting changes.
PREFILL_ROWS = 4  # conversations of one prefill call
MAX_PROMPTS = 8  # additional conversations of the full context that the cache has room for, for shared prompts


@dataclasses.dataclass(frozen=True)
class Shape(Section):
  """The decoder that is made if model.path is empty."""

  PATH = "model.shape"

  family: str = "qwen3"  # one of FAMILIES
  d_model: int = 128
  num_layers: int = 4
  num_heads: int = 4
  num_kv_heads: int = 2
  head_dim: int = 32
  d_ff: int = 344
  rope_theta: float = 10_000.0
  tied: bool = True
  more: Mapping[str, Any] = fields.rest()  # any other field of models.config.DecoderConfig, by name

  def rules(self) -> Rules:
    """See `Checked.rules`."""
    yield (
      self.family in FAMILIES,
      f"config.model.shape.family={self.family!r}: it must be one of {', '.join(FAMILIES)}. A new family is added in "
      "ragrl_jax/models/families.py; CONTRIBUTING.md says how.",
    )


@dataclasses.dataclass(frozen=True)
class Lora(Section):
  """Low-rank adapters."""

  PATH = "model.lora"

  rank: int = 0  # 0: every parameter is trained; else only the adapters, in float32
  alpha: float = 16.0  # the adapters' output is scaled by alpha / rank
  layers: str = "q k v o gate up down"  # matrices with adapters: words, each a regular expression (models/lora.py)
  path: str = ""  # PEFT folder to start from; it determines rank, alpha and layers

  def rules(self) -> Rules:
    """See `Checked.rules`."""
    yield (
      self.rank >= 0 and self.alpha > 0,
      f"config.model.lora.rank={self.rank}, alpha={self.alpha}: rank must be at least 0 (no adapters), alpha above 0.",
    )
    yield (
      not (self.rank and self.path),
      f"config.model.lora.rank={self.rank} with path={self.path!r}: the folder says the rank. Set rank to 0, or leave "
      "path empty for fresh adapters.",
    )


@dataclasses.dataclass(frozen=True)
class Model(Section):
  """The policy."""

  PATH = "model"

  path: str = ""  # Hugging Face folder to start from; empty: a new model of `shape`
  shape: Shape = Shape()
  param_dtype: str = setting("float32", choices=DTYPES)  # dtype of the stored (master) weights
  dtype: str = setting("float32", choices=DTYPES)  # dtype of the matmuls; bfloat16 on accelerators
  remat: bool = False  # recompute a layer's activations in the backward pass
  lora: Lora = Lora()


@dataclasses.dataclass(frozen=True)
class Prompting(Section):
  """How messages become tokens."""

  PATH = "prompting"

  tokenizer: str = ""  # folder or sentencepiece file; empty: the model's folder
  chat: bool = True  # render messages with the tokenizer's chat template; False: bare text
  # "own": the library's role markers, for a template that rewrites earlier turns
  markers: str = setting("template", choices=("template", "own"))
  # of reasoning models: "off" opens the model's turn with an empty <think> block, as Qwen3's template does; "on" and
  # "default": it thinks as it was trained to (a template may know "on" and "off" itself)
  thinking: str = setting("default", choices=("default", "on", "off"))


@dataclasses.dataclass(frozen=True)
class Data(Section):
  """Questions."""

  PATH = "data"

  train: str = ""  # FILE.jsonl[.gz], a folder's glob, or "hf:name/subset/split"
  hard: str = ""  # for a recipe with a curriculum: the hard questions; `train` has the easy ones
  evaluate: str = ""  # held-out questions
  max_examples: int = setting(0, least=0)  # questions read; 0: all
  drop_unanswerable: bool = False  # skip training questions that their set marks as without an answer (MS MARCO)
  drop_long: bool = False  # skip training questions whose prompt leaves no room for max_new_tokens
  cut_middle: bool = False  # in evaluation: shorten passages in the middle if the prompt leaves no such room
  own_passages: bool = True  # False: questions lose the passages of their rows, so that a recipe that can searches
  evidence: str = ""  # in evaluation: questions with marked gold sentences, for data that marks none
  noise: int = setting(0, least=0)  # random passages of other questions added to each question of an evaluation


@dataclasses.dataclass(frozen=True)
class Retrieval(Section):
  """The retriever."""

  PATH = "retrieval"

  # folder of build_index, the http://… address of a retriever, or those of all parts of a corpus with commas between
  index: str = ""
  key_variable: str = ""  # environment variable with the token for those addresses; "": none is sent
  top_k: int = setting(3, least=1)  # passages of one search
  timeout_s: float = setting(30.0, above=0)  # seconds a call may take
  retries: int = setting(3, least=0)  # retries of a failed call
  wait_s: float = setting(300.0, least=0)  # seconds to wait for a retriever at an address that stopped answering
  query_encoder: str = ""  # folder of an encoder, for recipes that compare queries with each other
  max_failed_share: float = setting(0.1, least=0, most=1)  # share of a step's episodes; above it, the run stops


@dataclasses.dataclass(frozen=True)
class Judge(Section):
  """The model or rule that gives verdicts."""

  PATH = "judge"

  kind: str = setting("none", choices=JUDGES)
  prompt: str = "information_think"  # the question to the judge: a name of judging/prompts.py
  # llm, reward_model: the words of that question; "": ours
  wording: str = setting("", choices=("",), files=True)
  path: str = ""  # nli: folder of a T5; reward_model: folder of a decoder, or of its adapters
  endpoint: str = ""  # llm: "http(s)://host/v1" of a server of OpenAI's chat protocol; empty: OpenAI's own
  model: str = ""  # llm: the model's name at that server
  key_variable: str = "OPENAI_API_KEY"  # llm: environment variable with the key; the key is never stored
  # lexical, nli, reward_model: scores from here on count as 1, others as 0; 0: the score itself
  threshold: float = setting(0.5, least=0, most=1)
  cache: str = ""  # file that keeps verdicts between runs; empty: none
  timeout_s: float = setting(30.0, above=0)  # llm: seconds a call may take
  retries: int = setting(3, least=0)  # llm: retries of a failed call
  concurrency: int = setting(16, least=1)  # llm: calls at the same time
  batch: int = setting(8, least=1)  # nli, reward_model: pairs computed together
  max_tokens: int = setting(1024, least=1)  # nli, reward_model: tokens of a pair
  # share of a step's episodes without a verdict; above it, the run stops
  max_failed_share: float = setting(0.5, least=0, most=1)


@dataclasses.dataclass(frozen=True)
class Filter(Section):
  """Dynamic sampling: a step trains on groups whose samples differ."""

  PATH = "rollout.filter"

  # what must differ within a group: "outcome" (0 or 1), "total" (the reward); "none": every group is trained on
  metric: str = setting("none", choices=("none", "outcome", "total"))
  tolerance: float = setting(1e-6, least=0)  # largest difference that does not count
  max_draws: int = setting(4, least=1)  # a step draws at most max_draws · prompts_per_step prompts
  # what to do with extra groups: "keep" trains the next step on them, one step stale
  surplus: str = setting("discard", choices=("discard", "keep"))


@dataclasses.dataclass(frozen=True)
class RolloutMesh(Section):
  """An engine's devices: those of a host or of several; independent of config.mesh, on which they learn."""

  PATH = "rollout.mesh"

  # each has all weights, its own lanes and its own pages; 0: as many as fill the fewest whole hosts
  replicas: int = setting(0, least=0)
  tensor: int = setting(1, least=1)  # devices that share the weights of a replica


@dataclasses.dataclass(frozen=True)
class Rollout(Section):
  """How episodes are sampled. A step has prompts_per_step · group_size episodes."""

  PATH = "rollout"

  prompts_per_step: int = setting(32, least=1)  # P
  group_size: int = setting(8, least=1)  # G: samples of a prompt
  lanes: int = setting(32, least=1)  # W: conversations that an engine decodes together
  rows: int = setting(64, least=1)  # C: a new episode waits while an engine's cache has this many; at least `lanes`
  context: int = setting(512, least=1)  # tokens of the longest conversation
  chunk: int = setting(16, least=1)  # steps of a decode call: each draws a token for every lane
  # tokens drafted for each step from the conversation's own text, and drawn with its token as far as they are what it
  # would have drawn: fewer steps, the same tokens. 0: none
  speculate: int = setting(0, least=0)
  prefill: int = setting(64, least=1)  # tokens a conversation reads per prefill call
  # tokens of a page of the cache: 64 to 256 on accelerators. On CPUs 32 to 64, since attention there reads whole pages
  # for every lane, up to the end of the longest conversation
  page: int = setting(64, least=1)
  # pages of an engine's cache; conversations without a page are swapped to the host's memory. 0: enough for `rows` full
  # conversations
  pages: int = setting(0, least=0)
  # of keys and values in the cache: "model" is model.dtype; "int8" has a scale a token and head: half of bf16's memory
  kv_dtype: str = setting("model", choices=("model", "bfloat16", "int8"))
  mesh: RolloutMesh = RolloutMesh()
  temperature: float = setting(1.0, above=0)
  top_k: int = setting(0, least=0)  # sample from the k likeliest tokens; 0: all
  top_p: float = setting(1.0, above=0, most=1)  # sample from the smallest set of tokens with this probability
  max_new_tokens: int = setting(64, least=1)  # tokens of a turn
  # tokens that search results must leave for the next turn, or the episode ends without them; 0: max_new_tokens
  reserve: int = 0
  # 1: one version of the weights samples two steps, and the second is sampled while the first is learned. It is one
  # step stale; the engine then keeps a copy of the weights, and loss.importance_cap corrects for the lag
  ahead: int = setting(0, choices=(0, 1))
  filter: Filter = Filter()

  @property
  def sampling(self) -> structs.Sampling:
    """How each token is drawn."""
    return structs.Sampling(self.temperature, self.top_k, self.top_p, self.max_new_tokens)

  def rules(self) -> Rules:
    """See `Checked.rules`."""
    yield (
      self.rows >= self.lanes,
      f"config.rollout.rows={self.rows} is less than lanes={self.lanes}: every lane decodes a conversation. Raise rows "
      "(twice the lanes hides searches) or lower lanes.",
    )
    yield (
      self.max_new_tokens < self.context,
      f"config.rollout.max_new_tokens={self.max_new_tokens} leaves no room for a prompt in context={self.context}: "
      "raise context or lower max_new_tokens.",
    )
    yield (
      self.prefill <= self.context,
      f"config.rollout.prefill={self.prefill} is more than context={self.context}: a row takes in so many tokens at a "
      "time. Lower prefill or raise context.",
    )
    yield (
      self.speculate < self.context,
      f"config.rollout.speculate={self.speculate} drafts no fewer tokens than context={self.context} holds: 4 to 8 are "
      "usual, 0 drafts none.",
    )
    yield (
      0 <= self.reserve < self.context,
      f"config.rollout.reserve={self.reserve}: it must be 0 (a whole turn of max_new_tokens), or at least 1 and less "
      f"than context={self.context}.",
    )
    yield (
      self.filter.metric == "none" or self.group_size > 1,
      f"config.rollout.filter.metric={self.filter.metric!r} with group_size=1: no group of one has a spread, so all "
      "would be discarded. Raise group_size, or set the metric to 'none'.",
    )
    yield (
      not self.ahead or self.filter.surplus == "discard",
      "config.rollout.filter.surplus='keep' with config.rollout.ahead=1: groups kept from a step that was sampled "
      "ahead would be two steps stale. Discard them, or set ahead to 0.",
    )
