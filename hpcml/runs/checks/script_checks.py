"""Checks of a script before nodes are asked for: language, syntax, imports, and the options that it takes itself."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shlex
import shutil
import stat
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import assets, installed_packages, safe_files
from hpcml.config_trust import Named
from hpcml.errors import NotFoundError, ScriptError, StorageError, UsageError, did_you_mean, nearest
from hpcml.runs import modules_code_uses, packages, uv_environments
from hpcml.runs.modules_code_uses import imported, module_file, place, texts, top_level
from hpcml.schedulers import sbatch_lines
from hpcml.units import first_of_many

_ANSWER = 2.0  # seconds for another interpreter to compile a script that does not compile here
_NOTED = 3  # modules in a note
_PACKAGE_FOLDERS = {"site-packages", "dist-packages"}
_OF_THE_SYSTEM = ("/usr/bin", "/bin", "/usr/local/bin")  # first lines that name Python there mean any Python
_COMPILE = "import sys; compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec')"
# What Dask, its libraries or most scripts need: a file of the script's folder with such a name is seldom meant to take
# its place. Not what Python has loaded before any script.
_LOADED_BEFORE = {*sys.builtin_module_names, "abc", "codecs", "encodings", "importlib", "io", "os", "site", "stat"}
_PACKAGES = {
    "click", "cloudpickle", "cudf", "cuml", "cupy", "cupyx", "dask", "dask_cuda", "dask_cudf", "dask_glm",
    "dask_ml", "distributed", "fsspec", "jinja2", "joblib", "lightgbm", "locket", "matplotlib", "msgpack",
    "numba", "numpy", "packaging", "pandas", "partd", "polars", "psutil", "pyarrow", "pylibraft", "raft_dask",
    "rmm", "scipy", "sklearn", "sortedcontainers", "tblib", "threadpoolctl", "toolz", "torch", "tornado",
    "ucxx", "urllib3", "xarray", "xgboost", "yaml", "zarr", "zict",
}  # fmt: skip
_KNOWN = (sys.stdlib_module_names - _LOADED_BEFORE) | _PACKAGES
# Packages that open a Dask cluster in a cloud, on Kubernetes or YARN, or at a gateway.
_CLUSTERS_ELSEWHERE = (
    "coiled",
    "dask_cloudprovider",
    "dask_databricks",
    "dask_gateway",
    "dask_kubernetes",
    "dask_yarn",
)
# A script that changes where modules are found, or installs them, is its own affair.
_CHANGES_THE_PATH = re.compile(r"\b(sys\.path|addsitedir|meta_path|sys\.modules|pip|conda)\b")
# By the end of the name: what a file is, and the words that run it.
_LANGUAGES = {
    ".sh": ("a shell script", "bash {}"),
    ".bash": ("a shell script", "bash {}"),
    ".sbatch": ("a batch script", "bash {}"),
    ".slurm": ("a batch script", "bash {}"),
    ".r": ("an R script", "Rscript {}"),
    ".jl": ("a Julia script", "julia {}"),
    ".pl": ("a Perl script", "perl {}"),
}


class _Import(NamedTuple):
    """A module that some file needs to be loaded: its top-level name, and where that is said."""

    name: str
    file: Path
    line: int


def check_file(script: Path) -> None:
    """Refuse a script that cannot run, by its first bytes.

    Raises
    ------
    NotFoundError
        If it does not exist, is no file or may not be read.
    StorageError
        If the system refuses its name.
    UsageError
        If it is empty, or no Python (the hint says what runs it), or its path holds a line break.
    """
    start = _start_of(script, "script")
    if not start:
        raise UsageError("The script is empty", place=str(script), hint="Save the script first.")
    if other := _other_language(script, start):
        problem, remedy = other
        raise UsageError(f"SCRIPT is {problem}, not Python", place=str(script), hint=remedy)
    if b"\0" in start:
        raise UsageError("The script is not text: it contains zero bytes", place=str(script), hint="Name a .py file.")


def _start_of(script: Path, kind_of: str) -> bytes:
    """Return the first bytes of a file that is to be run."""
    if any(character in str(script) for character in "\n\r\0"):
        raise UsageError("The script's path contains a line break", place=repr(str(script)), hint="Rename the file.")
    try:
        kind = stat.S_IFMT(script.stat().st_mode)
        if kind != stat.S_IFREG:  # asked first, because to open a pipe would be to wait for its writer
            kind_name = "a folder" if kind == stat.S_IFDIR else "not a regular file"
            raise NotFoundError(f"{kind_of.upper()} is {kind_name}", place=str(script), hint="Name a .py file.")
        with script.open("rb") as file:
            return file.read(4096)
    except (FileNotFoundError, NotADirectoryError) as error:
        order = " In a shell, write hpcml's options before SCRIPT, and the script's options after SCRIPT."
        is_word = kind_of == "script" and not script.suffix  # perhaps an option's value
        hint = did_you_mean(_near(script), _example(script) or f"Check the spelling.{order if is_word else ''}")
        raise NotFoundError(f"There is no such {kind_of}", place=str(script), hint=hint) from error
    except PermissionError as error:
        where, hint = safe_files.denied(script)
        raise NotFoundError(f"The {kind_of} cannot be read: {error.strerror}", place=where, hint=hint) from error
    except OSError as error:
        why, place_of, step = error.strerror, str(script), "Check the file's name."
        raise StorageError(f"The {kind_of} cannot be read: {why}", place=place_of, hint=step) from error


def _other_language(script: Path, start: bytes) -> tuple[str, str] | None:
    """Return the kind of a file that is no Python, and what to do; None if it may be Python."""
    if start.startswith(b"\x7fELF"):
        return "a compiled program", f"Run the program with: hpcml submit -- {_as_path(script)}."
    if (program := _interpreter(start)) and "python" not in program and script.suffix != ".py":
        direct = _as_path(script) if os.access(script, os.X_OK) else f"{program} {shlex.quote(os.path.relpath(script))}"
        return f"a script for {program}", f"Run the script with: hpcml submit -- {direct}.{_of_batch_script(start)}"
    if language := _LANGUAGES.get(script.suffix.lower()):
        command = language[1].format(shlex.quote(os.path.relpath(script)))
        return language[0], f"Run the script with: hpcml submit -- {command}.{_of_batch_script(start)}"
    return None


def _of_batch_script(start: bytes) -> str:
    """Return the rest of what to know of a file that has lines for sbatch."""
    if not any(True for _ in sbatch_lines.of_script(start.decode(errors="replace"))):
        return ""
    return (
        " The script's #SBATCH lines apply to the run. To convert the script to hpcml: hpcml help from-batch-scripts."
    )


def _as_path(script: Path) -> str:
    """Return a file as a shell would start it from here."""
    path = os.path.relpath(script)
    return shlex.quote(str(script) if path.startswith("..") else f"./{path}")


def _interpreter(start: bytes) -> str:
    """Return the name of the program that a file's first line asks for, empty if it has no such line."""
    line = start.partition(b"\n")[0].decode(errors="replace")
    command = line.removeprefix("#!").split() if line.startswith("#!") else []
    names = [os.path.basename(word) for word in command if not word.startswith("-") and "=" not in word]
    return next((name for name in names if name != "env"), "")


