import types

import pytest

from ragrl_jax import config as config_lib
from ragrl_jax import recipes
from ragrl_jax.data import writers
from ragrl_jax.prompting.bytes import ByteTokenizer
from ragrl_jax.run import questions
from ragrl_jax.structs import Example, Passage

PASSAGES = tuple(Passage("", f"T{i}", f"Text of number {i}.") for i in range(3))


def made(folder, recipe="care", context=1000, **data):
  config = config_lib.default_config()
  short = [Example(f"s{i}", "Who?", ("a",), PASSAGES[:1], (0,)) for i in range(4)]
  long = [Example(f"l{i}", "Who?", ("a",), (Passage("", "", "word " * 500),)) for i in range(3)]
  for name, examples in (("short", short), ("mixed", short + long), ("long", long)):
    writers.write_examples(folder / f"{name}.jsonl", examples)
  config.data.update(
    {key: str(folder / f"{value}.jsonl") if isinstance(value, str) else value for key, value in data.items()}
  )
  config.rollout.update(dict(context=context, max_new_tokens=100, prompts_per_step=5))
  player = types.SimpleNamespace(tokenizer=ByteTokenizer(), recipe=recipes.get(recipe, instructions="none"))
  return questions.training(config, player.recipe, player.tokenizer)


def test_long_prompts_are_left_out_whole(tmp_path):
  assert len(made(tmp_path, train="mixed")[0]) == 7
  assert [e.id for e in made(tmp_path, train="mixed", drop_long=True)[0]] == ["s0", "s1", "s2", "s3"]
  with pytest.raises(ValueError, match="900 tokens"):
    made(tmp_path, train="long", drop_long=True)


def test_easy_and_hard_questions(tmp_path):
  examples, draws = made(tmp_path, context=4000, train="short", hard="long")
  assert [e.id[0] for e in examples] == list("sssslll")
  # α falls from 349/350 at the first step to 0 at step 350, whose draws begin at 349 · 5.
  early, late = ([examples[which].id[0] for _, which in draws.draw(cursor, 200)] for cursor in (0, 349 * 5))
  assert early.count("s") > 150 and late.count("s") == 0
  with pytest.raises(ValueError, match="no curriculum"):
    made(tmp_path, "arena", context=4000, train="short", hard="long")
  assert made(tmp_path, "arena", train="short")[1].draw(0, 4) != []


def test_gold_sentences_come_from_the_original_question():
  whole = Passage("", "", "Passage 1:\nParis\nIt is large. It is old.")
  asked = [
    Example("l1", "What is  large", ("Paris",), (whole,)),
    Example("l2", "Else?", ("x",), (whole,)),
    Example("l3", "Own?", ("x",), (whole,), evidence=((0, "It is old."),)),
  ]
  originals = [
    Example("h1", "what is large?", ("Paris",), PASSAGES, (1,), evidence=((1, "It is large."),)),
    Example("h2", "Else?", ("x",), PASSAGES),
    Example("h3", "Own?", ("x",), PASSAGES, evidence=((2, "No."),)),
  ]
  found = questions.with_evidence(asked, originals)
  assert [e.evidence for e in found] == [((0, "It is large."),), (), ((0, "It is old."),)]
  assert [e.id for e in found] == ["l1", "l2", "l3"] and found[1] == asked[1]
  with pytest.raises(ValueError, match="config.data.evidence"):
    questions.with_evidence(asked[1:2], originals)


def test_noise_is_keyed_and_keeps_the_positions_right():
  examples = [
    Example(
      str(i), "?", ("a",), (PASSAGES[i], Passage("", "own", f"own {i}")), supporting=(1,), evidence=((1, f"own {i}"),)
    )
    for i in range(3)
  ]
  assert questions.with_noise(examples, 0, seed=0) == examples
  noisy = questions.with_noise(examples, 2, seed=0)
  assert questions.with_noise(examples[:], 2, seed=0) == noisy != questions.with_noise(examples, 2, seed=1)
  more = questions.with_noise(examples, 4, seed=0)
  for before, after, longer in zip(examples, noisy, more):
    assert len(after.passages) == 4 and len({p.text for p in after.passages}) == 4
    assert [p for p in after.passages if p in before.passages] == list(before.passages)  # in their order
    assert [after.passages[place].text for place in after.supporting] == [f"own {before.id}"]
    assert [after.passages[place].text for place, _ in after.evidence] == [f"own {before.id}"]
    assert set(after.passages) <= set(longer.passages)
  with pytest.raises(ValueError, match="config.data.noise"):
    questions.with_noise(examples, 5, seed=0)


def test_what_is_too_long_for_an_evaluation_loses_its_middle():
  config = config_lib.default_config()
  config.rollout.update(dict(context=140, max_new_tokens=40))
  words = ByteTokenizer()
  player = types.SimpleNamespace(tokenizer=words, recipe=recipes.get("care", instructions="none", titles=False))
  size = lambda example: len(words.render(player.recipe.prompt.messages(example)))
  text = "".join(chr(97 + i % 26) for i in range(300))
  short = Example("s", "Who?", ("a",), PASSAGES[:1])
  long = Example("l", "Who?", ("a",), (PASSAGES[0], Passage("p", "", text)), supporting=(1,))
  assert questions.fitting(config, player, [short, long]) == [short, long]
  config.data.cut_middle = True
  same, cut = questions.fitting(config, player, [short, long])
  assert same is short and size(cut) == 100 and size(long) > 300
  assert cut.passages[0] == PASSAGES[0] and cut.supporting == (1,)
  kept, gone = cut.passages[1].text, size(long) - 100
  half = -(-(300 - gone) // 2)
  assert kept == text[:half] + text[half + gone :]
  # The longest first, then the next one.
  two = Example("t", "Who?", ("a",), tuple(Passage(str(i), "", text[:n]) for i, n in enumerate((60, 70))))
  config.rollout.context = 80
  (cut,) = questions.fitting(config, player, [two])
  assert size(cut) == 40 and not cut.passages[1].text and 0 < len(cut.passages[0].text) < 60
  config.rollout.context = 50
  with pytest.raises(ValueError, match="'t'.*longer than the 10"):
    questions.fitting(config, player, [two])
