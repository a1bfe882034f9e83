"""The rows of docs/seeds.md: the workloads and figures of the documents that hpcml started from, and what is measured here.

A row names the file of figures that answers it, and the code that was measured. The file has that code's digest
(figures.measured); if the code has changed since, the row must say why its figure still counts (``older``), or
tests/unit/test_seeds.py fails. A row whose file is not here yet must say why (``missing``).
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cpu_rows
from figures import ROOT, digest, read_figures

FIGURES = ROOT / "docs" / "benchmarks"
Document = dict[str, Any]


class Shown(NamedTuple):
    """What a row shows of its file: the figure, and its ratios to other figures."""

    here: str
    ratio: str = ""


class Row(NamedTuple):
    """A workload of a document.

    Attributes
    ----------
    published
        The document's figure, empty if it has none.
    file, show
        The file of figures in docs/benchmarks, and what the row shows of it.
    code
        What the file measured, by place (figures.measured); empty for what no code of ours decides.
    command
        What repeats the figure; empty for the file's own command.
    missing
        Why there is no figure; needed as long as the file is not here.
    older
        Why the figure counts though the code has changed since.
    """

    work: str
    published: str
    file: str = ""
    show: Callable[[Document], Shown] = lambda _: Shown("")
    code: tuple[str, ...] = ()
    command: str = ""
    missing: str = ""
    older: str = ""

    @property
    def path(self) -> Path | None:
        """Return the path of the row's file, or None if it has none or the file is not here."""
        path = FIGURES / self.file if self.file else None
        return path if path is not None and path.exists() else None


class Source(NamedTuple):
    """A document: its title, the sentence below it and its rows."""

    title: str
    about: str
    rows: tuple[Row, ...]


def named(document: Document, name: str) -> Document:
    """Return a result of a GPU section by its name."""
    return next(dict(one) for one in document["results"] if one["name"] == name)


def estimated(document: Document, name: str) -> Shown:
    """Show an estimator on a GPU beside scikit-learn or plain Dask in the same run."""
    figures = named(document, name)["figures"]
    took, other = figures["gpu_s"], figures["cpu_s"]
    each = figures.get("each", {}).get("cpu", [other])
    if max(each) > 2 * min(each):  # the median of such rounds says little
        ratios = f"{min(each) / took:.1f} to {max(each) / took:.1f} × CPUs"
        return Shown(f"{took:.2f} s, CPUs {min(each):.2f} to {max(each):.2f} s", ratios)
    return Shown(f"{took:.2f} s, CPUs {other:.2f} s", f"{other / took:.1f} × CPUs")


def measured_in(name: str) -> str:
    """Return the name of the newest file of the section estimators that has an estimator; empty without one."""
    documents = [(read_figures(path), path.name) for path in FIGURES.glob("gpu-1-estimators*.json")]
    having = [(document["date"], file) for document, file in documents
              if any(one["name"] == name and one["ok"] and "gpu_s" in one["figures"] for one in document["results"])]  # fmt: skip
    return max(having)[1] if having else ""


def moved(work: str, name: str, then: str) -> Row:
    """Return the row of an estimator: of the section estimators if that has it, else of the gallery's job that was there before."""
    if name and measured_in(name):
        return of_estimators(work, functools.partial(estimated, name=name), file=measured_in(name))
    section = "estimators" if name else "examples"
    command = f"python3 bench/gpu/run.py --gpus 1 --only {section}"
    return Row(work, "", "gpu-2-gallery.json", gallery(then), (ESTIMATORS,), command, older=MOVED)


def of_estimators(
    work: str, show: Callable[[Document], Shown], published: str = "", file: str = "gpu-1-estimators.json"
) -> Row:
    """Return a row of the section estimators, which measures one GPU."""
    return Row(work, published, file, show, (ESTIMATORS,))


def svds(document: Document) -> Shown:
    """Show the exact, the truncated and the compressed SVD of 1,000 columns on a GPU, beside the CPUs."""
    names = {"exact": "da.linalg.svd, ", "truncated": "TruncatedSVD, ", "compressed": "da.linalg.svd_compressed, "}
    shown = {how: estimated(document, f"{name}1,000 columns") for how, name in names.items()}
    here = "; ".join(f"{how} {one.here}" for how, one in shown.items())
    return Shown(here, ", ".join(one.ratio.removesuffix(" × CPUs") for one in shown.values()) + " × CPUs")


