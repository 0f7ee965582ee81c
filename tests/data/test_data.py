"""Reading texts from files. The test files are written row by row, with the line of each row recorded."""

import csv
import gzip
import io
import json
import pickle
import random
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from salience.data import Reader, Rejected, Row, Shard, Source, examples, fingerprint, formats, rows, shards, source
from salience.errors import BadInput

BOM = b"\xef\xbb\xbf"
WORDS = st.sampled_from(
    ["a fine film", "żółw 👍", "l\u2028s\u2029p\x85n", "tab\there", "\x0b v", "x" * 50, "\x1c\x1d\x1e.", "ﬀ 'q'"]
)
"""Texts with characters that some readers treat as line ends."""


def every(data: Source, **cut: Any) -> list[Row | Rejected]:
    with Reader(data) as reader:
        return [row for shard in shards(data, **cut) for row in reader.read(shard)]


def texts(data: Source, **cut: Any) -> list[object]:
    return [row.text for row in every(data, **cut) if isinstance(row, Row)]


def reasons(data: Source) -> list[str]:
    return [row.reason for row in every(data) if isinstance(row, Rejected)]


def write(path: Path, content: str | bytes) -> Path:
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
    return path


# Any shards of any file give the same rows


@dataclass(frozen=True)
class Part:
    """A piece of a file with its text: None if it must be rejected; no row at all if ``blank``."""

    raw: bytes
    text: str | None = None
    blank: bool = False


BLANK = st.sampled_from([b"", b"  ", b"\t"]).map(lambda raw: Part(raw, blank=True))


def json_part(text: str, how: int) -> Part:
    value: object = text if how == 0 else {"n": how, "text": text}
    return Part(json.dumps(value, ensure_ascii=how == 1).encode(), text)


JSON_PARTS = (
    st.builds(json_part, WORDS, st.integers(0, 2))
    | BLANK
    | st.sampled_from(
        [
            b'{"text": 5}',
            b'{"text": "\\ud800"}',
            b'{"text": "\xff"}',
            b'{"n": 1}',
            b"nonsense",
            b"[1]",
            b'{"text": " "}',
        ]
    ).map(Part)
)
LINE_PARTS = (
    WORDS.filter(str.strip).map(lambda text: Part(text.encode(), text))
    | BLANK
    | st.sampled_from([b"\xff", b"ab\xed\xa0\x80", "\u00a0\u3000".encode()]).map(Part)
)


def record(fields: Sequence[str], delimiter: str) -> bytes:
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="").writerow(fields)
    return file.getvalue().encode("utf-8", "surrogateescape")


def csv_parts(delimiter: str) -> st.SearchStrategy[Part]:
    spread = st.lists(WORDS | st.sampled_from(["\n", "\r\n", '"', "\r", ",", "\t", "\n\n"]), min_size=1, max_size=4)
    good = spread.map("".join).filter(str.strip)
    bad = st.sampled_from([["1"], ["1", "a", "b"], ["1", ""], ["1", "a\n\udcff"], ["1", " \n "]])
    return (
        good.map(lambda text: Part(record(["1", text], delimiter), text))
        | bad.map(lambda fields: Part(record(fields, delimiter)))
        | st.just(Part(b"", blank=True))
        | st.just(Part(b'"1" x' + delimiter.encode() + b"y"))
    )


@st.composite
def lines_of(draw: st.DrawFn, parts: st.SearchStrategy[Part], first: Sequence[bytes]) -> tuple[bytes, list[Any]]:
    """A file and its rows as (number, line, text or None)."""
    end = draw(st.sampled_from([b"\n", b"\r\n"]))
    content, line, held = draw(st.sampled_from([b"", BOM])), 1, list[Any]()
    for raw in first:
        content, line = content + raw + end, line + 1
    for part in draw(st.lists(parts, max_size=25)):
        if not part.blank:
            held.append((len(held), line, part.text))
        content, line = content + part.raw + end, line + 1 + part.raw.count(b"\n")
    return content.removesuffix(end) if draw(st.booleans()) else content, held


