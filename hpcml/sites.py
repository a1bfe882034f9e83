"""What a machine is: the schema of a site profile, finding the profiles, choosing one and loading it."""

from __future__ import annotations

import difflib
import fnmatch
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcml import assets, config, units
from hpcml.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Identify:
    """How a machine is recognised: every line that is given must match.

    ``hostname`` are shell patterns for the host's name, ``environment`` maps variables to patterns, ``command`` must
    be on PATH. ``order`` decides between profiles that match: the lowest is taken.
    """

    hostname: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    command: str = ""
    order: int = 50
    never: bool = False


@dataclass(frozen=True, slots=True)
class Defaults:
    """What is asked for when the command line does not say."""

    nodes: int = 1
    gpus_per_node: int = 0
    time: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""


@dataclass(frozen=True, slots=True)
class Resources:
    """What one node gives: CPUs and memory to ask for (empty: the whole node, with ``exclusive``)."""

    cpus_per_node: int = 0
    memory_per_node: str = ""
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """How this Slurm wants to be asked.

    ``gpu_request`` is ``gres``, ``gpus-per-node`` or ``none``; ``gpu_type`` goes between (``gpu:a100:4``).
    ``extra`` are directives added as they stand; ``remove`` are options left out (``--mem``). ``signal_lead`` is how
    long before the time limit the script is told. ``export`` is sbatch's ``--export``.
    """

    gpu_request: str = "gpus-per-node"
    gpu_type: str = ""
    extra: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    signal_lead: str = "60s"
    export: str = "ALL"
    account_required: bool = False
    srun_extra: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition's limits; an empty one is not checked."""

    max_nodes: int = 0
    max_time: str = ""
    gpus_per_node: int = 0
    cpus_per_node: int = 0
    memory_per_node: str = ""
    qos: str = ""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the roles run in: a Python environment (``python``) or an image (``image``).

    ``python`` is the interpreter's path on the nodes; empty means the one that runs hpcml. ``modules`` are loaded
    and ``setup`` lines run first, in bash. ``container`` is the program that runs images.
    """

    kind: str = "python"
    python: str = ""
    image: str = ""
    container: str = "apptainer"
    modules: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Workers:
    """CPU workers: how many on a node, threads and memory of each (empty: an equal share of the node).

    ``restarts`` is how often one worker may die before it counts as lost; ``on_loss`` is ``continue`` (Dask repeats
    the lost work on the others) or ``fail``. ``nice_exit`` is how long a worker has to leave by itself.
    """

    per_node: int = 1
    threads: int = 0
    memory_limit: str = ""
    restarts: int = 3
    on_loss: str = "continue"


@dataclass(frozen=True, slots=True)
class Network:
    """The fabric that Dask's comms use: ``interface`` by name, else the node's own rule; ``protocol`` auto or tls."""

    interface: str = ""
    protocol: str = "auto"


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long each phase may take, from the moment the one before it ended."""

    scheduler: str = "60s"
    workers: str = "120s"
    driver_grace: str = "20s"
    teardown: str = "10s"


@dataclass(frozen=True, slots=True)
class Paths:
    """Where runs are kept (shared by all nodes) and where scratch lies (local to each; empty: TMPDIR or /tmp)."""

    runs: str = "~/.hpcml/runs"
    scratch: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """The snapshot of the script's folder: ``folder`` or ``script``, the largest file and the largest sum copied."""

    snapshot: str = "folder"
    max_file: str = "1M"
    max_total: str = "50M"
    max_files: int = 2000


@dataclass(frozen=True, slots=True)
class Site:
    """A machine, as its profile and the settings over it describe it."""

    name: str = ""
    description: str = ""
    extends: str = ""
    scheduler: str = "slurm"
    unconfirmed: tuple[str, ...] = ()
    identify: Identify = field(default_factory=Identify)
    defaults: Defaults = field(default_factory=Defaults)
    resources: Resources = field(default_factory=Resources)
    slurm: Dialect = field(default_factory=Dialect)
    partitions: dict[str, Partition] = field(default_factory=dict)
    runtime: Runtime = field(default_factory=Runtime)
    workers: Workers = field(default_factory=Workers)
    network: Network = field(default_factory=Network)
    deadlines: Deadlines = field(default_factory=Deadlines)
    paths: Paths = field(default_factory=Paths)
    code: Code = field(default_factory=Code)
    environment: dict[str, str] = field(default_factory=dict)


CHOICES = {
    "scheduler": ("slurm", "local"),
    "slurm.gpu_request": ("gres", "gpus-per-node", "none"),
    "runtime.kind": ("python", "image"),
    "workers.on_loss": ("continue", "fail"),
    "network.protocol": ("auto", "tls"),
    "code.snapshot": ("folder", "script"),
}


UNITS = {
    "defaults.time": units.parse_time_limit,
    "resources.memory_per_node": units.parse_memory,
    "slurm.signal_lead": units.parse_seconds,
    "partitions.*.max_time": units.parse_time_limit,
    "partitions.*.memory_per_node": units.parse_memory,
    "workers.memory_limit": units.parse_memory,
    "deadlines.*": units.parse_seconds,
    "code.max_file": units.parse_memory,
    "code.max_total": units.parse_memory,
}


@dataclass(frozen=True, slots=True)
class LoadedSite:
    """A site with the layers that made it, so that each value's origin can be shown."""

    site: Site
    layers: config.Layers
    chosen_because: str


def config_folders(environment: Mapping[str, str]) -> list[Path]:
    """Return the machine-wide and the user's configuration folder, most general first."""
    home = Path(environment.get("HOME", "/nonexistent"))
    system = environment.get("HPCML_SYSTEM_CONFIG", "/etc/hpcml")
    return [Path(system), Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "hpcml"]


