"""Decide what a run copies when the script's code reaches above its folder: the project's root, or nothing at all."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hpcml import safe_files
from hpcml.request.record import Code, RunRequest
from hpcml.runs import folders_code_uses, modules_code_uses, snapshot, uv_environments
from hpcml.sites.schema import Code as Rules
from hpcml.workload_forms import Form

_NAMED = 3  # lines in a note


class Decision(NamedTuple):
    """What the run copies instead of the script's folder."""

    root: str = ""  # the project's root, which holds all that the code reaches; empty: the script's own folder
    in_place: Path | None = None  # nothing is copied; the folder up to which the code reaches
    why: str = ""  # nothing is copied, in a clause
    where: str = ""  # the lines that lead there, in a clause

    @property
    def note(self) -> str:
        """What the user should know before the run, in a sentence without capital and full stop; empty: nothing."""
        if self.in_place:
            uses = "the run uses the original files, as with code.snapshot=none; do not change the code until it ends"
            return f"{self.where}, and {self.why}: {uses}"
        return f"{self.where}, so the run copies the project's folder {self.root}" if self.root else ""

    @property
    def note_on_sending(self) -> str:
        """The same, where the script is sent to another machine."""
        if self.in_place:
            return f"{self.where}, and {self.why}: hpcml sends only the script's folder"
        return f"{self.where}, so hpcml sends the project's folder {self.root}" if self.root else ""

    def applied(self, spec: RunRequest) -> RunRequest:
        """Return the request with this decision."""
        if self.root:
            folder = spec.code.script.parent.resolve()
            sources = tuple(dict.fromkeys((Path(self.root), *spec.code.sources)))
            return spec.changed(root=self.root, script=folder / spec.code.script.name, sources=sources)
        if self.in_place:
            return spec.changed(sources=tuple(dict.fromkeys((self.in_place, *spec.code.sources))))
        return spec


def decide(
    code: Code, rules: Rules, target: Path, sent_from: Path | None = None, described: Path | None = None
) -> Decision:
    """Return the decision what is to be copied of a script's project.

    Parameters
    ----------
    target
        Where the copy will be.
    sent_from
        The current folder, where the copy is for another machine: a text of other people's code then leads to no folder
        above it that no marker makes a part of the project.
    described
        The folder of a project whose lock says the packages, where these are installed on another machine.
    """
    if not code.copied or rules.snapshot == "none" or (found := _reach(code)) is None:
        return Decision()
    folder = code.script.parent.resolve()
    roots = [place for place in folders_code_uses.marked(folder) if _may_be_copied(place)]
    found = _described(found, described)
    top = found.top
    if found.searches and roots:
        top = min(top, roots[0], key=lambda place: len(place.parts))
    if top == folder and (not found.searches or roots):
        return Decision()
    verb = "lead" if len(found.places) > 1 else "leads"
    where = f"{' and '.join(found.places[:_NAMED])} {verb} above the script's folder"
    if not found.places:
        where = "the script looks for the project's root"
    why = _no_root(code, rules, target, top, roots, found)
    if not why and sent_from is not None and not roots and not top.is_relative_to(sent_from.resolve()):
        why = f"{top} has no marker of a project (as .git) and is above the current folder"
    if why:
        return Decision(in_place=top, why=why, where=where)
    return Decision(str(top), where=where)


def _described(found: folders_code_uses.Reach, folder: Path | None) -> folders_code_uses.Reach:
    """Return the same with the files of a folder above, whose lock says the project's packages."""
    if folder is None or not found.top.is_relative_to(folder.resolve()) or found.top == folder.resolve():
        return found
    top = folder.resolve()
    files = (*found.modules, top / uv_environments.LOCK, top / "pyproject.toml")
    return found._replace(top=top, places=(f"{uv_environments.LOCK} of the project",), modules=files)


def _reach(code: Code) -> folders_code_uses.Reach | None:
    """Return the reach of the code, None if it is not code that can be looked at."""
    if code.form is Form.MODULE:
        file = modules_code_uses.module_file(code.script)
        return folders_code_uses.of_python(file.resolve(), code.script.parent.resolve()) if file else None
    if code.form is Form.NOTEBOOK:
        return None
    folder = code.script.resolve().parent
    try:
        start = code.script.read_bytes()[:200]
    except OSError:
        return None
    file = folder / code.script.resolve().name
    if code.form is Form.SCRIPT or b"python" in start.partition(b"\n")[0]:
        return folders_code_uses.of_python(file, folder)
    return folders_code_uses.of_shell(file, folder) if start.startswith(b"#!") else None


def _may_be_copied(place: Path) -> bool:
    """Whether a folder is the user's own and neither the home folder nor above it."""
    return safe_files.is_own_folder(place) and not snapshot.is_home_or_above(place)


def _no_root(
    code: Code, rules: Rules, target: Path, top: Path, roots: list[Path], found: folders_code_uses.Reach
) -> str:
    """Return the reason why the project cannot be copied from that folder on, empty if it can."""
    if rules.snapshot != "folder":
        return f"code.snapshot = '{rules.snapshot}' copies only the script"
    if code.script.is_symlink():
        return "the script is a link"
    if not _may_be_copied(top):
        return f"hpcml does not copy {top}"
    if found.searches and not roots:
        return "no project root was found"
    if roots and not top.is_relative_to(roots[-1]):
        return f"{top} is outside the project {roots[0]}"
    return snapshot.uncovered(top, [module for module in found.modules if module.is_relative_to(top)], target, rules)
