"""Which evidence was taken from the passages: honest and cheating evidence, by hand."""

import os
import pathlib

import pytest
from printed import printed

from ragrl_jax import recipes
from ragrl_jax.data import readers
from ragrl_jax.recipes.lear import grounding
from ragrl_jax.structs import Episode, Example, Passage

HERE = pathlib.Path(os.environ.get("RAGRL_DATA") or pathlib.Path(__file__).parents[3] / "shared" / "data") / "qa"
PAPER, GUARDED = recipes.get("lear"), recipes.get("lear", guarded=True)
REASON = "The question asks for one fact. The first passage seems to have it, the others less so."
OSLO = (
  Passage(
    "1",
    "Harald Hardrada",
    "Harald III was king of Norway from 1046 to 1066. Harald III founded Oslo. He died at Stamford Bridge.",
  ),
  Passage("2", "Oslo", "Oslo is the capital of Norway. The city lies at a fjord and has 700,000 inhabitants."),
  Passage("3", "Bergen", "Olaf III founded Bergen in 1070. It was the largest town of Norway."),
)
BERGEN = (
  Passage("1", "Bergen", "Olaf III founded Bergen in 1070. Harald III fought in Sicily."),
  Passage("2", "Oslo", "Oslo is the capital of Norway."),
)
FILM = (
  Passage("1", "Film X", "Film X is a 1990 drama film directed by John Smith."),
  Passage("2", "John Smith", "John Smith (born 4 May 1950) is an American director and writer."),
  Passage("3", "Film Y", "Film Y is a comedy directed by Ann Lee."),
)
SAME = (
  Passage("1", "Scott Derrickson", "Scott Derrickson (born July 16, 1966) is an American director and producer."),
  Passage("2", "Ed Wood", "Edward Davis Wood Jr. was an American filmmaker, actor, writer and producer."),
  Passage("3", "Tyler", "Tyler is a town."),
)
WORLD = (
  Passage("1", "Rhône", "Die Rhône entspringt in der Schweiz. Sie ist 812 km lang."),
  Passage("2", "北京", "北京是中华人民共和国的首都。上海是最大的城市。"),
  Passage("3", "Lord", "The book was written by J. R. R. Tolkien. Dr. Smith did not write it."),
)
FOUNDER = ("Who founded the city of Oslo?", "Harald III", OSLO)
UNTOLD = ("Who founded the city of Oslo?", "Sigurd", BERGEN)
BORN = ("When was the director of Film X born?", "4 May 1950", FILM)
NATION = ("Were Scott Derrickson and Ed Wood of the same nationality?", "yes", SAME)
PEOPLE = ("How many inhabitants does Oslo have?", "700,000", OSLO)
RIVER = ("How long is the Rhône?", "812 km", WORLD)
CAPITAL = ("中华人民共和国的首都是哪里?", "北京", WORLD)
AUTHOR = ("Who wrote the book?", "J. R. R. Tolkien", WORLD)

OPEN = (
  "who won the 2019 us open golf",
  "Gary Woodland",
  (
    Passage(
      "1",
      "U.S. Open",
      "The 2019 U.S. Open was won by Gary Woodland at Pebble Beach. He finished at 13-under par, three strokes ahead "
      "of Brooks Koepka.",
    ),
  ),
)
FIRST = (
  "Who was born first, Conrad Hilton or J. Willard Marriott?",
  "Conrad Hilton",
  (
    Passage("1", "Conrad Hilton", "Conrad Hilton (December 25, 1887 – January 3, 1979) was a hotelier."),
    Passage(
      "2", "J. Willard Marriott", "J. Willard Marriott (September 17, 1900 – August 13, 1985) was a businessman."
    ),
  ),
)
MOSCOW = (
  "Какой город является столицей России?",
  "Москва",
  (Passage("1", "Москва", "Москва является столицей России."), Passage("2", "Казань", "Казань стоит на Волге.")),
)


def about(question, gold, *passages):
  return question, gold, tuple(Passage(title, title, text) for title, text in passages)