def check_cuts(data: Source, held: list[Any], draw: st.DataObject) -> None:
    """Shards of any size, read in any order, give the rows of the file."""
    rows, size = draw.draw(st.integers(1, 8)), draw.draw(st.integers(1, 200))
    limit = draw.draw(st.none() | st.integers(1, 30))
    cut = pickle.loads(pickle.dumps(list(shards(data, rows=rows, size=size, limit=limit))))
    check_shape(cut, rows, size, held[:limit])
    order = draw.draw(st.permutations(cut))
    with Reader(pickle.loads(pickle.dumps(data))) as reader:
        rows_of = {shard.number: list(reader.read(shard)) for shard in order}
    read = [row for shard in cut for row in rows_of[shard.number]]
    assert len(read) == len(held[:limit])
    for row, (number, line, text) in zip(read, held, strict=False):
        if text is None:
            assert isinstance(row, Rejected), row
            assert (row.number, row.line) == (number, line)
            assert row.reason
        else:
            assert row == Row(number, str(number), text, line)


def check_shape(cut: list[Shard], rows: int, size: int, held: list[Any]) -> None:
    assert [shard.number for shard in cut] == list(range(len(cut)))
    assert [shard.line for shard in cut] == [held[shard.first][1] for shard in cut]
    assert sum(shard.rows for shard in cut) == len(held)
    for shard, after in pairwise(cut):
        assert after.first == shard.first + shard.rows
        assert shard.rows == rows or (shard.rows < rows and shard.size >= size)


def checked(path: Path) -> Source | None:
    try:
        return source(path)
    except BadInput:  # no rows, or none that shows the columns
        return None


@pytest.mark.parametrize("ending", ["jsonl", "ndjson.gz", "txt", "txt.gz", "csv", "csv.gz", "tsv"])
@settings(max_examples=60, deadline=None)
@given(draw=st.data())
def test_any_shards_of_a_file_of_lines_give_its_rows(ending: str, draw: st.DataObject):
    kind, tab = ending.split(".")[0], b"\t" if ending == "tsv" else b","
    parts = {"txt": LINE_PARTS, "csv": csv_parts(","), "tsv": csv_parts("\t")}.get(kind, JSON_PARTS)
    first = {"csv": [b"id%btext" % tab], "tsv": [b"id\ttext"]}.get(kind, [])
    content, held = draw.draw(lines_of(parts, first))
    with tempfile.TemporaryDirectory() as folder:
        data = checked(write(Path(folder, f"data.{ending}"), content))
        if data is None:
            assert not held or (kind in ("jsonl", "ndjson") and (held[0][2] is None))
        else:
            check_cuts(data, held, draw)


@settings(max_examples=60, deadline=None)
@given(draw=st.data(), rows=st.lists(WORDS | st.sampled_from([None, "", b"\xff"]), min_size=1, max_size=30))
def test_any_shards_of_parquet_give_its_rows(draw: st.DataObject, rows: list[str | bytes | None]):
    import pyarrow

    raw = pyarrow.array([r.encode() if isinstance(r, str) else r for r in rows], pyarrow.binary())
    kind = draw.draw(st.sampled_from(["string", "large_string", "string_view", "binary", "dictionary"]))
    column = raw.view(pyarrow.string())
    if kind == "dictionary":
        column = column.dictionary_encode()
    else:
        column = raw if kind == "binary" else column.cast(kind, safe=False) if b"\xff" not in rows else column
    held = [(n, n + 1, r if isinstance(r, str) and r else None) for n, r in enumerate(rows)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "STEP", draw.draw(st.integers(1, 5)))
        groups = draw.draw(st.integers(1, 12))
        file = parquet(Path(folder, "data.parquet"), {"n": [1] * len(rows), "text": column}, row_group_size=groups)
        check_cuts(source(file), held, draw)


def test_row_numbers_continue_across_the_files_of_a_folder(tmp_path: Path):
    for name, content in {"b.jsonl": '"b1"\n5\n', "a.jsonl.gz": '\n"a1"\n"a2"', "c.json": ""}.items():
        write(tmp_path / name, content)
    read = every(source(tmp_path), rows=2)
    refused = Rejected(3, str(tmp_path / "b.jsonl"), 2, "not an object or a string but a number")
    assert read == [Row(0, "0", "a1", 2), Row(1, "1", "a2", 3), Row(2, "2", "b1", 1), refused]
    assert [shard.rows for shard in shards(source(tmp_path), rows=3)] == [2, 2], "a shard ends with its file"
    assert texts(source(tmp_path), limit=2) == ["a1", "a2"]
    assert texts(source(tmp_path), limit=3) == ["a1", "a2", "b1"]