def check_notebook(notebook: Path, arguments: Sequence[str]) -> None:
    """Refuse a notebook that cannot be executed.

    Raises
    ------
    UsageError
        If the file is no notebook, is of another language, or has arguments behind it, which nothing in it can read.
    """
    _start_of(notebook, "notebook")
    try:
        content = json.loads(notebook.read_bytes())
        cells, info = content["cells"], content.get("metadata", {}).get("kernelspec", {})
        language = str(info.get("language") or "python").lower()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        hint = "Save the notebook again in Jupyter. hpcml reads only version 4 of the notebook format."
        raise UsageError("The file is not a notebook", place=str(notebook), hint=hint) from error
    if language != "python" or not isinstance(cells, list):
        raise UsageError(
            f"The notebook's language is {language}", place=str(notebook), hint="hpcml runs only Python notebooks."
        )
    if arguments:
        raise UsageError(
            "hpcml cannot pass arguments to a notebook", place=" ".join(arguments), hint="Use environment variables."
        )


def check_program(program: Path, path: str | None, *, prepared: bool) -> None:
    """Refuse a program that cannot be started.

    Parameters
    ----------
    program
        Its file, or a bare name that is found on PATH.
    path
        PATH, None inside an image, where the files are others.
    prepared
        Whether the site loads modules or runs lines of its own before, which may add programs.

    Raises
    ------
    NotFoundError
        If it does not exist, is no file or cannot be read.
    UsageError
        If it is not executable, or the system does not know how to run it.
    """
    if not program.is_absolute():
        if path is not None and not prepared and not shutil.which(program, path=path):
            hint = (
                "Check the spelling. If an environment has the program, add --python FOLDER. "
                "For your own program, write its path: ./program."
            )
            raise NotFoundError(
                "There is no program of this name on PATH or in this folder", place=f"-- {program}", hint=hint
            )
        return
    start = _start_of(program, "program")
    is_program = start.startswith((b"\x7fELF", b"#!"))
    if not is_program or not os.access(program, os.X_OK):
        shell = "bash" if not (language := _LANGUAGES.get(program.suffix.lower())) else language[1].split()[0]
        run = f"name the interpreter: hpcml submit -- {shell} {shlex.quote(program.name)}"
        hint = (
            f"{'Make the program executable (chmod u+x), or' if is_program else 'Add a first line with #!, or'} {run}."
        )
        problem = "is not executable" if is_program else "has no first line that names its interpreter (#!)"
        raise UsageError(f"The program {problem}", place=str(program), hint=hint)
    if start.startswith(b"#!") and start.partition(b"\n")[0].endswith(b"\r"):
        hint = f"Convert the file with dos2unix, or with sed -i 's/\\r$//' {shlex.quote(program.name)}."
        raise UsageError("The program has the line ends of Windows", place=f"{program}:1", hint=hint)