def predicted(document: Document, *, delayed: bool) -> Shown:
    """Show how long a prediction takes, and how soon the call returns."""
    figures = named(document, f"predict(delayed={delayed})")["figures"]
    return Shown(f"{figures['gpu_s'] * 1e3:.0f} ms, the call returns after {figures['call_s'] * 1e3:.0f} ms")


def refused(document: Document) -> Shown:
    """Show how many calls of KMeans that several GPUs do not support end with a message of cuML."""
    words = [one["figures"]["words"] for one in document["results"] if one["name"].startswith("KMeans, ")]
    errors = [text for text in words if text.startswith("ValueError: ")]
    return Shown(f"{len(errors)} calls end with a message, {len(words) - len(errors)} is accepted")


def fitted_once(document: Document, name: str) -> Shown:
    """Show one fit on a GPU, with the copy of the rows to the GPU apart, beside scikit-learn."""
    figures = named(document, name)["figures"]
    fit, move, other = (figures[part] for part in ("fit_s", "move_s", "cpu_s"))
    here = f"{fit * 1e3:.0f} ms and {move * 1e3:.1f} ms to copy the rows, scikit-learn {other * 1e3:.0f} ms"
    return Shown(here, f"{other / (fit + move):.1f} × scikit-learn, with the copy")


def headline(name: str, size: float, seconds: float) -> Callable[[Document], Shown]:
    """Show a headline, beside so many bytes in so many seconds that were published."""

    def show(document: Document) -> Shown:
        result = named(document, name)
        figures = result["figures"]
        here = figures["job_s"] if name.endswith("the job") else figures["hpcml_s"]
        rate = float(figures["size"].split()[0]) * 2**30 / here / (size / seconds)
        hand = f"; {result['ratio']:.2f} of by hand" if result["ratio"] else ""
        return Shown(f"{here:.2f} s, {figures['size']}", f"{rate:.1f} × the published rate{hand}")

    return show


def gallery(name: str) -> Callable[[Document], Shown]:
    """Show a workload of the gallery, which ran on CPUs and on GPUs with the same result."""

    def show(document: Document) -> Shown:
        result = named(document, name)
        figures = result["figures"]
        if result["ratio"] is None:
            once = (
                f"{figures['gpu_first_s']:.1f} s the first time"
                if "gpu_first_s" in figures
                else f"{figures['gpu_s']:.1f} s"
            )
            return Shown(once, "the result of CPUs" if "apart" in figures else "")
        return Shown(f"{figures['gpu_s']:.1f} s, CPUs {figures['cpu_s']:.1f} s", f"{result['ratio']:.1f} × CPUs")

    return show


def cores(work: str, count: int) -> Callable[[Document], Shown]:
    """Show a rate on some cores beside the published one, which for 16 cores is that of 40."""

    def show(document: Document) -> Shown:
        size, published = cpu_rows.PUBLISHED[work]
        seconds = published.get(count, published[max(published)])
        rate = statistics.median(cpu_rows.rates(document, work, count, cpu_rows.HPCML))
        hand = statistics.median(cpu_rows.ratios(document, work, count))
        ratio = f"{rate * 1e6 / (size / seconds):.1f} × the published rate; {hand:.2f} of by hand"
        return Shown(f"{rate:,.0f} MB/s", ratio)

    return show


def on_laptop(document: Document) -> Shown:
    """Show the SVD of Dask's post on eight cores, beside a cluster by hand and the post's laptop."""
    each = {name: [run["seconds"] for run in document["runs"] if run["contender"] == name]
            for name in (cpu_rows.HPCML, cpu_rows.BY_HAND)}  # fmt: skip
    took, hand = (statistics.median(seconds) for seconds in each.values())
    rate = 150 / took * document["rows"] / 1_000_000
    return Shown(
        f"{took:.0f} s, {document['rows']:,} rows", f"{rate:.1f} × the published rate; {hand / took:.2f} of by hand"
    )


def searched(document: Document) -> Shown:
    """Show the grid search beside scikit-learn's in the same call."""
    result = named(document, "search")
    took, other = result["figures"]["hpcml_s"], result["figures"]["sklearn_s"]
    return Shown(f"{took:.2f} s, scikit-learn {other:.2f} s", f"{other / took:.1f} × scikit-learn")


