"""The contract of every recipe. A new recipe is tested by listing it in `recipes.RECIPES`."""

import dataclasses
import pathlib

import pytest
from refusals import refused

from ragrl_jax import recipes
from ragrl_jax.run import warning_signs
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Example, Passage
from ragrl_jax.testing import contract

# Recipe → terms → the presets that score them. Reports, configs and the papers' tables use these names.
SCORED = {
  "agent": {"answer": "paper"},
  "arena": {"format accuracy relevance bonus": "paper repo f1 judge no_bonus", "format accuracy": "naive direct"},
  "care": {"accuracy format retrieval": "paper repo mean no_retrieval easy_only original"},
  "lear": {
    "answer length format": "paper inference answers_r answers_e answers_f answers_er answers_ef vanilla rationale "
    "generator study_rational study_vanilla filter thoughts"
  },
  "released": {"answer": "paper search_r1 desa autorefine research r1_searcher search_o1 simpledeepsearcher given"},
  "search_r1": {"answer": "paper grpo ppo browse repo r1", "answer format retrieval": "format"},
  "tool_agent": {"answer": "paper"},
  "untrained": {
    "answer": "paper closed_book cot ircot iter_retgen self_ask skr sure flare adaptive recomp filco given"
  },
  "veritas": {
    "answer": "reward_model",
    "answer information_think think_answer think_search": "paper em em_it em_ta no_ramp repo",
    "answer information_think think_answer think_search format": "em_format",
  },
  "when_to_search": {
    "answer_explore answer_economise search format": "paper exact printed ngrams no_search_reward no_stage_one "
    "no_stage_two no_answer_reward unified"
  },
}
TERMS = {
  (name, preset): set(terms.split())
  for name, scored in SCORED.items() for terms, presets in scored.items() for preset in presets.split()
}  # fmt: skip
OWN_WORDS = ("agent",)  # their programs write the prompts, and no wording of ours does
NO_PAPER = ("agent", "tool_agent")
PASSAGES = (Passage("a", "France", "Its capital is Paris."), Passage("b", "Norway", "Its capital is Oslo."))
EXAMPLE = Example(
  "q1", "What is the capital of France?", ("Paris",), PASSAGES, supporting=(0,), hops=1,
  evidence=((0, "Its capital is Paris."),),
)  # fmt: skip
TRANSCRIPTS = {
  "empty": [], "silent": [(MODEL, "")], "told": [(ENVIRONMENT, "Paris <answer> Paris </answer>")],
  "answer": [(MODEL, "<think> x </think><answer> Paris </answer>")],
  "search": [
    (MODEL, "<search> x </search>"), (ENVIRONMENT, "\n\n<information>Doc 1(Title: a) b</information>\n\n"),
    (MODEL, "<answer> Oslo </answer>"),
  ],
  "cited": [(MODEL, "<relevance>[1]</relevance>\n<analysis>1</analysis>\n<answer>Paris</answer>")],
  "quoted": [(MODEL, "<think><retrieval>Its capital is Paris.</retrieval></think> Answer: Paris")],
  "evidence": [(MODEL, "<reason>a</reason><extract>b</extract><answer>Paris</answer>")],
  "odd": [(MODEL, "<<<answer>>> \x00 </answer> <answer> é🙂"), (ENVIRONMENT, "{}%s"), (MODEL, "</answer>")],
}  # fmt: skip


def for_each_preset(name, check):
  """Calls `check` with every preset of a recipe. A failure names the preset."""
  for preset in recipes.RECIPES[name].PRESETS:
    try:
      check(recipes.get(name, preset))
    except Exception as error:
      error.add_note(f"preset {preset!r} of {name}")
      raise


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_without_a_preset_the_papers_is_chosen_wherever_it_is_listed(name, monkeypatch):
  module = recipes.RECIPES[name]
  monkeypatch.setattr(module, "PRESETS", dict(reversed(module.PRESETS.items())))
  assert recipes.chosen(name) == module.Switches(**module.PRESETS["paper"])


