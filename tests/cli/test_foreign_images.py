"""Images of others: what they say is shown and not obeyed, and nothing of them is waited for."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

import planted
from hpcml import errors
from hpcml.images import sif
from tests.fixtures.images import sif_file
from world import World

NAMES = ("\x1b[2J.sif", "a\nfake  row.sif", "\u202efis.sif", "\x9b31m.sif")
NESTED = b'{"data":{"attributes":{"labels":' + b"[" * 100_000


def hostile(folder: Path) -> dict[str, Path]:
    """Write an image of every kind that somebody could leave in a folder."""
    folder.mkdir()
    found = {name: sif_file.make(folder / name) for name in NAMES}
    text = planted.ESCAPES
    found["labels"] = sif_file.make(
        folder / "labels.sif", {**sif_file.SAID, "org.hpcml.kind": text, f"x{text}": text, "org.hpcml.dask": text}
    )
    found["texts"] = sif_file.make(folder / "texts.sif", definition=f"{sif_file.DEFINITION}\n# {text}\n", text=text)
    found["deep"] = sif_file.make(folder / "deep.sif", None, more=((0x4006, "inspect-metadata.json", NESTED),))
    for name, labels in (("not text", {"a": {"b": [1, {"c": 2}]}}), ("not a table", ["a"])):
        data = sif_file.metadata(labels)
        found[name] = sif_file.make(folder / f"{name}.sif", None, more=((0x4006, "inspect-metadata.json", data),))
    for make in (planted.hole, planted.endless, planted.pipe, planted.ring, planted.folder):
        found[make.__name__] = folder / f"{make.__name__}.sif"
        make(found[make.__name__])
    return found


def test_hostile_images_are_listed_and_named(world: World) -> None:
    found = hostile(world.project / "images")
    done = world.run("image", "ls", "images")
    assert done.returncode == 0, done.stderr
    assert planted.is_plain(done.stdout + done.stderr)
    assert len(done.stdout.splitlines()) == len(found), "no row more than there are images"
    assert len(json.loads(world.run("image", "ls", "--json", "images").stdout)) == len(found)
    for kind, path in found.items():
        done = world.run("image", "show", str(path))
        good = kind in NAMES or kind in ("labels", "texts")
        status = (0 if good else errors.IMAGE) if kind != "ring" else errors.NOT_FOUND
        assert done.returncode == status, (kind, done.stderr)
        assert planted.is_plain(done.stderr + done.stdout), (kind, done.stdout)


@pytest.mark.parametrize("make", planted.HOSTILE)
def test_a_hostile_record_beside_an_image(world: World, make: object) -> None:
    path = sif_file.make(world.project / "a.sif")
    planted.put(world.project / "a.sif.json", make)
    assert sif.known_digest(sif.inspect(path)) == ""
    done = world.run("submit", "--site", "slurm", "--dry-run", "--image", str(path), "job.py")
    assert done.returncode == 0, done.stderr
    assert world.run("image", "show", str(path)).returncode == 0


def test_a_digest_is_said_by_the_image_s_owner_or_nobody(tmp_path: Path) -> None:
    planted.need_another_account()
    path = sif_file.make(tmp_path / "a.sif")
    record = tmp_path / "a.sif.json"
    record.write_text(json.dumps({"size": path.stat().st_size, "digest": "sha256:x"}))
    assert sif.known_digest(sif.inspect(path)) == "sha256:x"
    planted.give(record)
    assert sif.known_digest(sif.inspect(path)) == "", "a stranger's word"
    planted.give(path)
    assert sif.known_digest(sif.inspect(path)) == "sha256:x", "the image's owner's"
    os.utime(record, (time.time() - 999,) * 2)
    assert sif.known_digest(sif.inspect(path)) == "", "older than the image"


@pytest.mark.parametrize("make", [planted.pipe, planted.hole])
def test_a_definition_that_is_no_file(world: World, make: object) -> None:
    planted.put(world.project / "a.def", make)
    done = world.run("image", "build", "a.def", "out.sif")
    assert done.returncode == errors.NOT_FOUND, done.stderr
    assert "a.def" in done.stderr
