"""Documents in files: .txt, .md, .html, .pdf and .docx, each read as one title and text, which `documents` cuts.

Nothing of a document is run. HTML is read by the standard library, .pdf by pypdf, .docx by python-docx (the extra
"documents").
"""

import codecs
import html.parser
import importlib
import logging
import pathlib
import re
import types
import zipfile
from collections.abc import Callable

MOST = 1 << 28  # bytes of a file, and of what is packed in it
_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([\w-]+)", re.IGNORECASE)
# Pages mean the larger charsets of browsers by these names (Encoding Standard, section 4.2).
_LARGER = {
  **dict.fromkeys(("ascii", "iso8859-1"), "cp1252"),
  **dict.fromkeys(("gb2312", "gbk"), "gb18030"),
  **dict.fromkeys(("iso8859-11", "tis-620"), "cp874"),
  **{"iso8859-9": "cp1254", "shift_jis": "cp932", "euc_kr": "cp949", "big5": "big5hkscs"},
}
_MARKS = {codecs.BOM_UTF8: "UTF-8", codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
# Blocks of code.
_FENCED = re.compile(r"^ {0,3}(`{3,}+(?![^\n]*`)|~{3,}).*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.M | re.S)
_BLOCKS = set(
  "address article aside blockquote br caption center dd details dialog dir div dl dt fieldset figcaption figure "
  "footer form h1 h2 h3 h4 h5 h6 header hgroup hr legend li main menu nav ol optgroup option p pre search section "
  "select summary table td th title tr ul".split()
)


class Unread(ValueError):
  """A document that cannot be read, with the reason. A folder's other documents are read all the same."""


def read(path: pathlib.Path) -> tuple[str, str]:
  """(title, text). The title is the document's own, or the file's name without its ending.

  Raises:
    Unread: the document is damaged, encrypted, too large, without text, or not in UTF-8 (a page: in its charset).
    ValueError: the library that reads this kind is not installed.
  """
  if path.stat().st_size > MOST:
    raise Unread(f"larger than {MOST >> 20} MiB")
  try:
    title, text = KINDS[path.suffix.lower()](path)
  except UnicodeDecodeError:
    raise Unread("not UTF-8") from None
  if not text.strip():
    raise Unread("without text")
  clean = lambda text: text.strip().encode(errors="replace").decode()  # a PDF may have half a surrogate pair
  return clean(" ".join(title.split()) or path.stem), clean(text)


def _plain(path: pathlib.Path) -> tuple[str, str]:
  return "", path.read_text(encoding="utf-8-sig")


def _markdown(path: pathlib.Path) -> tuple[str, str]:
  text = path.read_text(encoding="utf-8-sig")
  title = re.search(r"^# (.+)$", _FENCED.sub("", text), re.MULTILINE)
  return re.sub(r"(?<=.) #+$", "", title[1].rstrip(" \t")) if title else "", text


def _html(path: pathlib.Path) -> tuple[str, str]:
  raw = path.read_bytes()
  charset = _charset(raw)
  try:
    text = raw.decode(charset).removeprefix("\ufeff")
  except UnicodeError:
    raise Unread(f"not {charset}") from None
  page = _Page()
  try:
    page.feed(text)
    if len(page.rawdata) < 4096:  # else a tag or comment that never ends: it is left out, as browsers do
      page.close()
  except AssertionError:  # Python's parser raises it of a <![ without a name
    raise Unread("a damaged page") from None
  lines = (" ".join(line.split()) for line in "".join(page.text).split("\n"))
  return "".join(page.title), "\n".join(filter(None, lines))


def _charset(raw: bytes) -> str:
  """The charset of a page: by its byte order mark, or else by its <meta>, or else UTF-8 (HTML, section 13.2.3.2)."""
  for mark, charset in _MARKS.items():
    if raw.startswith(mark):
      return charset
  match = _CHARSET.search(raw[:2048])
  said = match[1].decode().lower().removeprefix("x-") if match else "utf-8"
  try:
    # The <meta> was found as ASCII, so a charset in which its text reads otherwise, such as utf-16, is not the page's.
    fits = said.encode().decode(said) == said
  except (LookupError, UnicodeError):  # no such charset
    fits = False
  name = codecs.lookup(said).name if fits else "utf-8"
  return "UTF-8" if name == "utf-8" else _LARGER.get(name, said)


class _Page(html.parser.HTMLParser):
  """The title and the text of a page, without scripts and styles; blocks begin and end lines.

  The title is the first one outside of drawings (<svg>), whose own titles are left out, as are further ones.
  """

  def __init__(self):
    super().__init__()
    self.title: list[str] = []
    self.text: list[str] = []
    self._into: list[str] | None = self.text  # what the data that follow are added to
    self._titled = False
    self._drawings = 0  # that are open

  def handle_starttag(self, tag, attrs):
    self._drawings += tag == "svg"
    self._into = None if tag in ("script", "style", "title") else self.text
    if tag == "title" and not (self._titled or self._drawings):
      self._into, self._titled = self.title, True
    self._break(tag)

  def handle_endtag(self, tag):
    self._drawings = max(0, self._drawings - (tag == "svg"))
    self._into = self.text
    self._break(tag)

  def _break(self, tag):
    self.text.append("\n" if tag in _BLOCKS else "")

  def handle_data(self, data):
    if self._into is not None:
      self._into.append(re.sub(r"\s+", " ", data))


def _pdf(path: pathlib.Path) -> tuple[str, str]:
  pypdf = _library("pypdf", path)
  logging.getLogger("pypdf").setLevel(logging.ERROR)  # it reports every small fault of a file
  try:
    with pypdf.PdfReader(path) as document:
      if document.is_encrypted and not document.decrypt(""):
        raise Unread("encrypted with a password")
      title = document.metadata.title if document.metadata else ""
      return str(title or ""), "\n".join(page.extract_text() for page in document.pages)
  except Unread:
    raise
  except Exception as error:  # noqa: BLE001 – a damaged file raises all kinds
    raise Unread(f"a damaged PDF ({type(error).__name__})") from None


def _docx(path: pathlib.Path) -> tuple[str, str]:
  docx = _library("docx", path)
  try:
    with zipfile.ZipFile(path) as parts:
      if sum(part.file_size for part in parts.infolist()) > MOST:
        raise Unread(f"larger than {MOST >> 20} MiB when unpacked")
    document = docx.Document(path)
    blocks = document.iter_inner_content()
    text = "\n".join(block.text if hasattr(block, "text") else _table(block) for block in blocks)
    return document.core_properties.title, text
  except Unread:
    raise
  except Exception as error:  # noqa: BLE001 – as above
    raise Unread(f"a damaged .docx ({type(error).__name__})") from None


def _table(table) -> str:
  """A line a row; a cell that spans several columns occurs once."""
  rows = ({cell._tc: cell.text for cell in row.cells}.values() for row in table.rows)
  return "\n".join(" | ".join(" ".join(text.split()) for text in cells) for cells in rows)


def _library(name: str, path: pathlib.Path) -> types.ModuleType:
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise ValueError(f"{path}: its kind is read by an extra: pip install 'ragrl_jax[documents]'.") from error


KINDS: dict[str, Callable[[pathlib.Path], tuple[str, str]]] = {
  ".txt": _plain, ".md": _markdown, ".html": _html, ".htm": _html, ".pdf": _pdf, ".docx": _docx,
}  # fmt: skip
