"""Every role inside an image with GPUs (``--nv``), against the same runs without one, and ``hpcml image check --gpu``.

The image is Debian and a CPython (image.def); the packages of the interpreter outside are bound into it, so both runs compute
with the same files and differ only in the way in. Root of a machine that is itself confined may not enter an image in
every way: those that Apptainer knows are tried in order, and what hindered the others is told.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import section_kmeans
from harness import ROOT, SCRIPTS, Case, HarnessError, Run, World, last_lines
from machine import python_facts
from results import Result, result, skipped

# As root with the kernel's own mount; root of a namespace of its own, through /dev/fuse; and with the image unpacked before.
WAYS: tuple[tuple[str, ...], ...] = ((), ("--userns",), ("--unsquash",), ("--userns", "--unsquash"))
PACKAGES = "/opt/packages"  # image.def puts PACKAGES/0 to PACKAGES/7 on Python's path and on the linker's
MOST = 8
CUDA = "/usr/local/cuda"  # whose headers CuPy compiles kernels with; the image leaves an empty place for it
# The host's Apptainer is a program of the host, and must not load what RAPIDS' packages want before all.
CLEAN = {"LD_PRELOAD": "", "LD_LIBRARY_PATH": ""}
DEADLINE = 200
ENTER = 60  # seconds to enter an image, unpacked before if need be


def cases(world: World) -> list[Case]:
    """Return the cases: the first finds the way in, without which there are no others."""
    if reason := _reason_against(world):
        return [Case("image", 0, lambda: [skipped("image", reason)])]
    shared: dict[str, Any] = {}
    shapes = world.shapes()
    within = shapes[-1]
    return [
        Case("way in", 10, lambda: [_enter(world, shared)]),
        Case("kmeans", 60, partial(_kmeans, world, shared, *within)),
        *(Case(f"roles {nodes}x{gpus}", 40, partial(_roles, world, shared, nodes, gpus)) for nodes, gpus in shapes),
        Case("check", 30, lambda: [_check(world, shared)]),
    ]


def _reason_against(world: World) -> str:
    if not world.image:
        return "no image is given (--image FILE, which pack_image.py makes)"
    path = world.environment.get("PATH", "")
    return "" if shutil.which("apptainer", path=path) else "there is no apptainer (pack_image.py packs one)"


def binds(world: World) -> list[str]:
    """Return what is bound into the image: the folders on Python's path outside, its own packages, and CUDA."""
    own = python_facts(world.python)["purelib"]
    folders = [
        folder for folder in world.environment.get("PYTHONPATH", "").split(":") if folder and folder != str(ROOT)
    ]
    found = [f"{folder}:{PACKAGES}/{number}:ro" for number, folder in enumerate([*folders, own][:MOST])]
    # Python reads .pth files in its own site-packages alone; without this one `numba.cuda` is that of old numba.
    redirect, (major, minor) = (
        Path(own, "_numba_cuda_redirector.pth"),
        python_facts(world.python)["version"].split(".")[:2],
    )
    if redirect.exists():
        found.append(f"{redirect}:/opt/python/lib/python{major}.{minor}/site-packages/zz_numba_cuda.pth:ro")
    return [*found, f"{CUDA}:{CUDA}:ro"] if Path(CUDA).is_dir() else found


def settings(world: World, way: tuple[str, ...]) -> tuple[str, ...]:
    """Return the settings of a submission that enters the image this way."""
    return (_listed("runtime.binds", binds(world)), _listed("runtime.options", list(way)))


def _listed(name: str, words: list[str]) -> str:
    return f"{name}={json.dumps(words)}"  # which is TOML too


# -- the way in -----------------------------------------------------------------------------------------------------


