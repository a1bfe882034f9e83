"""Settings and templates that somebody else could have written do not count; those that count are named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import planted
from hpcml import errors
from tests.fixtures.images import sif_file
from world import World

SETTINGS = '[runtime]\nsetup = ["touch /owned-by-them"]\npython = "/owned-by-them"\n[slurm]\nextra = ["--constraint=owned-by-them"]\n'
TEMPLATE = '{% extends "hpcml/batch.sh.j2" %}{% block environment %}touch /owned-by-them{% endblock %}\n'
OWNED = "owned-by-them"


def of_a_stranger(path: Path) -> None:
    planted.give(path)


def for_everybody(path: Path) -> None:
    path.chmod(0o666)


def for_a_group(path: Path) -> None:
    os.chown(path, 0, planted.STRANGER)
    path.chmod(0o664)


def by_a_stranger_s_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    planted.give(path)


def by_a_link_to_a_stranger_s(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    planted.give(target)
    path.symlink_to(target)


def in_a_stranger_s_folder(path: Path) -> None:
    os.chown(path.parent, planted.STRANGER, planted.STRANGER)


def in_everybody_s_folder(path: Path) -> None:
    path.parent.chmod(0o777)


def in_a_group_s_folder(path: Path) -> None:
    os.chown(path.parent, 0, planted.STRANGER)
    path.parent.chmod(0o770)


def a_stranger_s_in_a_sticky_folder(path: Path) -> None:
    path.parent.chmod(0o1777)
    planted.give(path)


FOREIGN: tuple[Callable[[Path], None], ...] = (
    of_a_stranger, for_everybody, for_a_group, by_a_stranger_s_link, by_a_link_to_a_stranger_s, in_a_stranger_s_folder,
    in_everybody_s_folder, in_a_group_s_folder, a_stranger_s_in_a_sticky_folder,
)  # fmt: skip
PLACES = {
    "project/hpcml.toml": SETTINGS,
    "hpcml.toml": SETTINGS,  # above the project
    "home/.config/hpcml/config.toml": SETTINGS,
    "etc/config.toml": SETTINGS,
    "home/.config/hpcml/profiles/slurm.toml": SETTINGS,
    "etc/profiles/slurm.toml": SETTINGS,
    "project/templates/hpcml/batch.sh.j2": TEMPLATE,
    "home/.config/hpcml/templates/batch.sh.j2": TEMPLATE,
    "etc/templates/batch.sh.j2": TEMPLATE,
}


EVERY_WAY = ("project/hpcml.toml", "home/.config/hpcml/templates/batch.sh.j2")  # one place of each kind


def write(world: World, place: str, text: str) -> Path:
    path = world.top / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("place", PLACES)
def test_what_others_could_have_written_does_not_count(world: World, place: str) -> None:
    planted.need_another_account()
    runs = f"paths.runs={world.top.parent}/runs"  # beside the folders that are given away
    for make in FOREIGN if place in EVERY_WAY else FOREIGN[::4]:
        path = write(world, place, PLACES[place])
        folder = path.parent.stat()
        make(path)
        done = world.run("submit", "--site", "slurm", "--dry-run=script", "--set", runs, "job.py")
        assert done.returncode == 0, (make, done.stderr)
        assert OWNED not in done.stdout, make
        assert f"note: hpcml ignores {path}: " in done.stderr, (make, done.stderr)
        assert "settings of" not in done.stderr
        theirs = make not in (for_everybody, for_a_group, in_everybody_s_folder, in_a_group_s_folder)
        assert ("into your own file in ~/.config/hpcml)" if theirs else "(chmod go-w ") in done.stderr, make
        os.chown(path.parent, folder.st_uid, folder.st_gid)
        path.parent.chmod(folder.st_mode)
        for left in (path, path.with_name("elsewhere")):
            left.unlink(missing_ok=True)


@pytest.mark.parametrize("place", PLACES)
def test_one_s_own_counts(world: World, place: str) -> None:
    path = write(world, place, PLACES[place])
    done = world.run("submit", "--dry-run=script", "--site", "slurm", "job.py")
    named = (
        f"hpcml uses the settings of {path}"
        if place.endswith("hpcml.toml")
        else f"the batch script uses the template {path}"
    )
    assert (named in done.stderr) == place.endswith(("hpcml.toml", ".j2")), done.stderr
    directory = world.submit()
    assert OWNED in (directory / "job.sh").read_text()
    request = json.loads((directory / "request.json").read_text())
    assert request["project"] == (str(path) if place.endswith("hpcml.toml") else "")
    assert request["template"] == (str(path) if place.endswith(".j2") else "")


def test_one_s_own_in_a_folder_that_all_share(world: World) -> None:
    """As in /tmp: others can put files beside it, and cannot replace it; also by a link of one's own."""
    path = write(world, "project/hpcml.toml", SETTINGS)
    path.parent.chmod(0o1777)
    assert OWNED in world.run("submit", "--site", "slurm", "--dry-run=script", "job.py").stdout
    path.rename(world.top / "dotfile.toml")
    path.symlink_to(world.top / "dotfile.toml")
    assert OWNED in world.run("submit", "--site", "slurm", "--dry-run=script", "job.py").stdout


