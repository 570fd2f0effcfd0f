"""Whether evidence was taken from the passages, by words alone: the rules of README.md, "Unearned reward"."""

import dataclasses
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.text import forms
from ragrl_jax.structs import Passage

# Words that carry no content of a sentence: articles, prepositions, pronouns, auxiliaries, and words of telling.
STOP = frozenset(
  """a about after all also an and are as at be because been before being both but by can could did do does during each
  for from had has have he her hers him his how i if in into is it its just may me more most my no nor not of on once
  one only or other our over own s she should so some such t than that the their them then there these they this those
  through to too under until up very was we were what when where which while who whom whose why will with would you
  your according answer based mentioned mentions passage passages document documents question said say says source
  state stated states text therefore thus
  de la le les du des un une el los las en et est es il der das den dem ein eine und ist von im di van het een l d
  sa sein seine ihr ihre su sus sua suo
  的 是 了 在 有 哪 里 什 么 谁""".split()
)
NEGATIONS = frozenset(
  """no not never nor without cannot nicht kein keine pas non niet geen nao nie inte ikke degil khong
  не ليس لا لم 不 没 未 無 な""".split()
)
PRONOUNS = frozenset(
  """he she it they him her them his its their this who which il elle sa er sie es sein seine ihr ihre su sus""".split()
)
NUMERALS = {
  word: str(number)
  for number, word in enumerate("two three four five six seven eight nine ten eleven twelve".split(), 2)
}
SPARE = 5  # one of this many content words of a paraphrase may be the model's own

# Not after initials and titles, as in "Dr. J. R. R. Tolkien".
_ENDS = re.compile(r"(?<!\b[^\W\d_]\.)(?<!\b[A-Z]\w\.)(?<=[.!?])[\s\"'“”‘’)\]]+|(?<=[。！？।؟])|[\n•…|]+|\.\.\.")
_CLAUSES = re.compile(r"[,;]?\s(?:and|but|while|whereas)\s|[,;:]\s|(?<=[.!?])\s|[，；：]")
_SOURCE = r"(?:passage|document|doc|source|text)s?"
_CITED = re.compile(
  rf"^\W*(?:(?:according to|in|from|as) )?(?:the )?{_SOURCE}[\s(\[#]*\d*[)\]]*|^\W*\d+[.):\]]\s", re.IGNORECASE
)
_DENIED = (  # (a passage or "none", its denial or a passage); the last one: German, French and Spanish
  (rf"\b(?:{_SOURCE}|context|none of (?:them|these))\b", r"(?:\b(?:not|no|nothing|none|cannot|lacks?)|n't)\b"),
  (r"\b(?:no|none|nothing|neither)\b", rf"\b(?:{_SOURCE}|context|relevant|information)\b"),
  (
    r"\b(?:passag|dokument|document|text|quelle|kontext|contexte?|pasaje)\w*\b",
    r"\b(?:nicht|kein\w*|pas|aucun\w*|ning\w+)\b",
  ),
)
_ABSTAINS = re.compile(  # the first of each in a sentence decides, so that the time is linear
  "(?:^|(?<=[.!?]))(?:" + "|".join(rf"(?>[^.!?]*?{first})[^.!?]*{then}" for first, then in _DENIED) + ")"
  r"|(?:^|(?<=。))(?>[^。]*?[文落料])[^。]*(?:没有|未|ない|ません)",  # Chinese and Japanese
  re.IGNORECASE,
)
_SEPARATOR = re.compile(r"(?<=\d),(?=\d{3})")
# Encyclopedias write "born" and "died" as dates in brackets.
_LIFE = re.compile(r"\((?:born )?([^()]{,40}\b\d{3,4}) ?- ?(?:died )?([^()]{,40}\b\d{3,4})\)")
_CONTRACTED = re.compile(r"n't\b")
_LETTERS = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff"  # Thai, Japanese, Chinese: written without spaces
_LETTER, _HIRAGANA = re.compile(f"[{_LETTERS}]"), re.compile("[\u3040-\u309f]")
_WORD = re.compile(rf"[{_LETTERS}]|[^\W_{_LETTERS}]+")


