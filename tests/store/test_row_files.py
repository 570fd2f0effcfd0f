import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest
import saved_rows
from refusals import refused

from ragrl_jax.store import row_files

ROWS = [dict(id="1", text='Say "no", then\ngo.'), dict(id="2", text="Straße; 東京")]
read = lambda path, *columns: [row for _, row in row_files.read_rows(path, columns or None)]


@pytest.mark.parametrize("name, text", [
  ("a.csv", 'id,text\n1,"Say ""no"", then\ngo."\n\n2,Straße; 東京\n'),
  ("a.CSV", '\ufeffid;text\r\n1;"Say ""no"", then\ngo."\r\n2;"Straße; 東京"\r\n'),  # from a spreadsheet
  ("a.csv.gz", ',id,text\n0,1,"Say ""no"", then\ngo."\n1,2,Straße; 東京\n'),  # pandas' index has no name
  ("a.csv.zst", 'id,text\n1,"Say ""no"", then\ngo."\n2,Straße; 東京\n'),
  ("a.json", "\n[" + ",\n".join(map(json.dumps, ROWS)) + "]"), ("b.json", "\n" + "\n".join(map(json.dumps, ROWS))),
])  # fmt: skip
def test_tables_of_text(tmp_path, name, text):
  raw = text.encode()
  packed = {".gz": gzip.compress, ".zst": lambda raw: pyarrow.compress(raw, "zstd", asbytes=True)}
  (tmp_path / name).write_bytes(packed.get(name[name.rfind(".") :], bytes)(raw))
  assert read(tmp_path / name) == ROWS


@pytest.mark.parametrize("separator", [", ", ",\n"])
def test_an_array_is_read_once(tmp_path, monkeypatch, separator):
  (tmp_path / "a.json").write_text(f"[{separator.join(map(json.dumps, ROWS))}]")
  read_lines, opened = row_files.read_lines, []
  monkeypatch.setattr(row_files, "read_lines", lambda path: opened.append(path) or read_lines(path))
  assert read(tmp_path / "a.json") == ROWS and len(opened) == 1


def test_places_are_lines_where_rows_begin(tmp_path):
  (tmp_path / "a.csv").write_text('id,text\n1,"a\nb"\n\n2,c\n')
  assert [where.rpartition(":")[2] for where, _ in row_files.read_rows(tmp_path / "a.csv")] == ["2", "5"]


