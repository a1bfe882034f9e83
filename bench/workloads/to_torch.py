"""Partitions handed to PyTorch without a copy, by DLPack, and a small network trained on them where they are.

In each round every worker trains on its partitions, and the parameters, weighted by rows, are averaged.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
from typing import Any

import numpy as np
from distributed import wait

from gallery import backend, datasets, job, scores, supervised, tables
from gallery.job import Job

Network = dict[str, Any]  # parameters by name, NumPy's


def tensor(array: Any) -> Any:
    """Return a torch tensor that shares the array's memory, by DLPack; the array must be writable and contiguous."""
    import torch

    return torch.from_dlpack(array)


def same_memory(array: Any) -> bool:
    """Whether the tensor of an array begins at the array's own address, and writing to it writes the array."""
    shared = tensor(array)
    place = ("cuda", array.data.ptr) if hasattr(array.data, "ptr") else ("cpu", array.ctypes.data)
    first = array[0, 0].item()
    mark = 2.0 if first == 1 else 1.0  # of no rounding in any type
    shared[0, 0] = mark
    through = array[0, 0].item() == mark
    shared[0, 0] = first
    return bool(through and (shared.device.type, shared.data_ptr()) == place)


def ready(block: Any) -> Any:
    """Return the block itself, or, if torch could not share it (read-only, as some that came over a wire), a copy."""
    usable = block.flags.c_contiguous and getattr(block.flags, "writeable", True)  # CuPy's are always writable
    return block if usable else block.copy(order="C")


def network(features: int, hidden: int, classes: int, seed: int) -> Network:
    """Return the parameters to start from, drawn by NumPy so that no library's state matters."""
    rng = np.random.default_rng(seed)
    first = rng.normal(0, (2 / features) ** 0.5, (features, hidden))
    second = rng.normal(0, (1 / hidden) ** 0.5, (hidden, classes))
    drawn = {"w1": first, "b1": np.zeros(hidden), "w2": second, "b2": np.zeros(classes)}
    return {name: value.astype("float32") for name, value in drawn.items()}


def logits(x: Any, parameters: dict[str, Any]) -> Any:
    return (x @ parameters["w1"] + parameters["b1"]).relu() @ parameters["w2"] + parameters["b2"]


def pair(x: Any, y: Any) -> tuple[Any, Any]:
    """Return a partition as this worker's own: what came over a wire is read-only and is copied here, once."""
    return ready(x), ready(y)


def train_part(
    part: tuple[Any, Any], start: Network, options: dict[str, Any], seed: int
) -> tuple[Network, float, int, bool]:
    """Train on one partition; return the parameters, the mean loss, the rows, and whether memory was shared.

    It runs where the partition lies. The random order is the partition's own.
    """
    import torch

    x, y = part
    shared = ready(x) is x and same_memory(x)
    rows, labels = tensor(ready(x)), tensor(ready(y))
    parameters = {name: torch.tensor(value, device=rows.device, requires_grad=True) for name, value in start.items()}
    optimiser = torch.optim.SGD(parameters.values(), lr=options["rate"], momentum=0.9)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(rows))).to(rows.device)
    total = 0.0
    for batch in order.split(options["batch"]):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits(rows[batch], parameters), labels[batch])
        loss.backward()
        optimiser.step()
        total += float(loss.detach()) * len(batch)
    found = {name: value.detach().cpu().numpy() for name, value in parameters.items()}
    return found, total / len(rows), len(rows), shared


def predict(x: Any, parameters: Network) -> Any:
    """Return the class of each row of a block, as an array of the block's own library."""
    import torch

    rows = tensor(ready(x))
    with torch.no_grad():
        given = {name: torch.tensor(value, device=rows.device) for name, value in parameters.items()}
        chosen = logits(rows, given).argmax(dim=1)
    return importlib.import_module(backend.library(x)).from_dlpack(chosen)


def average(parts: list[tuple[Network, float, int, bool]]) -> tuple[Network, float]:
    """Return the parameters and the loss, averaged with the rows as weights."""
    rows = sum(part[2] for part in parts)
    mean = {name: sum(part[0][name].astype("float64") * part[2] for part in parts) / rows for name in parts[0][0]}
    loss = sum(part[1] * part[2] for part in parts) / rows
    return {name: value.astype("float32") for name, value in mean.items()}, loss