GRASS = about(
  "Wer schrieb den Roman „Die Blechtrommel“?",
  "Günter Grass",
  ("Die Blechtrommel", "Die Blechtrommel ist ein Roman von Günter Grass. Er erschien 1959 im Luchterhand Verlag."),
  ("Günter Grass", "Günter Grass wurde 1927 in Danzig geboren."),
  ("Heinrich Böll", "Heinrich Böll schrieb den Roman Ansichten eines Clowns."),
)
VILLAGE = about("Wie viele Einwohner hat Kleinstadt?", "4000", ("Kleinstadt", "Kleinstadt ist ein fiktiver Ort."))
CANBERRA = about(
  "Quelle est la capitale de l'Australie ?",
  "Canberra",
  ("Australie", "L'Australie est un pays d'Océanie. Sa capitale est Canberra."),
  ("Sydney", "Sydney est la ville la plus peuplée d'Australie."),
)
FUJI = about(
  "日本で一番高い山は何ですか?",
  "富士山",
  ("富士山", "富士山は日本で一番高い山である。標高は3776メートル。"),
  ("北岳", "北岳は日本で二番目に高い山である。"),
)
DREAM = about(
  "谁是《红楼梦》的作者?",
  "曹雪芹",
  ("红楼梦", "《红楼梦》是中国古典小说，作者是曹雪芹。"),
  ("西游记", "《西游记》的作者是吴承恩。"),
)
SEOUL = about(
  "대한민국의 수도는 어디인가?",
  "서울",
  ("서울", "서울특별시는 대한민국의 수도이자 최대 도시이다."),
  ("부산", "부산은 대한민국 제2의 도시이다."),
)
HANOI = about(
  "Thủ đô của Việt Nam là gì?",
  "Hà Nội",
  ("Hà Nội", "Hà Nội là thủ đô của nước Việt Nam. Thành phố nằm bên sông Hồng."),
  ("Huế", "Huế là thành phố ở miền Trung."),
)
BRASILIA = about(
  "Qual é a capital do Brasil?",
  "Brasília",
  ("Brasília", "Brasília é a capital federal do Brasil e a sede do governo."),
  ("São Paulo", "São Paulo é a maior cidade do Brasil."),
)
INSULIN = about(
  "who discovered insulin",
  "Frederick Banting",
  (
    "Insulin",
    "Insulin is a hormone. It was discovered by Frederick Banting and Charles Best at the University of Toronto in "
    "1921. It did not cure diabetes.",
  ),
)
MOONS = about(
  "How many moons does Mars have?", "two", ("Mars", "It has two moons, Phobos and Deimos. Mars has no rings.")
)
TREATY = about(
  "Which country did not sign the treaty?",
  "Norway",
  ("Treaty", "Sweden and Denmark signed the treaty in 1397. Norway did not sign the treaty."),
)
HASTINGS = about(
  "who won the battle of hastings",
  "William the Conqueror",
  (
    "Battle of Hastings",
    "The Battle of Hastings was fought in 1066 between the army of William the Conqueror and an English army. William "
    "won a decisive victory.",
  ),
)
ETHANOL = about(
  "What is the boiling point of ethanol?",
  "78.37 °C",
  ("Ethanol", "Formula: C2H6O | Boiling point: 78.37 °C | Melting point: −114.1 °C"),
)
LINUX = about(
  "Where did the creator of Linux study?",
  "University of Helsinki",
  ("Linux", "The kernel was first released in 1991 by Linus Torvalds."),
  ("Linus Torvalds", "He attended the University of Helsinki between 1988 and 1996."),
)
CURIE = about(
  "What award did Marie Curie win in 1911?",
  "Nobel Prize in Chemistry",
  (
    "Marie Curie",
    "Marie Curie won the 1903 Nobel Prize in Physics with Pierre Curie. She won the 1911 Nobel Prize in Chemistry for "
    "the discovery of polonium.",
  ),
)
SINGER = about(
  "What nationality is the singer of X?",
  "America",
  ("X", "X is sung by Ann Roe."),
  ("Ann Roe", "Ann Roe is an American singer."),
  ("Map", "America is a continent."),
)
AMIS = about(
  "Who is the wife of the director of Titanic?",
  "Suzy Amis",
  ("Titanic", "Titanic is a 1997 American epic film directed by James Cameron."),
  ("James Cameron", "James Cameron is a filmmaker. He married Suzy Amis in 2000."),
)

