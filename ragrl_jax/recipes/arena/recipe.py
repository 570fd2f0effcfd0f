"""The recipe: switches, episode, build (ARENA, arXiv 2505.13258; README.md). Next: ragrl_jax/jobs/train.py."""

import dataclasses
import functools
import random
from collections.abc import Sequence
from typing import Any

from ragrl_jax.recipes import parts, recipe as recipe_lib, scripts
from ragrl_jax.recipes.arena.measures import Measured
from ragrl_jax.recipes.arena.prompt import INSTRUCTIONS, SECTIONS, Parser, Prompt
from ragrl_jax.recipes.arena.reward import ACCURACY
from ragrl_jax.settings.fields import Reads, setting
from ragrl_jax.structs import Episode, Example, Policy, Segment, Tools


@dataclasses.dataclass(frozen=True)
class Switches(recipe_lib.Switches):
  """The paper's values. README.md says where the authors' code differs."""

  instructions: str = setting("paper", "text before the question; none: nothing", choices=INSTRUCTIONS, files=True)
  titles: bool = setting(False, "show each reference's title")
  shape: str = setting("strict", 'repo: lines may follow, and no section has a "<"', choices=("strict", "repo"))
  strict_ids: bool = setting(True, "a JSON list of plain integers; False also takes 1.0 and true for 1")
  gold_ids: str = setting("supporting", "right references; substring: by text", choices=("supporting", "substring"))
  reply: str = setting("cited", "relevance, analysis and answer; think and answer; answer alone", choices=SECTIONS)
  accuracy: str = setting("exact", "score of the answer; f1 and judge were better on MuSiQue only", choices=ACCURACY)
  bonus: float = setting(10.0, "added when format, answer and references are all right")
  guarded: bool = setting(False, "a reply with a trick of README.md's last table earns nothing")
  stop_at_answer: bool = setting(True, "end the turn at </answer>; False: at EOS")

  def reads(self) -> Reads:
    yield "switches.bonus switches.strict_ids", "switches.reply", lambda reply: reply == "cited"


PRESETS: dict[str, dict[str, Any]] = {
  "paper": {},
  "repo": dict(shape="repo", strict_ids=False, gold_ids="substring", stop_at_answer=False),
  "f1": dict(accuracy="f1"),
  "judge": dict(accuracy="judge"),
  "no_bonus": dict(bonus=0.0),
  "naive": dict(reply="thought"),
  "direct": dict(reply="direct"),
}


def make_play(prompt: Prompt, parser: Parser) -> parts.Play:
  """The coroutine: one reply, which ends on one of the parser's stop strings or by itself."""

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    conversation = policy.start(prompt.messages(example))
    turn = await parser.say(conversation, parser.stops)
    return conversation.end("answer" if turn.stop in parser.stops else None)

  return play


def write_script(example: Example, segments: Sequence[Segment], rng: random.Random, *, reply: str) -> str:
  """See `Recipe.script`. reply: a key of SECTIONS."""
  facts, answer = scripts.facts(example), scripts.answer(example)
  thought = " ".join([*(f"[{fact.number}] says: {fact.sentence}" for fact in facts), f"So the answer is {answer}."])
  bodies = dict(relevance=sorted({fact.number for fact in facts}), analysis=thought, think=thought, answer=answer)
  return "\n".join(f"<{name}> {bodies[name]} </{name}>" for name in SECTIONS[reply])


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe with these switches."""
  prompt = Prompt(switches.instructions, switches.reply, switches.titles)
  stops = Parser.stops if switches.stop_at_answer else ()
  parser = Parser(SECTIONS[switches.reply], stops, shape=switches.shape)
  judged = switches.accuracy == "judge"
  play = make_play(prompt, parser)
  scoring = recipe_lib.scoring(Measured(parser, switches))
  if switches.reply != "cited":
    scoring["measures"] = None
  return recipe_lib.Recipe(
    name="arena",
    prompt=prompt,
    parser=parser,
    play=parts.judge_answer(play, parser, style="spaced") if judged else play,
    judges_golds=judged,
    stops=stops,
    switches=switches,
    script=functools.partial(write_script, reply=switches.reply),
    style="spaced",
    needs_passages=True,
    **scoring,
  )