def words(text: str) -> tuple[str, ...]:
  """The words of a text without articles, case, accents and forms of Unicode; letters where words have no spaces."""
  text = _CONTRACTED.sub(" not", _LIFE.sub(r" born \1 died \2 ", _SEPARATOR.sub("", forms.typed(text))))
  text = unicodedata.normalize("NFKD", text).casefold()
  matches: list[str] = _WORD.findall("".join(letter for letter in text if not unicodedata.combining(letter)))
  return tuple(NUMERALS.get(word, word) for word in matches if word not in ("a", "an", "the"))


def content(tokens: Sequence[str]) -> frozenset[str]:
  """The words without STOP. Words with the same first five letters agree; numbers agree as a whole.

  Where words have no spaces, each two successive letters are a word. Hiragana is left out: it writes endings.
  """
  kept = ["" if word in STOP or word in NEGATIONS or _HIRAGANA.fullmatch(word) else word for word in tokens]
  pairs = (a + b for a, b in itertools.pairwise(kept) if _LETTER.fullmatch(a) and _LETTER.fullmatch(b))
  stems = (word if _number(word) else word[:5] for word in kept if word and not _LETTER.fullmatch(word))
  return frozenset(itertools.chain(stems, pairs))


def sentences(text: str) -> list[str]:
  """The sentences and lines of a text that have a word."""
  return [part for part in _ENDS.split(text) if part and words(part)]


@dataclasses.dataclass(frozen=True)
class Window:
  """One sentence of a passage, or two that follow each other, after the passage's title."""

  title: tuple[str, ...]
  words: tuple[str, ...]
  content: frozenset[str]
  single: bool


@dataclasses.dataclass(frozen=True)
class Sources:
  """The passages in the form in which evidence is compared with them.

  Attributes:
    streams: title and text of each passage, as words with spaces around them.
    lines, contents: each sentence, in the same form, and its content.
    windows: see `Window`; single sentences first.
    content: the content of all passages.
  """

  streams: tuple[str, ...]
  lines: frozenset[str]
  contents: frozenset[frozenset[str]]
  windows: tuple[Window, ...]
  content: frozenset[str]


@functools.lru_cache(maxsize=256)  # the samples of a group have the same passages
def sources(passages: tuple[Passage, ...]) -> Sources:
  """The sources of these passages."""
  streams, lines, windows = [], [], []
  for passage in passages:
    title, parts = words(passage.title), [words(part) for part in sentences(passage.text)]
    streams.append(_line((*title, *itertools.chain(*parts))))
    lines += map(_line, parts)
    for first, following in zip(parts, [*parts[1:], ()]):
      stems = content(title) | content(first)
      windows.append(Window(title, (*title, *first), stems, single=True))
      windows.append(Window(title, (*title, *first, *following), stems | content(following), single=False))
  return Sources(
    streams=tuple(streams),
    lines=frozenset(lines),
    contents=frozenset((*(content(line.split()) for line in lines), *(one.content for one in windows if one.single))),
    windows=tuple(sorted(windows, key=lambda window: not window.single)),
    content=frozenset().union(*(window.content for window in windows)),
  )


@dataclasses.dataclass(frozen=True)
class Unit:
  """A sentence of the evidence, or a clause of it, with the windows that it was taken from; () if there are none."""

  words: tuple[str, ...]
  content: frozenset[str]
  taken: tuple[Window, ...]
  abstains: bool

  @property
  def titled(self) -> tuple[str, ...]:
    """Its words, and the titles of the passages that it was taken from."""
    return (*self.words, *itertools.chain(*(window.title for window in self.taken)))


