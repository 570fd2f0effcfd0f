r"""An agent that calls tools in its model's own format: the run's search, Python functions, MCP servers.

Run:    ragrl train --config tool_agent --workdir OUT --config.model.path=Qwen/Qwen3-4B \
          --config.data.train=QUESTIONS --config.retrieval.index=INDEX [--config.switches.tools=my_tools.py:add \
          --config.switches.mcp="python server.py|http://127.0.0.1:8000/mcp"]
Variants: smoke (tiny sizes, same rules).
Expect: not run yet at this size.

docs/howto/agents.md describes the tools.
"""

import pathlib
import runpy


def get_config(variant: str = ""):
  """The sizes of agent.py."""
  return runpy.run_path(str(pathlib.Path(__file__).with_name("agent.py")))["get_config"](variant, "tool_agent")