def check_module_code(
    module: Path, python: str, *, named: Named, image: bool = False, prepared: bool = False, dry_run: bool = False
) -> list[str]:
    """Do what :func:`check_code` does for a module by its name, in the folder or in the environment.

    Raises
    ------
    ScriptError
        As there, and if it is certain that there is no such module, or that it is a package that cannot be run.
    """
    folder, parts = module.parent, module.name.split(".")
    stem = folder.joinpath(*parts)
    if file := module_file(module):
        return check_code(
            file, folder, python, named=named, folder=folder, image=image, prepared=prepared, dry_run=dry_run
        )
    if stem.is_dir():
        hint = "Name a module of the package, or add a file __main__.py to the package."
        raise ScriptError(f"The package {module.name} cannot be run: it has no __main__", place=str(stem), hint=hint)
    environment = packages.Environment(python)
    beside = (folder / parts[0]).is_dir()
    if not image and not prepared and environment.readable and (beside or not environment.has(parts[0])):
        hint = "Submit from the folder that contains the module's top-level package, as for python -m."
        raise ScriptError(f"There is no module '{module.name}'", place=str(folder), hint=hint)
    return []


def check_code(
    script: Path,
    base: Path,
    python: str,
    *,
    named: Named,
    needs: Sequence[str] = (),
    folder: Path | None = None,
    image: bool = False,
    prepared: bool = False,
    dry_run: bool = False,
) -> list[str]:
    """Compile a script and the modules beside it that it imports, and look for the modules that they need.

    Parameters
    ----------
    base
        The folder from which files are named in messages.
    python
        The interpreter that will run it.
    named
        Who names the interpreter: it is not started here if a project's file or a line of the script does.
    needs
        The modules that the run's own processes need.
    folder
        The first folder on its path of modules, if it is not the script's.
    image
        Whether that is inside an image, which is not asked here.
    prepared
        Whether the site loads modules or runs lines of its own before, which may change what is found.
    dry_run
        Whether nothing will be submitted: a missing module of the script is a note.

    Returns
    -------
    list of str
        What the user should know, as sentences without capital and full stop.

    Raises
    ------
    ScriptError
        If a file does not compile, or it is certain that a module of the script is not there.
    """
    try:
        imports = _needed(script, folder or script.resolve().parent)
    except SyntaxError as error:
        where = place(base, error.filename, error.lineno)
        version = ".".join(map(str, sys.version_info[:2]))
        if image:
            return [f"{where} does not compile with Python {version}: {error.msg}; the image's Python may be newer"]
        if not _fails_too(python, named, Path(str(error.filename))):
            return [f"{where} does not compile with Python {version}, which runs hpcml: {error.msg}"]
        raise _does_not_compile(error, where) from error
    except ValueError as error:  # a zero byte in the file
        raise ScriptError(f"The script does not compile: {error}", place=place(base, script)) from error
    except (RecursionError, MemoryError, OSError):  # its own affair, which shows when it runs
        return []
    warnings = [
        f"{place(base, file)} hides the module {name}: rename the file if the script needs the installed module"
        for name, file in imports.hiding.items()
    ]
    if image:
        return warnings
    environment = packages.Environment(python)
    certain = imports.plain and not prepared
    warnings += _tell_missing(script, base, imports.needed, needs, environment, certain=certain, dry_run=dry_run)
    return warnings + _read_in_place(imports.needed, environment)


