"""Settings for playing episodes: model, prompts, questions, retriever, judge, rollout, a model behind a server."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ragrl_jax import structs
from ragrl_jax.settings import fields
from ragrl_jax.settings.fields import Rules, Section, setting

DTYPES = ("float32", "bfloat16", "float16")
# Of models/families.py.
FAMILIES = (
  "qwen2", "qwen3", "qwen3_moe", "llama", "smollm3", "mistral", "ministral3", "gemma3_text", "qwen3_5_text"
)  # fmt: skip
JUDGES = ("none", "exact", "sub_em", "sub_em_words", "lexical", "nli", "llm", "reward_model")

# Fixed sizes of the engine.
PREFILL_ROWS = 4  # conversations per prefill call
MAX_PROMPTS = 8  # additional full conversations that fit into the cache, for shared prompts


@dataclasses.dataclass(frozen=True)
class Shape(Section, path="model.shape"):
  """The shape of a new decoder, if model.path is empty."""

  family: str = setting("qwen3", f"architecture: {', '.join(FAMILIES)}")
  d_model: int = setting(128, "width of the residual stream", unit="features")
  num_layers: int = setting(4, "depth", unit="layers")
  num_heads: int = setting(4, "queries of an attention layer", unit="heads")
  num_kv_heads: int = setting(2, "keys and values of an attention layer", unit="heads")
  head_dim: int = setting(32, "width of a head", unit="features")
  d_ff: int = setting(344, "width of the MLP", unit="features")
  rope_theta: float = setting(10_000.0, "base of the rotary embeddings' wavelengths")
  tied: bool = setting(True, "the output layer is the embedding")
  more: Mapping[str, Any] = fields.mapping("any other field of models.config.DecoderConfig, by its name", rest=True)

  def rules(self) -> Rules:
    yield (
      self.family in FAMILIES,
      f"config.model.shape.family={self.family!r}: it must be one of {', '.join(FAMILIES)}. A new family is added in "
      "ragrl_jax/models/families.py; CONTRIBUTING.md says how.",
    )


@dataclasses.dataclass(frozen=True)
class Lora(Section, path="model.lora"):
  """Low-rank adapters."""

  rank: int = setting(0, "only adapters of this rank are trained, in float32; 0: all parameters", unit="features")
  alpha: float = setting(16.0, "the adapters' output is scaled by alpha / rank")
  layers: str = setting("q k v o gate up down", "matrices with adapters: words, each a regular expression")
  path: str = setting("", "PEFT folder or Hugging Face name to start from; it determines rank, alpha and layers")

  def rules(self) -> Rules:
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
class Model(Section, path="model"):
  """The policy."""

  path: str = setting("", "folder or Hugging Face name to start from; empty: a new model of `shape`")
  shape: Shape = Shape()
  param_dtype: str = setting("float32", "dtype of the stored (master) weights", choices=DTYPES)
  dtype: str = setting("float32", "dtype of the matmuls; bfloat16 on accelerators", choices=DTYPES)
  remat: bool = setting(False, "recompute activations in the backward pass; one GPU keeps those that fit")
  lora: Lora = Lora()


@dataclasses.dataclass(frozen=True)
class Prompting(Section, path="prompting"):
  """How messages become tokens."""

  tokenizer: str = setting("", "folder, Hugging Face name or sentencepiece file; empty: the model's")
  chat: bool = setting(True, "render messages with the tokenizer's chat template; False: bare text")
  markers: str = setting(
    "template",
    "role markers; own: the library's, for a template that rewrites earlier turns",
    choices=("template", "own"),
  )
  thinking: str = setting(
    "default",
    "for reasoning models: off opens the model's turn with an empty <think> block, as Qwen3's template does; with on "
    "and default the model thinks as it was trained (a template may handle on and off itself)",
    choices=("default", "on", "off"),
  )


@dataclasses.dataclass(frozen=True)
class Data(Section, path="data"):
  """Questions."""

  train: str = setting("", 'training questions: FILE (JSON, CSV, Parquet …), folder, glob or "hf:name/subset/split"')
  hard: str = setting("", "for a recipe with a curriculum: the hard questions; `train` has the easy ones")
  evaluate: str = setting("", "held-out questions")
  max_examples: int = setting(0, "most questions to read, from the first on; 0: all", unit="questions", least=0)
  drop_unanswerable: bool = setting(False, "skip training questions that are marked as unanswerable (MS MARCO)")
  drop_long: bool = setting(
    False, "in RL: skip training questions whose prompt leaves no room for rollout.max_new_tokens"
  )
  cut_middle: bool = setting(False, "in evaluation: cut passages in the middle if a turn would not fit")
  own_passages: bool = setting(True, "False: questions lose their own passages, so that a recipe must search")
  evidence: str = setting("", "in evaluation: questions with gold sentences, for data without them")
  noise: int = setting(0, "random passages added to each question of an evaluation", unit="passages", least=0)


@dataclasses.dataclass(frozen=True)
class Retrieval(Section, path="retrieval"):
  """The retriever."""

  index: str = setting("", "an index's folder, a retriever's or database's address, or those of all parts, by commas")
  key_variable: str = setting("", "environment variable with the token for these addresses; empty: no token")
  top_k: int = setting(3, "passages per search", unit="passages", least=1)
  timeout_s: float = setting(30.0, "most time for a call", unit="seconds", above=0)
  retries: int = setting(3, "retries of a failed call", unit="calls", least=0)
  wait_s: float = setting(300.0, "most time to wait for a retriever that stopped answering", unit="seconds", least=0)
  query_encoder: str = setting("", "folder or Hugging Face name of an encoder, for recipes that compare queries")
  max_failed_share: float = setting(
    0.1, "episodes of a step with a failed tool; if it is exceeded, the run stops", unit="share", least=0, most=1
  )


@dataclasses.dataclass(frozen=True)
class Judge(Section, path="judge"):
  """The model or rule that gives verdicts."""

  kind: str = setting("none", "what gives verdicts", choices=JUDGES)
  prompt: str = setting("information_think", "the question to the judge: a name in judging/prompts.py")
  wording: str = setting("", "llm, reward_model: wording of the question; empty: ours", choices=("",), files=True)
  path: str = setting("", "folder or Hugging Face name; nli: of a T5; reward_model: of a decoder or its adapters")
  endpoint: str = setting("", 'llm: "http(s)://host/v1" of an OpenAI-compatible server; empty: OpenAI\'s')
  model: str = setting("", "llm: the model's name at the server")
  key_variable: str = setting("OPENAI_API_KEY", "llm: environment variable with the key, which is never stored")
  threshold: float = setting(
    0.5, "lexical, nli, reward_model: from here a score counts as 1, below as 0; 0: the score itself", least=0, most=1
  )
  cache: str = setting("", "file that caches verdicts between runs; empty: no cache")
  timeout_s: float = setting(30.0, "llm: most time for a call", unit="seconds", above=0)
  retries: int = setting(3, "llm: retries of a failed call", unit="calls", least=0)
  concurrency: int = setting(16, "llm: most calls at the same time", unit="calls", least=1)
  batch: int = setting(8, "nli, reward_model: pairs per batch", unit="pairs", least=1)
  max_tokens: int = setting(1024, "nli, reward_model: longest pair; longer ones are cut", unit="tokens", least=1)
  max_failed_share: float = setting(
    0.5, "episodes of a step without a verdict; if it is exceeded, the run stops", unit="share", least=0, most=1
  )


@dataclasses.dataclass(frozen=True)
class Filter(Section, path="rollout.filter"):
  """Dynamic sampling: a step trains on groups whose samples differ."""

  metric: str = setting(
    "none",
    "the value that must differ within a group: outcome (0 or 1), or total (the reward); none: all groups are kept",
    choices=("none", "outcome", "total"),
  )
  tolerance: float = setting(1e-6, "differences up to this do not count", least=0)
  max_draws: int = setting(4, "a step draws at most this times prompts_per_step prompts", unit="draws", least=1)
  surplus: str = setting(
    "discard", "extra groups; keep: they are in the next step, one step stale", choices=("discard", "keep")
  )


@dataclasses.dataclass(frozen=True)
class RolloutMesh(Section, path="rollout.mesh"):
  """The devices of an engine, which are those of one or several hosts. Independent of the learner's config.mesh."""

  replicas: int = setting(
    0,
    "replicas per engine, each with all weights and its own lanes and pages; 0: the fewest that fill whole hosts",
    unit="replicas",
    least=0,
  )
  tensor: int = setting(1, "devices over which a replica's weights are split", unit="devices", least=1)


