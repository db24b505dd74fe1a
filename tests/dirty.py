"""Damaged data files, generated from a seed: truncated, wrongly encoded or quoted, under odd names."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import os
import random
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import odd_labels
from tests.reviews import rows

PIPE_BYTES = 60_000  # capacity of a pipe
HUGE = 3_000_000  # characters of a cell that is too long
TEXTS = ["", " ", "\t", 'say "good"', '"', "a, b, c", "a\tb", "one\ntwo", "one\r\ntwo", "\r", "a\0b", "\0", "a\u2028b"]
TEXTS += ["a\x85b", "\ufeffgood", "é", "💥", "العربية", "e\u0301" * 50, "nan", "=1+1", "[]", "{}", '{"text": 1}', "'"]
TEXTS += ["<b>bold</b></script>", "\x1b[31mred", "%s %d {0}", "\\", "good " * 3000, "\u200b", "\x7f", "[CLS] [SEP]"]
ENDS = ["\n"] * 6 + ["\r\n", "\r\n", "\r"]
HEADERS = [["text", "label"]] * 6 + [["sentence", "label"], ["label", "text"], ["text"], ["label"], ["Text", "Label"]]
HEADERS += [["text", "label", "text"], ["text", "label", "label"], [" text", " label "], ["", "label"], ["", ""]]
HEADERS += [["text", "label", "id", "note"], ["\ufefftext", "label"], ["text;label"], ["texte", "étiquette"], []]
HEADERS += [["text", "no", "perhaps", "yes"], ["text", "label "], ["1", "2"], ["text\n", "label"], ["a\0", "label"]]


@dataclass
class Dirty:
    """A damaged file and how it was generated."""

    name: str
    description: str
    format: str
    columns: list[str]
    content: bytes
    rows: int | None  # None if the rows may be damaged


# -- rows ----------------------------------------------------------------------------------------


def _texts(chance: random.Random, count: int) -> list[Any]:
    texts: list[Any] = [text for text, _ in rows(count, chance.randint(0, 9))]
    if texts and chance.random() < 0.4:
        for row in chance.sample(range(count), min(count, chance.choice([1, 1, 3, 20]))):
            texts[row] = chance.choice(TEXTS)
    if texts and chance.random() < 0.03:
        texts[-1] = "good film " * (HUGE // 10)
    return texts


def _cells(header: list[str], text: str, label: Any) -> list[Any]:
    """Return a row for this header."""
    by_name = {"text": text, "sentence": text, "texte": text, "label": label, "étiquette": label}
    return [by_name.get(name.strip().casefold(), row) for row, name in enumerate(header)]


# -- formats -------------------------------------------------------------------------------------


def _as_csv(table: list[list[Any]], chance: random.Random) -> tuple[str, str]:
    end, how = chance.choice(ENDS), chance.choice(["quoted"] * 5 + ["all", "bare", "semicolons", "single", "escaped"])
    if how == "bare":
        return end.join(",".join(map(str, row)) for row in table) + end, f"{how} {end!r}"
    options: dict[str, Any] = {"lineterminator": end}
    options |= {"quoting": csv.QUOTE_ALL} if how == "all" else {}
    options |= {"delimiter": ";"} if how == "semicolons" else {"quotechar": "'"} if how == "single" else {}
    options |= {"doublequote": False, "escapechar": "\\"} if how == "escaped" else {}
    out = io.StringIO(newline="")
    csv.writer(out, **options).writerows(table)
    return out.getvalue(), f"{how} {end!r}"


def _as_tsv(table: list[list[Any]], chance: random.Random) -> tuple[str, str]:
    end = chance.choice(ENDS)
    return end.join("\t".join(map(str, row)) for row in table) + end, repr(end)


def _as_text(table: list[list[Any]], chance: random.Random) -> tuple[str, str]:
    end = chance.choice(ENDS)
    return end.join(str(row[0]) if row else "" for row in table[1:]) + end, repr(end)


def _as_json(table: list[list[Any]], chance: random.Random) -> tuple[str, str]:
    header, body = table[0], table[1:]
    objects: list[Any] = [dict(zip(header, row, strict=False)) for row in body]
    how = chance.choice(
        ["objects"] * 6 + ["texts", "lists", "one array", "pretty", "Python's", "mixed", "nested", "holes"]
    )
    if how == "texts":
        objects = [row[0] if row else "" for row in body]
    elif how == "lists":
        objects = body
    elif how in ("mixed", "nested", "holes") and objects:
        odd = {"mixed": [1, None, "x", [], True, 1.5], "nested": [{"text": {"a": [1]}}, {"a": {"text": "x"}}]}
        odd["holes"] = [{}, {"label": "yes"}, {"text": None, "label": None}, {"text": 3}, {"TEXT": "x"}]
        for row in chance.sample(range(len(objects)), min(len(objects), 2)):
            objects[row] = chance.choice(odd[how])
    if how == "one array":
        return json.dumps(objects), how
    if how == "pretty":
        return "\n".join(json.dumps(record, indent=1) for record in objects), how
    lines = [
        repr(record) if how == "Python's" else json.dumps(record, ensure_ascii=chance.random() < 0.5)
        for record in objects
    ]
    return "\n".join(lines) + "\n", how


FORMATS: dict[str, tuple[str, Callable[[list[list[Any]], random.Random], tuple[str, str]]]] = {
    "csv": (".csv", _as_csv),
    "tsv": (".tsv", _as_tsv),
    "jsonl": (".jsonl", _as_json),
    "text": (".txt", _as_text),
}


def _as_parquet(table: list[list[Any]], chance: random.Random) -> tuple[bytes, str]:
    """Write columns of random Parquet types; cells that Arrow cannot convert are written as text."""
    import pyarrow as pa
    from pyarrow import parquet

    header, body = table[0], table[1:]
    types: list[Any] = [None, pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
    types += [pa.null(), pa.int8(), pa.float16(), pa.bool_(), pa.list_(pa.string()), pa.timestamp("ns"), pa.date32()]
    arrays, type_names = [], []
    for column, _ in enumerate(header):
        cells = [row[column] for row in body]
        column_type = chance.choice(types) if chance.random() < 0.25 else None
        try:
            arrays.append(pa.array(cells, column_type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            arrays.append(pa.array([str(cell).encode("utf-8", "replace").decode() for cell in cells], pa.string()))
        type_names.append(str(arrays[-1].type))
    metadata = {
        b"huggingface": chance.choice([b"", b"{", b"[]", b'{"info": {"features": {"label": {"names": ["a", 1]}}}}'])
    }
    result = pa.Table.from_arrays(arrays, names=header)
    out = io.BytesIO()
    parquet.write_table(result.replace_schema_metadata(metadata) if chance.random() < 0.2 else result, out)
    return out.getvalue(), ", ".join(type_names)


# -- damage to the bytes ----------------------------------------------------------------------


def _ragged(text: bytes, chance: random.Random) -> bytes:
    lines = text.split(b"\n")
    for row in chance.sample(range(len(lines)), min(len(lines), 3)):
        lines[row] = chance.choice(
            [lines[row] + b",x", lines[row].replace(b",", b"", 1), b"", b",", b",,,", b"\t", b'"']
        )
    return b"\n".join(lines)


def _zipped(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("data", content)
    return out.getvalue()


def _flipped(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for index in chance.sample(range(len(changed)), min(len(changed), 5)):
        changed[index] = chance.randrange(256)
    return bytes(changed)


def _recoded(content: bytes, encoding: str) -> bytes:
    return content.decode("utf-8", "replace").encode(encoding, "replace")


MANGLES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "UTF-16": lambda content, _: _recoded(content, "utf-16"),
    "UTF-16 without its mark": lambda content, _: _recoded(content, "utf-16-be"),
    "UTF-32": lambda content, _: _recoded(content, "utf-32"),
    "Latin-1": lambda content, _: b"\xe9t\xe9 " + _recoded(content, "latin-1"),
    "cut in a letter": lambda content, _: content + "é".encode()[:1],
    "a byte-order mark": lambda content, _: b"\xef\xbb\xbf" + content,
    "two byte-order marks": lambda content, _: b"\xef\xbb\xbf" * 2 + content,
    "a zero in the middle": lambda content, _: content[: len(content) // 2] + b"\0" + content[len(content) // 2 :],
    "zeros": lambda content, _: bytes(min(len(content), 5000)),
    "gzip": lambda content, _: gzip.compress(content[:100_000]),
    "bzip2": lambda content, _: bz2.compress(content[:100_000]),
    "zip": lambda content, _: _zipped(content),
    "cut in the middle": lambda content, _: content[: len(content) // 2],
    "without an end of line": lambda content, _: content.rstrip(b"\r\n"),
    "bytes changed": _flipped,
    "ragged": _ragged,
    "an open quote": lambda content, _: content[: len(content) // 3] + b'"' + content[len(content) // 3 :],
    "CR for LF": lambda content, _: content.replace(b"\n", b"\r"),
    "both ends": lambda content, _: content.replace(b"\n", b"\r\n", 7),
    "empty": lambda content, _: b"",
    "only a header": lambda content, _: content.split(b"\n")[0],
    "only ends of lines": lambda content, _: b"\n" * 50,
    "many lines": lambda content, _: content + b"a,no\n" * 20_000,
    "one long line": lambda content, _: content.replace(b"\n", b" ") * (1 + HUGE // (len(content) + 1)),
    "half a pair in UTF-8": lambda content, _: content + b"\xed\xa0\xbd,yes\n",
    "an end of file": lambda content, _: content + b"\x1a",
    "HTML": lambda content, _: b"<!doctype html><html><body>404 Not Found</body></html>\n",
    "a Git LFS pointer": lambda content, _: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
}


# -- file names and locations -----------------------------------------------------------------


ODD_NAMES = ["with space.csv", "é💥.csv", "-dash.csv", "new\nline.csv", "\udcff.csv", "a,b.csv", "%s.csv", "UPPER.CSV"]
ODD_NAMES += ["no-ending", "two.csv.gz", "data.json", "data.txt", "data.tsv", "data.parquet", "data.xlsx", ".hidden"]
ELSEWHERE = [
    "/dev/null",
    "",
    ".",
    "..",
    "data",
    "no/such.csv",
    "data/train.csv/",
    "data/train.csv/x",
    "~/x.csv",
    "x" * 300,
]
ELSEWHERE += ["hf://x", "https://example.org/x.csv", "data/*.csv", "/dev/zero", "/proc/self/mem", "-"]


def _moved(file: Path, chance: random.Random) -> tuple[str, str]:
    """Move the file, link to it, make it unreadable, or return another path."""
    how = chance.choice(
        ["named", "named", "link", "dangling", "loop", "folder", "unreadable", "locked", "elsewhere", "fed"]
    )
    name = str(file.relative_to(Path.cwd()))
    if how == "named":
        other = chance.choice(ODD_NAMES)
        file.rename(other)
        return other, f"named {other!r}"
    if how == "elsewhere":
        return (other := chance.choice(ELSEWHERE)), f"{other!r:.40}"
    if how == "fed":
        return name, "through a pipe"
    if how == "unreadable":
        file.chmod(0)
    elif how == "locked":
        file.parent.chmod(0)
    else:
        target = file.rename(f"real{file.suffix}").absolute()
        if how == "folder":
            file.mkdir()
        else:
            file.symlink_to({"link": target, "dangling": target.with_name("gone"), "loop": file.absolute()}[how])
    return name, how


def _feed(file: Path, content: bytes) -> None:
    """Replace the file by a pipe with its content, as `<(cat FILE)` does; the name shows the format."""
    reading, writing = os.pipe()
    os.write(writing, content[:PIPE_BYTES])
    os.close(writing)
    file.unlink()
    file.symlink_to(f"/dev/fd/{reading}")


def _repeated(content: bytes, ending: str) -> tuple[bytes, int]:
    """Repeat the rows so that a reader needs several reads; return also the number of repetitions."""
    head, end, body = content.partition(b"\n") if ending in (".csv", ".tsv") else (b"", b"", content)
    times = PIPE_BYTES // (2 * len(body)) if ending != ".parquet" and body else 1
    return head + end + body * times, times


def mangled(file: Path, chance: random.Random) -> tuple[str, str]:
    """Damage the bytes or a few cells of a file; return its name and what was done."""
    how = chance.choice([*MANGLES, *["cells"] * 10])
    if how in MANGLES:
        file.write_bytes(MANGLES[how](file.read_bytes(), chance))
        return str(file), how
    mark = "," if file.suffix == ".csv" else "\t"
    table = [line.split(mark) for line in file.read_text("utf-8").splitlines()]
    for row in chance.sample(table, min(len(table), chance.choice([1, 1, 3]))):
        row[chance.randrange(len(row))] = str(chance.choice([*TEXTS, odd_labels.column(chance, 1)[0][0], 0, -1, 2]))
    file.write_bytes("\n".join(mark.join(row) for row in table).encode("utf-8", "surrogatepass"))
    return str(file), how


def _table(chance: random.Random, odd: bool) -> tuple[list[list[Any]], str]:
    """Return a header with rows, and a description; `odd` selects odd labels, else the rest is odd."""
    count = chance.choice([0, 1, 2, 3, 12, 60, 60, 60, 60, 60])
    labels, description = odd_labels.column(chance, count) if odd else (odd_labels.usual(count), f"{count} rows")
    header = ["text", "label"] if odd or chance.random() < 0.6 else chance.choice(HEADERS)
    texts = [text for text, _ in rows(count, 5)] if odd else _texts(chance, count)
    return [header, *(_cells(header, text, label) for text, label in zip(texts, labels, strict=True))], description


def write_dirty(folder: Path, chance: random.Random, labels: str = "usual", moves: bool = True) -> Dirty:
    """Write a damaged file into the folder; `labels` is "usual" or "odd"."""
    table, description = _table(chance, odd := labels == "odd")
    format = chance.choice(["csv", "csv", "jsonl", "jsonl", "parquet"] if odd else ["csv"] * 4 + [*FORMATS, "parquet"])
    if format == "parquet":
        ending, (content, how) = ".parquet", _as_parquet(table, chance)
    else:
        ending, write = FORMATS[format]
        text, how = write(table, chance)
        content = text.encode("utf-8", "surrogatepass")
    description = f"{format} {table[0]} {how}, {description}"
    is_intact = (
        "\n" not in "".join(table[0])
        and (format == "parquet" or how in ("objects", r"quoted '\n'", r"all '\r\n'"))
        and len(content) < PIPE_BYTES
    )
    if not odd and chance.random() < 0.35:
        mangle = chance.choice([*MANGLES])
        content, description, is_intact = MANGLES[mangle](content, chance), f"{description}, {mangle}", False
    folder.mkdir(exist_ok=True)
    file = folder / f"dirty{ending}"
    file.write_bytes(content)
    name = str(file.relative_to(Path.cwd()))
    times = 1
    if moves and not odd and chance.random() < 0.2:
        name, where = _moved(file, chance)
        description, is_intact = f"{description}, {where}", is_intact and where == "through a pipe"
        if where == "through a pipe":
            content, times = _repeated(content, ending)
            _feed(file, content)
    return Dirty(name, description, format, table[0], content, times * (len(table) - 1) if is_intact else None)