def test_examples_are_read_in_one_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, content in {"a.jsonl": '"a1"\n"a2"\n', "b.jsonl": '"b1"\n'}.items():
        write(tmp_path / name, content)
    data, opened = source(tmp_path), list[str]()
    monkeypatch.setattr(rows, "open_file", lambda data, file: opened.append(file) or formats.open_file(data, file))
    assert [(e.id, e.text) for e in examples(data)] == [("0", "a1"), ("1", "a2"), ("2", "b1")]
    assert opened == list(data.files)
    assert [e.text for e in examples(data, limit=2)] == ["a1", "a2"]
    assert opened == [*data.files, data.files[0]]
    with pytest.raises(BadInput, match="limit is 0; it must be at least 1"):
        examples(data, limit=0)


def test_a_limit_or_size_below_one_is_refused(tmp_path: Path):
    data = source(write(tmp_path / "a.txt", "a"))
    for wrong in ({"rows": 0}, {"size": 0}, {"limit": 0}):
        with pytest.raises(BadInput, match=f"{next(iter(wrong))} is 0; it must be at least 1"):
            shards(data, **wrong)


def test_a_shard_ends_with_the_row_that_fills_it(tmp_path: Path):
    data = source(write(tmp_path / "a.txt", "a\n" + "b" * 100 + "\nc\nd\ne"))
    assert [(s.place, s.rows, s.size) for s in shards(data, size=4)] == [(0, 2, 103), (103, 2, 4), (107, 1, 1)]


def test_two_shards_can_be_read_at_the_same_time(tmp_path: Path):
    data = source(write(tmp_path / "a.txt", "\n".join(map(str, range(10)))))
    first, second = shards(data, rows=5)
    with Reader(data) as reader:
        pairs = zip(reader.read(first), reader.read(second), strict=True)
        assert [(a.number, b.number) for a, b in pairs] == [(n, n + 5) for n in range(5)]


def test_a_file_that_was_shortened_is_detected(tmp_path: Path):
    file = write(tmp_path / "a.txt", "a\nb\nc")
    data = source(file)
    (shard,) = shards(data)
    write(file, "a\nb")
    with Reader(data) as reader, pytest.raises(BadInput, match="ends before row 3; was it changed"):
        list(reader.read(shard))


# Columns, pairs and ids


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv.gz", "parquet"])
def test_columns_are_read_by_name(tmp_path: Path, ending: str):
    columns = {"key": [7, 8], "premise": ["It rains.", "It snows."], "other": ["x", "y"], "claim": ["Wet.", "Cold."]}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    file, tab = tmp_path / f"data.{ending}", {"csv": ",", "tsv.gz": "\t"}.get(ending)
    if ending == "parquet":
        parquet(file, columns)
    elif tab:
        write(file, "\n".join(tab.join(map(str, row)) for row in [columns, *(r.values() for r in rows)]))
    else:
        write(file, "\n".join(map(json.dumps, rows)))
    data = source(file, text="premise", pair="claim", id="key")
    line = 2 if tab else 1
    expected = [Row(0, "7", ("It rains.", "Wet."), line), Row(1, "8", ("It snows.", "Cold."), line + 1)]
    assert every(data) == expected
    assert texts(source(file, text="claim")) == ["Wet.", "Cold."]
    assert every(source(file, text="claim", id="claim"))[0] == Row(0, "Wet.", "Wet.", line)


