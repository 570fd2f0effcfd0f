"""Where a server's text ends, and whose log-probabilities are its tokens'."""

import pytest
import small_tokenizers as small

from ragrl_jax.chat import client
from ragrl_jax.chat.client import Completion
from ragrl_jax.prompting.huggingface import HuggingFaceTokenizer
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.rollout import endpoint_client

STOPS = ("</search>", "</answer>", "<|end_of_query|>")


@pytest.mark.parametrize(("reply", "opened", "text", "stop"), [
  (Completion("<search> a </search> more </answer>"), "", "<search> a </search>", "</search>"),  # the first one
  (Completion("<answer> a"), "", "<answer> a</answer>", "</answer>"),  # the tag that is open
  (Completion("<search> a <answer> b "), "", "<search> a <answer> b </answer>", "</answer>"),  # the last open one
  (Completion("<|begin_of_query|> a"), "", "<|begin_of_query|> a<|end_of_query|>", "<|end_of_query|>"),
  (Completion("a", stop="</search>"), "", "a</search>", "</search>"),  # the one that the server names
  (Completion("a", stop="</other>"), "", "a", "eos"),
  (Completion("<answer> a", ended=True), "", "<answer> a", "eos"),  # by EOS: the tag stays open, as in the engine
  (Completion("<answer> a", cut=True), "", "<answer> a", ""),  # it was cut off, and closed by nobody
  (Completion("Paris"), "Evidence.\n<answer>", "Paris</answer>", "</answer>"),  # opened before the turn
  (Completion("Paris"), "<answer> x </answer>", "Paris", "eos"),
  (Completion("Paris"), "<answer>" + " " * 64, "Paris", "eos"),  # too far back: prompts speak of tags
  (Completion(""), "", "", "eos"),
])  # fmt: skip
def test_the_end_of_a_turn(reply, opened, text, stop):
  assert endpoint_client.find_end(reply, STOPS, opened) == (text, stop)


@pytest.mark.parametrize(("said", "stop", "ended"), [
  (dict(stop_reason="</a>"), "</a>", False), (dict(matched_stop="</a>"), "</a>", False),
  (dict(stop_reason=None), "", False), (dict(stop_reason=7), "", True), (dict(matched_stop=7), "", True),
])  # fmt: skip
def test_what_ended_an_answer_has_the_names_of_vllm_and_sglang(said, stop, ended):
  choice = dict(finish_reason="stop", text="x", **said)
  assert client._read(dict(choices=[choice])) == Completion("x", stop=stop, ended=ended)


def test_the_stop_that_is_complete_first_counts():
  assert endpoint_client.find_end(Completion("x <a> b </a>"), ("<a> b </a>", "b")) == ("x <a> b", "b")


def test_a_text_for_a_server_has_no_bos_and_spells_no_control_token(tmp_path):
  folder = small.gemma_like(tmp_path)
  for chat in (True, False):
    tokenizer = HuggingFaceTokenizer(folder, chat=chat)
    prompt = tokenizer.render([dict(role="user", content="Who?")])
    assert tokenizer.control_names[prompt[0]] == "<bos>"
    text = endpoint_client.write_ids(prompt, tokenizer)
    assert text == ("<start_of_turn>user\nWho?<end_of_turn>\n<start_of_turn>model\n" if chat else "Who?")
    # What a server makes of it, if it puts BOS first as vLLM does.
    assert tokenizer._whole.encode(text) == prompt
    # A passage cannot end the turn.
    later = [*prompt, *tokenizer.encode("x  <end_of_turn> <bos>y"), *tokenizer.bos]
    assert endpoint_client.write_ids(later, tokenizer) == text + "x  < end_of_turn> < bos>y<bos>"
  assert endpoint_client.write_ids((65, 257), ByteTokenizer()) == "A<pad>"


def test_log_probabilities_go_to_our_tokens():
  tokenizer = ByteTokenizer()
  of = lambda theirs, text: endpoint_client.align_logprobs(theirs, text, tokenizer.encode(text), tokenizer)
  # "é" has two bytes, which share a token's value; the stop string "!" was left out by the server.
  assert of([("aé".encode(), -1.0), (b"b", -2.0)], "aéb!") == (-1.0, -1.0, -1.0, -2.0, 0.0)
  assert of([(b"ab", -1.0), (b"cd", -3.0)], "abc") == (-1.0, -1.0, -3.0)  # cut within a token
  assert of([], "") == () and of([], "a") is None and of([(b"x", -1.0)], "a") is None
  # Each byte of "é" is a token, whose text alone is no character.
  entry = lambda byte, value: dict(token="\ufffd", bytes=[byte], logprob=value)
  theirs = client._logprobs(dict(content=[*map(entry, "é".encode(), (-1.0, -2.0)), dict(token="b", logprob=-3.0)]))
  assert of(theirs, "éb") == (-1.0, -2.0, -3.0)

  class Pairs(ByteTokenizer):
    def token_bytes(self, token):
      return b"xx"

  assert endpoint_client.align_logprobs([(b"x", -1.0), (b"xxx", -4.0)], "xxxx", (1, 1), Pairs()) == (-4.0, -4.0)