def profile_files(environment: Mapping[str, str]) -> dict[str, list[Path]]:
    """Return each profile's files by name, most general first (a later one is laid over an earlier one)."""
    found: dict[str, list[Path]] = {}
    folders = [assets.folder("profiles"), *(place / "profiles" for place in config_folders(environment))]
    for place in folders:
        for path in sorted(place.glob("*.toml")):
            found.setdefault(path.stem, []).append(path)
    return found


def load(name: str, environment: Mapping[str, str], cwd: Path, assignments: tuple[str, ...] = ()) -> LoadedSite:
    """Return a site by name, or the one this machine is recognised as when the name is empty.

    Raises
    ------
    ConfigError
        If there is no such profile, or a layer holds a key or value that the schema does not know.
    """
    profiles = profile_files(environment)
    reason = "named by --site"
    if not name and (name := environment.get("HPCML_SITE", "")):
        reason = "named by HPCML_SITE"
    if not name:
        name, reason = _recognise(profiles, environment)
    layers = _profile_layers(name, profiles, ())
    for path in [place / "config.toml" for place in config_folders(environment)] + _project_files(cwd):
        if path.is_file():
            _add_settings(layers, path, name)
    layers.add(config.from_environment(environment), "environment")
    layers.add(config.from_assignments(assignments), "--set")
    layers.add({"name": name}, "profile name")
    site = config.build(Site, layers)
    _check_choices(layers)
    _check_units(layers)
    return LoadedSite(site, layers, reason)


def _recognise(profiles: Mapping[str, list[Path]], environment: Mapping[str, str]) -> tuple[str, str]:
    host = socket.gethostname()
    candidates = []
    for name in profiles:
        rule = config.build(Site, _profile_layers(name, profiles, ())).identify
        if why := _matches(rule, host, environment):
            candidates.append((rule.order, name, why))
    if not candidates:
        names = ", ".join(sorted(profiles))
        raise ConfigError("No profile recognises this machine", place="identify", hint=f"Choose one with --site: {names}.")
    _, name, why = min(candidates)
    return name, why


def _matches(rule: Identify, host: str, environment: Mapping[str, str]) -> str:
    """Return why the rule matches this machine, or nothing."""
    if rule.never:
        return ""
    reasons = []
    if rule.hostname:
        if not any(fnmatch.fnmatch(host, pattern) for pattern in rule.hostname):
            return ""
        reasons.append(f"the host is {host}")
    for variable, pattern in rule.environment.items():
        if not fnmatch.fnmatch(environment.get(variable, ""), pattern):
            return ""
        reasons.append(f"{variable} is {environment.get(variable, '')}")
    if rule.command:
        if shutil.which(rule.command, path=environment.get("PATH")) is None:
            return ""
        reasons.append(f"{rule.command} is on PATH")
    return " and ".join(reasons) or "nothing else matches"


def _profile_layers(name: str, profiles: Mapping[str, list[Path]], below: tuple[str, ...]) -> config.Layers:
    if name not in profiles:
        near = difflib.get_close_matches(name, profiles, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Known sites: {', '.join(sorted(profiles))}."
        place = f"profile {below[-1]}: extends" if below else "--site"
        raise ConfigError(f"There is no site '{name}'", place=place, hint=hint)
    if name in below:
        raise ConfigError(f"The profiles extend each other in a ring: {' → '.join([*below, name])}", place=name)
    tables = [(config.read_toml(path), _origin(path)) for path in profiles[name]]
    layers = config.Layers()
    parent = next((table["extends"] for table, _ in reversed(tables) if table.get("extends")), "")
    if parent:
        for key, value in _profile_layers(str(parent), profiles, (*below, name)).values.items():
            if not key.startswith(("identify", "description", "extends", "unconfirmed", "name")):
                layers.values[key] = value
    for table, origin in tables:
        layers.add(table, origin)
    return layers


def _origin(path: Path) -> str:
    return f"profile {path.stem}" if path.parent == assets.folder("profiles") else str(path)


def _project_files(cwd: Path) -> list[Path]:
    """Return the nearest ``hpcml.toml`` at or above the working directory, as git looks for its folder."""
    return next(([place / "hpcml.toml"] for place in (cwd, *cwd.parents) if (place / "hpcml.toml").is_file()), [])


def _add_settings(layers: config.Layers, path: Path, site: str) -> None:
    """Lay a settings file over the layers: its own keys first, then those of its ``[site.NAME]`` table."""
    table = config.read_toml(path)
    by_site = table.pop("site", {})
    if not isinstance(by_site, dict):
        raise ConfigError("'site' should be a table of tables", place=f"{path}: site", hint="Write [site.leonardo].")
    layers.add(table, str(path))
    layers.add(by_site.get(site, {}), f"{path} [site.{site}]")


def _check_choices(layers: config.Layers) -> None:
    for key, allowed in CHOICES.items():
        value = layers.values.get(key)
        if value is not None and value.value not in allowed:
            near = difflib.get_close_matches(str(value.value), allowed, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Allowed: {', '.join(allowed)}."
            raise ConfigError(f"The value {value.value!r} is not allowed", place=f"{value.origin}: {key}", hint=hint)


def _check_units(layers: config.Layers) -> None:
    for key, value in layers.values.items():
        parser = next((parser for pattern, parser in UNITS.items() if fnmatch.fnmatch(key, pattern)), None)
        if parser is None or value.value == "":
            continue
        try:
            parser(str(value.value))
        except ValueError as error:
            raise ConfigError(str(error), place=f"{value.origin}: {key}") from error