def work(job: Job) -> None:
    options, known, client = job.options, job.result, job.client
    if options.data is None:
        with job.phase("generate"):
            options.data = datasets.made(job, "classification", features=options.features or 8)
    with job.phase("read"):
        data = supervised.read(job, labelled=True)
        names, x, x_test, y, y_test = data.names, data.x_train, data.x_test, data.y_train, data.y_test
        labels = np.asarray(data.labels)
        known |= {"classes": labels.tolist(), "rows_train": len(x), "rows_test": len(x_test)}
    with job.phase("scale"):
        backend.import_everywhere(client, "torch")
        known["torch"] = importlib.metadata.version("torch")
        middle, spread = (backend.to_numpy(part) for part in (x.mean(axis=0).compute(), x.std(axis=0).compute()))
        spread = np.where(spread > 0, spread, 1)
        scaled = [part.map_blocks(scale, middle, spread, dtype="float32") for part in (x, x_test)]
        numbers = y.map_blocks(number, labels, meta=y._meta.astype("int64"))
        halves = [client.compute(list(part.to_delayed().ravel())) for part in (scaled[0], numbers)]
        blocks = client.map(pair, *halves, pure=False)
        wait(blocks)
    with job.phase("train"):
        parameters, history = network(len(names), options.hidden, len(labels), options.seed), []
        given = {"rate": options.rate, "batch": options.batch}
        shared = 0
        for turn in range(options.rounds):
            seeds = [options.seed + 1_000 * turn + part for part in range(len(blocks))]
            parts = client.gather([client.submit(train_part, block, parameters, given, seed, pure=False)
                                   for block, seed in zip(blocks, seeds, strict=True)])  # fmt: skip
            parameters, loss = average(parts)
            shared += sum(part[3] for part in parts)
            history.append(loss)
        known |= {
            "blocks": len(blocks),
            "handed_over": len(blocks) * options.rounds,
            "without_copy": shared,
            "loss_first": history[0],
            "loss_last": history[-1],
        }
        if shared < known["handed_over"]:
            moved = f"{known['handed_over'] - shared} of {known['handed_over']} times"
            job.note(f"{moved} a partition went to another worker and was copied there; the others were shared.")
    with job.phase("test"):
        meta = y_test._meta.astype("int64")
        found = scaled[1].map_blocks(predict, parameters, drop_axis=1, meta=meta)
        found = found.map_blocks(value, labels, meta=meta.astype("int32")).persist()
        confusion = scores.confusion(y_test, found, labels)
        sizes = confusion.sum(axis=1)
        known["metrics"] = {
            "accuracy": scores.accuracy(confusion),
            "baseline_accuracy": float(sizes.max() / sizes.sum()),
        }
    with job.phase("write"):
        columns = {tuple(names): x_test, options.target: y_test, "prediction": found}
        tables.write_parquet(job, tables.frame_of(columns), "predictions")
    known["rows_per_second"] = {"train": round(len(x) * options.rounds / max(known["seconds"]["train"], 1e-9))}


def scale(block: Any, middle: Any, spread: Any) -> Any:
    like = {"dtype": block.dtype, "like": block}
    return ready(((block - np.asarray(middle, **like)) / np.asarray(spread, **like)).astype("float32"))


def number(block: Any, labels: Any) -> Any:
    return np.searchsorted(np.asarray(labels, like=block), block.astype("int32")).astype("int64")


def value(block: Any, labels: Any) -> Any:
    return np.asarray(labels, like=block)[block]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("to_torch", __doc__, rows=50_000)
    add = parser.add_argument
    add("--target", default="y", help="column with the class, whole numbers (default y)")
    add("--features", type=int, help="features of made data (default 8)")
    add("--hidden", type=int, default=32, help="units of the hidden layer (default 32)")
    add("--rounds", type=int, default=10, help="times that parameters are averaged (default 10)")
    add("--batch", type=int, default=256, help="rows of a step (default 256)")
    add("--rate", type=float, default=0.05, help="learning rate (default 0.05)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("to_torch", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
