"""Write the measurements of docs/upstream as Markdown; tables.py puts them there."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]
PASSES = "passes: "


def spilling(document: Document) -> str:
    """Return what k-means' passes took by each way to spill, of a file of the section ``memory``."""
    head = "| | a pass | × dask-cuda's | out in a pass | back in a pass | out | back |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for one in document["results"]:
        if not one["name"].startswith(PASSES):
            continue
        told = one["figures"]
        cells = [one["name"].removeprefix(PASSES), f"{told['pass_s']:.2f} s", f"{one['ratio']:.2f}", f"{told['out_gib']:.0f} GiB",
                 f"{told['back_gib']:.0f} GiB", f"{told['out_gib_s']:.1f} GiB/s", f"{told['back_gib_s']:.1f} GiB/s"]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    size = next(one["figures"] for one in document["results"] if one["name"].startswith(PASSES))
    gpu = document["machine"]["gpus"][0]["name"]
    return "\n".join(
        [*lines, "", f"{size['data_gib']:.0f} GiB of which {size['kept_gib']:.0f} GiB may be on the GPU; {document['date']}, {gpu}; `{document['command']}`"]
    )  # fmt: skip


def closing(document: Document) -> str:
    """Return what it costs a scheduler to close, of a file of ``thousand.py crowd``."""
    crowd = document["parts"]["crowd"]
    told = {(row["workers"], row["label"]): row for row in crowd["rows"]}
    lines = [
        "| workers | close: processor, release | patched | by the clock, release | patched |",
        "|---|---|---|---|---|",
    ]
    for count in sorted({row["workers"] for row in crowd["rows"]}):
        cells = [
            f"{told[count, label][key]:.2f} s" for key in ("close", "close_wall") for label in ("release", "patched")
        ]
        lines.append(f"| {count} | {' | '.join(cells)} |")
    return "\n".join(
        [*lines, "", f"{crowd['date']}, {crowd['machine']}, load {crowd['load']:.0f}; `{crowd['command']}`"]
    )