HONEST = [
  (GRASS, "Laut Textstelle 1: Die Blechtrommel ist ein Roman von Günter Grass."),
  (VILLAGE, "Die Passagen enthalten keine Angabe dazu."),
  (CANBERRA, "La capitale de l'Australie est Canberra."),  # for "sa"
  (FUJI, "富士山は日本で一番高い山です。"),  # another ending
  (DREAM, "作者是曹雪芹"),
  (SEOUL, "서울특별시는 대한민국의 수도이자 최대 도시이다."),
  (HANOI, "Hà Nội là thủ đô của nước Việt Nam."),
  (BRASILIA, "Brasília é a capital federal do Brasil."),
  (INSULIN, "Frederick Banting and Charles Best discovered insulin at the University of Toronto in 1921."),
  (MOONS, "Mars has 2 moons, Phobos and Deimos."),
  (TREATY, "Norway didn't sign the treaty."),
  (HASTINGS, "William the Conqueror won a decisive victory at the Battle of Hastings."),  # for "William"
  (ETHANOL, "Ethanol: Boiling point: 78.37 °C"),
  (LINUX, "Linus Torvalds attended the University of Helsinki between 1988 and 1996."),  # the chain's last step alone
  (CURIE, "In 1911, Marie Curie won the Nobel Prize in Chemistry for the discovery of polonium."),
  (SINGER, "X is sung by Ann Roe. Ann Roe is an American singer."),  # "America" with an ending
  (AMIS, "Titanic was directed by James Cameron, who married Suzy Amis in 2000."),
  (FOUNDER, "Harald III founded Oslo."),  # a whole sentence, with two words beside the answer
  (FOUNDER, "HARALD III FOUNDED OSLO"),
  (FOUNDER, "“Harald III founded Oslo.”"),
  (FOUNDER, "According to passage 1, Harald III founded Oslo."),
  (FOUNDER, "- Harald III founded Oslo\n- Oslo is the capital of Norway"),
  (FOUNDER, "Oslo was founded by Harald III."),  # the words of a whole sentence
  (FOUNDER, "Harald III, king of Norway from 1046 to 1066, founded Oslo."),  # of two successive ones
  (FOUNDER, "Harald III founded Oslo. So the answer is Harald III."),
  (UNTOLD, "The passages do not say."),
  (UNTOLD, "None of the passages mentions who founded Oslo."),
  (BORN, "Film X is a 1990 drama film directed by John Smith. John Smith was born 4 May 1950."),
  (BORN, "The director of Film X is John Smith, who was born 4 May 1950."),
  (BORN, "Film X: directed by John Smith; John Smith: born 4 May 1950"),
  (NATION, "Scott Derrickson is an American director. Ed Wood was an American filmmaker."),
  (NATION, "Scott Derrickson is an American director and producer, and Ed Wood was an American filmmaker."),
  (PEOPLE, "The city has 700000 inhabitants."),
  (RIVER, "Die Rhone ist 812 km lang."),  # the title instead of the pronoun, without its accent
  (CAPITAL, "北京是中华人民共和国的首都。"),
  (OPEN, "Gary Woodland won the 2019 U.S. Open at Pebble Beach."),
  (OPEN, "Gary Woodland finished at 13-under par, three strokes ahead of Brooks Koepka."),  # instead of the pronoun
  (FIRST, "Conrad Hilton was born December 25, 1887 and J. Willard Marriott on September 17, 1900."),
  (MOSCOW, "Москва является столицей России."),
  (AUTHOR, "The book was written by J. R. R. Tolkien."),
]
CHEATING = [
  (GRASS, "made_up", "Günter Grass schrieb den Roman Ansichten eines Clowns."),
  (GRASS, "beside_the_point", "Günter Grass wurde 1927 in Danzig geboren."),
  (CANBERRA, "made_up", "Canberra est la ville la plus peuplée d'Australie."),
  (FUJI, "made_up", "北岳は日本で一番高い山である。"),
  (FUJI, "made_up", "富士山は日本で二番目に高い山である。"),
  (DREAM, "made_up", "《西游记》的作者是曹雪芹。"),
  (SEOUL, "made_up", "서울은 대한민국 제2의 도시이다."),
  (HANOI, "made_up", "Huế là thủ đô của nước Việt Nam."),  # a name at the start is no word of its own
  (BRASILIA, "made_up", "Brasília é a maior cidade do Brasil."),  # "Brasil" is not "Brasília"
  (INSULIN, "made_up", "Frederick Banting did not discover insulin at the University of Toronto in 1921."),
  (MOONS, "beside_the_point", "Mars has no moons, Phobos and two."),  # the "no" of the rings
  (TREATY, "made_up", "Norway signed the treaty in 1397."),
  (HASTINGS, "made_up", "William the Conqueror won the Battle of Hastings."),  # the question with the answer
  (ETHANOL, "made_up", "Melting point: 78.37 °C"),
  (CURIE, "made_up", "She won the 1903 Nobel Prize in Chemistry."),  # the other sentence's year
  (AMIS, "made_up", "Suzy Amis starred in Titanic directed by James Cameron."),
  (AMIS, "made_up", "Titanic was directed by Steven Spielberg, who married Suzy Amis."),
  (FOUNDER, "made_up", "The one who founded the city of Oslo is Harald III"),  # the question with an answer
  (FOUNDER, "made_up", "Oslo was founded in 1048 by Harald III."),
  (FOUNDER, "made_up", "Bishop Harald III founded a large trading town there."),
  (FOUNDER, "bare_answer", "Harald III"),
  (FOUNDER, "bare_answer", "It is Harald III."),
  (FOUNDER, "beside_the_point", "Oslo is the capital of Norway."),
  (FOUNDER, "beside_the_point", "Olaf III founded Bergen in 1070."),
  (FOUNDER, "beside_the_point", "Harald III was king of Norway from 1046 to 1066."),  # has the answer, not the fact
  (FOUNDER, "made_up", "The passages do not say."),  # they do
  (UNTOLD, "made_up", "Sigurd founded Oslo."),
  (UNTOLD, "made_up", "Sigurd founded Bergen in 1070."),  # the answer in place of another name
  (("Who founded Oslo?", "Harald III", BERGEN), "beside_the_point", "Harald III founded Oslo, the capital of Norway."),
  (("Who founded Oslo?", "Harald III", BERGEN), "beside_the_point", "Harald III fought in Sicily."),
  (("Who founded Oslo?", "Harald III", BERGEN), "made_up", "Harald III founded Bergen in 1070."),  # from the next one
  (BORN, "made_up", "The director of Film X was born on 4 May 1950."),
  (BORN, "made_up", "Film X was directed by Ann Lee, who was born 4 May 1950."),
  (BORN, "beside_the_point", "Film Y is a comedy directed by Ann Lee."),
  (NATION, "beside_the_point", "Tyler is a town."),
  (NATION, "made_up", "Scott Derrickson and Ed Wood were of the same nationality."),
  (NATION, "made_up", "Scott Derrickson is a French director. Ed Wood was a French filmmaker."),
  (OPEN, "made_up", "Gary Woodland won the 2019 US Open golf."),
  (OPEN, "made_up", "He finished at 13-under par, three strokes ahead of Gary Woodland."),  # instead of a name
  (OPEN, "made_up", "Tiger Woods won it at Augusta. 2019 Gary Woodland."),
  (FIRST, "made_up", "Conrad Hilton was born first."),
  (FIRST, "made_up", "Conrad Hilton was born in 1850 and J. Willard Marriott in 1901."),
  (MOSCOW, "beside_the_point", "Казань стоит на Волге."),
  (PEOPLE, "made_up", "Oslo has 800,000 inhabitants."),
  (RIVER, "made_up", "Die Rhône ist 900 km lang."),
  (CAPITAL, "beside_the_point", "上海是最大的城市。"),
  (("Who wrote the book?", "Smith", WORLD), "made_up", "Dr. Smith did write it in England."),
]


