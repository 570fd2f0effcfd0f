"""The teacher of a run: its model, with the policy's tokens, and the tokens of the policy that it scores."""

import concurrent.futures
import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ragrl_jax import structs
from ragrl_jax.chat import client
from ragrl_jax.core import schedules
from ragrl_jax.learner import advantages, packing, teacher
from ragrl_jax.models import hub, weights
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import hosts
from ragrl_jax.prompting import passages, tokenizer as tokenizer_lib
from ragrl_jax.run import rewards
from ragrl_jax.settings import Settings
from ragrl_jax.settings.learning import Teacher

SETTING = "config.loss.teacher.path"
AT_ONCE = 16  # calls
PROBE = "Who wrote it? I must search for that, and then answer: Ann, in 1999."


def load(config: Settings, policy: Decoder) -> Decoder | None:
  """The model of config.loss.teacher, on the policy's devices and in the dtype of its matmuls; None without another.

  Raises:
    ValueError: its weights cannot be read.
  """
  if not config.loss.teacher.local:
    return None
  dtype = jnp.dtype(config.model.dtype)
  model, _ = weights.load_pretrained(hub.folder(config.loss.teacher.path, SETTING), dtype=dtype, mesh=policy.mesh)
  model.tokenless = policy.tokenless
  return teacher.with_rows(model, policy.config.vocab_size)


def check_tokens(config: Settings, tokenizer: Any) -> None:
  """Raises a ValueError unless each of the tokenizer's ids stands for the same token in that of the teacher's model.

  A model of bytes has no files of a tokenizer, so it is not checked.
  """
  if not config.loss.teacher.local:
    return
  path = config.loss.teacher.path
  folder = hub.folder(path, SETTING, part="tokenizer")
  files = ("tokenizer.json", "tokenizer.model")
  if isinstance(tokenizer, tokenizer_lib.ByteTokenizer) and not any((folder / file).exists() for file in files):
    return
  teacher_tokenizer = tokenizer_lib.load_tokenizer(folder, chat=False)
  token = lambda of, i: (of.token_bytes(i), of.control_names.get(i)) if i < of.vocab_size else None
  other = next((i for i in range(tokenizer.vocab_size) if token(tokenizer, i) != token(teacher_tokenizer, i)), None)
  if other is not None:
    ours, its = (said and (said[1] or said[0]) for said in (token(tokenizer, other), token(teacher_tokenizer, other)))
    raise ValueError(
      f"{SETTING}={path!r}: id {other} is {its!r} there, and {ours!r} for the policy: a teacher scores the policy's "
      "own ids, so it must have the same tokenizer. Name a model of the policy's family."
    )


def coefficient(config: Settings, step: int) -> float:
  """The weight of the teacher's term at this step, counted from 1."""
  how = config.loss.teacher
  final = how.coef if how.final_coef is None else how.final_coef
  return schedules.ramp(step - 1, 0, (how.final_step or config.steps) - 1, how.coef, final)


def items(scored: Sequence[rewards.Scored], config: Settings, step: int, recipe, tokenizer) -> list[packing.Item]:
  """`rewards.items`, and with a teacher the weight of its term at each token, that of the step or 0.

  A policy that teaches itself reads another prompt, see `teacher_prompt`. Where there is none, nothing is taught. The
  step is counted from 1. The recipe writes the prompts and finds the answers.
  """
  how = config.loss.teacher
  result = rewards.items(scored, mask_truncated=config.loss.mask_truncated)
  if not how.path:
    return result
  coef = coefficient(config, step)
  for one, numbers in zip((one for one in scored if one.trains), advantages.by_episode(result), strict=True):
    failed = one.outcome is not None and one.outcome < 0.5
    weight = coef * (failed or how.episodes == "all")
    taught = weight * np.concatenate(_chosen(one.episode, how.tokens, recipe.parser, tokenizer)).astype(np.float32)
    for number in numbers:  # the conversations of the episode, in order
      model = result[number].turns >= 0
      weights = np.zeros(model.shape, np.float32)
      weights[model], taught = np.split(taught, [model.sum()])
      result[number] = dataclasses.replace(result[number], teaching=weights)
  return _with_prompts(result, scored, how.tells, recipe, tokenizer) if how.itself else result


def _with_prompts(items, scored: Sequence[rewards.Scored], tells: str, recipe, tokenizer) -> list[packing.Item]:
  """The items with the prompts that their teacher reads, one for the samples of a group."""
  prompts, result = {}, []
  for one in scored:
    if one.trains and (number := one.episode.prompt_index) not in prompts:
      shown = one.episode.segments[0].ids
      prompts[number] = shown, teacher_prompt(one.example, shown, tells, recipe, tokenizer)
  for item in items:
    shown, prompt = prompts[item.group_id]
    same = bool(prompt) and tuple(item.tokens[: len(shown)].tolist()) == shown  # no later conversation of the episode
    prompt = (len(shown), prompt) if same else (0, ())
    result.append(dataclasses.replace(item, teacher_prompt=prompt, teaching=item.teaching * same))
  return result