def _enter(world: World, shared: dict[str, Any]) -> Result:
    outside = python_facts(world.python)["version"]
    hindered: dict[str, str] = {}
    for way in WAYS:
        words = ["apptainer", "exec", *way, "--cleanenv", *([] if world.cpu_only else ["--nv"]), world.image, "python3", "-c",
                 "import platform; print(platform.python_version())"]  # fmt: skip
        done = world.command(words, timeout=ENTER, environment=CLEAN, cwd=Path("/"))
        name = " ".join(way) or "as it is"
        if done.status:
            hindered[name] = _said(done.output) or f"exit status {done.status}"
            print(f"   {name}: {hindered[name]}", flush=True)
            continue
        version = done.output.strip().splitlines()[-1]
        if version.split(".")[:2] != outside.split(".")[:2]:
            raise HarnessError(f"the image has Python {version}, the packages outside are for {outside}")
        shared["way"] = way
        figures = {"way": name, "enter_s": done.seconds, "hindered": hindered, "python": version,
                   "binds": [bind.split(":")[1] for bind in binds(world)],
                   "image_mib": round(Path(world.image).stat().st_size / 2**20, 1)}  # fmt: skip
        return result("way in", ok=True, figures=figures)
    raise HarnessError("no way into an image: " + "; ".join(f"{name}: {why}" for name, why in hindered.items()))


def _said(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if "FATAL" in line or "ERROR" in line]
    return " ".join((lines or [last_lines(output, 1)])[0].split())


def _way(shared: dict[str, Any]) -> tuple[str, ...]:
    if "way" not in shared:
        raise HarnessError("there is no way into the image")
    way: tuple[str, ...] = shared["way"]
    return way


# -- runs -----------------------------------------------------------------------------------------------------------


def _submit(world: World, script: Path, words: list[str], nodes: int, gpus: int, way: tuple[str, ...] | None) -> Run:
    """Run a script outside (no way), or inside the image."""
    per_node = ("workers.per_node=2",) if world.cpu_only and gpus > 1 else ()
    inside = () if way is None else ("--image", world.image)
    chosen = (*per_node, *(() if way is None else settings(world, way)))
    return world.submit(script, words, nodes=nodes, gpus=gpus, settings=chosen, protocol="ucx", timeout=DEADLINE,
                        environment=None if way is None else CLEAN, options=inside)  # fmt: skip


def _wires(run: Run) -> dict[str, Any]:
    verdict = run.table("attempts/0/interconnect.json").get("verdict") or {}
    wires = {scope: verdict.get(scope) or {} for scope in ("within", "across")}
    return {"line": verdict.get("line", ""), "verdict_ok": verdict.get("ok"),
            **{f"{scope}_transports": ", ".join(wire.get("transports", ())) for scope, wire in wires.items()},
            **{f"{scope}_gib_s": round(wire.get("bandwidth", 0.0), 3) for scope, wire in wires.items()}}  # fmt: skip


def _kmeans(world: World, shared: dict[str, Any], nodes: int, gpus: int) -> list[Result]:
    """The same data outside and inside: the same clusters, and inside the same wire."""
    way = _way(shared)
    world.shape(nodes, gpus)
    rows = section_kmeans.FEW_ROWS if world.cpu_only else section_kmeans.ROWS
    words = ["--k", str(section_kmeans.K), "--rows", str(rows), "--seed", "5"]
    runs, found = [], []
    for name, chosen in (("outside", None), ("inside", way)):
        run = _submit(world, ROOT / "bench/workloads/kmeans.py", words, nodes, gpus, chosen)
        run.must_be(0)
        metrics = run.table("out/result.json")
        start, ready = run.when("allocated"), run.when("workers-ready")
        figures = {"workers": metrics["workers"], "rows": metrics["rows"], "inertia": metrics["inertia"], "backend": metrics["backend"],
                   "fit_s": metrics["seconds"]["fit"], "ready_s": round(ready - start, 3) if start and ready else None, **_wires(run)}  # fmt: skip
        runs.append((run, metrics))
        found.append(result(f"kmeans {nodes}x{gpus} {name}", ok=True, figures=figures))
    (outside, theirs), (inside, ours) = runs
    assert outside.directory is not None
    assert inside.directory is not None
    apart = section_kmeans.compare(ours, theirs, inside.directory / "out", outside.directory / "out")
    wrong = [f"{key} is {apart[key]:.3g}, more than {most:g}" for key, most in (
        ("inertia_difference", section_kmeans.INERTIA_TOLERANCE), ("centre_distance", section_kmeans.CENTRE_TOLERANCE)) if not apart[key] <= most]  # fmt: skip
    wrong += [
        f"{key} is {ours[key]} inside and {theirs[key]} outside"
        for key in ("backend", "workers")
        if ours[key] != theirs[key]
    ]
    one, other = (_wires(run) for run, _ in runs)
    if other["verdict_ok"] and not one["verdict_ok"]:
        wrong.append(f"the wire is slower inside: {one['line']}")
    found[1]["figures"] |= apart
    found[1] |= {"ok": not wrong, "error": "; ".join(wrong), "ratio": _ratio(found)}
    return found