def test_reasons_of_rejected_rows(tmp_path: Path):
    lines = {
        '{"text": "a", "id": 1.5}': "",
        '{"text": "a"': "not JSON: Expecting ',' delimiter at character 13",
        "null": "not an object or a string but null",
        "true": "not an object or a string but true or false",
        '["a"]': "not an object or a string but a list",
        '"a"': "no column 'id'",
        '{"id": 1}': "no column 'text'",
        '{"id": 1, "text": null}': "column 'text' is not a string but null",
        '{"id": 1, "text": 0.5}': "column 'text' is not a string but a number",
        '{"id": 1, "text": {"a": 1}}': "column 'text' is not a string but an object",
        '{"id": 1, "text": " \\u00a0"}': "column 'text' is empty or only white space",
        '{"id": 1, "text": "ab\\udbff"}': "column 'text' holds half a character, \\udbff, at character 3",
        '{"id": "", "text": "a"}': "column 'id' is empty or only white space",
        '{"id": true, "text": "a"}': "column 'id' is not a string but true or false",
        '{"id": 1, "n": ' + "9" * 5000 + "}": "not JSON that can be read: a number is too long or the nesting too deep",
        '{"id": ' + "[" * 100_000: "not JSON that can be read: a number is too long or the nesting too deep",
    }
    data = source(write(tmp_path / "a.jsonl", "\n".join(lines)), id="id")
    assert reasons(data) == list(lines.values())[1:]
    assert every(data)[0] == Row(0, "1.5", "a", 1)


def test_invalid_bytes_matter_only_in_columns_that_are_read(tmp_path: Path):
    file = write(tmp_path / "a.jsonl", b'{"text": "good", "x": "\xff"}\n{"text": "b\xc3\xa9\xffd"}')
    assert texts(source(file)) == ["good"]
    assert reasons(source(file)) == ["column 'text' is not valid UTF-8: byte 0xff at character 3"]


def test_bad_csv_rows_do_not_affect_other_rows(tmp_path: Path):
    rows = ["id,text", "1,a", "2", "3,b,c", '4,"b" c', "5,b\rc", '6,"two\nlines"', "7,good", '8,"open', "9,lost"]
    data = source(write(tmp_path / "a.csv", "\n".join(rows)), id="id")
    assert [row.id for row in every(data) if isinstance(row, Row)] == ["1", "6", "7"]
    assert [(row.line, row.reason) for row in every(data) if isinstance(row, Rejected)] == [
        (3, "1 fields where the header has 2"),
        (4, "3 fields where the header has 2; quote fields that hold a separator"),
        (5, "not CSV: text follows a closing quotation mark; inside quotes, write a quotation mark twice"),
        (6, "not CSV: a carriage return outside quotation marks"),
        (10, "not CSV: a quotation mark is opened and never closed"),
    ]


def test_fields_may_be_huge(tmp_path: Path):
    long = "word " * 200_000
    assert texts(source(write(tmp_path / "a.csv", f"text,n\n{long},1\nb,2"))) == [long, "b"]


def test_an_unclosed_quotation_mark_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(formats, "LONGEST", 1000)
    old = csv.field_size_limit(1000)
    try:
        data = source(write(tmp_path / "a.csv", 'text\n"' + "b\n" * 900 + "end"))
        assert any("is a quotation mark never closed?" in why for why in reasons(data))
        assert texts(data)[-1] == "end"
    finally:
        csv.field_size_limit(old)


def test_null_and_bad_bytes_in_parquet(tmp_path: Path):
    import pyarrow

    column = pyarrow.array([b"ok", None, b"a\xff"]).view(pyarrow.string())
    data = source(parquet(tmp_path / "a.parquet", {"text": column}))
    assert every(data)[1:] == [
        Rejected(1, data.files[0], 2, "column 'text' is not a string but null"),
        Rejected(2, data.files[0], 3, "column 'text' is not valid UTF-8: byte 0xff at character 2"),
    ]


# What is read, and how much memory it takes


def test_only_the_named_columns_of_parquet_are_read(tmp_path: Path):
    import pyarrow.parquet

    file = parquet(tmp_path / "a.parquet", {"text": ["a", "b"], "big": ["x" * 999, "y" * 999]})
    big = pyarrow.parquet.read_metadata(file).row_group(0).column(1)
    content = bytearray(file.read_bytes())
    start = big.dictionary_page_offset
    content[start : start + big.total_compressed_size] = b"\xff" * big.total_compressed_size
    file.write_bytes(content)
    assert texts(source(file)) == ["a", "b"]
    with pytest.raises(BadInput, match=r"a\.parquet cannot be read"):
        texts(source(file, text="big"))