def unused_first_line(script: Path, base: Path, python: str) -> list[str]:
    """Return a note where a script's first line asks for options of Python, or for another environment's Python.

    Parameters
    ----------
    python
        The interpreter that runs the script instead.
    """
    try:
        with script.open("rb") as file:
            line = file.readline(4096).decode(errors="replace")
    except OSError:  # told elsewhere
        return []
    words = line.removeprefix("#!").split() if line.startswith("#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = words[2 if words[1:2] == ["-S"] else 1 :]
    if not words or "python" not in os.path.basename(words[0]):
        return []
    program = Path(words[0])
    folders = {program.parent, Path(python).parent, *map(Path, _OF_THE_SYSTEM)}
    is_other = program.is_absolute() and program.exists() and len(folders) == len(_OF_THE_SYSTEM) + 2
    if not words[1:] and not is_other:
        return []
    command = " ".join([*words, shlex.quote(place(base, script))])
    what = f"hpcml ignores the script's first line ({' '.join(words)}) and runs the script with {python}"
    return [f"{place(base, script, 1)}: {what}. To use the first line: hpcml submit -- {command}"]


def missing_argument(script: Path, base: Path, given: int) -> list[str]:
    """Return a note where a script reads the scheduler's file from an argument of its own that is not given."""
    for node in _nodes(script):
        if isinstance(node, ast.keyword) and node.arg == "scheduler_file" and _number_of_argument(node.value) > given:
            problem = "expects a Dask scheduler file as an argument, but the command lacks this argument"
            return [f"{place(base, script, node.value.lineno)} {problem}; use Client() to connect to the run's cluster"]
    return []


def lost_input(script: Path, base: Path, descriptor: int = 0) -> list[str]:
    """Return a note where a script reads standard input, and hpcml itself was given a file or a pipe there."""
    try:
        kind = os.fstat(descriptor).st_mode
    except OSError:
        return []
    for node in _nodes(script) if stat.S_ISREG(kind) or stat.S_ISFIFO(kind) else ():
        if not isinstance(node, ast.Call | ast.Attribute):
            continue
        if ast.unparse(node.func if isinstance(node, ast.Call) else node) in ("input", "sys.stdin"):
            where = place(base, script, node.lineno)
            return [
                f"{where} reads standard input, which a run does not have: pass the input file's name as an argument"
            ]
    return []


def _nodes(script: Path) -> Iterator[ast.AST]:
    """Yield the nodes of a script; nothing of one that does not compile, which :func:`check_code` reports."""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, OSError):
        yield from ast.walk(ast.parse(script.read_bytes()))


def _number_of_argument(value: ast.expr) -> int:
    """Return N of ``sys.argv[N]``, 0 for anything else."""
    if not isinstance(value, ast.Subscript) or ast.unparse(value.value) not in ("sys.argv", "argv"):
        return 0
    number = value.slice.value if isinstance(value.slice, ast.Constant) else 0
    return number if isinstance(number, int) else 0


def _does_not_compile(error: SyntaxError, where: str) -> ScriptError:
    """Return a SyntaxError with its line, and a mark below it where Python knows the place."""
    quote: tuple[str, ...] = ()
    if error.text and error.text.strip():
        line = error.text.rstrip("\n")
        kept = line.lstrip()
        at = (error.offset or 0) - 1 - (len(line) - len(kept))
        length = (error.end_offset or 0) - (error.offset or 0) if error.end_lineno == error.lineno else 1
        quote = (kept, " " * at + "^" * max(1, min(length, len(kept) - at))) if at >= 0 else (kept,)
    hint = "Nothing was submitted. Correct that line."
    return ScriptError(f"The script does not compile: {error.msg}", place=where, hint=hint, quote=quote)


