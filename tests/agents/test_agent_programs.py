"""The programs to begin with, each over its library: one conversation, whose sampled tokens are kept."""

import pytest
from scripted_chat import ChatPolicy, Tools

from ragrl_jax import recipes
from ragrl_jax.structs import ENVIRONMENT, MODEL, Example
from ragrl_jax.testing import scripted

EXAMPLE = Example("q1", "Where is the port of Rome?", ("Tolper",))
PLACE = "ragrl_jax.agents.agent.programs"
LIBRARIES = {
  "tool_loop": pytest.param("tool_loop", "openai", marks=pytest.mark.slow),  # the package builds its types
  "pydantic_search": pytest.param("pydantic_search", "pydantic_ai", marks=pytest.mark.agents),
  "agents_search": pytest.param("agents_search", "agents.run", marks=pytest.mark.agents),
}


def call(name, query):
  """A call that is not written as the template writes it."""
  return f'<tool_call>{{"name":"{name}",  "arguments": {{"query": "{query}"}}}}</tool_call>'


@pytest.mark.parametrize(("program", "library"), LIBRARIES.values())
def test_a_librarys_agent_is_one_conversation(tokenizer, program, library):
  pytest.importorskip(library, reason=f"{library} is not installed (make agents installs it)")
  replies = ["First.\n" + call("search", "Rome"), call("search", "port Danbel"), " Tolper "]
  recipe, tools = recipes.get("agent", program=f"{PLACE}.{program}:run", search=True), Tools()
  episode = scripted.run(recipe.play(EXAMPLE, ChatPolicy(tokenizer, replies), tools))
  assert tools.asked == ["Rome", "port Danbel"] and episode.num_searches == 2 and not episode.starts
  assert [s.owner for s in episode.segments] == [ENVIRONMENT, *[MODEL, ENVIRONMENT] * 2, MODEL]
  said = [list(s.ids) for s in episode.segments if s.owner == MODEL]
  assert said == [[*tokenizer.encode(text), tokenizer.eos_ids[0]] for text in replies]
  given = [f"\ntool\n {query} is in Italy.\nassistant\n" for query in tools.asked]
  assert [s.text for s in episode.segments[2::2]] == given
  assert "<tools>" in episode.segments[0].text and EXAMPLE.question in episode.segments[0].text
  assert episode.facts["answer"].strip() == "Tolper" and recipe.score(EXAMPLE, episode) == dict(answer=1.0)


@pytest.mark.parametrize(("program", "library"), LIBRARIES.values())
def test_a_model_that_makes_no_sense_has_not_answered(tokenizer, program, library):
  pytest.importorskip(library, reason=f"{library} is not installed (make agents installs it)")
  recipe, tools = recipes.get("agent", program=f"{PLACE}.{program}:run", search=True), Tools()
  # It never answers; then it calls a tool that does not exist, again and again.
  for replies in ([call("search", "Rome")] * 9, [call("walk", "Rome")] * 9):
    episode = scripted.run(recipe.play(EXAMPLE, ChatPolicy(tokenizer, replies), tools))
    assert episode.facts["answer"] is None and recipe.score(EXAMPLE, episode) == dict(answer=0.0)
    assert 1 <= episode.facts["requests"] <= 4 and not episode.starts
