"""Data files as people have them: torn, in another encoding, wrongly quoted, under another name; made by seed."""

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

PIPE = 60_000  # bytes that a pipe holds
HUGE = 3_000_000  # characters of a cell that is too long for anybody
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
    """A file, how it came about, and options that may go with it."""

    name: str
    told: str
    kind: str
    columns: list[str]
    content: bytes
    rows: int | None  # where nothing was done to them


# -- rows ----------------------------------------------------------------------------------------


def _texts(chance: random.Random, count: int) -> list[Any]:
    made: list[Any] = [text for text, _ in rows(count, chance.randint(0, 9))]
    if made and chance.random() < 0.4:
        for row in chance.sample(range(count), min(count, chance.choice([1, 1, 3, 20]))):
            made[row] = chance.choice(TEXTS)
    if made and chance.random() < 0.03:
        made[-1] = "good film " * (HUGE // 10)
    return made


def _cells(header: list[str], text: str, label: Any) -> list[Any]:
    """A row for that header."""
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
        return "\n".join(json.dumps(one, indent=1) for one in objects), how
    lines = [repr(one) if how == "Python's" else json.dumps(one, ensure_ascii=chance.random() < 0.5) for one in objects]
    return "\n".join(lines) + "\n", how


FORMATS: dict[str, tuple[str, Callable[[list[list[Any]], random.Random], tuple[str, str]]]] = {
    "csv": (".csv", _as_csv),
    "tsv": (".tsv", _as_tsv),
    "jsonl": (".jsonl", _as_json),
    "text": (".txt", _as_text),
}


def _as_parquet(table: list[list[Any]], chance: random.Random) -> tuple[bytes, str]:
    """Columns of the types that Parquet has; those that Arrow refuses are written as text."""
    import pyarrow as pa
    from pyarrow import parquet

    header, body = table[0], table[1:]
    kinds: list[Any] = [None, pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
    kinds += [pa.null(), pa.int8(), pa.float16(), pa.bool_(), pa.list_(pa.string()), pa.timestamp("ns"), pa.date32()]
    arrays, told = [], []
    for place, _ in enumerate(header):
        cells = [row[place] for row in body]
        kind = chance.choice(kinds) if chance.random() < 0.25 else None
        try:
            arrays.append(pa.array(cells, kind))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            arrays.append(pa.array([str(cell).encode("utf-8", "replace").decode() for cell in cells], pa.string()))
        told.append(str(arrays[-1].type))
    named = {
        b"huggingface": chance.choice([b"", b"{", b"[]", b'{"info": {"features": {"label": {"names": ["a", 1]}}}}'])
    }
    made = pa.Table.from_arrays(arrays, names=header)
    out = io.BytesIO()
    parquet.write_table(made.replace_schema_metadata(named) if chance.random() < 0.2 else made, out)
    return out.getvalue(), ", ".join(told)


# -- what happens to bytes -----------------------------------------------------------------------


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
    for place in chance.sample(range(len(changed)), min(len(changed), 5)):
        changed[place] = chance.randrange(256)
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


# -- where it lies -------------------------------------------------------------------------------


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
    """The same content under another name, behind a link, not to be read; or another thing altogether."""
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
    """A pipe with the content in it, as `<(cat FILE)` gives one, under a name that tells its format."""
    reading, writing = os.pipe()
    os.write(writing, content[:PIPE])
    os.close(writing)
    file.unlink()
    file.symlink_to(f"/dev/fd/{reading}")


def _often(content: bytes, ending: str) -> tuple[bytes, int]:
    """Rows again and again, for a pipe: more than a reader takes at once; and how often."""
    head, end, body = content.partition(b"\n") if ending in (".csv", ".tsv") else (b"", b"", content)
    times = PIPE // (2 * len(body)) if ending != ".parquet" and body else 1
    return head + end + body * times, times


def mangled(file: Path, chance: random.Random) -> tuple[str, str]:
    """A file with something done to its bytes, or to a few of its cells."""
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
    """A header and rows; odd are either the labels or the rest."""
    count = chance.choice([0, 1, 2, 3, 12, 60, 60, 60, 60, 60])
    labels, told = odd_labels.column(chance, count) if odd else (odd_labels.usual(count), f"{count} rows")
    header = ["text", "label"] if odd or chance.random() < 0.6 else chance.choice(HEADERS)
    texts = [text for text, _ in rows(count, 5)] if odd else _texts(chance, count)
    return [header, *(_cells(header, text, label) for text, label in zip(texts, labels, strict=True))], told


def write_dirty(folder: Path, chance: random.Random, labels: str = "usual", moves: bool = True) -> Dirty:
    """A file in that folder; `labels` are usual or odd."""
    table, told = _table(chance, odd := labels == "odd")
    kind = chance.choice(["csv", "csv", "jsonl", "jsonl", "parquet"] if odd else ["csv"] * 4 + [*FORMATS, "parquet"])
    if kind == "parquet":
        ending, (content, how) = ".parquet", _as_parquet(table, chance)
    else:
        ending, write = FORMATS[kind]
        text, how = write(table, chance)
        content = text.encode("utf-8", "surrogatepass")
    told = f"{kind} {table[0]} {how}, {told}"
    whole = (
        "\n" not in "".join(table[0])
        and (kind == "parquet" or how in ("objects", r"quoted '\n'", r"all '\r\n'"))
        and len(content) < PIPE
    )
    if not odd and chance.random() < 0.35:
        mangle = chance.choice([*MANGLES])
        content, told, whole = MANGLES[mangle](content, chance), f"{told}, {mangle}", False
    folder.mkdir(exist_ok=True)
    file = folder / f"dirty{ending}"
    file.write_bytes(content)
    name = str(file.relative_to(Path.cwd()))
    times = 1
    if moves and not odd and chance.random() < 0.2:
        name, where = _moved(file, chance)
        told, whole = f"{told}, {where}", whole and where == "through a pipe"
        if where == "through a pipe":
            content, times = _often(content, ending)
            _feed(file, content)
    return Dirty(name, told, kind, table[0], content, times * (len(table) - 1) if whole else None)