def _fails_too(python: str, named: Named, file: Path) -> bool:
    """Whether the interpreter of the run does not compile a file either: it may be newer than this one."""
    if python == sys.executable:
        return True
    if named.origin.foreign:  # only the job starts it
        return False
    from hpcml import subprocesses

    try:
        answer = subprocesses.run([python, "-I", "-S", "-c", _COMPILE, str(file)], _ANSWER, program=named)
    except subprocesses.CommandMissingError:  # it is on the nodes alone
        return False
    return answer.code == 1 and re.search(r"^(Syntax|Indentation|Tab)Error", answer.err, re.MULTILINE) is not None


# -- imports -----------------------------------------------------------------------------------------------------------


class _Imports(NamedTuple):
    """What the script and the modules beside it import: from elsewhere, and files beside that hide known modules.

    ``plain``: no file changes where modules are found.
    """

    needed: list[_Import]
    hiding: dict[str, Path]
    plain: bool


def _needed(script: Path, folder: Path) -> _Imports:
    """Return the imports of the script and of the modules beside it.

    Raises
    ------
    SyntaxError
        If one of them does not compile.
    """
    needed: list[_Import] = []
    # A package that libraries import is hidden from them too, by whatever the script imports itself.
    installed = _PACKAGES & {name.removesuffix(".py") for name in os.listdir(folder)}
    hiding = {
        name: beside
        for name in sorted(installed)
        if (beside := modules_code_uses.beside(folder, name)) and beside.is_file()
    }
    if script.suffix == ".py" and script.stem in _KNOWN and script.resolve().parent == folder.resolve():
        hiding[script.stem] = script
    plain = True
    for path, tree, source, always in modules_code_uses.reached(script, folder):
        if not always:
            break  # all that follow are imported only perhaps
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python says them when it runs
            compile(tree, str(path), "exec", dont_inherit=True)
        plain = plain and not _CHANGES_THE_PATH.search(source)
        for name, line in top_level(tree):
            beside = modules_code_uses.beside(folder, name)
            if beside is None:
                needed.append(_Import(name, path, line))
            elif beside.is_file() and name in _KNOWN:
                hiding[name] = beside
    return _Imports(needed, hiding, plain)


def _read_in_place(needed: list[_Import], environment: packages.Environment) -> list[str]:
    """Return a note on the user's own packages in the environment that an edit changes: editable installations."""
    names = dict.fromkeys(row.name for row in needed if row.name not in (*packages.PROVIDED, *sys.stdlib_module_names))
    places = {name: environment.place(name) for name in names} if environment.readable else {}
    own = [
        f"{name} ({place})"
        for name, place in places.items()
        if place and not _PACKAGE_FOLDERS & set(place.parts) and place.exists() and place.stat().st_uid == os.getuid()
    ]
    if not own:
        return []
    them = "them" if len(own) > 1 else "it"
    why = f"do not change {them} until the run ends, because the run reads {them} in place"
    return [f"hpcml does not copy installed packages, and an edit changes {first_of_many(own, _NOTED)}: {why}"]


def _tell_missing(
    script: Path,
    base: Path,
    needed: list[_Import],
    needs: Sequence[str],
    environment: packages.Environment,
    *,
    certain: bool,
    dry_run: bool,
) -> list[str]:
    """Return a note of the modules that are not found; a ScriptError where it is certain that the script ends there."""
    if not environment.readable:
        return []
    is_there = {name: environment.has(name) for name in dict.fromkeys(row.name for row in needed)}
    elsewhere = {row.name: row for row in reversed(needed) if is_there[row.name] and row.name in _CLUSTERS_ELSEWHERE}
    remedy = "creates a Dask cluster outside the run; use Client() to connect to the run's cluster"
    notes = [f"{name} ({place(base, row.file, row.line)}) {remedy}" for name, row in elsewhere.items()]
    missing = list({row.name: row for row in reversed(needed) if not is_there[row.name]}.values())[::-1]
    if not missing:
        return notes
    refused = certain and environment.certain
    script_imports = [row for row in missing if row.file == script]
    if refused and not dry_run and script_imports:
        raise _is_missing(script_imports[0], base, environment.python, [*needs, *is_there])
    listed = first_of_many([f"{row.name} ({place(base, row.file, row.line)})" for row in missing], _NOTED)
    where = f"the environment of {environment.python} on this machine"
    advice = ". Before you submit, install these modules, or name a Python that has them (--python PATH)"
    remedy = advice if refused else ""
    return [*notes, f"{where} lacks these imported modules: {listed}{remedy}"]