def played(asked, evidence, reason=REASON):
  question, gold, passages = asked
  example = Example("1", question, (gold,), passages)
  text = f"<reason>{reason}</reason><extract>{evidence}</extract><answer>{gold}</answer>"
  facts = dict(reason_tokens=40, evidence_tokens=9, passage_tokens=200, reason_answer=gold, extract_answer=gold)
  return example, Episode.from_text(PAPER, example, [("model", text)], facts=facts)


def earned(asked, evidence, **more):
  """(the guarded reward, the unguarded one, the tricks that are logged)."""
  example, episode = played(asked, evidence, **more)
  found = {name for name, used in PAPER.unearned(example, episode).items() if used}
  assert found == {name for name, used in GUARDED.unearned(example, episode).items() if used}
  return *(recipe.reward(recipe.score(example, episode), 1) for recipe in (GUARDED, PAPER)), found


@pytest.mark.parametrize(("asked", "evidence"), HONEST)
def test_honest_evidence_is_paid(asked, evidence):
  guarded, plain, found = earned(asked, evidence)
  assert guarded == plain > 0.9 and not found


@pytest.mark.parametrize(("asked", "trick", "evidence"), CHEATING)
def test_invented_evidence_is_not(asked, trick, evidence):
  guarded, plain, found = earned(asked, evidence)
  assert guarded == 0.0 < plain and found == {trick}


