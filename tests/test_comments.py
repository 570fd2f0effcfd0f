"""Comments say why: at least eight per hundred lines of code in the rooms that train."""

import ast
import io
import pathlib
import tokenize

import pytest

import ragrl_jax

ROOT = pathlib.Path(ragrl_jax.__file__).parent
ROOMS = ("jobs", "engine", "learner", "rollout")
LEAST = 8  # comments per 100 lines of code


def docstring_lines(source):
  """The lines of all docstrings."""
  found = set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
      found |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
  return found


def counted(source):
  """(lines with a comment, lines of code). A trailing comment counts as both; docstrings and blank lines as none."""
  comments, code = set(), set()
  ignored = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER)
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    lines = set(range(token.start[0], token.end[0] + 1))
    if token.type == tokenize.COMMENT:
      comments |= lines
    elif token.type not in ignored:
      code |= lines
  return len(comments), len(code - docstring_lines(source))


def test_counting_by_hand():
  source = '"""Doc.\n\nMore."""\n\n# why\nx = 1  # metres\ny = """a\nb"""\n'
  assert counted(source) == (2, 3)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_have_enough_comments(room):
  files = [ROOT / room] if room.endswith(".py") else sorted((ROOT / room).rglob("*.py"))
  each = {path.relative_to(ROOT): counted(path.read_text(encoding="utf-8")) for path in files}
  comments, code = (sum(numbers) for numbers in zip(*each.values()))
  assert 100 * comments >= LEAST * code, f"{room}: {comments} comments on {code} lines of code: {each}"
