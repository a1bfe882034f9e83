"""Words by which PyTorch's launchers let other accounts run code: every spelling is noted, and what to type instead."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from hpcml.config_trust import Origin
from hpcml.errors import UsageError
from hpcml.plan.make_plan import RunLocation, plan
from hpcml.request.record import RunRequest
from hpcml.runs import script_or_program
from hpcml.runs.checks import unsafe_rendezvous
from hpcml.sites import schema, settings_layers
from tests.said import in_order

UNSAFE = {  # what is typed, with what is to be typed instead
    "torchrun --rdzv_backend=c10d train.py": "torchrun train.py",
    "torchrun --rdzv_backend c10d --rdzv_endpoint n1:29500 --rdzv-id 7 --nproc-per-node 4 train.py":
        "torchrun --nproc-per-node 4 train.py",
    "torchrun --rdzv-backend=c10d --rdzv-conf a=b train.py": "torchrun train.py",
    "torchrun --rdzv-backend c10d train.py": "torchrun train.py",
    "torchrun --rdzv-b c10d train.py": "torchrun train.py",
    "torchrun --rdzv_back=c10d train.py": "torchrun train.py",
    "torchrun --rdzv-backend static --rdzv-backend c10d train.py": "torchrun train.py",
    "torchrun --rdzv-backend c10d train.py --rdzv_backend static": "torchrun train.py --rdzv_backend static",
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
    "python3 -um torch.distributed.run --standalone t.py": "python3 -um torch.distributed.run t.py",
    "python3 -Im torch.distributed.run --standalone t.py": "python3 -Im torch.distributed.run t.py",
    "python3 /x/torch/distributed/run.py --standalone t.py": "python3 /x/torch/distributed/run.py t.py",
    "accelerate launch --rdzv_backend c10d train.py": "accelerate launch train.py",
    "accelerate launch --multi_gpu --rdzv-backend=c10d --rdzv-conf a=b train.py": "accelerate launch --multi_gpu train.py",
    "accelerate-launch --rdzv_backend=c10d train.py": "accelerate-launch train.py",
    "python3 -m accelerate.commands.accelerate_cli launch --rdzv_backend c10d t.py":
        "python3 -m accelerate.commands.accelerate_cli launch t.py",
    "python3 -m accelerate.commands.launch --rdzv_backend=c10d t.py": "python3 -m accelerate.commands.launch t.py",
}  # fmt: skip
COMMANDS = (  # the words are in what a shell runs, or in what a program starts torchrun with
    "env PET_RDZV_BACKEND=c10d torchrun train.py",
    "env PET_STANDALONE=1 torchrun train.py",
    "bash -c 'PET_STANDALONE=1 torchrun train.py'",
    "bash -c 'export PET_RDZV_BACKEND=\"c10d\"; exec torchrun train.py'",
    "bash -c 'export PET_RDZV_BACKEND=c10d; ./start'",
    "bash -ec 'torchrun --standalone train.py'",
    "bash -c 'bash -c \"torchrun --standalone train.py\"'",
    "bash -c 'ARGS=\"--nproc-per-node 2 --rdzv_backend c10d\"; torchrun $ARGS train.py'",
    "bash -c 'ARGS=(--rdzv-backend etcd-v2); torchrun ${ARGS[@]} train.py'",
    "bash -c 'torchrun $ARGS --standalone train.py'",
    "bash -c 'LAUNCHER=\"accelerate launch --rdzv_backend c10d\"; $LAUNCHER train.py'",
    "bash -c 'torchrun --rdzv-backend ${R:-c10d} train.py'",
    "bash -c 'R=c10d\ntorchrun --rdzv-backend $R train.py'",
    "bash -c '$(which torchrun) --standalone train.py'",
    "bash -c '`which torchrun` --standalone train.py'",
    "bash -c 'eval \"torchrun --standalone train.py\"'",
    "bash -c 'python prepare.py && torchrun --standalone train.py'",
    'python3 -c \'from torch.distributed.run import main; main(["--standalone", "train.py"])\'',
    "env -i /x/bin/torchrun train.py",
    "env -u A -i /x/bin/torchrun train.py",
    "env - /x/bin/torchrun train.py",
    "env --ignore-environment /x/bin/torchrun train.py",
    "env -u PET_RDZV_ENDPOINT torchrun train.py",
    "env --unset=PET_RDZV_BACKEND torchrun train.py",
    "bash -c 'unset ${!PET_*}; torchrun train.py'",
    "bash -c 'unset $(compgen -v PET_); torchrun train.py'",
)
FILES = {  # a command, with the file and the line that are noted
    "./x.sh": "x.sh:3",
    "bash x.sh": "x.sh:3",
    "bash plain": "plain:3",
    "bash -e x.sh": "x.sh:3",
    "bash -ex x.sh": "x.sh:3",
    "bash --login x.sh": "x.sh:3",
    "bash -o pipefail x.sh": "x.sh:3",
    "env bash x.sh": "x.sh:3",
    "timeout 9 bash x.sh": "x.sh:3",
    "nice ./x.sh": "x.sh:3",
    "bash -c 'source x.sh'": "x.sh:3",
    "bash calls.sh": "x.sh:3",
    "accelerate launch --config_file tagged.yaml train.py": "tagged.yaml:2",
    "bash -c 'accelerate launch --config-file=tagged.yaml train.py'": "tagged.yaml:2",
    "bash accelerates.sh": "$FOLDER/tagged.yaml:2",
    "bash -c 'source ~/x.sh'": "~/x.sh:3",
}
SAFE = (
    "torchrun train.py",
    "torchrun --rdzv-backend=static train.py",
    "torchrun --nproc-per-node 4 train.py --standalone --rdzv_backend=c10d",
    "torchrun -- train.py --standalone",
    "torchrun --rdzv-backend etcd --rdzv-endpoint etcd:2379 train.py",
    "torchrun --log-dir /x/c10d --tee 3 train.py",
    "torchrun --start-method spawn train.py",
    "torchrun train.py x.sh",
    "python3 -m torch.distributed.run train.py",
    "accelerate launch --mixed_precision bf16 train.py --rdzv_backend c10d",
    "accelerate launch --rdzv_backend=static train.py",
    "./solver --backend c10d --standalone",
    "bash -c 'other --standalone'",
    "bash -c '# c10d hangs here\ntorchrun train.py  # not --standalone'",
    "bash -c 'TORCH_LOGS=+c10d torchrun train.py > exp-c10d.log'",
    "bash -c 'python -c \"import torch.distributed.distributed_c10d\"; torchrun train.py'",
    "bash -c 'PET_STANDALONE=0 torchrun train.py'",
    "bash -c 'unset PET_NPROC_PER_NODE X; env -u X A=1 torchrun train.py'",
    "env -i ./solver",
    "bash harmless.sh",
    "bash missing.sh",
    "bash large.sh",
    "bash .",
    "bash /dev/zero",
    "torchrun binary.sh",
    "torchrun train.py train.py",
    "./code torchrun",
    "train.py --rdzv_backend c10d",
)


RISK = "other users of the nodes can run code as you, because PyTorch unpickles what they send."
PATIENCE = 60  # seconds of the processor for a dozen texts


def notes(
    tmp_path: Path, line: str, *, each: str = "node", nodes: int = 2, setup: list[str] | None = None, **variables: Any
) -> list[str]:
    """Return the notes on ``hpcml submit --ranks EACH --nodes NODES -- LINE``; without ranks where EACH is empty."""
    words = shlex.split(line)
    words = words if words[0] in ("-m", "train.py", "batch.sh") else ["--", *words]
    code = script_or_program.code(words, tmp_path)
    code = script_or_program.as_batch_script(code) if words[0] == "batch.sh" else code
    spec = RunRequest()._replace(code=code).changed(nodes=nodes, environment=tuple(variables.items()))
    spec = spec.changed(kind="ranks").changed(ranks=each) if each else spec
    settings = settings_layers.Layers()
    settings.add({"runtime": {"setup": setup or []}}, "--set", Origin.TYPED)
    site = settings_layers.build(schema.Site, settings)
    return unsafe_rendezvous.check(site, spec, plan(site, spec, RunLocation(tmp_path, "/usr/bin/python3", "0")))


@pytest.fixture(autouse=True)
def _no_variables_of_torchrun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PET_RDZV_BACKEND", "PET_STANDALONE", "PET_RDZV_ENDPOINT", "PET_MASTER_PORT", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def files(tmp_path: Path) -> None:
    unsafe = "# c10d\ntorchrun --nproc-per-node 2 \\\n    --rdzv_backend=c10d train.py 'it' # \"\n"
    contents: dict[str, str] = {
        "x.sh": unsafe.replace("# c10d", "#!/bin/bash -l"),
        "plain": unsafe,
        "batch.sh": unsafe.replace("# c10d", "#!/bin/bash\n#SBATCH --nodes=2"),
        "calls.sh": "source x.sh\n",
        "accelerates.sh": "accelerate launch \\\n  --config_file $FOLDER/tagged.yaml train.py\n",
        "tagged.yaml": "x: 1\nrdzv_backend: !!str c10d\n",
        "harmless.sh": "#!/bin/bash\n# c10d: torchrun --standalone\n  # unset ${!PET_*}\ntorchrun train.py\n",
        "large.sh": unsafe + "#" * (1 << 16),
        "binary.sh": unsafe + "\0",
        "train.py": "# torchrun\n'--rdzv_backend c10d'\n",
        "code": "#!/usr/bin/env python3\n'--rdzv_backend c10d'\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)


def test_each_spelling_of_a_rendezvous_that_unpickles_is_noted(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for line, instead in UNSAFE.items():
        with subtests.test(line):
            (note,) = notes(tmp_path, line, nodes=1 if "--stan" in line else 2)
            assert RISK in note
            assert note.endswith(f" Use '--ranks node -- {instead}' instead")
    (note,) = notes(tmp_path, "-m torch.distributed.run --standalone train.py", nodes=1)
    assert note.endswith(" Use '--ranks node -m torch.distributed.run train.py' instead")


@pytest.mark.usefixtures("files")
def test_each_text_that_a_run_starts_with_is_searched(tmp_path: Path, subtests: pytest.Subtests) -> None:
    places = dict.fromkeys(COMMANDS, "the command") | FILES
    for line, place in places.items():
        with subtests.test(line):
            (note,) = notes(tmp_path, line, FOLDER=str(tmp_path))
            because, _, remedy = note.partition(RISK)
            assert because.endswith(f" in {place}: ")
            assert (
                remedy
                == f" Remove '{because.partition(' in ')[0]}': with --ranks node, hpcml sets the static rendezvous"
            )
    for setup in (["module load x", "export PET_RDZV_BACKEND=c10d"], ["# c10d", "export PET_STANDALONE=1"]):
        (note,) = notes(tmp_path, "./start", setup=setup)
        assert note.startswith(setup[1].removeprefix("export ") + " in runtime.setup:2: other users")
    (note,) = notes(tmp_path, "torchrun train.py", setup=["source x.sh"])
    assert " in x.sh:3: " in note


@pytest.mark.usefixtures("files")
def test_the_next_step_of_a_batch_script_is_its_translation(tmp_path: Path) -> None:
    """Without --ranks node, nothing gives torchrun the rank of its node: to remove an option is not enough."""
    (note,) = notes(tmp_path, "batch.sh", each="")
    assert "--translate" in note.partition(RISK)[2]


@pytest.mark.usefixtures("files")
def test_harmless_texts_are_not_noted(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for line in SAFE:
        with subtests.test(line):
            assert notes(tmp_path, line) == []
    assert notes(tmp_path, "./start", setup=["module load c10d", "# PET_RDZV_BACKEND=c10d"]) == []
    assert notes(tmp_path, "./start", each="", setup=["export PET_RDZV_BACKEND=c10d"]) == []


@pytest.mark.usefixtures("files")
def test_a_long_text_is_searched_at_once(tmp_path: Path) -> None:
    """No pattern takes time that grows with the square of a text."""
    began = time.process_time()
    for piece in ("a", "a ", "unset ", "env -u ", "-", "--rdzv ", "#", ".sh ", "\n", " -u ", "PET_", "a=", "c10d."):
        text = piece * (60000 // len(piece))
        (tmp_path / "long.sh").write_text(f"torchrun train.py\n{text}\n")
        notes(tmp_path, "bash long.sh")
    assert time.process_time() - began < PATIENCE


@pytest.mark.usefixtures("files")
def test_torchrun_without_hpcml_s_rendezvous_takes_c10d_itself(tmp_path: Path) -> None:
    """It does so for one node where neither endpoint nor port is given, though its default is static."""
    for each in ("", "2"):
        for line in ("torchrun train.py", "torchrun --nnodes 01 train.py", "bash harmless.sh"):
            (note,) = notes(tmp_path, line, each=each, nodes=1)
            assert re.match(in_order("torchrun", "other users", f"'--ranks node -- {line}'"), note)
        assert notes(tmp_path, "torchrun --master-port 29500 train.py", each=each, nodes=1) == []
        assert notes(tmp_path, "bash -c 'torchrun --rdzv_endpoint=n:29500 train.py'", each=each, nodes=1) == []
        assert notes(tmp_path, "torchrun train.py", each=each, nodes=1, PET_MASTER_PORT="29500") == []
        assert notes(tmp_path, "accelerate launch train.py", each=each, nodes=1) == []
        assert notes(tmp_path, "./solver", each=each, nodes=1) == []


def test_a_user_s_variable_for_such_a_rendezvous_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unsafe: dict[str, Any] = {"PET_RDZV_BACKEND": "c10d", "PET_STANDALONE": "1"}
    for name, value in unsafe.items():
        for line in ("torchrun train.py", "./start", "train.py"):
            (note,) = notes(tmp_path, line, **{name: value})
            assert re.match(in_order(f"{name}={value}", "other users", f"Remove '{name}'", "--ranks node"), note)
        assert notes(tmp_path, "./start", each="", **{name: value}) == []
    assert notes(tmp_path, "torchrun train.py", PET_STANDALONE="0") == []
    monkeypatch.setenv("PET_RDZV_BACKEND", "c10d")
    (note,) = notes(tmp_path, "torchrun train.py")
    assert note.startswith("PET_RDZV_BACKEND=c10d: ")
    assert notes(tmp_path, "torchrun train.py", PET_RDZV_BACKEND="static") == []


def test_accelerate_s_configuration_is_read_if_it_is_the_user_s_small_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "a.yaml"
    named = "accelerate launch --config_file a.yaml train.py"
    for text in ("rdzv_backend: c10d\n", "x: 1\nrdzv_backend: 'c10d' # ours\n", '{"x": 1, "rdzv_backend": "c10d"}'):
        config.write_text(text)
        (note,) = notes(tmp_path, named)
        line = text.count("x: 1") + 1
        assert re.search(in_order(f"c10d in a.yaml:{line}:", "other users", "c10d'", "--ranks node"), note)
    for text in ("rdzv_backend: static\n", "# rdzv_backend: c10d\n", "rdzv_backend: c10d\n" + "#" * (1 << 16)):
        config.write_text(text)
        assert notes(tmp_path, named) == []
    for unreadable in ("no.yaml", ".", "/dev/zero"):
        assert notes(tmp_path, f"accelerate launch --config_file {unreadable} train.py") == []
    folders = {".cache/huggingface": {}, "xdg/huggingface": {"XDG_CACHE_HOME": "xdg"}, "hf": {"HF_HOME": "hf"}}
    for folder, moved in folders.items():
        monkeypatch.delenv("HF_HOME", raising=False)
        for kind in ("yaml", "json"):
            default = tmp_path / folder / f"accelerate/default_config.{kind}"
            default.parent.mkdir(parents=True, exist_ok=True)
            default.write_text("rdzv_backend: c10d\n")
            variables: dict[str, Any] = {name: str(tmp_path / value) for name, value in moved.items()}
            (note,) = notes(tmp_path, "accelerate launch train.py", **variables)
            assert note.startswith(f"rdzv_backend: c10d in {default}:1: ")
            config.write_text("rdzv_backend: static\n")
            assert notes(tmp_path, named, **variables) == []
            assert notes(tmp_path, "torchrun train.py", **variables) == []
            default.unlink()


def test_torchrun_that_would_wait_for_other_nodes_is_refused(tmp_path: Path) -> None:
    """With the static rendezvous it waits for the upper end of a range, until a timeout of minutes."""
    for words in ("--nnodes=2:4", "--nnodes 3", "--nno 1"):
        with pytest.raises(UsageError, match=in_order(f"torchrun {words}", "2 nodes")) as caught:
            notes(tmp_path, f"torchrun {words} train.py")
        assert caught.value.hint == "Remove --nnodes: hpcml sets it."
    for words in ("--nnodes=2", "--nnodes=1:2", "--nnodes=$SLURM_NNODES", "--nnodes 1 --rdzv_endpoint localhost:29500"):
        assert notes(tmp_path, f"torchrun {words} train.py") == []
    (note,) = notes(tmp_path, "bash -c 'torchrun --nnodes 4 train.py'")
    assert re.match(in_order("the command: torchrun --nnodes 4", "4 nodes", "2 nodes", "Remove --nnodes"), note)
    (tmp_path / "x.sh").write_text("python prepare.py && torchrun \\\n  --nnodes=4 train.py\n")
    (note,) = notes(tmp_path, "bash -e x.sh")
    assert note.startswith("x.sh: torchrun --nnodes=4 needs 4 nodes, ")
    assert notes(tmp_path, "torchrun train.py --nnodes 3") == []
    assert notes(tmp_path, "torchrun --no-python ./solver --nnodes 3") == []
    assert notes(tmp_path, "torchrun --nnodes " + "9" * 5000 + " train.py") == []
    (note,) = notes(tmp_path, "torchrun --nnodes=2:4 --rdzv-backend=c10d train.py")
    assert "other users of the nodes" in note


def test_a_rendezvous_of_one_node_is_refused_on_several(tmp_path: Path) -> None:
    """Each torchrun would wait for the other nodes at a rendezvous of its own."""
    for option in ("--standalone", "--stan"):
        with pytest.raises(UsageError, match=f"torchrun {option} is for one node, but the run has 2 nodes"):
            notes(tmp_path, f"torchrun {option} --nproc-per-node 2 train.py", nodes=2)
    assert notes(tmp_path, "torchrun --nproc-per-node 2 train.py --standalone", nodes=2) == []
