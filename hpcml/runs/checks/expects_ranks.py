"""Programs and scripts that expect ranks (MPI, torchrun, DDP), of which hpcml starts one process."""

from __future__ import annotations

import ast
import contextlib
import itertools
import os
import re
import shlex
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import kinds, safe_files, schedulers
from hpcml.errors import ScriptError, UsageError
from hpcml.options import sbatch_tasks
from hpcml.plan.make_plan import Plan
from hpcml.request.record import RunRequest
from hpcml.runs import modules_code_uses, script_or_program
from hpcml.workload_forms import Form

PAGE = "hpcml help ranks"
_LAUNCHER = re.compile(
    r"(?:mpirun|mpiexec)(?:\.(?:hydra|mpich|mpd|openmpi|slurm))?|"
    r"orterun|prterun|srun|torchrun|deepspeed|horovodrun|aprun|jsrun"
)
_OF_TWO_WORDS = ("accelerate launch", "fabric run", "lightning run")
# Programs that start the program which they name, and their options with a value.
_WRAPPERS = {
    "apptainer", "conda", "env", "exec", "hatch", "ionice", "mamba", "micromamba", "nice", "nohup", "numactl", "pdm",
    "pipenv", "pixi", "poetry", "rye", "setsid", "singularity", "stdbuf", "taskset", "time", "timeout", "uv",
}  # fmt: skip
_WITH_VALUE = {
    "-C", "-N", "-e", "-k", "-m", "-n", "-p", "-s", "-u", "--chdir", "--cpunodebind", "--directory", "--env-file",
    "--environment", "--extra", "--group", "--index", "--manifest-path", "--membind", "--name", "--package",
    "--prefix", "--project", "--python", "--signal", "--unset", "--with", "--with-editable", "--with-requirements",
}  # fmt: skip
# Launchers that start the processes of all nodes themselves; the others start those of their own node.
_STARTS_TASKS = {"mpirun", "mpiexec", "srun", "orterun", "prterun", "aprun", "jsrun", "horovodrun", "deepspeed"}
_OF_PROCESSES = re.compile(r"--(?:multi_gpu|use_deepspeed|use_fsdp|num_processes[= ](?:[2-9]|[1-9]\d))\b")  # the same
_OF_MACHINES = re.compile(r"--(?:num_machines|machine_rank|main_process_ip)\b")  # of accelerate launch
_LAUNCHER_MODULES = (
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
    "torch.distributed.launch",
    "torch.distributed.run",
)
# How a launcher is asked for several nodes; -N of mpirun are processes on each node.
_SEVERAL_NODES = re.compile(r"--(?:nnodes|num_machines|num[_-]nodes)[= ](?:[2-9]|1\d)")
_OF_SRUN = re.compile(r"(?:-N ?|--nodes[= ])(?:[2-9]|1\d)")
VARIABLES = {
    "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK",
    "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
}  # fmt: skip
_OF_LIGHTNING = ("fabric run", "lightning run")
_LIGHTNING = {"lightning", "pytorch_lightning", "lightning_fabric"}
_THIS_NODE = r"localhost|127(?:\.\d+){3}|::1"
_PACKAGES = ("mpi4py", "torch.distributed", "horovod", "deepspeed", "accelerate")
_OF_MPI = ("MPI.", "mpi4py")
# else nothing expects ranks
_MENTIONED = re.compile(r"mpi4py|torch|jax|horovod|deepspeed|accelerate|lightning|environ")
_DASK = re.compile(r"dask\w*|distributed|coiled")
_OWN_RANKS = ("spawn", "start_processes", "Spawn", "Spawn_multiple", "Process")  # the script starts them itself


class Expected(NamedTuple):
    """What in a script expects ranks, and its line; ``certain`` if the script is useless, or wrong, without them."""

    what: str
    line: int
    certain: bool
    file: Path = Path()  # the script, or a module of its project