def _ratio(found: list[Result]) -> float | None:
    outside, inside = (one["figures"]["ready_s"] for one in found)
    return round(inside / outside, 3) if outside and inside else None


def _roles(world: World, shared: dict[str, Any], nodes: int, gpus: int) -> list[Result]:
    """Where each role says that it is, and which GPU and which transports it has there."""
    way = _way(shared)
    world.shape(nodes, gpus)
    run = _submit(world, SCRIPTS / "where.py", [] if world.cpu_only else ["gpu"], nodes, gpus, way)
    run.must_be(0)
    roles = run.table("out/where.json")
    workers = [facts for role, facts in roles.items() if role not in ("driver", "scheduler")]
    wrong = list(_wrong(world, roles, workers, nodes * gpus))
    transports = sorted({name for facts in workers for name in facts["transports"]})
    figures = {"workers": len(workers), "gpus": len({tuple(facts["gpu"]) for facts in workers if "gpu" in facts}),
               "transports": ", ".join(transports), **_wires(run), "roles": roles}  # fmt: skip
    return [result(f"roles {nodes}x{gpus}", ok=not wrong, figures=figures, error="; ".join(wrong))]


def _wrong(world: World, roles: dict[str, Any], workers: list[dict[str, Any]], wanted: int) -> Iterator[str]:
    for role, facts in roles.items():
        if not facts["container"]:
            yield f"{role} is not in the image"
        if facts["versions"] != roles["driver"]["versions"]:
            yield f"{role} has {facts['versions']}, the script {roles['driver']['versions']}"
        if facts["variables"]["HOME"] == os.environ.get("HOME"):
            yield f"{role} has the home of the host"
    if world.cpu_only:
        return
    if len({tuple(facts["gpu"]) for facts in workers}) != wanted:
        yield f"the workers are on {[facts['gpu'] for facts in workers]}, {wanted} GPUs are to be used"
    for facts in workers:
        if "cuda_ipc" not in facts["transports"]:
            yield f"UCX has no cuda_ipc inside: {', '.join(facts['transports'])}"
        if not all(path.startswith("/.singularity.d/") for path in facts["driver"]):
            yield f"the driver's libraries are not those of --nv: {facts['driver']}"


# -- hpcml image check ----------------------------------------------------------------------------------------------


def _check(world: World, shared: dict[str, Any]) -> Result:
    """``hpcml image check``: this image holds no InfiniBand, and its packages are the host's; both must be told."""
    way = _way(shared)
    words = [
        world.python,
        "-m",
        "hpcml",
        "image",
        "check",
        "--json",
        *([] if world.cpu_only else ["--gpu"]),
        world.image,
    ]
    variables = CLEAN | {"APPTAINER_BIND": ",".join(binds(world))}
    variables |= {f"APPTAINER_{option[2:].upper()}": "1" for option in way}
    done = world.command(words, timeout=DEADLINE, environment=variables, cwd=Path("/"))
    text = done.output
    table = json.loads(text[text.index("{") : text.rindex("}") + 1]) if "{" in text else {}
    findings = {row["subject"]: row for row in table.get("findings", [])}
    if not findings:
        raise HarnessError(f"exit status {done.status}:\n{last_lines(text)}")
    expected = {"starts": "good", "imports": "good", "host": "bad"} | (
        {} if world.cpu_only else {"ucx": "bad", "gpu": "good"}
    )
    wrong = [f"{subject} is {findings.get(subject, {}).get('state', 'missing')}: {findings.get(subject, {}).get('words', '')}"
             for subject, state in expected.items() if findings.get(subject, {}).get("state") != state]  # fmt: skip
    words_of = {subject: f"{row['state']}: {row['words']}" for subject, row in findings.items()}
    return result("check", ok=not wrong, figures={"status": done.status, "findings": words_of}, error="; ".join(wrong))
