"""Corpora as people have them: folders of documents, tables with and without ids; what is left out is counted."""

import contextlib
import html.parser
import os
import zipfile

import docx
import pypdf
import pytest
from refusals import refused

from ragrl_jax.retrieval import build_index, corpus, document_files, load_index
from ragrl_jax.structs import Passage


def pdf(path, text, *, title="", password=None):
  """A PDF of one page by hand: a font, a page, a stream that shows the text."""
  shown = f"BT /F 12 Tf 72 720 Td ({text}) Tj ET"
  parts = [
    "<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
    "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F 5 0 R >> >> >>",
    f"<< /Length {len(shown)} >>\nstream\n{shown}\nendstream", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    f"<< /Title ({title}) >>",
  ]  # fmt: skip
  whole, offsets = "%PDF-1.4\n", []
  for number, part in enumerate(parts, 1):
    offsets.append(len(whole))
    whole += f"{number} 0 obj\n{part}\nendobj\n"
  table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
  trailer = f"trailer\n<< /Size 7 /Root 1 0 R /Info 6 0 R >>\nstartxref\n{len(whole)}\n%%EOF\n"
  path.write_text(f"{whole}xref\n0 7\n0000000000 65535 f \n{table}{trailer}")
  if password is not None:
    writer = pypdf.PdfWriter(clone_from=path)
    writer.encrypt(password, "the owner's", algorithm="AES-256")
    writer.write(path)
  return path


def word(path, title=""):
  made = docx.Document()
  made.core_properties.title = title
  made.add_paragraph("The first line.")
  table = made.add_table(2, 2)
  for cell, text in zip([cell for row in table.rows for cell in row.cells], ("Town", "Size", "Oslo", "Oslo")):
    cell.text = text
  table.add_row().cells[0].merge(table.rows[2].cells[1]).text = "both"
  made.add_paragraph("The last line.")
  made.save(path)
  return path


def put(folder, contents):
  """Writes files: texts and bytes by their names."""
  for name, content in contents.items():
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