def check_program(spec: RunRequest, made: Plan) -> list[str]:
    """Refuse a launcher of ranks on several nodes: it would start on the first one, and the others would be idle.

    Returns
    -------
    list of str
        What the user should know of one that is not refused.

    Raises
    ------
    UsageError
        If it is such a launcher.
    """
    nodes = made.inside.job.nodes
    name, arguments = launcher(spec)
    options = " ".join(_own_words(arguments))
    text = "" if name else shell_script(spec)
    if kinds.get(spec.kind).ranks:
        for word in [name] if name else sorted(set(sbatch_tasks.launchers(text))):
            _launcher_in_ranks(word, options, made)
        return _own_address_in_shell(text) if nodes > 1 else []
    if not name:
        found = next(sbatch_tasks.launchers(text), "") if nodes > 1 else ""
        return [_line_in_program(found, made)] if found else []
    several = bool((_OF_SRUN if name == "srun" else _SEVERAL_NODES).search(options))
    if nodes > 1 or several:
        raise _launcher_without_ranks(name, options, nodes, several=several)
    notes = _without_abort(spec.code.cwd, arguments) if name.startswith("mpi") else []
    if made.inside.workers.late:
        return notes
    pool = " and their GPU memory pool (to start no pool: --set gpu.rmm_pool_size=none)" if _has_pool(made) else ""
    return [*notes, f"{name} starts its processes on the first node, next to the run's workers{pool} ({PAGE})"]


def _without_abort(folder: Path, words: Sequence[str]) -> list[str]:
    """Return a note on an mpi4py script of mpirun: after an uncaught error in a rank, MPI waits for the others."""
    for python, script in itertools.pairwise(words):
        if re.fullmatch(r"python[\d.]*", Path(python).name) and script.endswith(".py"):
            with contextlib.suppress(OSError):  # the job says that there is no such file
                if "mpi4py" in (folder / script).read_text(encoding="utf-8", errors="replace"):
                    fix = f"{python} -m mpi4py {script}"
                    return [f"if a rank of {script} fails, the other ranks wait. To end all ranks, type {fix}"]
    return []


def _line_in_program(launcher: str, made: Plan) -> str:
    """Return a note on a program with a line that starts ranks."""
    uses_gpus = ", which use the GPUs" if made.inside.workers.gpu else ""
    beside = "" if made.inside.workers.late else f", next to {made.inside.worker_count} Dask workers{uses_gpus}"
    first = f"hpcml starts the program once, on the first of {made.inside.job.nodes} nodes"
    what = f"the program has a line with {launcher}. {first}"
    return f"{what}{beside}. To start ranks, add --ranks and remove {launcher}: {PAGE}"


def _launcher_without_ranks(name: str, options: str, nodes: int, *, several: bool) -> UsageError:
    """Return the refusal of a launcher that the run starts on one of its nodes, and how to start ranks instead."""
    where = f"on the first of {nodes} nodes" if nodes > 1 else "on one node"
    one = " Or request one node: --nodes 1." if nodes > 1 and not several else ""
    way = "Add --ranks node"
    if _starts_tasks(name):
        way = f"Remove {name}, and add --ranks N (N ranks on each node), and for an MPI program also --mpi pmix"
    elif name in _OF_LIGHTNING:
        way = f"Remove {name}, and add --ranks gpu, or --ranks N (N ranks on each node)"
    machines = _OF_MACHINES.findall(options)
    without = f", and remove {', '.join(machines)}" if machines else ""
    hint = f"{way}{without}.{one} More: {PAGE}."
    problem = f"{name} starts ranks, but without --ranks hpcml starts {name} only once, {where}"
    return UsageError(problem, place="--", hint=hint)


def _starts_tasks(launcher: str) -> bool:
    """Whether a launcher starts the processes of all nodes itself."""
    return launcher.removeprefix("-m ").partition(".")[0] in _STARTS_TASKS