@pytest.mark.parametrize(("name", "preset", "steps", "cut_short"), [
  ("when_to_search", "paper", 300, dict(answer_explore=(1.0, 0.0), answer_economise=(0.0, 1.0))),
  ("when_to_search", "paper", 301, {}), ("when_to_search", "no_stage_two", 2, {}), ("search_r1", "paper", 2, {}),
  ("veritas", "em_it", 414, dict(information_think=(0.025, 0.05))), ("veritas", "em_it", 497, {}),
  ("veritas", "em", 2, {}),
])  # fmt: skip
def test_a_run_too_short_for_its_schedule_is_warned_about(name, preset, steps, cut_short):
  found = recipes.get(name, preset).cut_short(steps)
  assert found == {term: pytest.approx(weights) for term, weights in cut_short.items()}
  message = warning_signs.of_training({}, recipes.get(name, preset), 1, steps)
  assert list(message) == ["warning/schedule"] * bool(cut_short)
  assert not warning_signs.of_training({}, recipes.get(name), 2, 2)  # only before the first step


def test_the_share_of_easy_questions_is_no_schedule_without_hard_ones():
  warned = lambda **how: warning_signs.of_training({}, recipes.get("care", "repo"), 1, 350, **how)
  assert "easy_share" in warned()["warning/schedule"] and not warned(mixed=False)


def test_every_preset_is_listed():
  listed = {(name, preset) for name, preset in TERMS if name in recipes.RECIPES}
  assert listed == {(name, preset) for name, module in recipes.RECIPES.items() for preset in module.PRESETS}


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_paper_is_the_default_and_names_all_switches(name):
  module = recipes.RECIPES[name]
  assert next(iter(module.PRESETS)) == "paper" and recipes.get(name).name == name
  assert recipes.get(name).switches == recipes.get(name, "paper").switches == module.Switches()
  for preset, changes in module.PRESETS.items():
    switches = recipes.get(name, preset).switches
    assert set(switches) == set(module.Switches()) == set(recipes.switches(name)), preset
    assert dict(switches) | changes == dict(switches), preset


@pytest.mark.parametrize("name", [name for name in recipes.RECIPES if name not in OWN_WORDS])
def test_every_wording_asks_the_question(name):
  """Each value of `instructions` gives a different prompt; "short" and "none" are shorter than "paper"."""

  def check(recipe):
    if dict(recipe.switches).get("task") == "judge":  # this prompt has one wording only
      return
    told = lambda wording: recipes.get(name, **dict(recipe.switches) | dict(instructions=wording))
    shown = {wording: told(wording).prompt.messages(EXAMPLE) for wording in ("paper", "short", "none")}
    assert all(EXAMPLE.question in messages[-1]["content"] for messages in shown.values())
    lengths = [sum(len(message["content"]) for message in messages) for messages in shown.values()]
    assert lengths == sorted(lengths, reverse=True) and len(set(lengths)) == 3, lengths

  for_each_preset(name, check)


CHECKS = {
  "slots": lambda recipe: contract.slots(recipe, EXAMPLE), "ends": lambda recipe: contract.ends(recipe, EXAMPLE),
  "stops": contract.stops,
  "failed": lambda recipe: contract.failed(recipe, EXAMPLE, Episode.from_text(recipe, EXAMPLE, TRANSCRIPTS["answer"])),
}  # fmt: skip


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", recipes.RECIPES)
def test_contract(name, check):
  for_each_preset(name, CHECKS[check])


