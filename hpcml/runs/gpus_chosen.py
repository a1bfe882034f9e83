"""GPUs for a script that can use them, where the command line asks for no number: all of each node, a worker for each.

The site's profile must have GPUs for the request, and the run's Python or image the packages. Nothing is started:
packages are looked up in the files of an environment, and in the labels of an image.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from hpcml import features_by_point, installed_packages, kinds, schedulers
from hpcml.errors import HpcmlError
from hpcml.gpu_vendor import VENDOR
from hpcml.plan.container import image_of
from hpcml.request.record import NOT_SAID, Code, RunRequest
from hpcml.runs import modules_code_uses
from hpcml.runs.packages import Environment
from hpcml.schedulers import partition_fit
from hpcml.sites import settings_layers
from hpcml.sites.lookup import LoadedSite
from hpcml.sites.schema import Site
from hpcml.units import first_of_many
from hpcml.workload_forms import Form

_MOST_NAMED = 3  # uses or packages in a sentence
_WORKERS = "dask_cuda"  # the package that GPU workers need


class _Use(NamedTuple):
    """How people call a use of GPUs, and the packages that it needs."""

    name: str
    packages: tuple[str, ...]


_BY_MODULE = {  # what a file imports, wherever it does
    "cuml": _Use("cuML", ("cuml",)),
    "cupy": _Use("CuPy", ("cupy",)),
    "cupyx": _Use("CuPy", ("cupy",)),
    "cudf": _Use("cuDF", ("cudf",)),
    "dask_cudf": _Use("Dask-cuDF", ("dask_cudf",)),
    "dask_cuda": _Use("Dask-CUDA", ()),
    "cudf_polars": _Use("cuDF-Polars", ("cudf_polars",)),
}
_XGBOOST = _Use("XGBoost's device cuda", ("xgboost",))
_NAMES_GPU = re.compile(r"\d+|(?:GPU|MIG)-[\w/-]+", re.ASCII)  # a word that names a GPU
_DEVICE = re.compile(r"(cuda|gpu)(:\d+)?|gpu_hist")  # of XGBoost
_OF_IMAGES = {"cudf", "cuml", "cupy", "dask_cuda", "dask_cudf"}  # what hpcml's definitions with CUDA install
# Options of sbatch that choose nodes: hpcml does not know whether these have GPUs.
_CHOOSES_NODES = {"--constraint", "--gres", "--nodelist", "--nodefile", "--reservation"}


def choose(loaded: LoadedSite, spec: RunRequest, python: str) -> tuple[RunRequest, list[str]]:
    """Return the request with GPUs if the script can use them; a note for a sweep, and if only packages are missing.

    ``python`` is the interpreter of a run without an image.
    """
    size, decided = spec.size, "defaults.gpus_per_node" in loaded.layers.values
    if size.gpus_per_node != NOT_SAID or decided or not kinds.get(spec.kind).has_cluster:
        return spec, []
    if not (count := _gpus_of_nodes(loaded, spec)) or not (uses := _uses(spec.code)):
        return spec, []
    names = tuple(dict.fromkeys(use.name for use in uses))
    what = f"this script can use GPUs ({first_of_many(names, _MOST_NAMED)})"
    if spec.points.sweep:
        return spec, [f"{what}, but a sweep uses CPUs unless you request GPUs: add --gpus-per-node {count}"]
    needed = dict.fromkeys([*(name for use in uses for name in use.packages), _WORKERS])
    image = image_of(loaded.site, spec)
    lacking, unknown = _of_image(loaded.site, image, needed) if image else _of_python(loaded.site, python, needed)
    if not lacking and not unknown:
        return spec.changed(gpus_per_node=count, gpus_because=names), []
    if unknown:
        note = f"{what}, but {unknown}: the run uses CPUs. If the packages are there, add --gpus-per-node {count}"
        return spec.changed(gpus_lacking=tuple(needed)), [note]
    ways = _ways(loaded.site, spec, python, lacking, is_image=bool(image))
    where = f"the image {image}" if image else f"the run's Python ({python})"
    note = f"{what}, but {where} lacks {first_of_many(lacking, _MOST_NAMED)}: the run uses CPUs. {ways}"
    return spec.changed(gpus_lacking=tuple(lacking)), [note]


def lines(because: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the reason for GPUs that nobody asked for, as a title and a text; nothing for other runs."""
    text = f"GPUs, because the script uses {first_of_many(because, _MOST_NAMED)}; --gpus-per-node 0 prevents this"
    return [("gpus", text)] if because else []


def _ways(site: Site, spec: RunRequest, python: str, lacking: list[str], *, is_image: bool) -> str:
    """Return the lines that give the run the packages: an image, or an extra of hpcml in its Python."""
    cuda = site.gpu.cuda if site.gpu.cuda in ("12", "13") else "12"
    image = f"hpcml image build rapids-cu{cuda}; hpcml submit --image rapids-cu{cuda}.sif {spec.code.typed}"
    extra = f"hpcml[{'polars-' * ('cudf_polars' in lacking)}cuda{cuda}]"
    packages = installed_packages.install(python, [extra, *({"xgboost"} & {*lacking})])
    if not set(lacking) <= _OF_IMAGES:
        return f"For GPUs: {packages}"
    return f"For GPUs: {image}" if is_image else f"For GPUs, in an image: {image}. Or: {packages}"


