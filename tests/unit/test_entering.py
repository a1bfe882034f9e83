"""Apptainer's words, as it was seen to say them (1.4, unprivileged; tests/lab/test_apptainer.py), and what they mean."""

from __future__ import annotations

import pytest

from hpcml.failures import exit_causes

SAID = (
    ("FATAL:   container creation failed: image driver mount failure: image driver squashfuse_ll instance exited with error: "
     "squashfuse_ll exited: Something went wrong trying to read the squashfs image.", "the image is damaged or cut off"),
    ("FATAL:   While checking container encryption: could not open image /i/a.sif: image format not recognized",
     "the file is not an image"),
    ("FATAL:   While checking container encryption: could not open image /i/a.sif: /i/a.sif is not readable by the current "
     "user, check permissions", "the image may not be read"),
    ("FATAL:   While checking container encryption: could not open image /i/a.sif: reading descriptors: unexpected EOF",
     "the image is damaged or cut off"),
    ("FATAL:   While checking container encryption: could not open image /i/a.sif: failed to retrieve path for /i/a.sif: lstat "
     "/i/a.sif: no such file or directory", "the image is not there: /i/a.sif"),
    ("FATAL:   While checking container encryption: could not open image /i/a.sif: the image's architecture (arm64) could not "
     "run on the host's (amd64)", "the image is for arm64 processors, and the machine has amd64"),
    ('FATAL:   "python3": executable file not found in $PATH', "there is no such Python in the image"),
    ("FATAL:   stat /opt/none/python: no such file or directory", "there is no such Python in the image"),
    ('Error for command "exec": unknown flag: --nosuch', "the program knows no option --nosuch"),
    ("FATAL:   container creation failed: image driver mount failure: image driver squashfuse_ll instance exited with error: "
     "squashfuse_ll exited: fuse: failed to open /dev/fuse: Permission denied", "/dev/fuse cannot be used, and images are mounted with it"),
    ("FATAL:   container creation failed: mount hook function failure: mount /data/x->/data/x error: while mounting /data/x: mount "
     "source /data/x doesn't exist", "a path that is to be bound is not there: /data/x"),
    ("FATAL:   container creation failed: failed to set working directory: chdir /no/where: no such file or directory",
     "the folder /no/where is not there inside"),
    ("ERROR  : Could not write info to setgroups: Permission denied\nERROR  : Error while waiting event for user namespace mappings: "
     "no event received\nFATAL: while creating namespace: user namespaces are disabled", "the machine allows no user namespaces"),
    ("hpcml: there is no apptainer on n2 (profile: runtime.container).", "the program apptainer is not there"),
    ("FATAL: while extracting: write /tmp/rootfs-1: no space left on device", "a disk or a quota is full"),
    ("\x1b[31mFATAL:  \x1b[0m exec /usr/bin/python3 failed: exec format error", "its programs are for another processor"),
)  # fmt: skip


@pytest.mark.parametrize(("said", "what"), SAID)
def test_what_it_means(said: str, what: str) -> None:
    found = exit_causes.container_error(f"INFO:    gocryptfs not found\n{said}\n")
    assert found is not None
    assert found.what == what
    assert found.hint[-1] in ".?"


def test_words_that_are_not_known_are_quoted() -> None:
    said = "WARNING: nothing\n\x1b[31mFATAL:  \x1b[0m the moon is full.\nsrun: error: n1: task 0\n"
    assert exit_causes.container_error(said) is None
    found = exit_causes.not_entered(said, "255")
    assert found.what == "the image could not be entered: the moon is full"
    assert "hpcml image check" in found.hint
    assert exit_causes.not_entered("", "88").what == "the image could not be entered: exit status 88"
