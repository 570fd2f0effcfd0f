"""Text of tokens, piece by piece, against a plain search of the whole text."""

import json
import random

import pytest
import small_tokenizers as small

from ragrl_jax.prompting.huggingface import HuggingFaceTokenizer
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.protocol import requests
from ragrl_jax.protocol.text_stream import TextStream
from ragrl_jax.rollout import endpoint_client


class Chunky(ByteTokenizer):
  """Ids from 300 on are tokens of several bytes."""

  many = (b"ab", b"</", b"a>b", b"\xc3\xa9x", b"\xf0\x9f", b"\x98\x80", b"b</a>b")

  def token_bytes(self, token):
    return self.many[token - 300] if token >= 300 else super().token_bytes(token)


def plainly(data, stops, keep):
  """(text, stop) by looking at every position in turn."""
  for end in range(1, len(data) + 1):
    found = [stop for stop in stops if data[:end].endswith(stop.encode())]
    if found:
      stop = max(found, key=lambda one: len(one.encode()))
      return data[: end if keep else end - len(stop.encode())].decode(errors="replace"), stop
  return data.decode(errors="replace"), None


@pytest.mark.parametrize("keep", [False, True])
def test_pieces_are_the_text_up_to_the_first_stop(keep):
  draw, tokenizer, stopped = random.Random(0), Chunky(), 0
  for _ in range(2000):
    stops = draw.sample(["</a>", "b", "ab</", "é", "aab", "😀", ">b", "x"], draw.randrange(4))
    ids = [draw.choice([*b"ab</>x", 0xC3, 0xF0, 256, *range(300, 307)]) for _ in range(draw.randrange(1, 12))]
    text, stop = plainly(b"".join(map(tokenizer.token_bytes, ids)), stops, keep)
    stream, pieces, taken = TextStream(tokenizer, stops, keep_stop=keep), [], 0
    while taken < len(ids) and stream.stop is None:
      part = ids[taken : taken + draw.randrange(1, 5)]
      kept = stream.feed(part)
      taken += kept
      pieces.append(stream.piece(last=stream.stop is not None or taken == len(ids)))
    assert ("".join(pieces), stream.stop) == (text, stop), (ids, stops)
    if stop is not None:  # the token that completes the stop is the last one that counts
      stopped += 1
      assert plainly(b"".join(map(tokenizer.token_bytes, ids[: taken - 1])), stops, keep)[1] is None
  assert stopped > 300


def test_a_piece_is_held_back_only_while_it_may_become_a_stop():
  stream = TextStream(ByteTokenizer(), ["</answer>"])
  stream.feed(b"one</ans")
  assert stream.piece() == "one"
  stream.feed(b" two \xf0\x9f")
  assert stream.piece() == "</ans two "  # the first half of a character stays
  stream.feed(b"\x98\x80")
  assert stream.piece(last=True) == "😀" and stream.stop is None


@pytest.mark.parametrize("thinks, text, kept", [
  (False, "<think>a</call></think>b</call>c", "<think>a</call></think>b</call>"), (False, "a</call>b", "a</call>"),
  (True, "a</call></think>b</call>c", "a</call></think>b</call>"), (True, "a</call>b", "a</call>b"),
  (False, "<think>a<stop>b", "<think>a"),
])  # fmt: skip
def test_the_closing_mark_of_a_call_ends_nothing_in_a_thought(thinks, text, kept):
  stream = TextStream(ByteTokenizer(), ["<stop>"], ends=["</call>"], thinks=thinks)
  stream.feed(text.encode())
  assert stream.piece(last=True) == kept


MESSAGES = [dict(role="user", content="Kormin  is <end_of_turn></s> here")]


def asked(tokenizer, kind, **said):
  served = requests.Served("", tokenizer, tokenizer.vocab_size, context=2048, max_tokens=64, max_replies=8)
  return [list(ids) for ids in requests.read(json.dumps(said).encode(), kind, served).prompts]


