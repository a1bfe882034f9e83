"""Why an image was not entered: by the rules (tests/cli/failure_texts.py), else in the program's own words."""

from __future__ import annotations

from failure_texts import TEXTS
from hpcml.failures import rules
from hpcml.failures.rules import Where, meaning


def test_the_program_s_words_are_found_among_others() -> None:
    found = meaning(f"INFO:    gocryptfs not found\n{TEXTS['image-missing'][0]}\nsrun: error\n", Where.IMAGE)
    assert found is not None
    assert found.cause == "the image does not exist: /work/me/rapids.sif"
    found = meaning(TEXTS["architecture"][1], Where.IMAGE)
    assert found is not None
    assert found.sentence == "The image is for arm64 processors, but the machine has amd64"


def test_words_that_are_not_known_are_quoted() -> None:
    said = "WARNING: nothing\n\x1b[31mFATAL:  \x1b[0m the moon is full.\nsrun: error: n1: task 0\n"
    assert meaning(said, Where.IMAGE) is None
    found = rules.not_entered(said, "255")
    assert found.what == "the image could not be started: the moon is full"
    assert "hpcml image check" in found.hint
    assert rules.not_entered("", "88").what == "the image could not be started: exit status 88"