def killed(document: Document) -> Shown:
    """Show how long a killed worker takes to come back during a shuffle."""
    figures = [one["figures"] for one in document["results"] if "answer_s" in one["figures"]]
    back, answer = (statistics.median(one[name] for one in figures) for name in ("back_s", "answer_s"))
    return Shown(f"worker back after {back:.1f} s, right answer after {answer:.1f} s")


def spilled(document: Document) -> Shown:
    """Show a pass over more data than fits into the GPU's memory, beside dask-cuda's spilling."""
    result = named(document, "passes: pinned, a part kept")
    took = result["figures"]["pass_s"]
    return Shown(f"{took:.2f} s for a pass over 1.5 times the memory", f"{result['ratio']:.1f} × dask-cuda's spilling")


def merged(document: Document) -> Shown:
    """Show the merge of two tables in GPU memory."""
    result = named(document, "4 GPUs, ucx, 100M rows")
    return Shown(f"{result['figures']['hpcml_gib_s']:.1f} GiB/s", f"{result['ratio']:.2f} of by hand")


def started(document: Document) -> Shown:
    """Show how long a cluster takes to be usable, beside a batch script by hand."""
    result, other = named(document, "2x1: hpcml"), named(document, "2x1: by hand, ucx")
    took, hand = result["figures"]["usable"], other["figures"]["usable"]
    return Shown(f"{took:.1f} s, by hand {hand:.1f} s", f"{hand / took:.1f} × by hand")


def unchanged(document: Document) -> Shown:
    """Show how many programs with a LocalCUDACluster of their own gave the same figures in a run and alone."""
    return Shown(f"{sum(one['ok'] for one in document['results'])} of {len(document['results'])} cases right")


def alike(document: Document) -> Shown:
    """Show how many examples gave the same figures on CPUs and on GPUs."""
    results = [one for one in document["results"] if not one.get("skipped")]
    return Shown(f"{sum(one['ok'] for one in results)} of {len(results)} examples with the same figures")


def fitted(document: Document) -> Shown:
    """Show k-means beside cuML."""
    ratios = [one["ratio"] for one in document["results"] if one["ratio"]]
    return Shown(f"{len(ratios)} shapes of data", f"{min(ratios):.1f} to {max(ratios):.1f} × cuML")


WORKLOADS, BY_HAND = "bench/workloads/", "bench/gpu/scripts/by_hand.py:"
ONE, TWO, FOUR = (
    "gpu-1-headlines-svd-array-join-kmeans-csv.json",
    "gpu-2-headlines-svd-array.json",
    "gpu-4-headlines.json",
)
ONE_MORE = "since then one more case was added; the cases that were measured are the same"
ESTIMATORS = "bench/gpu/scripts/estimators.py"
SVDS = "gpu-1-estimators-svd.json"
JOIN = "gpu-2-headlines-join-by-the-job-join-over-TCP-by-the-job.json"
MOVED = "by a workload that jobs/ has replaced since"
LOST_OPTIONS = "since then the job lost options; what is timed is the same"
MORE_CHECKS = "since then checks of the arguments were added; what is timed is the same"
LOST_ZARR = "since then Zarr and packing moved to jobs/zarr_svd.py; what is timed is the same"
SAME_JOIN = "since then workers are given the libraries by name; the join is the same"
NOT_MEASURED = "not measured on GPUs yet; tests/jobs compares its result on CPUs"


def cuml(work: str, name: str, older: str = "") -> Row:
    """Return the row of an algorithm: the gallery's job, which has no published figure."""
    code = (f"{WORKLOADS}{name.partition('/')[0]}.py",)
    return Row(work, "", "gpu-2-gallery.json", gallery(name), code, older=older)


def example(work: str, words: str, published: str = "") -> Row:
    """Return the row of an example by bench/example.py with these words; its file may not be here yet."""
    name = words.partition(" ")[0]
    command = f"python3 bench/example.py {words}"
    return Row(work, published, f"example-{name}.json", timed, (f"jobs/{name}.py",), command, NOT_MEASURED)


def timed(document: Document) -> Shown:
    """Show the medians of an example's seconds."""
    runs = [one["seconds"] if isinstance(one["seconds"], dict) else {"": one["seconds"]} for one in document["runs"]]
    shown = [f"{part} {statistics.median(run[part] for run in runs):.2f} s".strip() for part in runs[0]]
    return Shown(", ".join(shown))


