"""Launchers of PyTorch by whose rendezvous other accounts run code: every spelling is noted, and what to type instead."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from hpcml.errors import UsageError
from hpcml.plan.plan import RunLocation, plan
from hpcml.request.record import RunRequest
from hpcml.runs import programs, rendezvous
from hpcml.sites import layers, schema

UNSAFE = {  # what is typed, with what is to be typed instead
    "torchrun --rdzv_backend=c10d train.py": "torchrun train.py",
    "torchrun --rdzv_backend c10d --rdzv_endpoint n1:29500 --rdzv-id 7 --nproc-per-node 4 train.py":
        "torchrun --nproc-per-node 4 train.py",
    "torchrun --rdzv-backend=c10d --rdzv-conf a=b train.py": "torchrun train.py",
    "torchrun --rdzv-backend c10d train.py": "torchrun train.py",
    "torchrun --rdzv-b c10d train.py": "torchrun train.py",
    "torchrun --rdzv_back=c10d train.py": "torchrun train.py",
    "torchrun --rdzv-backend static --rdzv-backend c10d train.py": "torchrun train.py",
    "torchrun --rdzv-backend=etcd-v2 train.py": "torchrun train.py",
    "torchrun --tee 3 -r 3 --no-python --standalone ./a.out": "torchrun --tee 3 -r 3 --no-python ./a.out",
    "torchrun --standalone train.py": "torchrun train.py",
    "torchrun --stand train.py": "torchrun train.py",
    "torchrun --nproc_per_node=2 -m --standalone package.train": "torchrun --nproc_per_node=2 -m package.train",
    "/x/bin/torchrun --standalone train.py": "/x/bin/torchrun train.py",
    "uv run torchrun --standalone train.py": "uv run torchrun train.py",
    "env A=1 /x/bin/torchrun --standalone train.py": "env A=1 /x/bin/torchrun train.py",
    "python3 -m torch.distributed.run --standalone train.py": "python3 -m torch.distributed.run train.py",
    "python3 -u -mtorch.distributed.launch --standalone --use-env t.py": "python3 -u -mtorch.distributed.launch --use-env t.py",
    "accelerate launch --rdzv_backend c10d train.py": "accelerate launch train.py",
    "accelerate launch --multi_gpu --rdzv-backend=c10d --rdzv-conf a=b train.py": "accelerate launch --multi_gpu train.py",
    "accelerate-launch --rdzv_backend=c10d train.py": "accelerate-launch train.py",
    "python3 -m accelerate.commands.launch --rdzv_backend=c10d t.py": "python3 -m accelerate.commands.launch t.py",
}  # fmt: skip
SAFE = (
    "torchrun train.py",
    "torchrun --rdzv-backend=static train.py",
    "torchrun --rdzv-backend c10d --rdzv_backend=static train.py",
    "torchrun --nproc-per-node 4 train.py --standalone --rdzv_backend=c10d",
    "torchrun -- train.py --standalone",
    "torchrun --rdzv-backend etcd --rdzv-endpoint etcd:2379 train.py",
    "torchrun --log-dir --standalone train.py",
    "python3 -m torch.distributed.run train.py",
    "accelerate launch --mixed_precision bf16 train.py --rdzv_backend c10d",
    "accelerate launch --rdzv_backend=static train.py",
    "./solver --backend c10d",
    "bash -c 'echo --rdzv_backend=c10d'",
    "bash -c 'torchrun train.py; other --standalone'",
)


def notes(tmp_path: Path, line: str, *, each: str = "node", nodes: int = 2, **variables: Any) -> list[str]:
    """Return the notes on ``hpcml submit --ranks EACH --nodes NODES -- LINE``; without ranks where EACH is empty."""
    words = shlex.split(line)
    words = words if words[0] in ("-m", "train.py") else ["--", *words]
    code = programs.code(words, tmp_path)
    spec = RunRequest()._replace(code=code).changed(nodes=nodes, environment=tuple(variables.items()))
    spec = spec.changed(kind="ranks").changed(ranks=each) if each else spec
    site = layers.build(schema.Site, layers.Layers())
    return rendezvous.check(site, spec, plan(site, spec, RunLocation(tmp_path, "/usr/bin/python3", "0")))


@pytest.fixture(autouse=True)
def _no_variables_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PET_RDZV_BACKEND", "PET_STANDALONE", "PET_RDZV_ENDPOINT", "PET_MASTER_PORT", "PET_NNODES"):
        monkeypatch.delenv(name, raising=False)


def test_each_spelling_of_a_rendezvous_that_unpickles_is_noted(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for line, instead in UNSAFE.items():
        with subtests.test(line):
            (note,) = notes(tmp_path, line)
            risk = "other users of the nodes can run code as you, because PyTorch unpickles what they send."
            assert risk in note
            assert note.endswith(f" Use '--ranks node -- {instead}' instead")
    (note,) = notes(tmp_path, "-m torch.distributed.run --standalone train.py")
    assert note.endswith(" Use '--ranks node -m torch.distributed.run train.py' instead")
    for line in SAFE:
        with subtests.test(line):
            assert notes(tmp_path, line) == []


def test_a_shell_s_text_is_read_too(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, "bash -lc 'module load x; A=1 torchrun --standalone train.py && date'")
    assert note.endswith(". In the text for bash, use 'A=1 torchrun train.py' instead")
    script = "#!/bin/bash\nsource x\ntorchrun --nproc-per-node 2 \\\n    --rdzv_backend=c10d train.py 'it' # \"\n"
    (tmp_path / "run.sh").write_text(script)
    (tmp_path / "run.sh").chmod(0o755)
    for line, place in (("./run.sh", "./run.sh"), ("bash run.sh", "run.sh")):
        (note,) = notes(tmp_path, line)
        assert note.startswith("torchrun --rdzv_backend=c10d: other users of the nodes can run code as you")
        assert note.endswith(f". In {place}, use 'torchrun --nproc-per-node 2 train.py it' instead")


def test_torchrun_without_hpcml_s_rendezvous_takes_c10d_itself(tmp_path: Path) -> None:
    """It does so for one node where neither endpoint nor port is given, though its default is static."""
    for each in ("", "2"):
        (note,) = notes(tmp_path, "torchrun train.py", each=each, nodes=1)
        assert note.startswith("torchrun without --ranks node: other users of the nodes can run code as you")
        assert notes(tmp_path, "torchrun --master-port 29500 train.py", each=each, nodes=1) == []
        assert notes(tmp_path, "accelerate launch train.py", each=each, nodes=1) == []


def test_a_user_s_variable_for_such_a_rendezvous_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unsafe: dict[str, Any] = {"PET_RDZV_BACKEND": "c10d", "PET_STANDALONE": "1"}
    for name, value in unsafe.items():
        for line in ("torchrun train.py", "./start", "train.py"):
            (note,) = notes(tmp_path, line, **{name: value})
            assert note.startswith(f"{name}={value}: other users of the nodes can run code as you")
            assert note.endswith(f". Remove {name}: hpcml sets the static rendezvous")
        assert notes(tmp_path, "torchrun --rdzv-backend=static a.py", PET_RDZV_BACKEND="c10d") == []
        assert notes(tmp_path, "accelerate launch a.py", **{name: value}) == []
    assert notes(tmp_path, "torchrun train.py", PET_STANDALONE="0") == []
    monkeypatch.setenv("PET_RDZV_BACKEND", "c10d")
    (note,) = notes(tmp_path, "torchrun train.py")
    assert note.startswith("PET_RDZV_BACKEND=c10d: ")
    assert notes(tmp_path, "torchrun train.py", PET_RDZV_BACKEND="static") == []


def test_accelerate_s_configuration_is_read_if_it_is_the_user_s_small_file(tmp_path: Path) -> None:
    config = tmp_path / "a.yaml"
    for text in ("rdzv_backend: c10d\n", "x: 1\nrdzv_backend: 'c10d' # ours\n", '{"x": 1, "rdzv_backend": "c10d"}'):
        config.write_text(text)
        for line in ("accelerate launch --config_file a.yaml train.py", "accelerate launch --config-file=a.yaml t.py"):
            (note,) = notes(tmp_path, line)
            assert note.startswith("rdzv_backend: c10d in a.yaml: other users of the nodes can run code as you")
            assert note.endswith(". Write rdzv_backend: static")
    assert notes(tmp_path, "accelerate launch --config_file a.yaml --rdzv_backend static train.py") == []
    for text in ("rdzv_backend: static\n", "rdzv_backend: c10d\n" + "#" * (1 << 16)):
        config.write_text(text)
        assert notes(tmp_path, "accelerate launch --config_file a.yaml train.py") == []
    for unreadable in ("no.yaml", ".", "/dev/zero"):
        assert notes(tmp_path, f"accelerate launch --config_file {unreadable} train.py") == []


def test_torchrun_that_would_wait_for_other_nodes_is_refused(tmp_path: Path) -> None:
    """With the static rendezvous it waits for the upper end of a range, until a timeout of minutes."""
    for words in ("--nnodes=2:4", "--nnodes 3", "--nno 1"):
        with pytest.raises(UsageError) as caught:
            notes(tmp_path, f"torchrun {words} train.py")
        assert f"torchrun {words} needs " in str(caught.value)
        assert ", but the run has 2 nodes" in str(caught.value)
        assert caught.value.hint == "Remove --nnodes: hpcml sets it."
    for words in ("--nnodes=2", "--nnodes=1:2", "--nnodes=$SLURM_NNODES", "--nnodes 1 --rdzv-endpoint localhost:29500"):
        assert notes(tmp_path, f"torchrun {words} train.py") == []
    (note,) = notes(tmp_path, "bash -c 'torchrun --nnodes 4 train.py'")
    problem = "torchrun --nnodes 4 needs 4 nodes, but the run has 2 nodes"
    assert note == f"the text for bash: {problem}. Remove --nnodes: hpcml sets it"
    (note,) = notes(tmp_path, "torchrun --nnodes=2:4 --rdzv-backend=c10d train.py")
    assert "other users of the nodes" in note