def test_settings_that_are_no_file(world: World) -> None:
    for make in (planted.deep, planted.hole, planted.pipe, planted.endless, planted.ring):
        planted.put(world.project / "hpcml.toml", make)
        done = world.run("submit", "--site", "slurm", "--dry-run=script", "job.py")
        assert done.returncode == (errors.CONFIG if make == planted.deep else 0), (make, done.stderr)
        assert "Traceback" not in done.stderr
        assert "hpcml.toml" in done.stderr or make not in (planted.deep, planted.hole)


ESCAPES = (
    "cycler.__init__.__globals__.os.popen('touch OWNED').read()",
    "self.__init__.__globals__.__builtins__.__import__('os').system('touch OWNED')",
    "lipsum.__globals__['os'].system('touch OWNED')",
    "''.__class__.__mro__[1].__subclasses__()",
    "plan.__class__.__init__.__globals__",
    "plan._replace(name='x')",
    "(plan | attr('__class__')).__mro__",
    "plan.steps[0].__class__.__base__.__subclasses__()",
    "'{0.__class__.__mro__}'.format(plan)",
    "'{p.__class__.__init__.__globals__}'.format_map({'p': plan})",
    "namespace.__init__.__globals__.os.system('touch OWNED')",
    "joiner.__init__.__globals__['os'].system('touch OWNED')",
    "range.__self__.__import__('os').system('touch OWNED')",
    "[].append.__self__.__class__.__base__.__subclasses__()",
    "plan.inside.__class__.__init__.__globals__",
    "dict.__base__.__subclasses__()",
    "(1).__class__.__base__.__subclasses__()",
    "super.__init__.__globals__",
    "plan.directory.__class__.__mro__",
    "range(10 ** 9) | list",
)


def test_a_template_reaches_nothing_of_python(world: World) -> None:
    path = world.project / "templates/hpcml/batch.sh.j2"
    owned = world.project / "OWNED"
    for words in ESCAPES:
        write(
            world,
            "project/templates/hpcml/batch.sh.j2",
            f"#!/bin/bash\n# second line\n{{{{ {words} | string | sh }}}}\n",
        )
        for command in ((), ("--json",)) if words == ESCAPES[0] else ((),):
            done = world.run("submit", "--dry-run=script", *command, "--site", "slurm", "job.py")
            assert done.returncode == errors.CONFIG, (words, done.stdout, done.stderr)
            assert f"{path}:3" in done.stderr, (words, done.stderr)
            assert not owned.exists(), words


@pytest.mark.parametrize("name", ["../outside.j2", "/etc/hostname", "more.j2"])
def test_a_template_takes_in_no_file_of_others(world: World, name: str) -> None:
    planted.need_another_account()
    write(world, "project/templates/hpcml/batch.sh.j2", f'{{% include "{name}" %}}')
    write(world, "project/templates/outside.j2", "outside")
    of_a_stranger(write(world, "project/templates/hpcml/more.j2", "echo owned"))
    done = world.run("submit", "--dry-run=script", "--site", "slurm", "job.py")
    assert done.returncode == errors.CONFIG, done.stdout


@pytest.mark.parametrize(
    "text",
    [
        '[login]\nhpcml = "touch OWNED; hpcml"',
        '[site.slurm.login]\nrenew = "x"',
        '[site.vega.login]\nrenew = "x"',
        "login = 3",
    ],
)
def test_a_project_does_not_say_how_one_logs_in(world: World, text: str) -> None:
    path = write(world, "project/hpcml.toml", text)
    for command in (("submit", "--site", "slurm", "job.py"), ("ls",), ("tunnel",)):
        done = world.run(*command)
        assert done.returncode == errors.CONFIG, done.stderr
        table = text[1:].partition(".login")[0]
        assert f"{path}{f' [{table}]' if 'site' in text else ''}: login" in done.stderr
        assert "~/.config/hpcml/config.toml" in done.stderr


def test_a_project_does_not_say_what_looks_at_images_here(world: World) -> None:
    write(world, "project/hpcml.toml", f"[runtime]\ncontainer = {json.dumps(str(world.project / 'program'))}\n")
    program = write(world, "project/program", "#!/bin/sh\ntouch OWNED\n")
    program.chmod(0o755)
    sif_file.make(world.project / "x.sif", None)
    for words in (("show", "x.sif"), ("check", "x.sif"), ("ls", ".")):
        done = world.run("image", *words)
        assert "applies to jobs" in done.stderr, done.stderr
        assert not (world.project / "OWNED").exists()
    assert (
        "program" in world.run("submit", "--site", "slurm", "--dry-run=script", "--image", "x.sif", "job.py").stdout
    ), "in jobs it counts"