# fmt: off
SOURCES = (
    Source(
        "cuML multi-GPU workflow (Leeroopedia, 2026)",
        "The document describes algorithms with one Dask worker per GPU. The document has no figures.",
        (
            Row("KMeans", "", "gpu-1-lloyd.json", fitted, ("jobs/kmeans.py", "jobs/lloyd/__init__.py"), older=MORE_CHECKS),
            cuml("DBSCAN", "dbscan"),
            cuml("PCA", "pca_svd/pca", LOST_ZARR),
            cuml("TruncatedSVD", "pca_svd/truncated", LOST_ZARR),
            moved("NearestNeighbors", "NearestNeighbors", "neighbors/search"),
            moved("KNeighborsClassifier", "", "neighbors"),
            moved("KNeighborsRegressor", "KNeighborsRegressor", "neighbors/regress"),
            moved("LinearRegression", "", "linear"),
            moved("Ridge", "Ridge", "linear/ridge"),
            moved("Lasso", "Lasso", "linear/lasso"),
            moved("ElasticNet", "ElasticNet", "linear/elasticnet"),
            moved("LogisticRegression", "", "linear/logistic"),
            cuml("RandomForest", "forest"),
            cuml("Naive Bayes", "naive_bayes"),
            cuml("OneHotEncoder", "preprocess"),
            of_estimators("LabelEncoder", functools.partial(estimated, name="LabelEncoder")),
            *(of_estimators(f"`predict(delayed={delayed})` of 1,000,000 rows", functools.partial(predicted, delayed=delayed))
              for delayed in (True, False)),
            of_estimators("KMeans of `cuml.dask`, as on several GPUs: `init`, `oversampling_factor`, too few rows, `random_state`", refused),
        ),
    ),
    Source(
        "GPU Accelerated Distributed Data Science (CINECA lecture, 2025)",
        "The lecture describes startup, memory pools, spilling and recovery of Dask on GPUs. The lecture has no times.",
        (
            Row("a LocalCUDACluster in a script", "", "gpu-2-idioms.json", unchanged, ("bench/gpu/scripts/idioms.py",),
                older=ONE_MORE),
            Row("scheduler and a worker per GPU on two nodes", "", "gpu-2-bringup.json", started),
            Row("a worker dies during a shuffle", "", "gpu-2-killed.json", killed, ("bench/gpu/scripts/killed.py",)),
            Row("spilling from GPU memory", "", "gpu-1-memory-passes-1-5.json", spilled, ("bench/gpu/scripts/spill_passes.py",)),
            Row("UCX over InfiniBand between nodes", "", command="hpcml interconnect RUN",
                missing="no machine with GPUs and InfiniBand was available"),
        ),
    ),
    Source(
        "Distributed pipelines, Dask and profiling (notes for an NVIDIA certification)",
        "The notes describe tables on GPUs, from files to a model. The notes have no figures.",
        (
            cuml("ETL: CSV and Parquet, groups", "etl"),
            cuml("join of tables with a shuffle", "join"),
            Row("merge of tables in GPU memory", "", "gpu-4-merge.json", merged, ("bench/gpu/scripts/merge.py",),
                older="since then the script can wait for workers; the merge is the same"),
            cuml("gradient-boosted trees with XGBoost", "xgboost_train"),
            cuml("the six steps of CRISP-DM", "pipeline"),
            moved("zero copy to PyTorch", "to torch and back", "to_torch"),
            Row("GPU Direct Storage", "", command="hpcml submit --gpus-per-node 1 --set gpu.gds=true jobs/etl.py",
                missing="no machine with cuFile's driver was available"),
        ),
    ),
    Source(
        "The GPU chapter of a Dask book",
        "The chapter has no figures.",
        (
            Row("LocalCUDACluster, unchanged", "", "gpu-2-idioms.json", unchanged, ("bench/gpu/scripts/idioms.py",),
                older=ONE_MORE),
            of_estimators("`da.linalg.svd` of a CuPy array of 10,000 × 1,000, exact, truncated and compressed", svds, file=SVDS),
            of_estimators("the exact one of 2,000,000 × 100", functools.partial(estimated, name="da.linalg.svd, 100 columns"), file=SVDS),
        ),
    ),
    Source(
        "Dask blog, posts on GPUs (2019 to 2023)",
        "The posts have figures. A rate is bytes per second. Our data has the kind and shape of the published data.",
        (
            Row("the same code on CPUs and GPUs (2023)", "works", "gpu-2-examples-1-2.json", alike),
            Row("`svd_compressed`, 200 GB on 1 GPU: 1/8", "10 to 15 s on 16 V100", ONE, headline("svd", 200e9, 12.5), (f"{BY_HAND}svd",)),
            Row("2/8, the gallery's own way", "10 to 15 s on 16 V100", "gpu-2-headlines-by-the-job.json",
                headline("svd: the job", 200e9, 12.5), (f"{WORKLOADS}pca_svd.py",), older=LOST_ZARR),
            Row("4/8 on 4 GPUs", "10 to 15 s on 16 V100", FOUR, headline("svd", 200e9, 12.5), (f"{BY_HAND}svd",)),
            Row("8/8 on 8 GPUs", "10 to 15 s on 16 V100", command="python3 bench/gpu/run.py --gpus 8 --only headlines --case svd",
                missing="at most 4 GPUs were available; the post had 16"),
            Row("`svd_compressed`, 1,000,000 × 20,000, on a laptop", "2 min 30 s", "laptop_svd.json", on_laptop,
                ("bench/laptop_svd.py:svd",), "python3 bench/laptop_svd.py", "not measured yet: needs an idle machine with 8 cores"),
            example("SVD of a Zarr array, 25 GB on 1 GPU: 1/8: plain, Blosc, 2-bit packed",
                    "zarr_svd --rounds 5 --gpus 1 --set workers.threads=16 -- --rows 156250 --columns 20000",
                    "14.3 s load, 18.7 s compute on 16 V100, from cloud storage"),
            Row("grid search, Ridge, 10 values × 5 folds, 28 MB", "77 s on a GPU, 4.9 s on CPUs", "gpu-1-headlines-search-again.json",
                searched, (f"{WORKLOADS}search.py",), older=LOST_OPTIONS),
            Row("the same, with no compiled kernels from earlier runs", "77 s on a GPU, 4.9 s on CPUs", "gpu-1-headlines-search.json",
                searched, (f"{WORKLOADS}search.py",), older=LOST_OPTIONS),
            *(of_estimators(f"Ridge, one fit of {rows}", functools.partial(fitted_once, name=f"Ridge, one fit, {name} rows"), published)
              for rows, name, published in (
                  ("442 rows", "442", "1.12 s on a GPU, 28 ms on CPUs"),
                  ("35,000,000 rows, 2.8 GB", "35,000,000", "0.45 s on a GPU and 19.7 s to copy the rows, 4.82 s on CPUs"))),
            *(of_estimators(f"grid search, Ridge, {rows}, {how}", functools.partial(estimated, name=f"grid of {name} rows, {way}"), published)
              for rows, name, published in (("442 rows", "442", "88 ms to 6.51 s, four ways"),
                                            ("350,000 rows, 28 MB", "350,000", "77 s on a GPU, 4.9 s on CPUs"))
              for way, how in (("moved for every fit", "copied for each fit"), ("moved once", "copied once"),
                               ("moved once, all cores", "copied once; scikit-learn on all cores"))),
            Row("groupby of taxi trips (2019)", "works", "gpu-2-gallery.json", gallery("etl"), (f"{WORKLOADS}etl.py",)),
            example("sum of a column of 10⁹ rows on 1 GPU: 1/8; join with a small table; shuffle by tasks",
                    "dask_dataframe --rounds 5 --gpus 1 --set workers.threads=4 -- --rows 125000000",
                    "sum 250 ms on 8 V100"),
            Row("join of 10⁹ with 10⁷ rows, 2 GPUs, the gallery's own way", "about 1 GB/s over TCP",
                JOIN, headline("join: the job", 1e9, 1), (f"{WORKLOADS}join.py",)),
            Row("the same, encrypted over TCP", "about 1 GB/s over TCP", JOIN, headline("join over TCP: the job", 1e9, 1), (f"{WORKLOADS}join.py",)),
            Row("the same on 4 GPUs", "about 1 GB/s over TCP", FOUR, headline("join", 1e9, 1), (f"{BY_HAND}join",), older=SAME_JOIN),
            Row("the same over TCP", "about 1 GB/s over TCP", FOUR, headline("join over TCP", 1e9, 1), (f"{BY_HAND}join",),
                older=SAME_JOIN),
            *(Row(f"CSV, 10 GB: {count} core{'s' * (count > 1)}", published, "cpu_rows.json", cores("csv", count),
                  ("bench/cpu_rows.py:csv_by_dask", "bench/cpu_rows.py:trip"),
                  missing="not measured yet: needs an idle machine with 16 cores")
              for count, published in ((1, "194 s"), (8, "58 s"), (16, "35 s on 40 cores"))),
            Row("CSV: 1 GPU, 1/8", "11 s", ONE, headline("csv", 10e9, 11), (f"{BY_HAND}csv",)),
            Row("CSV: 4 GPUs, 4/8", "5 s on 8 V100", FOUR, headline("csv", 10e9, 5), (f"{BY_HAND}csv",)),
            *(Row(f"random array, 2 TB: {count} core{'s' * (count > 1)}", published, "cpu_rows.json", cores("array", count),
                  ("bench/cpu_rows.py:array_by_dask",), missing="not measured yet: needs an idle machine with 16 cores")
              for count, published in ((1, "2 h 39 min"), (16, "11 min 30 s on 40 cores"))),
            Row("random array: 1 GPU, 1/8", "97 s", ONE, headline("array", 2e12, 97), (f"{BY_HAND}array",)),
            Row("random array: 4 GPUs, 4/8", "19 s on 8 V100", FOUR, headline("array", 2e12, 19), (f"{BY_HAND}array",)),
        ),
    ),
)
# fmt: on