def test_reading_on_in_a_row_group_does_not_start_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from pyarrow.parquet import ParquetFile

    data = source(parquet(tmp_path / "a.parquet", {"text": [f"t{n}" for n in range(1000)]}, row_group_size=500))
    starts, iter_batches = [], ParquetFile.iter_batches

    def recorded(file: ParquetFile, size: int, groups: range, *rest: Any, **more: Any) -> Any:
        starts.append(groups.start)
        return iter_batches(file, size, groups, *rest, **more)

    cut = list(shards(data, rows=30))
    monkeypatch.setattr(ParquetFile, "iter_batches", recorded)

    def read(chosen: Sequence[Shard]) -> list[int]:
        """The row groups where reading started."""
        starts.clear()
        with Reader(data) as reader:
            for shard in chosen:
                expected = [Row(n, str(n), f"t{n}", n + 1) for n in range(shard.first, shard.first + shard.rows)]
                assert list(reader.read(shard)) == expected
        return list(starts)

    assert read(cut) == [0]
    assert read(cut[:16:5]) == [0]
    assert read([cut[0], cut[-1]]) == [0, 1], "a row group in between was read"
    assert read([cut[-1], cut[0], cut[5]]) == [1, 0]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "txt.gz"])
def test_files_are_streamed(tmp_path: Path, ending: str):
    file = write(tmp_path / f"a.{ending}", "text\n" * (ending == "csv") + f'"{"a text of some length " * 140}"\n' * 600)
    data = source(file)
    tracemalloc.start()
    try:
        with Reader(data) as reader:
            count = sum(1 for shard in shards(data, size=2**14, limit=400) for _ in reader.read(shard))
        assert count == 400
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_the_fingerprint_covers_the_content_but_not_the_folder(tmp_path: Path):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "a.jsonl", '"a"\n"b"')
        write(tmp_path / folder / "b.jsonl", '"c"')
    before = fingerprint(source(tmp_path / "x"))
    assert before == fingerprint(source(tmp_path / "y")) == json.loads(json.dumps(before))
    write(tmp_path / "x" / "b.jsonl", '"d"')
    assert fingerprint(source(tmp_path / "x")) != before
    write(tmp_path / "y" / "a.jsonl", '"a"\n"b"\n')
    assert fingerprint(source(tmp_path / "y")) != before


def test_importing_data_imports_no_heavy_packages():
    heavy = "{'torch', 'numpy', 'pyarrow', 'datasets', 'transformers'}"
    code = f"import sys, salience.data; assert not {heavy} & set(sys.modules), set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# Sources that cannot be used


def refused(match: str, name: object, **columns: Any) -> None:
    with pytest.raises(BadInput, match=match):
        source(str(name), **columns)


def test_a_delimiter_of_ones_own(tmp_path: Path):
    csv = write(tmp_path / "a.csv", 'text;label\n"A fine; film, indeed";1\n')
    refused(r"a\.csv looks separated by ';', not by commas; name the delimiter: --delimiter ';'", csv)
    (row,) = every(source(str(csv), delimiter=";", label="label"))
    assert (row.text, row.label) == ("A fine; film, indeed", "1")
    for wrong in (";;", "", '"', "\n"):
        refused("the delimiter must be one character", csv, delimiter=wrong)
    jsonl = write(tmp_path / "b.jsonl", '{"text": "a"}')
    refused("a delimiter is for CSV files", jsonl, delimiter=";")


def test_a_missing_column_suggests_the_nearest_and_lists_all(tmp_path: Path):
    jsonl = write(tmp_path / "a.jsonl", '{"sentence": "a", "label": 1}\n{"sentence": "b", "texture": 1}')
    refused(r"has no column 'text'. Did you mean 'sentence'\? Its columns: 'sentence', 'label', 'texture'\.", jsonl)
    refused("no column 'sentense'. Did you mean 'sentence'", jsonl, text="sentense")
    refused("no column 'uid'", jsonl, text="sentence", id="uid")
    refused(r"no column 'claim'. Its columns", jsonl, text="sentence", pair="claim")
    csv_file = write(tmp_path / "a.csv", "Text,content\na,b")
    refused("Did you mean 'Text'", csv_file)
    refused(r"'text'. Its columns: 'body', 'review'", write(tmp_path / "b.csv", "body,review\na,b"))
    refused("has 2 columns 'text'; rename one", write(tmp_path / "c.csv", "text,text\na,b"))
    refused("Did you mean 'review'", parquet(tmp_path / "a.parquet", {"review": ["a"], "stars": [1]}))
    refused("column 'stars' of .* holds int64, not text", tmp_path / "a.parquet", text="stars")
    refused("holds list<.*, not text", parquet(tmp_path / "b.parquet", {"text": [["a"]]}))
    refused("no column 'id'. .*'text'", write(tmp_path / "a.txt", "a"), id="id")
    refused("more", write(tmp_path / "d.csv", ",".join(f"c{n}" for n in range(40)) + "\n"))