def _launcher_in_ranks(name: str, options: str, made: Plan) -> None:
    """Refuse a launcher that would start all ranks again in each rank, or that would be the first on each node."""
    each = made.inside.workers.per_node
    if _starts_tasks(name):
        hint = f"Remove {name}: hpcml starts the ranks. For an MPI program, add --mpi pmix."
        raise UsageError(f"{name} in each rank would start all ranks again", place="--ranks", hint=hint)
    if name == "accelerate launch" and (machines := _OF_MACHINES.findall(options)):
        hint = f"Remove {', '.join(machines)}."
        raise UsageError(
            "hpcml passes the number of nodes and each node's rank to accelerate launch", place="--ranks", hint=hint
        )
    is_alone = name == "accelerate launch" and not _OF_PROCESSES.search(options)  # one process: it becomes the rank
    if (each > 1 and not is_alone) or (name in _OF_LIGHTNING and made.inside.job.nodes > 1):
        way = "" if name in _OF_LIGHTNING else f" To keep {name}, use --ranks node."
        hint = f"Remove {name}: hpcml starts the ranks.{way} More: {PAGE}."
        raise UsageError(f"{name} in each rank would start ranks of its own", place="--ranks", hint=hint)


def _own_address_in_shell(text: str) -> list[str]:
    """Return a note where a shell script sets MASTER_ADDR so that ranks of other nodes do not find the first one."""
    match = re.search(rf"""(?m)^\s*(?:export\s+)?MASTER_ADDR=["']?({_THIS_NODE})\b""", text)
    problem = "sets MASTER_ADDR to this node: ranks on other nodes cannot connect. Remove the line"
    return [f"line {text.count(chr(10), 0, match.start(1)) + 1} of the program {problem}"] if match else []


