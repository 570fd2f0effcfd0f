"""Signs of how an episode was thought: the numbers of one episode whose means the detectors watch (detectors.py).

Their names are those of docs/metrics.md.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import compress

from ragrl_jax.core.metrics import thought
from ragrl_jax.core.rewards import queries
from ragrl_jax.store.episodes import pieces
from ragrl_jax.structs import MODEL, Episode, tagged

THOUGHT = thought.KINDS.index("thought")
_OPENED = re.compile(r"<[A-Za-z_][\w-]*>\s*$")


def asked(episodes: Sequence[Episode]) -> list[dict[str, float]]:
  """The signs of each episode of a step in its searches, and its length; without those that it cannot show.

  A query is shared if it is asked for two of their questions.
  """
  queries_of_episodes = [[queries.plain(search.query or "") for search in episode.searches] for episode in episodes]
  prompts: dict[str, set[int]] = defaultdict(set)
  for episode, texts in zip(episodes, queries_of_episodes):
    for query in texts:
      prompts[query].add(episode.prompt_index)
  result = []
  for episode, texts in zip(episodes, queries_of_episodes):
    signs = dict(response_tokens=float(episode.num_model_tokens), searches=float(len(texts)))
    if texts:
      signs["queries/repeated"] = 1.0 - len(set(texts)) / len(texts)
      signs["queries/shared"] = sum(len(prompts[query]) > 1 for query in texts) / len(texts)
    result.append(signs)
  return result


def written(parser, tokenizer, episode: Episode) -> dict[str, float]:
  """The signs in the text that the model wrote: kinds of tokens, repeated words, broken tags and an answer.

  The recipe's parser finds the answer in a turn's text, the tokenizer gives the text of each token.
  """
  thoughts, broken, count, answers = [], False, Counter(), [episode.facts.get("answer")]
  surprise: dict[str, float] = defaultdict(float)
  for segments in episode.conversations:
    for segment, read, after in zip(segments, tagged(segments), (*segments[1:], None)):
      if segment.owner != MODEL:
        continue
      answers.append(parser.answer(read.text))
      at = read.text.index(segment.text)
      kinds = thought.kinds(read.text, after and after.query, answers[-1])[at : at + len(segment.text)]
      kind = kinds.tobytes()
      thoughts.append("".join(compress(segment.text, map(THOUGHT.__eq__, kind))))
      end = 0
      for piece, logprob in zip(pieces(tokenizer, segment.ids), segment.logprobs):
        end += len(piece)
        if piece and end <= len(kind):  # the end of a turn is no character of its text
          name = thought.KINDS[kind[end - 1]]  # of its last character, since the first may be a space
          count[name] += 1
          surprise[name] -= logprob
    broken |= thought.broken("".join(s.text if s.owner == MODEL else _opened(s.text) for s in segments))
  signs = {"entropy": sum(surprise.values()) / count.total()} if count else {}
  signs |= {f"tokens/{name}": float(count[name]) for name in count if name != "tag"}
  signs |= {f"entropy/{name}": surprise[name] / count[name] for name in count if name != "tag"}
  within, between = thought.repeated(thoughts)
  text_signs = {"repeats/within": within, "repeats/between": between}
  if thoughts:
    signs.setdefault("tokens/thought", 0.0)  # else the mean would be over the replies that still think
    text_signs |= {"broken_tags": float(broken), "answered": float(any(one is not None for one in answers))}
  return signs | {name: value for name, value in text_signs.items() if value is not None}


def _opened(text: str) -> str:
  """The tag at the end of the environment's text: a chat template may open the thought of any turn."""
  tag = _OPENED.search(text[-64:])
  return tag[0] if tag else ""
