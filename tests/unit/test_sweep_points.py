"""The points of a sweep: what words and files say, what is refused, and when two points are the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.errors import HpcmlError
from hpcml.node.sweep.points import options_of
from hpcml.sweeps import points
from hpcml.sweeps.points import Request


def values(request: Request) -> list[dict[str, object]]:
    return [{value.name: value.typed for value in point} for point in points.points(request)]


@pytest.mark.parametrize(("request_", "rows"), [
    (Request(grids=["k=8,16", "lr=0.1,1e-2"]), [{"k": 8, "lr": 0.1}, {"k": 8, "lr": 0.01}, {"k": 16, "lr": 0.1}, {"k": 16, "lr": 0.01}]),
    (Request(grids=["s=x"], zips=[["a=1,2", "b=3,4"]]), [{"s": "x", "a": 1, "b": 3}, {"s": "x", "a": 2, "b": 4}]),
    (Request(grids=["k=range(1,8,3)"]), [{"k": 1}, {"k": 4}, {"k": 7}]),
    (Request(grids=['c="a,b",c']), [{"c": "a,b"}, {"c": "c"}]),
    (Request(grids=["k=8,8,16"]), [{"k": 8}, {"k": 16}]),
])  # fmt: skip
def test_grids_zips_ranges_and_quotes(request_: Request, rows: list[dict[str, object]]) -> None:
    assert values(request_) == rows


def test_a_value_keeps_its_text_and_has_a_kind(subtests: pytest.Subtests) -> None:
    for text, kind in (("8", 8), ("-1", -1), ("1e-2", 0.01), ("0.10", 0.1), ("true", True), ("False", False),
                       ("adam", "adam"), ("nan", "nan"), ("1_0", "1_0")):  # fmt: skip
        with subtests.test(text=text):
            [[value]] = points.points(Request(grids=[f"k={text}"]))
            assert (value.text, value.typed, type(value.typed)) == (text, kind, type(kind))


def test_files(tmp_path: Path) -> None:
    table, lines = tmp_path / "p.csv", tmp_path / "p.jsonl"
    table.write_text('\ufeffk,name\n8,"a,b"\n\n16,c\n')
    lines.write_text('{"k": 8, "deep": true, "name": "a"}\n\n{"k": 0.5}\n')
    assert values(Request(files=[table])) == [{"k": 8, "name": "a,b"}, {"k": 16, "name": "c"}]
    assert values(Request(files=[lines])) == [{"k": 8, "deep": True, "name": "a"}, {"k": 0.5}]
    assert [value.text for value in points.points(Request(files=[lines]))[0]] == ["8", "true", "a"]


def test_more_draws_begin_with_the_same_ones() -> None:
    words = ["x=uniform(0,1)", "k=randint(1,3)", "c=choice(a,b)", "r=loguniform(1e-4,1)"]
    few, many = (values(Request(randoms=[[count, *words]])) for count in ("5", "9"))
    assert few == many[:5]
    assert points.drawn(Request(randoms=[["9", *words]])) == ""
    few_values = Request(randoms=[["50", "k=randint(1,9)"]])
    assert points.drawn(few_values) == "--random: of 50 drawn points, 9 are distinct"
    assert values(Request(randoms=[["5", words[0]]], seed=1)) != [{"x": row["x"]} for row in few]
    assert all(0 <= float(str(row["x"])) <= 1 and row["k"] in (1, 2, 3) and row["c"] in ("a", "b") for row in many)
    assert all(1e-4 <= float(str(row["r"])) <= 1 for row in many)


WRONG: list[tuple[Request, str]] = [
    (Request(), "The sweep has no points"),
    (Request(grids=["k"]), "'k' is not NAME=VALUES"),
    (Request(grids=["k="]), "'k' has no values"),
    (Request(grids=["k=1,,2"]), "A value of 'k' is empty"),
    (Request(grids=['k="a'],), "The values of 'k' cannot be read"),
    (Request(grids=["--k=1"]), "'--k' is not a valid option name"),
    (Request(grids=["k=range(3,1)"]), "'k=range(3,1)' is empty"),
    (Request(grids=["k=range(1,2,0)"]), "'k=range(1,2,0)' is not a valid range"),
    (Request(grids=["k=range(a)"]), "'k=range(a)' is not a valid range"),
    (Request(grids=["k=1", "k=2"]), "Two options set 'k'"),
    (Request(zips=[["a=1,2", "b=3"]]), "The lists of --zip differ in length: a has 2, b has 1"),
    (Request(zips=[["a=1", "a=2"]]), "'a' is given twice"),
    (Request(grids=["a=range(1000)", "b=range(1000)"]), "The sweep would have 1,000,000 points, but at most 10,000 are allowed"),
    (Request(grids=["a=range(1000000000000000)"]), "The sweep would have 1,000,000,000,000,000 points"),
    (Request(randoms=[["1000000", "x=uniform(0,1)"]]), "The sweep would have 1,000,000 points"),
    (Request(randoms=[["x=uniform(0,1)"]]), "--random needs a number of points, then distributions"),
    (Request(randoms=[["0", "x=uniform(0,1)"]]), "--random needs a number of points, then distributions"),
    (Request(randoms=[["5", "x=normal(0,1)"]]), "'x=normal(0,1)' is not a valid distribution"),
    (Request(randoms=[["5", "x=uniform(1,0)"]]), "'x=uniform(1,0)' is not a valid distribution"),
    (Request(randoms=[["5", "x=loguniform(0,1)"]]), "'x=loguniform(0,1)' is not a valid distribution"),
]  # fmt: skip


def test_what_is_wrong_is_one_sentence(subtests: pytest.Subtests) -> None:
    for request, sentence in WRONG:
        with subtests.test(sentence=sentence), pytest.raises(HpcmlError) as raised:
            points.points(request)
        assert sentence in raised.value.message
        assert raised.value.place
        assert raised.value.hint


def test_a_wrong_file_is_one_sentence(subtests: pytest.Subtests, tmp_path: Path) -> None:
    cases: list[tuple[str, bytes, str]] = [
        ("p.csv", b"k,l\n", "The file contains no points"),
        ("p.csv", b"k,l\n1\n", "Line 2 does not have 2 values"),
        ("p.csv", b"k,k\n1,2\n", "'k' is given twice"),
        ("p.csv", b'k\n"1\n', "Line 2 is not valid CSV"),
        ("p.csv", b"\xff\xfe\n", "The file of points is not UTF-8 text"),
        ("p.jsonl", b"[1]\n", "Line 1 is not a JSON object"),
        ("p.jsonl", b'{"k": NaN}\n', "Line 1 is not a JSON object"),
        ("p.jsonl", b'{"k": 1}\n{"k"\n', "Line 2 is not valid JSON"),
        ("p.jsonl", b"[" * 100_000, "Line 1 is not valid JSON"),
        ("p.jsonl", b'{"k": 1}\n' * 10_001, "The sweep would have 10,001 points"),
        ("p.txt", b"k\n1\n", ".csv or .jsonl"),
    ]
    for name, content, sentence in cases:
        path = tmp_path / name
        path.write_bytes(content)
        with subtests.test(sentence=sentence, content=content[:40]), pytest.raises(HpcmlError) as raised:
            points.points(Request(files=[path]))
        assert sentence in raised.value.message
    with pytest.raises(HpcmlError, match="cannot be read: No such file"):
        points.points(Request(files=[tmp_path / "none.csv"]))


def test_words_for_the_script() -> None:
    [point] = points.points(Request(grids=["lr=-0.1", "k=8"]))
    assert options_of({value.name: value.text for value in point}) == ["--lr=-0.1", "--k", "8"]
    assert points.shown(point) == "lr=-0.1 k=8"


def test_what_makes_a_key() -> None:
    [point] = points.points(Request(grids=["k=8", "l=1"]))
    [turned] = points.points(Request(grids=["l=1", "k=8"]))
    [other] = points.points(Request(grids=["k=8.0", "l=1"]))
    key = points.key_of(point, "code", ["3"], "image")
    assert key == points.key_of(turned, "code", ["3"], "image")
    changed = ((other, "code", ["3"], "image"), (point, "other", ["3"], "image"),
               (point, "code", ["4"], "image"), (point, "code", ["3"], ""))  # fmt: skip
    assert key not in [points.key_of(*facts) for facts in changed]


def test_which_files_are_the_code(tmp_path: Path) -> None:
    for name, text in {
        "train.py": "def f():\n    import beside\nfrom pack.part import x\nimport numpy, twice\nfrom bare.deep import a\n",
        "beside.py": "import deeper\n", "deeper.py": "y = 1\n", "pack/__init__.py": "", "pack/part.py": "x = 1\n",
        "bare/deep/a.py": "from .. import near\nfrom .b import c\n", "bare/near.py": "", "bare/deep/b.py": "", "bare/far.py": "",
        "twice.py": "", "twice/__init__.py": "",
        "other.py": "z = 1\n", "data.csv": "1\n",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    script = tmp_path / "train.py"
    before = points.code_digest(script)
    for name, counts in (("other.py", False), ("data.csv", False), ("beside.py", True), ("deeper.py", True),
                         ("pack/part.py", True), ("train.py", True), ("bare/deep/a.py", True), ("bare/near.py", True),
                         ("bare/deep/b.py", True), ("bare/far.py", False), ("twice/__init__.py", True)):  # fmt: skip
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(f"{text}#\n")
        assert (points.code_digest(script) != before) == counts, name
        (tmp_path / name).write_text(text)
    assert points.code_digest(script) == before
    other = tmp_path.parent / f"{tmp_path.name}-src.py"  # of its project, in another folder
    other.write_text("1")
    with_other = points.code_digest(script, [other])
    other.write_text("2")
    assert len({before, with_other, points.code_digest(script, [other])}) == 3


def test_two_parameters_draw_apart() -> None:
    draws = points._random(["3", "a=uniform(0,1)", "b=uniform(0,1)"], 1)
    assert all(first.text != second.text for first, second in draws)