@pytest.mark.parametrize("make", [small.gemma_like, small.llama_like, small.byte_level])
def test_a_text_prompt_is_rendered_as_without_a_template(tmp_path, make):
  folder = make(tmp_path)
  tokenizer, bare = HuggingFaceTokenizer(folder), HuggingFaceTokenizer(folder, chat=False)
  for text in ("Hi", " Hi ", "a  b\nc", "\ud800x", "<think>y"):
    prompt = bare.render([dict(role="user", content=text)])
    assert asked(tokenizer, requests.TEXT, prompt=[text, text]) == [prompt, prompt]
    assert asked(bare, requests.TEXT, prompt=text) == [prompt]
  names = [tokenizer.control_names[token] for token in tokenizer.bos]
  assert names == {"gemma_like": ["<bos>"], "llama_like": ["<s>"], "byte_level": []}[make.__name__]
  # BOS is not doubled if the client names it.
  assert asked(tokenizer, requests.TEXT, prompt=f"{''.join(names)}Hi") == asked(tokenizer, requests.TEXT, prompt="Hi")
  assert asked(tokenizer, requests.TEXT, prompt=[[5, 6]]) == [[5, 6]]  # token ids stay as they are


@pytest.mark.parametrize("make", [small.gemma_like, small.byte_level])
@pytest.mark.parametrize("markers", ["template", "own"])
def test_a_rendered_chat_has_the_ids_of_the_chat(tmp_path, make, markers):
  tokenizer = HuggingFaceTokenizer(make(tmp_path), markers=markers)
  (chat,) = asked(tokenizer, requests.CHAT, messages=MESSAGES)
  assert chat == tokenizer.render(MESSAGES)
  rendered = tokenizer.template(MESSAGES, open_turn=True)
  assert asked(tokenizer, requests.TEXT, prompt=[rendered, endpoint_client.write_ids(chat, tokenizer)]) == [chat, chat]


def test_a_tokenizer_without_control_tokens_takes_a_text_as_it_is():
  assert asked(ByteTokenizer(), requests.TEXT, prompt="<eos>a") == [list(b"<eos>a")]


def test_long_prompts_are_refused_before_they_are_tokenized(tmp_path, monkeypatch):
  tokenizer, seen = HuggingFaceTokenizer(small.byte_level(tmp_path)), []
  for name in ("encode", "encode_template"):
    plain = getattr(tokenizer, name)
    monkeypatch.setattr(tokenizer, name, lambda text, plain=plain: seen.append(len(text)) or plain(text))
  long = "The spouse of Danbel is Kormin. " * 100_000
  for kind, said in (
    (requests.TEXT, dict(prompt=[long] * 4)),
    (requests.CHAT, dict(messages=[dict(role="user", content="?"), dict(role="user", content=long)])),
  ):
    with pytest.raises(requests.Refused, match="characters: prompt and reply together may have 2048 tokens"):
      asked(tokenizer, kind, **said)
  assert max(seen, default=0) <= 16 * 2048
  # Of several prompts that seem to fit, the first that does not ends the request.
  seen.clear()
  with pytest.raises(requests.Refused, match="the prompt has [0-9]+ tokens: prompt and reply together may have 2048"):
    asked(tokenizer, requests.TEXT, prompt=[long[: 15 * 2048]] * 4)
  assert len(seen) == 1


def test_a_control_token_without_a_row_is_refused_in_a_text_prompt(tmp_path):
  tokenizer = HuggingFaceTokenizer(small.byte_level(tmp_path))
  end = tokenizer.eos_ids[0]
  served = requests.Served("", tokenizer, rows=end, context=99, max_tokens=9, max_replies=1)
  for prompt in ("Hi<|im_end|>", [5, end]):
    with pytest.raises(requests.Refused, match=f"the prompt has the token id {end}"):
      requests.read(json.dumps(dict(prompt=prompt)).encode(), requests.TEXT, served)