def test_the_columns_of_every_file_are_checked(tmp_path: Path):
    write(tmp_path / "a.csv", "text\na")
    write(tmp_path / "b.csv", "sentence\na")
    refused(r"b\.csv has no column 'text'", tmp_path)


def test_an_invalid_first_row_is_skipped(tmp_path: Path):
    file = write(tmp_path / "a.jsonl", 'x\n{"n": 1}\n{"text": "a"}')
    assert texts(source(file)) == ["a"]


def test_unreadable_paths_give_a_hint(tmp_path: Path):
    write(tmp_path / "reviews.csv", "text\na")
    refused(r"no file or folder '.*review\.csv'; did you mean '.*reviews\.csv'\?", tmp_path / "review.csv")
    refused("no file or folder './nowhere'", "./nowhere")
    refused(r"format of .*a\.xlsx is unknown; its ending must be one of \.jsonl", write(tmp_path / "a.xlsx", "a"))
    refused("ending", write(tmp_path / "a.parquet.gz", "a"))
    refused("no file matches", tmp_path / "*.jsonl")
    refused("neither a file nor a folder", "/dev/null")
    refused("split and subset are for folders", tmp_path / "reviews.csv", split="train")


def test_files_without_rows_are_refused(tmp_path: Path):
    for name, content in {
        "a.jsonl": " \n\n",
        "a.csv": "text\n\n",
        "b.csv": "",
        "a.txt.gz": "",
        "b.txt": "\ufeff",
    }.items():
        refused("holds no rows; expected at least one text", write(tmp_path / name, content))
    refused(
        "holds no rows", parquet(tmp_path / "a.parquet", {"text": pytest.importorskip("pyarrow").array([], "string")})
    )


def test_files_whose_content_does_not_match_their_ending(tmp_path: Path):
    refused("is a JSON array; write one object per line", write(tmp_path / "a.json", '[\n{"text": "a"}]'))
    refused(
        "does not hold one JSON object per line: line 2 is not JSON", write(tmp_path / "b.json", '\n{\n"text": "a"\n}')
    )
    refused("is UTF-16; save it as UTF-8", write(tmp_path / "a.csv", "text\na".encode("utf-16")))
    refused("header of .* is not CSV: a carriage return", write(tmp_path / "b.csv", "text\ra\rb"))
    refused("a.parquet cannot be read", write(tmp_path / "a.parquet", "text"))
    plain = tmp_path / "a.txt.gz"
    plain.write_bytes(b"not packed")
    refused(r"a\.txt\.gz cannot be read: Not a gzipped file", plain)


def test_a_truncated_gzip_file_is_reported(tmp_path: Path):
    whole = "".join(f"{random.Random(n).random()}\n" for n in range(20_000))
    file = write(tmp_path / "a.txt.gz", whole)
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(BadInput, match=r"a\.txt\.gz cannot be read: Compressed file ended"):
        list(shards(source(file)))


def test_the_files_of_a_folder_must_share_one_format(tmp_path: Path):
    refused("holds no data files", tmp_path)
    (tmp_path / "inner").mkdir()
    write(tmp_path / "inner" / "a.csv", "text\na")
    refused(r"holds no data files .* such as '.*inner/\*'", tmp_path)
    write(tmp_path / "b.csv", "text\nb")
    write(tmp_path / ".hidden.csv", "x")
    write(tmp_path / "README.md", "x")
    assert texts(source(tmp_path)) == ["b"]
    assert texts(source(f"{tmp_path}/**/*.csv")) == ["b", "a"]
    write(tmp_path / "notes.txt", "x")
    refused(r"files of several formats \(CSV, text\); choose one, for example '.*\*\.csv'", tmp_path)
    assert texts(source(f"{tmp_path}/b*")) == ["b"]


