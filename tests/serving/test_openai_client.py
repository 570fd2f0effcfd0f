"""The official `openai` package talks to the server. Skipped where it is not installed (make test installs it)."""

import pytest
import small_engine as kit
from small_server import MODEL, drawn, serving

from ragrl_jax.serving.openai_server import Limits

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.slow  # the package builds its types at the first call

PROMPT = "Question 1??"
client_of = lambda url, key="none": openai.OpenAI(base_url=url, api_key=key, max_retries=0)


def test_replies_streams_and_errors():
  # Without a server, the engine samples in one turn; the server samples in slices.
  ids, logprobs, _ = drawn(kit.engine(), kit.TOKENIZER.encode(PROMPT), seed=5, budget=40)
  how = dict(model=MODEL, max_tokens=40, seed=5)
  asked = dict(messages=[dict(role="user", content=PROMPT)], **how)
  with serving(key="sesame", limits=Limits(max_bytes=2000)) as (url, _), client_of(url, "sesame") as client:
    assert [model.id for model in client.models.list()] == [MODEL]
    said = client.chat.completions.create(**asked, logprobs=True, extra_body=dict(return_token_ids=True))
    choice = said.choices[0]
    assert choice.token_ids == ids and [one.logprob for one in choice.logprobs.content] == logprobs
    assert choice.message.content == kit.TOKENIZER.decode(ids) and said.usage.completion_tokens == len(ids)
    parts = [*client.chat.completions.create(**asked, stream=True, stream_options=dict(include_usage=True))]
    assert "".join(part.choices[0].delta.content or "" for part in parts[:-1]) == choice.message.content
    assert parts[-2].choices[0].finish_reason == choice.finish_reason and parts[-1].usage == said.usage
    text = client.completions.create(prompt=PROMPT, logprobs=1, **how).choices[0]
    assert text.text == choice.message.content and text.logprobs.token_logprobs == logprobs
    parts = client.completions.create(prompt=PROMPT, stream=True, **how)
    assert "".join(part.choices[0].text for part in parts) == text.text
    for error, body in (
      (openai.NotFoundError, dict(model="other")), (openai.BadRequestError, dict(max_tokens=1000)),
      (openai.APIStatusError, dict(messages=[dict(role="user", content="x" * 3000)])),
    ):  # fmt: skip
      with pytest.raises(error):
        client.chat.completions.create(**asked | body)
    with client_of(url) as stranger, pytest.raises(openai.AuthenticationError):
      stranger.models.list()
