"""Messages as text, and the templates that are refused."""

import types

import pytest
import small_tokenizers as small
from refusals import refused

from ragrl_jax.prompting import chat
from ragrl_jax.prompting.huggingface import HuggingFaceTokenizer
from ragrl_jax.prompting.tokenizer import ByteTokenizer, load_tokenizer

ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
# Like Llama 3's and Gemma's, but without system turns.
NO_SYSTEM = (
  "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + small.CHATML
)
# Like Qwen3.5's: a system message needs a question.
NO_SYSTEM_ALONE = NO_SYSTEM.replace("[0]", "[-1]").replace("System role not supported", "No user query")
# Like templates of R1's distilled models: thoughts are removed at once, even from the last turn.
NO_THOUGHTS = small.CHATML.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
# Puts the number of turns before all turns.
COUNTING = "{{ messages | length }} turns\n" + small.CHATML


def test_plain_text_needs_no_template():
  assert chat.plain(ASK) == "Be brief.\n\nWho?"
  assert ByteTokenizer().render(ASK) == list(b"Be brief.\n\nWho?")
  chat.check_append_only(ByteTokenizer())


def test_a_model_that_is_not_to_think_begins_behind_an_empty_thought():
  own = lambda **how: chat.own(ASK[1:], open_turn=True, known=["<|im_start|>", "<|im_end|>"], **how)
  assert own(thinking="off").endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
  assert own(thinking="off") == own() + chat.NO_THOUGHTS and own(thinking="on") == own()


def test_own_markers_are_the_models_if_it_has_them():
  assert chat.own(ASK, open_turn=True, known=["<|im_start|>", "<|im_end|>"]) == (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
  )
  assert chat.own(ASK[1:], open_turn=True, known=["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]) == (
    "<|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
  )
  assert chat.own(ASK[1:], open_turn=False, known=[]) == "user:\nWho?\n\n"


def test_braces_in_a_content_are_text_and_control_tokens_are_broken_up():
  # Contents are data and never used as format strings.
  evil = [{"role": "user", "content": "{role} {0} {{ 7 * 7 }} {% raw %}"}]
  assert "{role} {0} {{ 7 * 7 }} {% raw %}" in chat.own(evil, open_turn=True, known=[])
  told = chat.disarmed([{"role": "user", "content": "a<|im_end|>b<|im_end|>"}], ["<|im_end|>"])
  assert told == [{"role": "user", "content": "a< |im_end|>b< |im_end|>"}]


@pytest.mark.parametrize("template", [small.CHATML, NO_SYSTEM, NO_SYSTEM_ALONE])
def test_a_template_that_only_appends_is_accepted(tmp_path, template):
  load_tokenizer(small.byte_level(tmp_path, template=template))


@pytest.mark.parametrize(("template", "says"), [
  # The check uses: system, user, assistant (turn 3), user … Turn 3 loses its thought when turn 4 is added.
  (small.FORGETFUL, r"rewrites turn 3 \(assistant\) once 4 turns are there: '<think>"),
  (NO_THOUGHTS, r"rewrites turn 3 \(assistant\) once 3 turns are there"),
  (COUNTING, r"rewrites turn 1 \(system\) once 2 turns are there: '1 turns"),
])  # fmt: skip
def test_a_template_that_rewrites_is_refused_and_the_turn_is_named(tmp_path, template, says):
  refused(f"{says}.*prompting.markers='own'", load_tokenizer, small.byte_level(tmp_path, template=template))


@pytest.mark.parametrize("settings", [dict(markers="own"), dict(chat=False)])
def test_other_prompt_styles_accept_any_template(tmp_path, settings):
  tokenizer = load_tokenizer(small.byte_level(tmp_path, template=small.FORGETFUL), **settings)
  chat.check_append_only(tokenizer)
  assert "Who?" in tokenizer.decode(tokenizer.render(ASK))


def test_the_check_finds_any_turn_that_changes():
  write = lambda messages: "".join(f"[{m['content'] if m is messages[-1] else m['content'].lower()}]" for m in messages)
  template = lambda messages, *, open_turn: write(messages) + ("A:" if open_turn else "")
  with pytest.raises(ValueError, match=r"turn 1 \(system\) once 2 turns are there: 'Rules first.*became 'rules first"):
    chat.check_append_only(types.SimpleNamespace(markers="template", template=template))


@pytest.mark.parametrize(("template", "says"), [
  (NO_SYSTEM, "System role not supported"), ([dict(name="rag", template="")], "no default .*prompting.markers='own'"),
  ("{{ messages[0].content + 1 }}", "can only concatenate str"),
])  # fmt: skip
def test_what_the_template_refuses_is_named_with_the_roles(tmp_path, template, says):
  tokenizer = HuggingFaceTokenizer(small.byte_level(tmp_path, template=template))
  refused(rf"refuses the roles \['system', 'user'\]: .*{says}", tokenizer.render, ASK)
