"""The page docs/seeds.md: no row is without its figure or a reason, and no figure is older than the code that it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cpu_rows
import figures
import results
import seeds

SOURCE = '''"""About."""


def work(rows):
    """Return more."""
    return rows + 1  # one


def other(rows):
    return rows
'''
LINES = [
    "| csv | 1 | 200 | 100 |  | 2.00 (2.00 to 2.00) | 50 s | 194 s |",
    "| csv | 16 | 200 | 100 |  | 2.00 (2.00 to 2.00) | 50 s | 35 s on 40 cores |",
]


def test_the_page_s_rows_have_figures_as_new_as_their_code() -> None:
    assert list(seeds.problems()) == []


def test_what_the_sections_on_gpus_measure_is_there() -> None:
    """A section's documents get the digests of these places; one that is gone would end bench/gpu/run.py."""
    for places in results.MEASURED.values():
        assert figures.measured(*places).keys() == set(places)
    assert results.MEASURED.keys() <= set(results.SECTIONS)


def test_all_five_documents_are_there() -> None:
    assert len(seeds.SOURCES) == 5
    assert all(source.rows for source in seeds.SOURCES)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("Return more.", "Return the next row.", True),
        ("  # one", "", True),
        ("rows + 1", "rows  +  1", True),
        ("rows + 1", "rows + 2", False),
        ("return rows\n", "return None\n", True),
    ],
)
def test_a_digest_is_of_the_code_of_one_name(old: str, new: str, *, same: bool) -> None:
    before, after = (figures.digest(text, "a.py:work") for text in (SOURCE, SOURCE.replace(old, new)))
    assert (before == after) == same


def test_a_digest_of_a_name_that_is_gone_is_refused() -> None:
    with pytest.raises(ValueError, match="does not define gone"):
        figures.digest(SOURCE, "a.py:gone")


def test_rows_that_the_page_may_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "ROOT", tmp_path)
    monkeypatch.setattr(seeds, "FIGURES", tmp_path)
    (tmp_path / "a.py").write_text(SOURCE)
    recorded = {"a.py:work": figures.digest(SOURCE, "a.py:work")}
    (tmp_path / "figures.json").write_text(json.dumps({"measured": recorded}))
    row = seeds.Row("the work", "", "figures.json", code=("a.py:work",))
    assert list(seeds.problems([row])) == []
    (other,) = seeds.problems([row._replace(code=("a.py:other",))])  # not recorded
    assert "older than a.py:other" in other
    (gone,) = seeds.problems([row._replace(file="none.json")])
    assert "none.json is missing" in gone
    assert list(seeds.problems([row._replace(file="none.json", missing="no machine")])) == []
    (needless,) = seeds.problems([row._replace(older="since then it was renamed")])
    assert "as new as its code" in needless
    (tmp_path / "a.py").write_text(SOURCE.replace("+ 1", "+ 2"))
    (older,) = seeds.problems([row])
    assert "older than a.py:work" in older
    assert list(seeds.problems([row._replace(older="since then it was renamed")])) == []
    (script,) = seeds.problems([row._replace(older="renamed", command="hpcml submit jobs/none.py --k 8")])
    assert "jobs/none.py is missing" in script


def test_rates_on_cores(tmp_path: Path) -> None:
    """Rates are compared round by round; 16 cores stand beside the 40 that were published."""
    runs = [
        {"round": number, "cores": cores, "contender": contender, "work": work, "bytes": 1e9, "seconds": seconds}
        for number in range(3)
        for cores in (1, 16)
        for work in (cpu_rows.CSV, cpu_rows.ARRAY)
        for contender, seconds in ((cpu_rows.HPCML, 4.0 + number), (cpu_rows.BY_HAND, 2.0 * (4 + number)))
    ]
    document = {"runs": runs, "rounds": 3, "date": "2026-11-29", "machine": "16 cores", "command": "bench/cpu_rows.py"}
    assert cpu_rows.ratios(document, cpu_rows.CSV, 16) == [2.0, 2.0, 2.0]
    lines = cpu_rows.table(document).splitlines()
    assert lines[2:4] == LINES
    assert seeds.cores("csv", 1)(document) == ("200 MB/s", "3.9 × the published rate; 2.00 of by hand")
    files = cpu_rows.write_csv(tmp_path, 2)
    means = cpu_rows.csv_by_dask(files), cpu_rows.csv_by_pandas(files)
    assert means[0] == pytest.approx(means[1], rel=1e-12)
    assert cpu_rows.array_by_dask(2) == pytest.approx(cpu_rows.array_by_numpy(2), abs=5e-3)


def test_rounds_that_differ_much_have_the_range_of_their_ratios() -> None:
    """Scikit-learn took 3.03 s and 0.09 s in two rounds: a ratio to their median would be by chance."""
    even, uneven = (
        {"results": [{"name": "grid", "figures": {"gpu_s": 0.5, "cpu_s": 1.5, "each": {"cpu": each}}}]}
        for each in ([1.4, 1.6], [3.0, 0.09])
    )
    assert seeds.estimated(even, "grid") == ("0.50 s, CPUs 1.50 s", "3.0 × CPUs")
    assert seeds.estimated(uneven, "grid") == ("0.50 s, CPUs 0.09 to 3.00 s", "0.2 to 6.0 × CPUs")
