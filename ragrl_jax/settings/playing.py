"""Settings for playing episodes: model, prompts, questions, retriever, judge, rollout, each with unit and meaning."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ragrl_jax import structs
from ragrl_jax.settings import fields
from ragrl_jax.settings.fields import Rules, Section, setting

DTYPES = ("float32", "bfloat16", "float16")
FAMILIES = ("qwen2", "qwen3", "qwen3_moe", "llama", "mistral", "gemma3_text")  # those of models/families.py
JUDGES = ("none", "exact", "sub_em", "sub_em_words", "lexical", "nli", "llm", "reward_model")

# Fixed sizes of the engine.
PREFILL_ROWS = 4  # conversations per prefill call
MAX_PROMPTS = 8  # additional full conversations that fit into the cache, for shared prompts


@dataclasses.dataclass(frozen=True)
class Shape(Section):
  """The shape of a new decoder, if model.path is empty."""

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

  rank: int = 0  # 0: all parameters are trained; else only the adapters, in float32
  alpha: float = 16.0  # the adapters' output is scaled by alpha / rank
  layers: str = "q k v o gate up down"  # matrices with adapters: words, each a regular expression (models/lora.py)
  path: str = ""  # PEFT folder or Hugging Face name to start from; it determines rank, alpha and layers

  def rules(self) -> Rules:
    """See `Checked.rules`."""
    yield (
      self.rank >= 0 and self.alpha > 0,
      f"config.model.lora.rank={self.rank}, alpha={self.alpha}: rank must be at least 0 (no adapters), alpha above 0.",
    )
    yield (
      not (self.rank and self.path),
      f"config.model.lora.rank={self.rank} with path={self.path!r}: the folder determines the rank. Set rank to 0, or "
      "leave path empty for new adapters.",
    )


@dataclasses.dataclass(frozen=True)
class Model(Section):
  """The policy."""

  PATH = "model"

  path: str = ""  # folder or Hugging Face name to start from; empty: a new model of `shape`
  shape: Shape = Shape()
  param_dtype: str = setting("float32", choices=DTYPES)  # dtype of the stored (master) weights
  dtype: str = setting("float32", choices=DTYPES)  # dtype of the matmuls; bfloat16 on accelerators
  remat: bool = False  # recompute a layer's activations in the backward pass
  lora: Lora = Lora()


@dataclasses.dataclass(frozen=True)
class Prompting(Section):
  """How messages become tokens."""

  PATH = "prompting"

  tokenizer: str = ""  # folder, Hugging Face name or sentencepiece file; empty: the model's
  chat: bool = True  # render messages with the tokenizer's chat template; False: bare text
  # "own": the library's role markers, for a template that rewrites earlier turns
  markers: str = setting("template", choices=("template", "own"))
  # for reasoning models: "off" opens the model's turn with an empty <think> block, as Qwen3's template does; with "on"
  # and "default" the model thinks as it was trained (a template may handle "on" and "off" itself)
  thinking: str = setting("default", choices=("default", "on", "off"))


@dataclasses.dataclass(frozen=True)
class Data(Section):
  """Questions."""

  PATH = "data"

  train: str = ""  # FILE.jsonl[.gz], a glob, or "hf:name/subset/split"
  hard: str = ""  # for a recipe with a curriculum: the hard questions; `train` has the easy ones
  evaluate: str = ""  # held-out questions
  max_examples: int = setting(0, least=0)  # most questions to read; 0: all
  drop_unanswerable: bool = False  # skip training questions that are marked as unanswerable (MS MARCO)
  drop_long: bool = False  # skip training questions whose prompt leaves no room for max_new_tokens
  cut_middle: bool = False  # in evaluation: cut passages in the middle if the prompt leaves no room for max_new_tokens
  own_passages: bool = True  # False: questions lose their own passages, so that a recipe must search
  evidence: str = ""  # in evaluation: questions with gold sentences, for data without them
  noise: int = setting(0, least=0)  # random passages of other questions added to each question of an evaluation


@dataclasses.dataclass(frozen=True)
class Retrieval(Section):
  """The retriever."""

  PATH = "retrieval"

  # an index's folder, the http://… address of a retriever, or comma-separated addresses of all parts of a corpus
  index: str = ""
  key_variable: str = ""  # environment variable with the token for these addresses; "": no token
  top_k: int = setting(3, least=1)  # passages per search
  timeout_s: float = setting(30.0, above=0)  # most seconds of a call
  retries: int = setting(3, least=0)  # retries of a failed call
  wait_s: float = setting(300.0, least=0)  # most seconds to wait for a retriever that stopped answering
  query_encoder: str = ""  # folder or Hugging Face name of an encoder, for recipes that compare queries with each other
  # the run stops if a tool failed in more than this share of a step's episodes
  max_failed_share: float = setting(0.1, least=0, most=1)


@dataclasses.dataclass(frozen=True)
class Judge(Section):
  """The model or rule that gives verdicts."""

  PATH = "judge"

  kind: str = setting("none", choices=JUDGES)
  prompt: str = "information_think"  # the question to the judge: a name in judging/prompts.py
  # llm, reward_model: the wording of the question; "": the default wording
  wording: str = setting("", choices=("",), files=True)
  path: str = ""  # folder or Hugging Face name; nli: of a T5; reward_model: of a decoder or its adapters
  endpoint: str = ""  # llm: "http(s)://host/v1" of an OpenAI-compatible server; empty: OpenAI's server
  model: str = ""  # llm: the model's name at the server
  key_variable: str = "OPENAI_API_KEY"  # llm: environment variable with the key; the key is never stored
  # lexical, nli, reward_model: scores of at least this count as 1, others as 0; 0: the score itself
  threshold: float = setting(0.5, least=0, most=1)
  cache: str = ""  # file that caches verdicts between runs; empty: no cache
  timeout_s: float = setting(30.0, above=0)  # llm: most seconds of a call
  retries: int = setting(3, least=0)  # llm: retries of a failed call
  concurrency: int = setting(16, least=1)  # llm: most calls at the same time
  batch: int = setting(8, least=1)  # nli, reward_model: pairs per batch
  max_tokens: int = setting(1024, least=1)  # nli, reward_model: most tokens of a pair
  # the run stops if more than this share of a step's episodes have no verdict
  max_failed_share: float = setting(0.5, least=0, most=1)


@dataclasses.dataclass(frozen=True)
class Filter(Section):
  """Dynamic sampling: a step trains on groups whose samples differ."""

  PATH = "rollout.filter"

  # the value that must differ within a group: "outcome" (0 or 1) or "total" (the reward); "none": all groups are kept
  metric: str = setting("none", choices=("none", "outcome", "total"))
  tolerance: float = setting(1e-6, least=0)  # differences up to this do not count
  max_draws: int = setting(4, least=1)  # a step draws at most max_draws · prompts_per_step prompts
  # what to do with extra groups: "keep" trains the next step on them, one step stale
  surplus: str = setting("discard", choices=("discard", "keep"))


@dataclasses.dataclass(frozen=True)
class RolloutMesh(Section):
  """The devices of an engine, which are those of one or several hosts. Independent of the learner's config.mesh."""

  PATH = "rollout.mesh"

  # replicas per engine; each has all weights, its own lanes and its own pages. 0: the fewest that fill whole hosts
  replicas: int = setting(0, least=0)
  tensor: int = setting(1, least=1)  # devices over which a replica's weights are split