# -- the packages ------------------------------------------------------------------------------------------------------


def _of_python(site: Site, python: str, needed: Mapping[str, None]) -> tuple[list[str], str]:
    """Return the packages that an environment lacks, and why that is unknown, empty if it is known."""
    environment = Environment(python)
    if not environment.readable:
        return [], f"hpcml cannot read which packages {python} has"
    lacking = environment.lacking(list(needed))
    changed = {"PATH", "PYTHONPATH"} & site.environment.keys()
    if lacking and (site.runtime.modules or site.runtime.setup or changed):
        return lacking, f"the job's modules or setup may provide {first_of_many(lacking, _MOST_NAMED)}"
    return lacking, ""


def _of_image(site: Site, image: str, needed: Mapping[str, None]) -> tuple[list[str], str]:
    """Return the packages that an image lacks by its labels, and why that is unknown, empty if it is known."""
    try:
        facts = features_by_point.only("check of an image")(Path(image), cuda=site.gpu.cuda, gpus=0)
    except HpcmlError:  # reported where the image is checked for the run
        return [*needed], ""
    labels = facts["labels"]
    if not labels.get("org.hpcml.kind"):
        return [], f"hpcml does not know which packages {image} has, because it has no labels of hpcml"
    cuda = labels.get("org.hpcml.cuda", "")
    if not cuda or (site.gpu.cuda in ("12", "13") and cuda != site.gpu.cuda):
        return [*needed], ""
    return [name for name in needed if name not in _OF_IMAGES], ""


# -- the GPUs ----------------------------------------------------------------------------------------------------------


def _gpus_of_nodes(loaded: LoadedSite, spec: RunRequest) -> int:
    """Return the number of GPUs on each node of a request; 0 if none, or the profile does not say."""
    site, place, scheduler = loaded.site, spec.place, schedulers.get(loaded.site.scheduler)
    nodes = site.defaults.nodes if spec.size.nodes == NOT_SAID else spec.size.nodes
    if scheduler.ONE_MACHINE:
        return _gpus_of_this_machine() if nodes == 1 else 0
    if not scheduler.OWN_JOBS or place.clusters or _CHOOSES_NODES & {option for option, _ in place.sbatch}:
        return 0
    named = place.partition or site.defaults.partition
    if not site.partitions:
        return partition_fit.gpus_of_node(site, named, spec.changed(gpus_per_node=0))
    for name in [named] if named else site.partitions:
        count = partition_fit.gpus_of_node(site, name, spec.changed(gpus_per_node=1, partition=name))
        size = {"nodes": nodes, "gpus_per_node": count, "time": spec.size.time or site.defaults.time}
        asked = spec.changed(partition=name, **size)
        if (
            count
            and not partition_fit.misfit(site, name, asked)
            and not partition_fit.doubtful_misfits(site, name, asked)
        ):
            return count
    return 0


def _gpus_of_this_machine() -> int:
    """Return the number of GPUs that a process of this user can see here, by the files of the driver."""
    visible = settings_layers.process_environment().get(VENDOR.visible)
    if visible is not None:  # for CUDA the first word that names nothing, or a GPU again, ends the list
        words = [word.strip() for word in visible.split(",")]
        named = itertools.takewhile(
            lambda at: _NAMES_GPU.fullmatch(words[at]) and words[at] not in words[:at], range(len(words))
        )
        return sum(1 for _ in named)
    return sum(os.access(path, os.R_OK | os.W_OK) for path in Path("/dev").glob(VENDOR.devices))


# -- the script --------------------------------------------------------------------------------------------------------


def _uses(code: Code) -> list[_Use]:
    """Return the uses of GPUs in the texts of a script and the modules that it reaches."""
    file = modules_code_uses.module_file(code.script) if code.form is Form.MODULE else code.script
    if file is None or code.form not in (Form.SCRIPT, Form.MODULE):
        return []
    folder = code.script.parent if code.form is Form.MODULE else file.resolve().parent
    trees = (module.tree for module in modules_code_uses.readable(file, folder))
    return list(dict.fromkeys(use for tree in trees for use in _of_tree(tree)))


def _of_tree(tree: ast.Module) -> Iterator[_Use]:
    names, texts = modules_code_uses.imported(tree), {*modules_code_uses.texts(tree)}
    yield from (use for name, use in _BY_MODULE.items() if name in names)
    yield from (_BY_MODULE[name] for name in ("cudf", "cupy") if name in texts)  # a backend of Dask's, by name
    if "xgboost" in names and any(map(_DEVICE.fullmatch, texts)):
        yield _XGBOOST
    if "hpcml" not in names:
        return
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr="polars_engine") | ast.alias(name="polars_engine"):
                yield _BY_MODULE["cudf_polars"]
            case ast.keyword(arg="backend", value=ast.Constant(value="auto" | "gpu" as name)):
                yield _Use(f'backend="{name}"', ("cudf", "cupy"))