def _is_missing(first: _Import, base: Path, python: str, others: Sequence[str]) -> ScriptError:
    """Return the error of a script that imports what its environment lacks, with how to get it and ``others``."""
    command = installed_packages.install(python, [first.name])
    how = f"Install the package, usually with: {command}. To use another Python: --python PATH."
    if uv_environments.lists_without_lock(first.file, installed_packages.package(first.name)):
        how = "The project's pyproject.toml lists the package, but there is no uv.lock. "
        how += "Type uv lock in the project's folder, then submit again."
    if file := modules_code_uses.nearby(first.file.parent, first.name):
        how = f"If the module is your own file {file}, add its folder to PYTHONPATH before you submit."
    folder = first.file.parent / ".venv"
    beside = packages.Environment(str(folder / "bin/python"))
    if str(folder / "bin/python") != python and beside.readable and beside.has(first.name):
        how = f"The environment {folder} has it. To use it: --python {shlex.quote(str(folder))}."
        if lacks := beside.lacking([*dict.fromkeys(others)]):
            how += f" First install what it lacks: {installed_packages.install(beside.python, lacks)}."
    how = f"Nothing was submitted. {how}"
    if first.name in _CLUSTERS_ELSEWHERE:
        how = f"{first.name} creates a Dask cluster outside the run. Use Client() to connect to the run's cluster."
    message = f"The script imports '{first.name}', which the run's environment lacks"
    return ScriptError(message, place=place(base, first.file, first.line), hint=how)


def _example(path: Path) -> str:
    """Return the hint how to create the example that a missing script is called like, or nothing."""
    names = [example.stem for example in assets.folder("jobs").glob("*.py")]
    near = nearest(path.stem, names, alike=0.8)
    return f"To create the example {near}: hpcml new {near}." if near else ""


def _near(path: Path) -> str:
    """Return the file beside a path that was probably meant, or nothing."""
    try:
        files = [Path(entry.name) for entry in os.scandir(path.parent) if entry.is_file()]
    except OSError:
        return ""
    by_stem = {file.stem: file.name for file in files if file.suffix == path.suffix or file.stem == path.stem}
    return by_stem.get(nearest(path.stem, by_stem), "")


# -- options and imports in a script's text ----------------------------------------------------------------------------


# Libraries that make options of the names of functions' parameters or of fields.
_OPTIONS_BY_NAME = {
    "absl", "argh", "clize", "cyclopts", "defopt", "draccus", "fire", "jsonargparse", "pydantic_settings", "plac",
    "simple_parsing", "tap", "transformers", "typer", "tyro",
}  # fmt: skip


def options_taken(script: Path, folder: Path, options: Iterable[str]) -> set[str]:
    """Return those of some options that a script, or a module beside it, may read.

    Parameters
    ----------
    folder
        The first folder on the script's path of modules.
    """
    code = [module.tree for module in modules_code_uses.reached_and_packages(script, folder)]
    if not code and script.suffix != ".ipynb":  # perhaps of a newer Python
        text = script.read_text(encoding="utf-8", errors="replace")
        return {option for option in options if option in text}
    strings = [text for tree in code for text in texts(tree)]
    names = {name for tree in code if _OPTIONS_BY_NAME & imported(tree) for name in _names(tree)}
    return {
        option
        for option in options
        if option[2:].replace("-", "_") in names
        or any(re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text) for text in strings)
    }


def _names(tree: ast.Module) -> Iterator[str]:
    """Yield the names of parameters and fields, and texts, which may be names of options."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.replace("-", "_")