# The datasets library


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


@pytest.fixture
def folder(tmp_path: Path, cache: None) -> Path:
    """Two splits, detected by the library from the file names."""
    rows = [json.dumps({"sentence": f"text {n}" if n != 7 else "", "key": n, "label": 0}) for n in range(300)]
    write(tmp_path / "train.jsonl", "\n".join(rows))
    write(tmp_path / "test.jsonl", rows[0])
    return tmp_path


def test_a_folder_with_a_split_is_read_by_the_datasets_library(folder: Path):
    data = source(folder, split="train", text="sentence", id="key")
    assert data.files == ()
    for cut in ({}, {"rows": 7}, {"size": 100}, {"rows": 129, "limit": 200}):
        read = every(pickle.loads(pickle.dumps(data)), **cut)
        assert len(read) == cut.get("limit", 300)
        assert read[8] == Row(8, "8", "text 8", 9)
        assert read[7] == Rejected(7, str(folder), 8, "column 'sentence' is empty or only white space")
    last = list(shards(data, rows=130))[-1]
    with Reader(data) as reader:
        assert [row.number for row in reader.read(last)] == list(range(260, 300))
    assert len(every(source(folder, split="train[:5]", text="sentence"))) == 5


def test_the_fingerprint_of_a_data_set_changes_with_its_texts(folder: Path):
    before = fingerprint(source(folder, split="test", text="sentence"))
    assert before == fingerprint(source(folder, split="test", text="sentence")) == json.loads(json.dumps(before))
    write(folder / "test.jsonl", '{"sentence": "text 1", "key": 0, "label": 0}')
    assert fingerprint(source(folder, split="test", text="sentence")) != before


def test_unusable_data_sets_give_a_hint(folder: Path):
    refused("no column 'text'. Did you mean 'sentence'", folder, split="test")
    refused("column 'label' of .* holds int64, not text", folder, split="test", text="label")
    refused("the datasets library cannot load .*dev", folder, split="dev")
    refused("the datasets library cannot load", folder, subset="english")
    refused("no file or folder 'no_such_data', and the datasets library cannot load it by that name", "no_such_data")


def test_data_sets_saved_to_disk_and_their_splits(tmp_path: Path, cache: None):
    from datasets import Dataset, DatasetDict

    made = Dataset.from_dict({"text": ["a", "b"]})
    made.save_to_disk(tmp_path / "one")
    DatasetDict({"dev": made}).save_to_disk(tmp_path / "only")
    DatasetDict({"dev": made, "test": made.select([1])}).save_to_disk(tmp_path / "two")
    assert texts(source(tmp_path / "one")) == ["a", "b"]
    assert source(tmp_path / "only").split == "dev"
    assert texts(source(tmp_path / "only")) == ["a", "b"]
    assert texts(source(tmp_path / "two", split="test")) == ["b"]
    refused("has several splits; choose one with split: dev, test", tmp_path / "two")
    refused("unknown split 'tset' of .*two. Did you mean 'test'", tmp_path / "two", split="tset")
    refused("has no splits; leave out split", tmp_path / "one", split="train")


def test_rationales_from_word_sentiments(tmp_path: Path):
    file = tmp_path / "trees.jsonl"
    rows = [
        {"text": "a fine , dull film", "feel": [2, 4, 2, 1, 2], "label": 1},
        {"text": "a fine , dull film", "feel": [2, 4, 2, 1, 2], "label": 0},
        {"text": "a film", "feel": [2], "label": 0},
        {"text": "a film", "feel": [2, 3], "label": 4},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trees = source(file, label="label", rationale="feel", spans="sentiments")
    (shard,) = shards(trees)
    with Reader(trees) as reader:
        first, second, short, odd = reader.read(shard)
    assert [first.text[a:b] for a, b in first.rationale] == ["fine"]
    assert [second.text[a:b] for a, b in second.rationale] == ["dull"]
    assert "a sentiment for each of 2 words" in short.reason
    assert "one of 0 or 1" in odd.reason