def _own_words(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the words of a launcher up to the program that it starts, as far as they tell."""
    is_value = False
    for word in arguments:
        if not word.startswith("-") and (not is_value or "/" in word or shutil.which(word)):
            return
        yield word
        is_value = word.startswith("-")


def _has_pool(made: Plan) -> bool:
    return made.inside.workers.gpu is not None and made.inside.workers.gpu.rmm_pool_size is not None


def launcher(spec: RunRequest) -> tuple[str, Sequence[str]]:
    """Return the launcher of ranks that a request starts, empty if there is none, and the words after it."""
    command = [spec.code.script.name, *spec.code.arguments]
    if spec.code.form is Form.MODULE:
        return (command[0] if command[0] in _LAUNCHER_MODULES else ""), command[1:]
    if spec.code.form is not Form.PROGRAM:
        return "", ()
    for at in _programs(command):
        if (two := " ".join(command[at : at + 2])) in _OF_TWO_WORDS:
            return two, command[at + 2 :]
        if _LAUNCHER.fullmatch(command[at]):
            return command[at], command[at + 1 :]
    for at, (before, word) in enumerate(itertools.pairwise(command)):
        if before == "-m" and word in _LAUNCHER_MODULES:
            return f"-m {word}", command[at + 2 :]
    return "", ()


def _programs(command: list[str]) -> Iterator[int]:
    """Yield the places in a command where a program may be named: its begin, and after programs that start another one.

    Paths give way to their names.
    """
    yield 0
    for at in range(1, len(command)) if command[0] in _WRAPPERS else ():
        if command[at].endswith(".py") or script_or_program.is_python(Path(command[at])):
            return
        if not command[at].startswith("-") and command[at - 1] not in _WITH_VALUE:
            command[at] = os.path.basename(command[at])
            yield at


def shell_script(spec: RunRequest) -> str:
    """Return the text of a shell script that is the program, or that a shell is to run."""
    by_shell = spec.code.script.name in ("sh", "bash") and spec.code.arguments
    if by_shell and spec.code.arguments[0] == "-c":
        return "".join(spec.code.arguments[1:2])
    path = spec.code.cwd / spec.code.arguments[0] if by_shell else spec.code.script
    if spec.code.form is not Form.PROGRAM or not path.is_absolute() or not safe_files.is_file(path):
        return ""
    with path.open("rb") as file:
        start = file.read(1 << 16)
    return start.decode(errors="replace") if start.startswith(b"#!") or path != spec.code.script else ""


def check_script(
    spec: RunRequest,
    python: str,
    workers: int,
    variables: Collection[str],
    nodes: int = 1,
    *,
    late: bool = False,
    srun: bool = True,
) -> list[str]:
    """Refuse a script that is an MPI or DDP program and nothing else; return a note of one that may be.

    A script that is named after its interpreter (``-- python train.py``) and the points of a sweep are only noted: to
    be one process is then what was asked for.

    Parameters
    ----------
    workers
        How many the run has.
    variables
        The names of variables that the run sets.
    nodes
        How many the run has.
    late
        Whether the workers start only at the script's first Dask client.
    srun
        Whether srun can connect ranks of MPI.

    Raises
    ------
    ScriptError
        The line that expects ranks, and the way to run it as one process.
    """
    is_module = spec.code.form is Form.MODULE
    file = modules_code_uses.module_file(spec.code.script) if is_module else spec.code.script
    base = spec.code.script.parent if spec.code.staged or is_module else spec.code.cwd
    kind = kinds.get(spec.kind)
    if file and kind.ranks:
        _check_address(file, base, nodes)
        if kind.connects(spec):
            return []
    ranks = expected(file, spec.code.script.parent if is_module else file.resolve().parent, variables) if file else None
    if file is None or ranks is None:
        return []
    where = modules_code_uses.place(base, ranks.file, ranks.line)
    words = f"-m {spec.code.script.name}" if is_module else shlex.quote(os.path.relpath(file, base))
    mpirun = "" if srun else f"Start mpirun: hpcml submit --site local -- mpirun -n N {python} -m mpi4py {words}"
    if kind.ranks:
        return _without_mpi(ranks, where, workers, mpirun)
    if not ranks.certain or spec.code.interpreter or spec.points.sweep:
        return [_may_expect_ranks(f"{where} uses {ranks.what}", spec, workers, late=late)] if workers > 1 else []
    by_mpi = ranks.what.startswith(_OF_MPI)
    way = (mpirun or "Add --ranks N --mpi pmix") if by_mpi else "Add --ranks gpu, --ranks node or --ranks N"
    hint = f"{way} ({PAGE}). To run the script as one process: {_typed(srun=srun)} {python} {words}."
    problem = f"The script needs ranks ({ranks.what}), but without --ranks hpcml starts one process"
    raise ScriptError(problem, place=where, hint=hint)


def _typed(*, srun: bool) -> str:
    return "hpcml submit --" if srun else "hpcml submit --site local --"


def _without_mpi(ranks: Expected, where: str, count: int, mpirun: str) -> list[str]:
    """Return a note on ranks of MPI that Slurm does not connect; ScriptError if it is certain that they are useless."""
    if not ranks.what.startswith(_OF_MPI):
        return []
    if ranks.certain and count > 1:
        hint = f"{mpirun or 'Add --mpi pmix (Open MPI) or --mpi pmi2 (MPICH, Intel MPI)'}. More: {PAGE}."
        problem = f"Without {'mpirun' if mpirun else '--mpi'}, {ranks.what} has one process in each rank"
        raise ScriptError(problem, place=where, hint=hint)
    without = "mpirun" if mpirun else "--mpi pmix or --mpi pmi2"
    return [f"{where} uses {ranks.what}: without {without} the ranks do not find each other ({PAGE})"]


def _may_expect_ranks(uses: str, spec: RunRequest, workers: int, *, late: bool) -> str:
    """Return a note on a script that may expect ranks."""
    way = "to start ranks, add --ranks"
    if spec.points.sweep:
        way = "a sweep cannot start ranks: submit each point with --ranks"
    beside = "" if late else f", next to {workers} Dask workers"
    return f"{uses}, and hpcml starts one process{beside}; {way} ({PAGE})"


def _check_address(script: Path, base: Path, nodes: int) -> None:
    """Refuse a script whose ranks on other nodes would wait for the first one on their own node."""
    folder = script.resolve().parent
    for part in _Project(folder, _modules_of(script, folder)).parts.values() if nodes > 1 else ():
        if part.always_imported and (found := next(part.own_address(), None)):
            hint = f"Remove {found.what}: hpcml sets MASTER_ADDR and MASTER_PORT for all ranks ({PAGE})."
            problem = (
                f"{found.what} leads each rank to its own node, but the run has {nodes} nodes: the ranks would hang"
            )
            raise ScriptError(problem, place=modules_code_uses.place(base, found.file, found.line), hint=hint)


def _modules_of(script: Path, folder: Path) -> list[modules_code_uses.Module]:
    """Return a script and the modules of its folder that it reaches; nothing of what is not Python."""
    modules: list[modules_code_uses.Module] = []
    if script.suffix != ".ipynb":
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError, OSError):  # checked elsewhere
            modules = list(modules_code_uses.reached(script, folder))
    return modules


def expected(script: Path, folder: Path, variables: Collection[str] = ()) -> Expected | None:
    """Return the first thing in a script that expects ranks, None if nothing does."""
    modules = _modules_of(script, folder)
    if not any(_MENTIONED.search(module.text) for module in modules):
        return None
    trees = [module.tree for module in modules_code_uses.reached_and_packages(script, folder)]
    uses_dask = any(_DASK.fullmatch(name) for tree in trees for name in modules_code_uses.imported(tree))
    uses_dask = uses_dask or any(_connects(tree) for tree in trees)
    uses_dask = uses_dask or any("dask" in text for tree in trees for text in modules_code_uses.texts(tree))
    project = _Project(folder, modules)
    certain = None if uses_dask else next(project.certain(set(variables)), None)
    if certain:
        return certain
    imports = (found for part in project.parts.values() for found in part.imports())
    return next((found for found in imports if not uses_dask or found.what.startswith("mpi4py")), None)


class _Project:
    """A script and the modules of its project that it reaches."""

    def __init__(self, folder: Path, modules: Sequence[modules_code_uses.Module]) -> None:
        self.names = modules_code_uses.Names(folder, modules)
        self.parts = {module.path: _Script(module, self, is_main=not number) for number, module in enumerate(modules)}
        self.nodes = [node for part in self.parts.values() for node in part.nodes]
        self.starts_ranks = any(_name(call.func) in _OWN_RANKS for part in self.parts.values() for call in part.calls)
        self.targets: dict[tuple[Path, str], list[tuple[_Script, ast.Call]]] = {}  # the calls of imported functions
        for part in self.parts.values():
            for call in part.calls:
                if target := self.names.target(part.file, call.func):
                    self.targets.setdefault(target, []).append((part, call))

    def certain(self, variables: Collection[str]) -> Iterator[Expected]:
        """Yield the things for which the script needs ranks, whatever happens."""
        for part in self.parts.values():
            if part.always_imported:
                yield from (*part.mpi(), *part.torch(), *part.lightning(), *part.jax(), *part.environment(variables))


class _Script:
    """The tree of a script, or of a module that it reaches, with the parent of each node."""

    def __init__(self, module: modules_code_uses.Module, project: _Project, *, is_main: bool) -> None:
        self.file, self.tree, self.always_imported = module.path, module.tree, module.always
        self.project, self.is_main = project, is_main
        self.nodes = list(ast.walk(module.tree))
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]

    def imports(self) -> Iterator[Expected]:
        """Yield the imports of packages that work with ranks."""
        for node in self.nodes:
            names = _modules(node) if isinstance(node, ast.Import | ast.ImportFrom) else []
            for package in _PACKAGES:
                if any(f"{name}.".startswith(f"{package}.") for name in names):
                    yield Expected(package, getattr(node, "lineno", 1), certain=False, file=self.file)

    def mpi(self) -> Iterator[Expected]:
        """Yield uses of the world's communicator; a pool of mpi4py.futures works as one process too."""
        statements = [node for node in self.nodes if isinstance(node, ast.ImportFrom | ast.Import)]
        everywhere = (node for node in self.project.nodes if isinstance(node, ast.ImportFrom | ast.Import))
        has_pool = any(name.startswith("mpi4py.futures") for node in everywhere for name in _modules(node))
        always = any(name.startswith("mpi4py") for node in statements if self._always(node) for name in _modules(node))
        if not always or has_pool or self.project.starts_ranks or self._knows_one_rank():
            return
        for node in self.nodes:
            if isinstance(node, ast.Attribute | ast.Name) and _name(node) == "COMM_WORLD" and self._always(node):
                yield Expected("MPI.COMM_WORLD", node.lineno, certain=True, file=self.file)

    def torch(self) -> Iterator[Expected]:
        """Yield calls that wait for other ranks, where nothing but the environment says how many there are."""
        for call in self.calls:
            given = {word.arg for word in call.keywords}
            alone = not given & {"world_size", "rank", "store"} and not self.project.starts_ranks
            expects = (alone and not self._has_variables()) or self._reads_task()
            if _name(call.func) == "init_process_group" and expects and self._always(call):
                yield Expected("init_process_group()", call.lineno, certain=True, file=self.file)

    def lightning(self) -> Iterator[Expected]:
        """Yield calls of Lightning that wait for the ranks of other nodes."""
        statements = [node for node in self.nodes if isinstance(node, ast.ImportFrom | ast.Import)]
        packages = {name.partition(".")[0] for node in statements for name in _modules(node)}
        for call in self.calls if packages & _LIGHTNING else ():
            for word in call.keywords:
                several = word.arg == "num_nodes" and isinstance(count := _constant(word.value), int) and count > 1
                if several and _name(call.func) in ("Trainer", "Fabric") and self._always(call):
                    what = f"{_name(call.func)}({ast.unparse(word)})"
                    yield Expected(what, call.lineno, certain=True, file=self.file)

    def own_address(self) -> Iterator[Expected]:
        """Yield the lines that name the script's node as that of rank 0; processes that it starts are on that node."""
        for node in self.nodes if not self.project.starts_ranks else ():
            text = ""
            if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Subscript):
                named = _name(target.value) == "environ" and _constant(target.slice) == "MASTER_ADDR"
                text = str(_constant(node.value)) if named else ""
            elif isinstance(node, ast.keyword) and node.arg == "init_method":
                text = str(_constant(node.value)).removeprefix("tcp://").rpartition(":")[0]
            if re.fullmatch(_THIS_NODE, text) and self._always(node):
                line = getattr(node, "lineno", 1)
                yield Expected(ast.unparse(node), line, certain=True, file=self.file)

    def jax(self) -> Iterator[Expected]:
        """Yield calls that ask the environment for the coordinator of all ranks."""
        for call in self.calls:
            given = call.args or {word.arg for word in call.keywords} & {"coordinator_address", "num_processes", None}
            if self._is_of_jax(call.func) and not given and self._always(call):
                yield Expected("jax.distributed.initialize()", call.lineno, certain=True, file=self.file)

    def _is_of_jax(self, function: ast.expr) -> bool:
        """Return True if an expression is the function ``jax.distributed.initialize``, by any of its names."""
        statements = [node for node in self.nodes if isinstance(node, ast.ImportFrom) and node.module]
        short = {ref.asname or ref.name: f"{node.module}.{ref.name}" for node in statements for ref in node.names} | {
            ref.asname: ref.name
            for node in self.nodes
            if isinstance(node, ast.Import)
            for ref in node.names
            if ref.asname
        }
        first, _, rest = ast.unparse(function).partition(".")
        return ".".join(filter(None, [short.get(first, first), rest])) == "jax.distributed.initialize"

    def environment(self, given: Collection[str]) -> Iterator[Expected]:
        """Yield variables of a rank that the script reads and nobody sets; what else mentions one may ask for it."""
        everywhere = [
            node for node in self.project.nodes if isinstance(node, ast.Subscript) and _name(node.value) == "environ"
        ]
        for node in (node for node in everywhere if node in self.parents):
            name = node.slice.value if isinstance(node.slice, ast.Constant) else None
            mentioned = sum(isinstance(part, ast.Constant) and part.value == name for part in self.project.nodes)
            plain = [use for use in everywhere if isinstance(use.ctx, ast.Load) and _constant(use.slice) == name]
            if not isinstance(name, str) or name not in VARIABLES or name in given:
                continue
            if mentioned == len(plain) and not self.project.starts_ranks and self._always(node):
                yield Expected(f"the variable {name}", node.lineno, certain=True, file=self.file)

    def _has_variables(self) -> bool:
        """Return True if the script names a variable that init_process_group() reads: it may set it."""
        return any(_constant(node) in ("MASTER_ADDR", "WORLD_SIZE", "RANK") for node in self.project.nodes)

    def _reads_task(self) -> bool:
        """Return True if the script takes its number from Slurm's task, as those that srun starts."""
        reads = (node for node in self.nodes if isinstance(node, ast.Subscript) and _name(node.value) == "environ")
        return not self.project.starts_ranks and any(_constant(read.slice) in schedulers.OF_A_TASK for read in reads)

    def _knows_one_rank(self) -> bool:
        """Return True if the script compares the number of ranks with 1, and so may do without others."""
        compared = [node for node in self.project.nodes if isinstance(node, ast.Compare) and len(node.comparators) == 1]
        return any("size" in ast.unparse(row.left).lower() and _constant(row.comparators[0]) == 1 for row in compared)

    def _always(self, node: ast.AST, seen: frozenset[str] = frozenset()) -> bool:
        """Return True if the script comes to a node whatever happens, as far as its text tells."""
        while parent := self.parents.get(node):
            is_guard = isinstance(parent, ast.If) and "__name__" in ast.unparse(parent.test)
            if isinstance(parent, ast.If) and node is not parent.test and not (is_guard and self.is_main):
                return False
            if isinstance(parent, ast.Try | ast.IfExp | ast.BoolOp | ast.Lambda | ast.While | ast.Match):
                return False
            if isinstance(parent, ast.FunctionDef):
                if node in parent.args.defaults or node in parent.decorator_list:
                    return self._always(parent, seen)
                return self._is_called(self._name_to_call(parent), seen)
            node = parent
        return True

    def _name_to_call(self, function: ast.FunctionDef) -> str:
        """Return the name by which a function is called; ``__init__`` by that of its class."""
        owner = self.parents.get(function)
        return owner.name if function.name == "__init__" and isinstance(owner, ast.ClassDef) else function.name

    def _is_called(self, name: str, seen: frozenset[str]) -> bool:
        """Return True if the script comes to a call of a function whatever happens; ``seen`` are its callers."""
        mark = f"{self.file}:{name}"
        if mark in seen:
            return False
        calls = [(self, call) for call in self.calls if _name(call.func) == name]
        calls += [(part, call) for part, call in self.project.targets.get((self.file, name), []) if part is not self]
        return any(part.always_imported and part._always(call, seen | {mark}) for part, call in calls)  # noqa: SLF001 - another of this class


def _modules(node: ast.Import | ast.ImportFrom) -> Sequence[str]:
    """Return the modules that a statement imports, with the names that it takes from one."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]


def _connects(tree: ast.Module) -> bool:
    """Return True if a script may call hpcml.connect(), which is for runs with a Dask cluster."""
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}
    return "hpcml" in modules_code_uses.imported(tree) and "connect" in names


def _name(node: ast.expr) -> str:
    """Return the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _constant(node: ast.AST) -> object:
    return node.value if isinstance(node, ast.Constant) else None