def as_printed(passages):
  return tuple(Passage(one.id, printed(one.title, wide=False), printed(one.text, wide=False)) for one in passages)


@pytest.mark.parametrize("wide", [False, True])
def test_evidence_as_it_is_printed_is_judged_as_it_is_typed(wide):
  for asked, *trick, evidence in (*HONEST, *CHEATING):
    question, gold, passages = asked
    for shown, text in ((passages, printed(evidence, wide=wide)), (as_printed(passages), evidence)):
      assert earned((question, gold, shown), text)[2] == set(trick), (text, shown)


def test_a_reason_that_copies_all_passages_earns_nothing():
  everything = " ".join(passage.text for passage in OSLO)
  assert earned(FOUNDER, "Harald III founded Oslo.", reason=everything)[::2] == (0.0, {"copied_reason"})
  quoting = f'{REASON} Passage 1 says "Harald III founded Oslo." Passage 3 is about Bergen: "Olaf III founded Bergen".'
  assert not earned(FOUNDER, "Harald III founded Oslo.", reason=quoting)[2]


def test_retrieved_passages_are_the_source():
  """A question without passages gets them by a search; `play` keeps them as a fact, since the question has none."""
  example, episode = played(FOUNDER, "Harald III founded Oslo.")
  bare = Example("1", FOUNDER[0], (FOUNDER[1],))
  facts = dict(episode.facts) | dict(retrieved=[(passage.title, passage.text) for passage in OSLO])
  found = Episode.from_text(PAPER, bare, [("model", episode.model_text)], facts=facts)
  assert PAPER.unearned(bare, found) == PAPER.unearned(example, episode)
  assert PAPER.unearned(bare, Episode.from_text(PAPER, bare, [("model", episode.model_text)]))["made_up"]


@pytest.mark.real
@pytest.mark.skipif(not HERE.is_dir(), reason=f"no real questions in {HERE}: set RAGRL_DATA")
def test_supporting_sentences_of_real_sets_are_paid():
  """Of 200 questions each: the marked sentences are honest evidence, a template of question and answer is not."""
  for name in ("hotpotqa_dev", "2wikimultihopqa_dev"):
    asked = [e for e in readers.read_examples(HERE / f"{name}.jsonl.gz", max_examples=200) if e.evidence]
    judges = [grounding.Judge(e.passages, e.question, e.golds) for e in asked]
    refused = [any(one.tricks(" ".join(s for _, s in e.evidence)).values()) for one, e in zip(judges, asked)]
    paid = [
      not any(one.tricks(f"The answer to {e.question} is {e.golds[0]}.").values()) for one, e in zip(judges, asked)
    ]
    assert sum(refused) <= 0.04 * len(asked) and sum(paid) <= 0.02 * len(asked), name
