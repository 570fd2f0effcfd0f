"""The tool loops of two public agent libraries, as published, run over the server (make agents)."""

import asyncio

import pytest
import scripted_chat
import small_tokenizers
from small_server import MODEL, ScriptedEngine, serving

from ragrl_jax.jobs import checkpoints

pytestmark = pytest.mark.agents
openai = pytest.importorskip("openai")
FACTS = {"mentor Danbel": "The mentor of Danbel is Kormin.", "port Kormin": "The port of Kormin is Tolper."}


def call(form, name, **arguments):
  """A call as the model writes it."""
  if form == "qwen":
    return scripted_chat.call(name, **arguments)
  given = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
  return f"<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"


@pytest.fixture(params=["qwen", "coder"])
def engine(request):
  """An engine that searches twice and answers, in either format of calls."""
  said = [call(request.param, "search", query=query) for query in FACTS]
  made = ScriptedEngine(small_tokenizers.with_tools(request.param), ["I look. " + said[0], said[1], "It is Tolper."])
  made.form = request.param
  return made


def check(engine, searched, answer):
  """Both searches were made, and the last prompt holds all turns in the template's form."""
  assert searched == list(FACTS) and answer == "It is Tolper."
  last = engine.tokenizer.decode(engine.prompts[-1])
  turns = ["What is the port", "I look.", call(engine.form, "search", query="mentor Danbel"), FACTS["mentor Danbel"]]
  turns += [call(engine.form, "search", query="port Kormin"), FACTS["port Kormin"]]
  places = [last.find(turn) for turn in turns]
  assert -1 not in places and places == sorted(places)
  assert [len(p) for p in engine.prompts] == sorted(len(p) for p in engine.prompts) and len(engine.prompts) == 3


@pytest.mark.parametrize("streamed", [False, True])
def test_openai_agents(engine, streamed):
  pytest.importorskip("agents.run", reason="openai-agents is not installed (make agents installs it)")
  import agents  # without a module of the library's, it is the folder of these tests

  agents.set_tracing_disabled(True)
  searched = []

  @agents.function_tool
  def search(query: str) -> str:
    """Searches.

    Args:
      query: what for.
    """
    searched.append(query)
    return FACTS[query]

  async def run(url):
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
      model = agents.OpenAIChatCompletionsModel(MODEL, client)
      agent = agents.Agent("searcher", instructions="Search.", model=model, tools=[search])
      asked = "What is the port of the mentor of Danbel?"
      if not streamed:
        return (await agents.Runner.run(agent, asked)).final_output
      result, text = agents.Runner.run_streamed(agent, asked), ""
      async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
          text += event.data.delta
      assert text.endswith(result.final_output) and text.startswith("I look.")
      return result.final_output

  with serving(engine, tools=checkpoints.tool_reader(engine.tokenizer)) as (url, _):
    check(engine, searched, asyncio.run(run(url)))


def pydantic_agent(client, **how):
  """An agent of pydantic-ai's with one tool, and the list of its queries."""
  pydantic_ai = pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed (make agents installs it)")
  from pydantic_ai.models.openai import OpenAIChatModel
  from pydantic_ai.providers.openai import OpenAIProvider

  searched = []
  agent = pydantic_ai.Agent(OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client)), **how)

  @agent.tool_plain
  def search(query: str) -> str:
    """Searches."""
    searched.append(query)
    return FACTS[query]

  return agent, searched


@pytest.mark.parametrize("streamed", [False, True])
def test_pydantic_ai(engine, streamed):
  async def run(url):
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
      agent, searched = pydantic_agent(client, instructions="Search.")
      asked = "What is the port of the mentor of Danbel?"
      if not streamed:
        return searched, (await agent.run(asked)).output
      async with agent.iter(asked) as steps:
        async for node in steps:
          if agent.is_model_request_node(node):
            async with node.stream(steps.ctx) as stream:
              async for _ in stream:
                pass
      return searched, steps.result.output

  with serving(engine, tools=checkpoints.tool_reader(engine.tokenizer)) as (url, _):
    check(engine, *asyncio.run(run(url)))


def test_pydantic_ai_forces_its_output_tool(engine):
  # With a typed output the library asks for some call: tool_choice="required". Its beginning is in the prompt.
  import pydantic

  class Answer(pydantic.BaseModel):
    """The answer."""

    place: str

  whole = [call(engine.form, "search", query="port Kormin"), call(engine.form, "final_result", place="Tolper")]
  head = '<tool_call>\n{"name": "' if engine.form == "qwen" else "<tool_call>\n<function="
  left = [text.removeprefix(head) for text in whole]
  engine._text = lambda turn, prompt: left.pop(0)

  async def run(url):
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
      agent, searched = pydantic_agent(client, output_type=Answer)
      return searched, (await agent.run("What is the port of Kormin?")).output

  with serving(engine, tools=checkpoints.tool_reader(engine.tokenizer)) as (url, _):
    searched, answer = asyncio.run(run(url))
  assert searched == ["port Kormin"] and answer == Answer(place="Tolper") and not left
  assert all(engine.tokenizer.decode(prompt).endswith(head) for prompt in engine.prompts)