@dataclasses.dataclass(frozen=True)
class Rollout(Section, path="rollout"):
  """How episodes are sampled. A step has prompts_per_step · group_size episodes."""

  prompts_per_step: int = setting(32, "P: prompts of a step", unit="prompts", least=1)
  group_size: int = setting(8, "G: samples of each prompt", unit="samples", least=1)
  lanes: int = setting(32, "W: conversations that an engine decodes at the same time", unit="conversations", least=1)
  rows: int = setting(64, "C: conversations in the cache, at least `lanes`; others wait", unit="conversations", least=1)
  context: int = setting(512, "longest conversation", unit="tokens", least=1)
  chunk: int = setting(16, "steps per decode call; each samples one token for every lane", unit="steps", least=1)
  speculate: int = setting(
    0,
    "tokens drafted per step from the conversation's own text, kept as far as they equal the sampled ones: the same "
    "text in fewer steps; 0: no drafts",
    unit="tokens",
    least=0,
  )
  prefill: int = setting(64, "tokens of a conversation per prefill call", unit="tokens", least=1)
  page: int = setting(
    64,
    "tokens per page of the cache: 64 to 256 on accelerators; 32 to 64 on CPUs, where attention reads whole pages for "
    "every lane, up to the end of the longest conversation",
    unit="tokens",
    least=1,
  )
  pages: int = setting(
    0,
    "pages of an engine's cache; conversations without one wait in the host's memory; 0: enough for all `rows`",
    unit="pages",
    least=0,
  )
  kv_dtype: str = setting(
    "model",
    "dtype of the cache; model: model.dtype; int8 (a scale per token and head): half of bfloat16",
    choices=("model", "bfloat16", "int8"),
  )
  mesh: RolloutMesh = RolloutMesh()
  temperature: float = setting(1.0, "logits are divided by it", above=0)
  top_k: int = setting(0, "sample from the likeliest tokens only; 0: all", unit="tokens", least=0)
  top_p: float = setting(1.0, "sample from the fewest tokens with this probability", unit="share", above=0, most=1)
  max_new_tokens: int = setting(64, "longest turn", unit="tokens", least=1)
  reserve: int = setting(
    0,
    "tokens that search results must leave for the next turn, at most max_new_tokens, else the episode ends without "
    "them; 0: max_new_tokens",
    unit="tokens",
  )
  ahead: int = setting(
    0,
    "1: the next step is sampled while this one is learned, so it is one step stale, which loss.importance_cap "
    "corrects; the engine keeps a copy of the weights",
    unit="steps",
    choices=(0, 1),
  )
  filter: Filter = Filter()

  @property
  def least_room(self) -> int:
    """Tokens that search results leave for the next turn; a turn uses no more than max_new_tokens."""
    return min(self.reserve or self.max_new_tokens, self.max_new_tokens)

  @property
  def sampling(self) -> "structs.Sampling":
    """How each token is sampled."""
    return structs.Sampling(self.temperature, self.top_k, self.top_p, self.max_new_tokens)

  def rules(self) -> Rules:
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