def machine(document: Document) -> str:
    """Return the machine of a file of figures in a few words."""
    found = document["machine"]
    if isinstance(found, str):
        return str(found.partition(",")[0])
    name = found["gpus"][0]["name"].removeprefix("NVIDIA ").partition(" ")[0]
    return f"{document['gpus']} × {name}"


def command(row: Row, document: Document | None) -> str:
    """Return what repeats a row's figure: its own command, or the one that wrote its file."""
    if row.command or document is None:
        return row.command or "python3 bench/cpu_rows.py --rounds 3"
    if "section" not in document:
        return str(document["command"])
    case = f" --case '{document['case']}'" if document.get("case") else ""
    return f"python3 bench/gpu/run.py --gpus {document['gpus']} --only {document['section']}{case}"


def table(_: Document) -> str:
    """Return all documents' rows as tables in Markdown."""
    parts = []
    for source in SOURCES:
        lines = [f"## {source.title}", "", source.about, ""]
        lines += ["| work | published | here | machine | ratio | repeat with |", "|---|---|---|---|---|---|"]
        for row in source.rows:
            document = read_figures(row.path) if row.path else None
            shown = row.show(document) if document else Shown(f"none: {row.missing}")
            note = f" ({row.older})" if document and stale(row) else ""
            where = f"{machine(document)}, {document['date'][:10]}" if document else ""
            cells = [row.work, row.published or "-", shown.here + note, where, shown.ratio]
            lines.append(f"| {' | '.join(cells)} | `{command(row, document)}` |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def stale(row: Row) -> list[str]:
    """Return which of a row's code has changed since its file was measured, or was not recorded in it."""
    recorded = read_figures(row.path).get("measured", {}) if row.path else {}
    if not row.path:
        return []
    return [place for place in row.code
            if not (ROOT / place.partition(":")[0]).exists()
            or recorded.get(place) != digest((ROOT / place.partition(":")[0]).read_text(encoding="utf-8"), place)]  # fmt: skip


def problems(rows: Iterable[Row] | None = None) -> Iterator[str]:
    """Yield a sentence for each row (default: all) that the page may not show as it is."""
    for row in rows or (row for source in SOURCES for row in source.rows):
        at = f"{row.work}: docs/benchmarks/{row.file}"
        scripts = [word for word in row.command.split() if word.startswith(("jobs/", "bench/"))]
        for script in scripts:
            if not (ROOT / script).exists():
                yield f"{row.work}: {script} is missing. Correct the row's command in bench/seeds.py."
        if not row.path and not row.missing:
            yield f"{at} is missing. Measure it, or say in bench/seeds.py why there is no figure (missing)."
        changed = stale(row)
        if changed and not row.older:
            yield (
                f"{at} is older than {', '.join(changed)}. Measure again ({row.command or 'its command'}), or say in "
                "bench/seeds.py why the figure still counts (older)."
            )
        if row.older and row.path and not changed:
            yield f"{at} is as new as its code. Remove its reason (older) from bench/seeds.py."
