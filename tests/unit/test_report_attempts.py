"""The report of a run of several attempts: each of them, and their hours added up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcml import attempt_history, kinds
from hpcml.report.page import make
from hpcml.run_files import Recorded
from tests import report_samples
from tests.report_samples import Shape


def test_all_attempts_are_told_and_added_up(tmp_path: Path) -> None:
    """The first stopped to be continued, the second was killed and left no word, the third ended the run."""
    paths = report_samples.write(tmp_path / "run", Shape(nodes=2, gpus=0, seconds=600, samples=False))
    first = [json.loads(line) for line in paths.events.read_text().splitlines()]
    lines = [json.dumps(event) for event in first]
    for number, seconds in ((1, 300.0), (2, 1000.0)):
        paths.attempt(number).directory.mkdir()
        begin = report_samples.BEGAN + 10_000 * number
        kept = first[:2] if number == 1 else first
        for event in kept:
            at = begin + min(event["time"] - report_samples.BEGAN, 30)
            moved = {**event, "attempt": number, "time": at}
            if event["event"] == "allocated":
                moved |= {"began": int(begin), "job": str(4711 + number)}
            lines.append(json.dumps(moved))
        last = "torn-down" if number == 2 else "warning"
        lines.append(json.dumps({"event": last, "attempt": number, "time": begin + seconds}))
    paths.events.write_text("\n".join(lines) + "\n")
    end = json.loads(paths.status.read_text())
    paths.attempt(0).end.write_text(json.dumps({**end, "exit_status": 92, "state": "TIMEOUT", "message": "it stopped"}))
    paths.status.write_text(json.dumps({**end, "attempt": 2, "time": report_samples.BEGAN + 21_000}))

    page = make(paths, 2, kinds.get("dask"))
    found = json.loads(paths.report_facts.read_text())
    told = [(one["job"], round(one["end"] - one["begin"]), one["state"], one["message"]) for one in found["attempts"]]
    assert told == [
        ("4711", 600, "TIMEOUT", "it stopped"),
        ("4712", 300, "", attempt_history.NO_STATUS),
        ("4713", 1000, "COMPLETED", "the script exited with status 0"),
    ]
    assert found["ledger"]["paid"] == pytest.approx(2 * 1000 / 3600)
    assert [one["hours"] for one in found["attempts"]] == [
        pytest.approx(2 * seconds / 3600) for seconds in (600, 300, 1000)
    ]
    assert sum(found["total"].values()) == pytest.approx(2 * 1900 / 3600)
    text = page.read_text()
    assert "All attempts" in text
    assert '<th class="n">all attempts</th>' in text  # of each part
    assert '<table class="attempts">' in text  # a phone shows how each ended in a row of its own
    assert "grid-column: 1 / -1" in text
    assert "it stopped" in text
    assert attempt_history.sentence(attempt_history.earlier(Recorded(paths), 2)[0]) == (
        "attempt 0: job 4711, on n1,n2, 10:00, TIMEOUT: it stopped"
    )
    saved = attempt_history.earlier(Recorded(paths), 2)[0]._replace(
        state="FAILED"
    )  # Slurm's word for each status but 0
    assert attempt_history.sentence(saved).endswith("10:00, SAVED: it stopped")

    kept_before = paths.attempt(0).ledger.stat().st_mtime_ns
    make(paths, 2, kinds.get("dask"))
    assert paths.attempt(0).ledger.stat().st_mtime_ns == kept_before  # what has been added up is not read again
    assert json.loads(paths.report_facts.read_text())["total"] == found["total"]

    kept = json.loads(paths.attempt(0).ledger.read_text())
    paths.attempt(0).ledger.write_text(json.dumps({**kept, "unit": "GPU"}))
    make(paths, 2, kinds.get("dask"))
    assert sum(json.loads(paths.report_facts.read_text())["total"].values()) == pytest.approx(2 * 1300 / 3600)

    wrong_clock = {"time": 1.79e9, "attempt": 7, "event": "allocated", "began": 1.0}
    paths.events.write_text(json.dumps(wrong_clock) + "\n")
    assert attempt_history.one(Recorded(paths), 7).seconds == 0