passages = lambda path: list(corpus.read_passages(path))
said = lambda caplog: [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
PAGE = """<!DOCTYPE html><html><head><title>My &amp; page</title><style>p {color: red}</style></head><body>
<h1>Oslo</h1><p>A <b>town</b>
 in Norway.<script>if (a < b) alert("<p>")</script><br>Founded&nbsp;1040<p>The end</body>"""


def test_every_kind_of_document(tmp_path):
  put(tmp_path, {
    "a.txt": "\ufeffA text.\n  Its second line.\n", "b.md": "---\nx: 1\n---\n# The title \n\nA *text*.\n",
    "c.html": PAGE, "d.HTM": b'<meta charset="windows-1252">Caf\xe9',
  })  # fmt: skip
  (tmp_path / "deep" / "er").mkdir(parents=True)
  pdf(tmp_path / "deep" / "e.pdf", "A page.", title="My paper")
  pdf(tmp_path / "deep" / "er" / "f.pdf", "Locked for writing.", password="")
  word(tmp_path / "g.docx", "My letter")
  word(tmp_path / "h.docx")
  letter = "The first line.\nTown | Size\nOslo | Oslo\nboth\nThe last line."
  assert passages(tmp_path) == [
    Passage("a.txt", "a", "A text.\n  Its second line."),
    Passage("b.md", "The title", "---\nx: 1\n---\n# The title \n\nA *text*."),
    Passage("c.html", "My & page", "Oslo\nA town in Norway.\nFounded 1040\nThe end"), Passage("d.HTM", "d", "Café"),
    Passage("deep/e.pdf", "My paper", "A page."), Passage("deep/er/f.pdf", "f", "Locked for writing."),
    Passage("g.docx", "My letter", letter), Passage("h.docx", "h", letter),
  ]  # fmt: skip
  assert [p.id for p in passages(tmp_path / "deep" / "e.pdf")] == ["e.pdf"]
  assert [p.id for p in passages(f"{tmp_path}/*.docx")] == ["g.docx", "h.docx"]


@pytest.mark.parametrize(("page", "charset", "text"), [
  ("<meta charset=utf-16>Oslo", "ascii", "Oslo"),  # even and odd numbers of bytes
  ("<meta charset='UTF-16LE'>Ålesund", "utf-8", "Ålesund"),
  ("<meta charset=utf-32>Oslo", "ascii", "Oslo"), ("<meta charset=cp037>Oslo", "ascii", "Oslo"),
  ("<meta charset=undefined>Oslo", "ascii", "Oslo"), ("<meta charset=hex>Oslo", "ascii", "Oslo"),
  ("<meta charset=shift_jis>東京", "shift_jis", "東京"), ("<meta charset=x-sjis>①", "cp932", "①"),
  ("<meta charset=iso-8859-1>“It’s” – 5 €", "cp1252", "“It’s” – 5 €"), ("<meta charset=us-ascii>’", "cp1252", "’"),
  ("<meta charset=ISO-8859-9>“ş”", "cp1254", "“ş”"), ("<meta charset = 'GB2312'>镕", "gbk", "镕"),
  ("<meta charset=gbk>㐀", "gb18030", "㐀"), ("<meta charset=euc-kr>똠", "cp949", "똠"),
  ("<meta charset=tis-620>ก“", "cp874", "ก“"), ("<meta charset=big5>碁", "big5hkscs", "碁"),
  ("\ufeff<meta charset=utf-16>Ålesund", "utf-16-le", "Ålesund"), ("\ufeffÅlesund", "utf-16-be", "Ålesund"),
  ("\ufeff<meta charset=windows-1252>Ålesund", "utf-8", "Ålesund"), ("\ufeff<meta charset=utf8>a", "utf-8", "a"),
])  # fmt: skip
def test_the_charset_of_a_page(tmp_path, page, charset, text):
  for end in ("", " "):
    (tmp_path / "a.html").write_bytes((page + end).encode(charset))
    assert document_files.read(tmp_path / "a.html") == ("a", text)


@pytest.mark.parametrize(("page", "title", "text"), [
  ("<title>Oslo</title><svg><title>menu icon</title><text>+</text></svg>A town.", "Oslo", "+A town."),
  ("<svg><title>menu</title></svg>A <svg/><title>Oslo</title>town.", "Oslo", "A\ntown."),
  ("<title>Oslo</title><title>Bergen</title>A town.", "Oslo", "A town."),
  ("<svg><svg><title>a</title></svg><title>b</title></svg></svg>A town.", "a", "A town."),  # the file's name
  ("<center>Oslo</center>A<table><caption>town</caption></table><dialog>.</dialog>", "a", "Oslo\nA\ntown\n."),
])  # fmt: skip
def test_the_title_of_a_page_is_its_own(tmp_path, page, title, text):
  (tmp_path / "a.html").write_text(page)
  assert document_files.read(tmp_path / "a.html") == (title, text)


@pytest.mark.parametrize(("text", "title"), [
  ("```bash\n# install\n```\n# Oslo\n", "Oslo"), ("~~~~\n~~~\n# a\n~~~~\n# Oslo ##\n", "Oslo"), ("```\n# b\n", "a"),
  ("```# a``` is code\n# C#\n", "C#"), ("A town\n\n``` sh\n# b\n", "a"),  # the file's name
  ("# #\n", "#"), ("# C# \t\n", "C#"), ("# Oslo # 1  ## \n", "Oslo # 1"), (f"# {' ' * 100_000}b\n", "b"),  # at once
  (f"{'`' * 100_000} a`\n# Oslo\n", "Oslo"),
])  # fmt: skip
def test_a_comment_in_code_is_no_title(tmp_path, text, title):
  (tmp_path / "a.md").write_text(text)
  assert document_files.read(tmp_path / "a.md") == (title, text.strip())


def test_what_cannot_be_read_is_counted_and_said(tmp_path, caplog):
  folder = tmp_path / "docs"
  put(folder, {
    "good.txt": "A text.", "latin.txt": b"Stra\xdfe", "odd.html": b"<meta charset=klingon>\xe9", "empty.md": " \n",
    "western.html": b"<meta charset=windows-1252>\x81", "damaged.docx": "no zip", "photo.png": b"\x89PNG",
    "table.csv": "id,text\n1,a\n", ".git/HEAD.txt": "ref", "huge.txt": "", "Makefile": "",
    "broken.html": "<![<!", "open.html": "<a " * 300_000,  # of which each would be read to the end
  })  # fmt: skip
  os.truncate(folder / "huge.txt", document_files.MOST + 1)
  (folder / "damaged.pdf").write_bytes(pdf(folder / "damaged.pdf", "x").read_bytes()[:80])
  pdf(folder / "locked.pdf", "x", password="secret")
  pdf(folder / "scan.pdf", "")
  with zipfile.ZipFile(folder / "bomb.docx", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as bomb:
    with bomb.open("word/document.xml", "w", force_zip64=True) as part:
      for _ in range(257):
        part.write(bytes(1 << 20))
  for name, target in {"loop": folder, "nowhere.txt": folder / "nothing", "self.txt": folder / "self.txt"}.items():
    (folder / name).symlink_to(target)
  os.mkfifo(folder / "pipe.txt")
  assert passages(folder) == [Passage("good.txt", "good", "A text.")]
  (message,) = said(caplog)
  for reason in (
    "hidden: 1 (such as", "links to folders: 1", "pipes, or links to nothing: 3", "of another kind (.png): 1",
    "of another kind (no ending): 1", "files of rows beside documents: 1", "not UTF-8: 2",
    "not windows-1252: 1", "larger than 256 MiB: 1", "larger than 256 MiB when unpacked: 1",
    "encrypted with a password: 1", "a damaged .docx (BadZipFile): 1", "a damaged PDF (",
  ):  # fmt: skip
    assert reason in message, reason
  reasons = ("without text: 3", "a damaged page: 1")
  with contextlib.suppress(AssertionError):  # which Python's parser of HTML raised of <![<!; newer ones see a comment
    parser = html.parser.HTMLParser()
    parser.feed("<![<!")
    parser.close()
    reasons = ("without text: 4",)
  assert all(reason in message for reason in reasons), message
  assert str(folder / "locked.pdf") in message and "\n" not in message
  corpus.identity(folder)


def test_faults_of_the_whole_corpus(tmp_path):
  path = pdf(tmp_path / "locked.pdf", "x", password="secret")
  refused("no passages; left out: encrypted with a password: 1 .such as .*locked.pdf", passages, path)
  put(tmp_path, {"docs/a.png": ""})
  with pytest.raises(FileNotFoundError, match=r"no such corpus: .*here are of another kind \(.png\): 1"):
    passages(tmp_path / "docs")
  with pytest.raises(FileNotFoundError, match="no such corpus: it must be a file of rows .*a document .*.pdf"):
    passages(tmp_path / "docs" / "a.png")
  put(tmp_path / "docs", {"a/x.txt": "a", "b/x.txt": "b"})
  refused("both have the id 'x.txt': name the folder that holds both", passages, f"{tmp_path}/docs/a,{tmp_path}/docs/b")
  assert [p.id for p in passages(tmp_path / "docs")] == ["a/x.txt", "b/x.txt"]


def test_a_missing_library_is_named(tmp_path, monkeypatch):
  monkeypatch.setitem(__import__("sys").modules, "pypdf", None)
  (tmp_path / "a.txt").write_text("A text.")
  pdf(tmp_path / "b.pdf", "x")
  refused(r"b.pdf: its kind is read by an extra: pip install 'ragrl_jax\[documents\]'", passages, tmp_path)


def test_a_readme_beside_rows_is_no_document(tmp_path, caplog):
  put(tmp_path, {"README.md": "# About", "data/a.csv.zip": "", "data/a.csv": "id,title,text\n1,T,a\n"})
  assert passages(tmp_path) == [Passage("1", "T", "a")] and not said(caplog)
  (tmp_path / "data" / "b.jsonl.bz2").touch()  # another part of the rows, which nobody would miss
  assert passages(tmp_path) and said(caplog) == [
    f"{tmp_path}: left out: packed otherwise than .gz or .zst: 1 (such as {tmp_path / 'data' / 'b.jsonl.bz2'})."
  ]
  (tmp_path / "data" / "a.csv").rename(tmp_path / "data" / "a.md")  # two documents now
  assert [p.id for p in passages(tmp_path)] == ["README.md", "data/a.md"]


def test_rows_without_ids_get_some_of_their_contents(tmp_path, caplog):
  (tmp_path / "a.csv").write_text("title,text\nT,a\nT,b\nT,a\n")
  found = passages(tmp_path / "a.csv")
  assert [(p.title, p.text) for p in found] == [("T", "a"), ("T", "b")]
  (message,) = said(caplog)
  assert "rows with the title and text of another one, and no id: 1 (such as" in message and "a.csv:4" in message
  (tmp_path / "b.jsonl").write_text('{"text": "b", "title": "T"}\n{"text": "a", "title": "T", "id": ""}\n')
  assert {p.id for p in passages(tmp_path / "b.jsonl")} == {p.id for p in found}  # wherever they are
  (tmp_path / "c.csv").write_text("id,body\n1,a\n")
  refused(r"c.csv:2: a row must be .*, this one has \['body', 'id'\]", passages, tmp_path / "c.csv")


def test_documents_are_cut_and_keep_their_titles(tmp_path, caplog):
  texts = {f"{name}.md": f"# On {name}\n" + f"{name} common " * 300 for name in ("alpha", "beta", "gamma")}
  put(tmp_path / "docs", texts | {"photo.png": ""})
  index = load_index(build_index(tmp_path / "docs", "bm25", tmp_path / "i", progress=False))
  assert len(said(caplog)) == 1 and "of another kind (.png): 1" in said(caplog)[0]
  found = index.search(["beta"], 9)[0]
  assert {(p.id, p.title) for p in found} == {(f"beta.md#{number}", "On beta") for number in range(7)}
  stored = corpus.Corpus(tmp_path / "i" / "corpus")
  assert [len(passage.text.split()) for passage in stored][:7] == [100] * 6 + [603 - 6 * 88]
  assert build_index(tmp_path / "docs", "bm25", tmp_path / "i", progress=False)  # finished: nothing is read
  half = load_index(build_index(tmp_path / "docs", "bm25", tmp_path / "half", shard=(2, 2), progress=False))
  assert len(half.search(["common"], 19)[0]) == 11 and len(caplog.records) >= 2 == len(said(caplog))
  (tmp_path / "docs" / "beta.md").rename(tmp_path / "docs" / "d.md")  # names are ids
  refused("another request .other corpus", build_index, tmp_path / "docs", "bm25", tmp_path / "i", progress=False)