class Judge:
  """Compares evidence for one question with its passages.

  Args:
    passages: as they were shown.
    question: its words are no source of evidence.
  """

  def __init__(self, passages: tuple[Passage, ...], question: str, golds: Sequence[str]):
    self.sources = sources(passages)
    self.asked = content(words(question))
    self.gold = frozenset().union(*(content(words(gold)) for gold in golds))
    self.spelt = frozenset(word for gold in golds for word in words(gold) if len(word) >= 5)
    self.yes_no = all(gold.strip().lower() in qa.YES_NO for gold in golds)
    gold_words = () if self.yes_no else [words(gold) for gold in golds if words(gold)]
    # An answer of five letters may have an ending, as "America" has in "American".
    self.golds = tuple(
      _line(gold).rstrip() if len(gold[-1]) >= 5 and gold[-1].isalpha() else _line(gold) for gold in gold_words
    )
    self.holds = any(self.has(tuple(stream.split())) for stream in self.sources.streams)

  def tricks(self, evidence: str) -> dict[str, bool]:
    """The tricks "bare_answer", "made_up" and "beside_the_point" of README.md, and whether the evidence uses each."""
    units = [unit for sentence in sentences(evidence) for unit in self.units(sentence)]
    honest = any(unit.abstains for unit in units) and self.silent()
    taken = [unit for unit in units if unit.taken]
    unsupported = [unit for unit in units if not unit.taken and not unit.content <= self.gold | self.asked]
    size = lambda found: sum(len(unit.words) for unit in found if not (honest and unit.abstains))
    bare = not taken and self.has(words(evidence)) and not any(unit.content - self.gold for unit in units)
    made_up = bool(units) and not bare and (not (taken or honest) or 3 * size(unsupported) > size(units))
    beside = not (bare or made_up or honest or self.answers(taken))
    return dict(bare_answer=bare, made_up=made_up, beside_the_point=beside)

  def has(self, tokens: tuple[str, ...]) -> bool:
    """Whether the words hold an answer; "yes" and "no" are not looked for."""
    return any(gold in _line(tokens) for gold in self.golds)

  def silent(self) -> bool:
    """Whether the passages do not answer the question: they hold no answer, or for "yes" and "no" little of it."""
    return 2 * len(self.asked & self.sources.content) < len(self.asked) if self.yes_no else not self.holds

  def answers(self, taken: Sequence[Unit]) -> bool:
    """Whether the evidence that was taken from passages is about the question, and holds an answer if passages do.

    A unit is about the question if it, or the title of its passage, has a content word of the question, or of another
    unit that is about it: the steps of a chain are connected by what they share. So is a title that is mentioned in a
    passage whose own title is in the question.
    """
    titled = [(content(window.title), window.content) for window in self.sources.windows if content(window.title)]
    asked = [said for title, said in titled if title <= self.asked]
    topics = self.asked.union(*(title - self.gold for title, _ in titled if any(title <= said for said in asked)))
    about, remaining = [], list(taken)
    while found := [unit for unit in remaining if content(unit.titled) & topics]:
      about += found
      remaining = [unit for unit in remaining if unit not in found]
      topics = topics.union(*(content(unit.titled) - self.gold for unit in found))
    if self.holds:
      together = tuple(itertools.chain(*(unit.words for unit in taken if unit in about)))
      return self.has(together) or any(self.has(unit.taken[0].title) for unit in about if len(unit.taken) == 1)
    covered = frozenset().union(*(content(unit.titled) for unit in about)) & self.asked
    return bool(about) and 2 * len(covered) >= len(self.asked & self.sources.content)

  def units(self, sentence: str) -> list[Unit]:
    """The sentence as one unit if it was taken from the passages as a whole, else its clauses."""
    unit = self.unit(sentence)
    swapped = self._swapped(unit.words, unit.content)
    parts = [] if unit.taken or swapped else [self.unit(part) for part in _CLAUSES.split(sentence) if words(part)]
    return parts if any(part.taken for part in parts) else [unit]

  def unit(self, text: str) -> Unit:
    """A sentence or clause without its reference to a passage, and where it was taken from."""
    text = forms.typed(text)
    abstains, text = bool(_ABSTAINS.search(text)), _CITED.sub("", text).strip()
    taken = self.taken(text)
    return Unit(words(text), content(words(text)), taken, abstains and not taken)

  def taken(self, text: str) -> tuple[Window, ...]:
    """The windows that a sentence was taken from; () if there are none.

    Taken are: a whole sentence of a passage, or successive words with content beside the answer; words of one or two
    successive sentences in their order, if two of them are content beside the answer; and a paraphrase (`paraphrased`).
    Except for a whole sentence, there must be an answer, or a content word that is not the question's.
    """
    tokens, line = words(text), _line(words(text))
    stems, beside = content(tokens), content(tokens) - self.gold
    if line not in self.sources.lines and not (stems - self.asked):
      return ()
    swapped = self._swapped(tokens, stems)
    in_letters = [word for word in tokens if word in self.spelt]
    windows = [
      window
      for window in self.sources.windows
      if (window.single or not swapped) and all(any(w.startswith(word) for w in window.words) for word in in_letters)
    ]
    for window in (window for window in windows if stems <= window.content):
      together = line in _line(window.words) and (beside or line in self.sources.lines)
      if together or (len(beside) >= 2 and _in_order(tokens, window.words)):
        return (window,)
    names = content([word for part in text.split() if part[:1].isupper() for word in words(part)])
    denied = _denied(tokens)
    alike = (
      (window,) for window in windows if denied <= (there := _denied(window.words)) and bool(denied) == bool(there)
    )
    pairs = () if swapped or denied else self._joined(stems)
    spare = 0 if swapped else len(stems) // SPARE
    matches = itertools.chain(((place, spare) for place in alike), ((pair, 0) for pair in pairs))
    return next((places for places, most in matches if self.paraphrased(stems, names, places, most)), ())

  def _swapped(self, sentence: tuple[str, ...], stems: frozenset[str]) -> bool:
    """Whether a sentence of a passage has all but the answer, or has other numbers: they were put there.

    The answer was not if it replaces a pronoun, or its own short form: a word of it without another name beside it.
    """
    single = [window for window in self.sources.windows if window.single]
    lacks = lambda part: [one for one in single if stems - part <= one.content and not part <= one.content]
    answer, numbers = stems & self.gold, frozenset(filter(_number, stems))
    return any(any(map(_number, one.content - stems)) for one in lacks(numbers)) or any(
      not PRONOUNS & set(one.words) - set(sentence)
      and not any(beside <= stems for beside in _beside(answer, one.words[len(one.title) :]))
      for one in lacks(answer)
    )

  def _joined(self, stems: frozenset[str]) -> Iterator[tuple[Window, ...]]:
    """Pairs of sentences that share a title's word that the evidence has, neither of the question nor the answer."""
    new = stems - self.asked - self.gold
    near = [window for window in self.sources.windows if window.single and window.content & new]
    pairs = itertools.combinations(near, 2)
    return (
      (a, b)
      for a, b in pairs
      if a.content & b.content & new & (content((*a.title, *b.title)) if a.title != b.title else new)
    )

  def paraphrased(self, stems: frozenset[str], names: frozenset[str], places: tuple[Window, ...], spare: int) -> bool:
    """Whether the content words of a sentence are those of the windows.

    Its answer, its words from the question, its numbers and its names must be there, and of the other words all but
    `spare`. And it must have a word that is neither in the question nor in the answer, or repeat a whole sentence:
    otherwise it may just be the question with an answer.
    """
    source = frozenset().union(*(window.content for window in places))
    rest = stems - source
    if rest & (self.asked | self.gold | names) or any(map(_number, rest)) or len(rest) > spare:
      return False
    return bool((stems & source) - self.asked - self.gold) or len(stems) > 1 and stems in self.sources.contents