@dataclasses.dataclass(frozen=True)
class Rollout(Section):
  """How episodes are sampled. A step has prompts_per_step · group_size episodes."""

  PATH = "rollout"

  prompts_per_step: int = setting(32, least=1)  # P
  group_size: int = setting(8, least=1)  # G: samples per prompt
  lanes: int = setting(32, least=1)  # W: conversations that an engine decodes at the same time
  rows: int = setting(64, least=1)  # C: conversations in an engine's cache, at least `lanes`; further episodes wait
  context: int = setting(512, least=1)  # most tokens of a conversation
  chunk: int = setting(16, least=1)  # steps per decode call; a step samples one token for every lane
  # tokens drafted per step from the conversation's own text. Drafts are kept as far as they equal the sampled tokens,
  # so the tokens are the same in fewer steps. 0: no drafts
  speculate: int = setting(0, least=0)
  prefill: int = setting(64, least=1)  # tokens of a conversation per prefill call
  # tokens per page of the cache: 64 to 256 on accelerators. 32 to 64 on CPUs, where attention reads whole pages for
  # every lane, up to the end of the longest conversation
  page: int = setting(64, least=1)
  # pages of an engine's cache; conversations without a page are swapped to the host's memory. 0: enough for `rows` full
  # conversations
  pages: int = setting(0, least=0)
  # dtype of keys and values in the cache: "model" is model.dtype; "int8" (a scale per token and head) is half of bf16
  kv_dtype: str = setting("model", choices=("model", "bfloat16", "int8"))
  mesh: RolloutMesh = RolloutMesh()
  temperature: float = setting(1.0, above=0)
  top_k: int = setting(0, least=0)  # sample from the k likeliest tokens; 0: all
  top_p: float = setting(1.0, above=0, most=1)  # sample from the smallest set of tokens with this probability
  max_new_tokens: int = setting(64, least=1)  # most tokens of a turn
  # tokens that search results must leave for the next turn; else the episode ends without them. 0: max_new_tokens
  reserve: int = 0
  # 1: one version of the weights samples two steps. The second step is sampled while the first is learned, so it is one
  # step stale. The engine keeps a copy of the weights, and loss.importance_cap corrects for the staleness
  ahead: int = setting(0, choices=(0, 1))
  filter: Filter = Filter()

  @property
  def sampling(self) -> structs.Sampling:
    """How each token is sampled."""
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
      f"config.rollout.prefill={self.prefill} is more than context={self.context}: a conversation cannot read more "
      "tokens at a time than it has. Lower prefill or raise context.",
    )
    yield (
      self.speculate < self.context,
      f"config.rollout.speculate={self.speculate} must be less than context={self.context}: 4 to 8 are usual, 0 drafts "
      "no tokens.",
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