class RemoteTeacher:
  """A teacher behind an OpenAI-compatible server: it returns the log-probabilities of given ids, and nothing else.

  The request is vLLM's and SGLang's for a text of token ids that is echoed: POST /v1/completions with "echo" and
  "logprobs". The ids' log-probabilities are at temperature 1.

  Args:
    tokenizer: the policy's, compared with the server's by the texts of a few tokens.

  Raises:
    ValueError: the address is invalid, or the server's tokens have other texts.
    NoCompletion: the server gives no answer.
  """

  def __init__(self, settings: Teacher, tokenizer: Any):
    key = os.environ.get(settings.key_variable, "")
    self._client = client.Client(settings.path, settings.model, key=key)
    ids = tokenizer.encode(PROBE)
    texts = [token for token, _ in self._score(ids)]
    if b"".join(texts[: len(ids)]).strip() != PROBE.encode():
      raise ValueError(
        f"config.loss.teacher.path: {self._client.where} reads the policy's ids of {PROBE!r} as "
        f"{b''.join(texts[: len(ids)])!r}: a teacher must have the policy's tokenizer. Serve a model of its family."
      )

  def scores(self, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """For each text the log-probability of each of its ids, float32; 0 for the first one.

    Raises:
      NoCompletion: the server gives no answer, or one without log-probabilities of the ids.
    """
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
      return [np.asarray([0.0, *(x for _, x in one[1:])], np.float32) for one in pool.map(self._score, texts)]

  def _score(self, ids: Sequence[int]) -> list[tuple[bytes, float]]:
    ids = [int(i) for i in ids]
    reply = self._client.ask(ids, max_tokens=1, temperature=1.0, echo=True, logprobs=1)
    logprobs = list(reply.logprobs)[: len(ids)]
    if len(logprobs) < len(ids) or not all(math.isfinite(value) for _, value in logprobs[1:]):
      raise client.NoCompletion(
        f"{self._client.model} at {self._client.where} sent {len(logprobs)} log-probabilities for {len(ids)} ids: a "
        "teacher's server must score a given text (echo with logprobs, as vLLM and SGLang do). Or name a folder in "
        "config.loss.teacher.path."
      )
    return logprobs


def ask_teacher(items: Sequence[packing.Item], teacher: RemoteTeacher) -> list[packing.Item]:
  """The items with what a teacher behind a server says. Only the first host asks, about items that are taught."""
  result = [dataclasses.replace(item, teacher_logprobs=np.zeros(len(item.tokens), np.float32)) for item in items]
  taught = [number for number, item in enumerate(items) if np.any(item.teaching)]
  texts, empty = [items[number].tokens for number in taught], np.zeros(1, np.float32)
  scores = np.concatenate(teacher.scores(texts)) if texts and hosts.is_first() else empty
  scores = np.frombuffer(hosts.exchange_bytes(scores.tobytes())[0], np.float32)
  for number, item_scores in zip(taught, np.split(scores, np.cumsum([len(text) for text in texts])[:-1])):
    result[number] = dataclasses.replace(result[number], teacher_logprobs=item_scores)
  return result


def teacher_prompt(example: structs.Example, shown: tuple[int, ...], tells: str, recipe, tokenizer) -> list[int]:
  """The ids of a prompt that also says where or what the answer is (`tells`); empty if that is unknown.

  `shown` has the ids of the policy's own prompt.
  """
  if not (hint := _hint(example, tells)):
    return []
  *before, last = recipe.prompt.messages(example)
  if tuple(tokenizer.render([*before, last])) == shown:
    return tokenizer.render([*before, {**last, "content": f"{last['content'].rstrip()}\n\n{hint}\n"}])
  return [*tokenizer.encode(f"{hint}\n\n"), *shown]  # a prompt of another form, such as one that lists tools


def _hint(example: structs.Example, tells: str) -> str:
  if tells == "answer":
    return f"The answer is: {example.golds[0]}" if example.golds else ""
  supporting = [example.passages[number] for number in example.supporting]
  return f"The answer is in:{passages.block(supporting).rstrip()}" if supporting else ""


def check_prompts(config: Settings, examples: Sequence[structs.Example]) -> None:
  """Raises a ValueError if a policy that teaches itself could be told nothing about any of the questions."""
  how = config.loss.teacher
  if how.itself and not any(_hint(example, how.tells) for example in examples):
    lost = "" if config.data.own_passages else " with config.data.own_passages=False"
    raise ValueError(
      f"config.loss.teacher.tells={how.tells!r}: no question of config.data.train{lost} has "
      f"{'supporting passages' if how.tells == 'passages' else 'an answer'}, so the policy cannot teach itself. Train "
      "on questions that have them, or set tells='answer'."
    )


def _chosen(episode: structs.Episode, tokens: str, parser, tokenizer) -> list[np.ndarray]:
  """Whether each token of each model segment is one of these (config.loss.teacher.tokens)."""
  masks, queries = [], []
  for segment in reversed(structs.tagged(episode.segments)):
    if segment.owner == structs.ENVIRONMENT:
      queries += [segment.query] if segment.query else []
      continue
    answers = [answer] if (answer := parser.answer(segment.text)) else []
    # Of a turn with several calls the queries are joined, see the agents' recipes.
    queries = [part for one in queries for part in ([one] if one in segment.text else one.split("; "))]
    phrases = dict(all=[], queries=queries, answers=answers, thought=queries + answers)[tokens]
    in_phrase = _inside(segment.ids, phrases, tokenizer)
    masks.append(in_phrase if tokens in ("queries", "answers") else ~in_phrase)
    queries = []  # those of the turn before
  return masks[::-1]


def _inside(ids: Sequence[int], phrases: Sequence[str], tokenizer) -> np.ndarray:
  """Whether each token has a byte of the last occurrence of one of the phrases."""
  parts = [tokenizer.token_bytes(i) for i in ids] if phrases else []
  ends = np.cumsum([len(part) for part in parts])
  starts = ends - [len(part) for part in parts]
  result = np.zeros(len(ids), bool)
  for phrase in (phrase.encode() for phrase in phrases):
    if (at := b"".join(parts).rfind(phrase)) >= 0:
      result |= (starts < at + len(phrase)) & (ends > at)
  return result
