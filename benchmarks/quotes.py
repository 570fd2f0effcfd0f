"""The time of the soft quote check on contexts of 2,000, 8,000 and 32,000 tokens, compared with difflib on all windows.

    python benchmarks/quotes.py
    python benchmarks/quotes.py --long

Texts consist of made-up words with English letter frequencies; a token counts as 0.75 words. The quotes are sentences
of the context with one letter in `noise` changed (found), and other sentences (not found). Both methods must give the
same verdicts. Times are for one quote, with the context's index.

--long: near copies of 200, 500 and 1,500 words from 6,000 words of this repository's documents, with one letter in 25
or in 300 changed; only our method, since difflib takes minutes there.
"""

import argparse
import difflib
import pathlib
import random
import time

from ragrl_jax.core.rewards import quotes

LETTERS = "eeeeeeeeeeeetttttttttaaaaaaaaooooooooiiiiiiinnnnnnnssssssrrrrrrhhhhhhllllddddccuummffppggwwyybbvk"


def plain(quote: str, context: str, threshold: float = quotes.SOFT) -> bool:
  """The slow method: difflib on every window, one after the other."""
  words, quote = context.lower().split(), " ".join(quote.lower().split())
  size = len(quote.split())
  return any(
    difflib.SequenceMatcher(None, " ".join(words[i : i + size]), quote).ratio() >= threshold
    for i in range(len(words) - size + 1)
  )


def text(rng: random.Random, words: int, vocabulary: list[str]) -> list[str]:
  return [rng.choice(vocabulary) for _ in range(words)]


def spoilt(rng: random.Random, quote: str, noise: int) -> str:
  return "".join(rng.choice("xqz") if rng.randrange(noise) == 0 else letter for letter in quote)


def long() -> None:
  rng, root = random.Random(0), pathlib.Path(__file__).parents[1]
  words = " ".join(path.read_text(encoding="utf-8") for path in sorted(root.glob("ragrl_jax/recipes/*/README.md")))
  words = words.split()[:6000]
  context = " ".join(words)
  print("quote       changed  ours     found")
  for length in (200, 500, 1500):
    for noise in (25, 300):
      at = rng.randrange(len(words) - length)
      quote = spoilt(rng, " ".join(words[at : at + length]), noise)
      quotes._index.cache_clear()
      begin = time.process_time()
      result = quotes.soft(quote, context)
      print(f"{length:4d} words  1 in {noise:3d}  {time.process_time() - begin:5.2f} s  {result}", flush=True)


def main() -> None:
  rng = random.Random(0)
  vocabulary = ["".join(rng.choice(LETTERS) for _ in range(rng.randint(2, 9))) for _ in range(3000)]
  print("tokens  quote     difflib window   ours       ratio   same verdicts")
  for tokens in (2000, 8000, 32000):
    words = text(rng, int(0.75 * tokens), vocabulary)
    context = " ".join(words)
    for length in (8, 20, 60):
      asked = []
      for _ in range(2):
        at = rng.randrange(len(words) - length)
        asked += [spoilt(rng, " ".join(words[at : at + length]), 25), " ".join(text(rng, length, vocabulary))]
      begin = time.perf_counter()
      theirs = [plain(quote, context) for quote in asked]
      middle = time.perf_counter()
      quotes._index.cache_clear()
      quotes.soft.cache_clear()
      ours = [quotes.soft(quote, context) for quote in asked]
      end = time.perf_counter()
      window_ms, ours_ms = 250 * (middle - begin), 250 * (end - middle)
      print(
        f"{tokens:6d}  {length:2d} words  {window_ms:11.1f} ms  {ours_ms:7.2f} ms  {window_ms / ours_ms:6.0f}x  "
        f"{ours == theirs} ({sum(ours)} of {len(ours)} found)",
        flush=True,
      )


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--long", action="store_true")
  (long if parser.parse_args().long else main)()