def quoted(tokens: tuple[str, ...], passages: tuple[Passage, ...], run: int = 4) -> int:
  """Number of the words that are in runs of at least `run` successive words of a passage."""
  runs = lambda match: [match[at : at + run] for at in range(len(match) - run + 1)]
  runs_of_sources = {part for stream in sources(passages).streams for part in runs(tuple(stream.split()))}
  return len({at + place for at, part in enumerate(runs(tokens)) if part in runs_of_sources for place in range(run)})


def size(passages: tuple[Passage, ...]) -> int:
  """Number of words of the passages, with their titles."""
  return sum(len(stream.split()) for stream in sources(passages).streams)


def _number(word: str) -> bool:
  return any(map(str.isdigit, word))


def _line(tokens: Sequence[str]) -> str:
  return f" {' '.join(tokens)} "


def _denied(tokens: Sequence[str]) -> set[str]:
  """The stems that follow negations; "" where none does."""
  after = (content(tokens[at + 1 : at + 2]) for at, word in enumerate(tokens) if word in NEGATIONS)
  return {stem for stems in after for stem in stems or ("",)}


def _beside(stems: frozenset[str], tokens: tuple[str, ...]) -> list[frozenset[str]]:
  """The content of each of these words in a sentence, with the words beside it."""
  return [content(tokens[max(0, at - 1) : at + 2]) for at, word in enumerate(tokens) if content((word,)) & stems]


def _in_order(tokens: tuple[str, ...], source: tuple[str, ...]) -> bool:
  """Whether the source has the words in this order, without leaving out a negation between the first and the last."""
  at, first = 0, None
  for word in tokens:
    try:
      at = source.index(word, at) + 1
    except ValueError:
      return False
    first = at - 1 if first is None else first
  return not (NEGATIONS & set(source[first:at])) - set(tokens)