@pytest.mark.parametrize("transcript", TRANSCRIPTS)
@pytest.mark.parametrize("name", recipes.RECIPES)
def test_scores(name, transcript):
  """Terms and outcome are in their ranges; scoring is pure, and does not depend on the ids."""
  turns, least = TRANSCRIPTS[transcript], -1.0 if name == "when_to_search" else 0.0
  for preset in recipes.RECIPES[name].PRESETS:
    recipe = recipes.get(name, preset)
    terms = contract.terms(recipe, EXAMPLE, Episode.from_text(recipe, EXAMPLE, turns))
    assert set(terms) == TERMS[name, preset], preset
    assert all(value is None or least <= value <= 1.0 for value in terms.values()), preset
    episode = Episode.from_text(recipe, EXAMPLE, turns, facts={"verdict": 1})
    outcome = recipe.outcome(EXAMPLE, episode)
    assert outcome in (0.0, 1.0) or outcome is None and recipe.switches["correctness"] == "judge", preset
    contract.pure(recipe, EXAMPLE, episode)
    assert recipes.get(name, **recipe.switches).score(EXAMPLE, episode) == recipe.score(EXAMPLE, episode), preset
    contract.text_alone(recipe, EXAMPLE, turns)


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_only_the_models_words_are_rewarded(name):
  def check(recipe):
    prompt = recipe.prompt.messages(EXAMPLE)[-1]["content"]
    shown = recipe.parser.answer(prompt)
    silence = recipe.score(EXAMPLE, Episode.from_text(recipe, EXAMPLE, []))
    if recipe.name != "care" or recipe.switches["retrieval"] != "repo":  # the authors' code pays for it
      assert not any(value > 0.0 for value in silence.values() if value is not None)
    example = EXAMPLE if not shown else dataclasses.replace(EXAMPLE, golds=(shown, "Paris"))
    best = TRANSCRIPTS["cited"][0][1] + "<think> x </think><answer> Paris </answer>"
    contract.environment_earns_nothing(recipe, example, [best])
    assert recipe.score(example, Episode.from_text(recipe, example, [])) == silence

  for_each_preset(name, check)


@pytest.mark.parametrize(("name", "preset", "switches", "says"), [
  ("search_r1", "best", {}, "paper, grpo, ppo, format, repo"),
  ("search_r1", "paper", dict(max_turns=3), "no switch 'max_turns'.*max_searches"),
  ("search_r1", "paper", dict(max_searches=-1), "max_searches=-1.*at least 0"),
  ("search_r1", "paper", dict(max_searches=True), "max_searches=True"),
  ("search_r1", "paper", dict(browse=True, format=True), "browse=True with format=True"),
  ("search_r1", "format", dict(no_answer_penalty=0.1), "published table"),
  ("search_r1", "r1", dict(no_search_penalty=0.1), "no episode can search"),
  ("search_r1", "paper", dict(retrieval_weight=0.1), "format=False, but retrieval_weight is set"),
  ("veritas", "paper", dict(final_share=1.0), "structure_weight=0: the format is not rewarded"),
  ("veritas", "paper", dict(think_search_weight=0.02), "judge_search"),
  ("veritas", "em", dict(information_think_weight=0.05), "judge_information"),
  ("veritas", "paper", dict(ramp_end=3), "ramp_start=None and ramp_end=3: set both"),
  ("veritas", "paper", dict(ramp_start=9, ramp_end=3), r"=3.*at least 9, ramp_start \(config.switches.ramp_end\)"),
  ("veritas", "paper", dict(ramp_end_epochs=0.5), "ramp_end_epochs=0.5.*at least 1.0, ramp_start_epochs"),
  *(("lear", "paper", dict(answers=letters), "config.switches.answers") for letters in ("", "x")),
  ("lear", "paper", dict(answers="r", reply="vanilla"), "config.switches.answers"),
  ("lear", "paper", dict(reply="direct"), "config.switches.answers"),
  ("lear", "paper", dict(stop_at="extract"), "answers='e'"), ("lear", "paper", dict(tau=0.0), "config.switches.tau"),
  ("lear", "paper", dict(reply="extract", answers="e"), "config.switches.stop_at"),
  ("untrained", "paper", dict(method="best"), "method='best'.*'rag'"),
  ("untrained", "ircot,given", {}, "documents='given' with method='ircot': own passages are for rag, cot"),
  ("untrained", "flare", dict(sure_above=1.5), "sure_above=1.5"),
])  # fmt: skip
def test_switches_that_are_unknown_or_contradict_each_other_are_refused(name, preset, switches, says):
  refused(says, recipes.get, name, preset, **switches)


def test_unknown_names():
  refused("arena, care", recipes.get, "search-r1")
  for name in recipes.RECIPES.keys() - set(OWN_WORDS):
    refused("instructions='none at all'.*'paper', 'short'", recipes.get, name, instructions="none at all")


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_the_readme_names_every_switch_and_preset(name):
  module = recipes.RECIPES[name]
  text = (pathlib.Path(module.__file__).parent / "README.md").read_text()
  assert "We do" in text and (name in NO_PAPER or ("Paper says" in text and "Authors' code does" in text))
  for word in (*module.Switches(), *module.PRESETS):
    assert f"`{word}" in text, f"{word} is not in the README"