@dataclasses.dataclass(frozen=True)
class Endpoint(Section, path="endpoint"):
  """A model behind an OpenAI-compatible server. In evaluations it answers instead of a checkpoint."""

  model: str = setting("", "the model's name at the server; empty: a checkpoint answers")
  url: str = setting("", '"http(s)://host/v1"; empty: OpenAI\'s server')
  key_variable: str = setting("OPENAI_API_KEY", "environment variable with the key, which is never stored")
  protocol: str = setting(
    "chat",
    "chat: search results become user messages; continue: a chat whose last message the server continues, as in vLLM; "
    "completions: one text, rendered with the chat template of config.prompting.tokenizer",
    choices=("chat", "continue", "completions"),
  )
  limit: str = setting(
    "max_tokens", "request's field for a turn's length", choices=("max_tokens", "max_completion_tokens")
  )
  omit: str = setting("", "fields that the server refuses, separated by commas: temperature, top_p, stop")
  more: Mapping[str, Any] = fields.mapping("further fields of every call, such as reasoning_effort")
  logprobs: bool = setting(False, "request log-probabilities, for recipes that use them")
  cache: str = setting("", "file that caches answers between evaluations; empty: a file of this evaluation")
  concurrency: int = setting(16, "most calls at the same time", unit="calls", least=1)
  timeout_s: float = setting(600.0, "most time for a call", unit="seconds", above=0)
  deadline_s: float = setting(1800.0, "most time for an answer: all its calls and waits", unit="seconds", above=0)
  retries: int = setting(5, "retries of a failed call", unit="calls", least=0)
  input_price: float = setting(0.0, "price of the questions", unit="currency per million tokens", least=0)
  output_price: float = setting(0.0, "price of the answers", unit="currency per million tokens", least=0)

  def rules(self) -> Rules:
    odd = [name for name in self.omitted if name not in ("temperature", "top_p", "stop")]
    yield not odd, f"config.endpoint.omit={self.omit!r}: {odd[:1]} must be temperature, top_p or stop."
    own = {"model", "messages", "prompt", *({"temperature", "stop", self.limit} - {*self.omitted})}
    sent = sorted(own & self.more.keys())
    yield (
      not sent,
      f"config.endpoint.more sets {sent[:1]}, which each call has already, from config.endpoint.model, config.rollout "
      "or the recipe. Leave it out, or name it in config.endpoint.omit if it is temperature or stop.",
    )

  @property
  def omitted(self) -> tuple[str, ...]:
    """The names in `omit`."""
    return tuple(name.strip() for name in self.omit.split(",") if name.strip())