def test_what_datasets_saved_whose_record_cannot_name_files_elsewhere(tmp_path):
  folder = saved_rows.save(tmp_path / "train", ROWS, shards=2)
  assert read(folder) == ROWS and read(folder, "text", "more") == [dict(text=row["text"]) for row in ROWS]
  places = [where.rpartition("/")[2] for where, _ in row_files.read_rows(folder)]
  assert places == ["data-00000-of-00002.arrow: row 1", "data-00001-of-00002.arrow: row 1"]
  (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
  refused("it holds the splits train, test: name one of them, such as .*/train", read, tmp_path)
  (folder / "data-00001-of-00002.arrow").unlink()
  refused("data-00001-of-00002.arrow: there is no such file", read, folder, error=FileNotFoundError)
  (folder / "data-00000-of-00002.arrow").write_bytes(b"ARROW1 but no stream")
  refused("00000-of-00002.arrow: no arrow file that can be read", read, folder)
  (folder / "state.json").write_text('{"_data_files": [3]}')
  refused("state.json: it is not as `datasets` writes it", read, folder)
  folder = saved_rows.save(tmp_path / "set", ROWS)
  (folder / "state.json").write_text('{"_data_files": [{"filename": "../../secret.arrow"}]}')
  assert row_files.saved(folder) == [folder / "secret.arrow"]


@pytest.mark.slow  # the datasets library takes two seconds to import
def test_the_datasets_library_saves_such_folders(tmp_path):
  import datasets

  whole = datasets.Dataset.from_list(ROWS * 3)
  whole.save_to_disk(tmp_path / "one", num_shards=2)
  assert read(tmp_path / "one") == ROWS * 3
  datasets.DatasetDict(train=whole.select([5, 0])).save_to_disk(tmp_path / "two")
  assert read(tmp_path / "two" / "train") == [ROWS[1], ROWS[0]]
  refused("holds the splits train", read, tmp_path / "two")


@pytest.mark.parametrize("name, raw, said", [
  ("a.csv", b"id,text\n1,a,b\n", "a.csv:2: 3 columns, but the first line names 2"),
  ("a.csv", b"id,text,id\n1,a,b\n", "a.csv:1: two columns are named 'id'"),
  ("a.csv", b'id,text\n1,a\n2,"b\nc\n', "a.csv:3: no row of comma-separated values: unexpected end of data"),
  ("a.csv", b'id,text\n1,"a"b\n', "a.csv:2: no row of comma-separated values"),
  ("a.csv", "id,text\n1,ä\n".encode("latin-1"), "a.csv:2: not UTF-8 .*: save it as UTF-8"),
  ("a.csv", "id,text\n1,a\n".encode("utf-16"), "a.csv:1: not UTF-8"),
  ("a.csv.gz", b"id,text\n", "a.csv.gz:1: the compressed file is broken"), ("a.csv.zst", b"i", "zst:1: the compressed"),
  ("a.tsv", b"id\tid\n", "a.tsv:1: two columns are named 'id'"),
  ("a.tsv", b"id\ttext\n1\ta\n2\n", "a.tsv:3: 1 columns, but the first line names 2"),
  ("a.jsonl.gz", gzip.compress(bytes(9999), mtime=0)[:-9], r"a.jsonl.gz:\d+: the compressed file is broken or cut off"),
  ("a.json", b'[{"a": 1},\n]', "a.json:1 .row 1.: not JSON: after ',' there must be another row, not ']'"),
  ("a.json", b'[{"a": 1}, , {}]', "a.json:1 .row 2.: not JSON"), ("a.json", b"[,]", "a.json:1 .row 1.: not JSON"),
  ("a.json", b'{\n "data": [{"a": 1}]\n}', "a.json:1: not JSON: .* An object over several lines is no row"),
  ("a.parquet", b"", "a.parquet: no parquet file that can be read"),
  ("a.xlsx", b"PK", "a.xlsx: rows are read from .jsonl, .json, .csv"),
])  # fmt: skip
def test_faults_are_said_in_one_line(tmp_path, name, raw, said):
  (tmp_path / name).write_bytes(raw)
  with pytest.raises(ValueError, match=said) as error:
    read(tmp_path / name)
  assert "\n" not in str(error.value)


def test_a_parquet_file_that_breaks_off_inside(tmp_path):
  rows = [dict(id=str(number), text=f"text {number}") for number in range(9000)]
  pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
  raw = bytearray((tmp_path / "a.parquet").read_bytes())
  raw[100:9000] = b"\xff" * 8900  # the footer is whole
  (tmp_path / "a.parquet").write_bytes(raw)
  refused("no parquet file that can be read", read, tmp_path / "a.parquet")


def test_lines_and_arrays_are_bounded(tmp_path, monkeypatch):
  monkeypatch.setattr(row_files, "MOST", 1000)
  (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b" " * 100_000))
  refused("a.jsonl.gz:1: a line of 1000 bytes or more", read, tmp_path / "a.jsonl.gz")
  (tmp_path / "a.json").write_text("[" + "{},\n" * 300 + "{}]")
  refused(r"a.json:\d+: an array of more than 1000 characters", read, tmp_path / "a.json")
  (tmp_path / "b.json").write_text("{}\n" * 500)  # lines are read one by one
  assert len(read(tmp_path / "b.json")) == 500
  (tmp_path / "a.csv").write_text('id\n"' + "a\n" * 600 + '"\n')
  refused("a.csv:2: no row of comma-separated values: field larger than field limit", read, tmp_path / "a.csv")
