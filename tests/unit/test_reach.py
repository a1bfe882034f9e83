"""Which folders above its own a script reaches, without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.runs import folders_code_uses

_ABOVE = {  # how far above the script's folder each text leads
    "ROOT = Path(__file__).resolve().parent.parent": 1,
    "ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))": 1,
    "ROOT = path.join(path.dirname(__file__), '..', '..', '..', 'Datasets')": 3,
    "ROOT = Path(__file__).parents[2] / 'data'": 2,
    "ROOT = Path(__file__).parents[0] / 'data'": 0,
    "HERE = Path(__file__).parent\nDATA = HERE / '..' / 'data'": 1,
    "HERE = Path(__file__).parent\nDATA = HERE / 'data'": 0,
    "HERE = os.path.dirname(__file__)\nDATA = HERE + '/../../data'": 2,
    "HERE = os.path.dirname(__file__)\nDATA = f'{HERE}/../data'": 1,
    "HERE = os.path.dirname(__file__)\nDATA = '%s/../data' % HERE": 1,
    "HERE = os.path.dirname(__file__)\nDATA = '{}/../data'.format(HERE)": 1,
    "ROOT = '/'.join(__file__.split('/')[:-2])": 1,
    "ROOT = Path(*Path(__file__).parts[:-2])": 1,
    "ROOT = os.path.split(os.path.split(os.path.abspath(__file__))[0])[0]": 1,
    "ROOT = os.path.abspath(__file__).rsplit('/', 2)[0]": 1,
    "ROOT = Path(sys.argv[0]).resolve().parents[1]": 1,
    "ROOT = Path(os.path.realpath(__file__)).joinpath('..', '..').resolve()": 1,
    "ROOT = Path(inspect.getfile(inspect.currentframe())).parent.parent": 1,
    "def root():\n    return Path(__file__).parent\ndata = root().parent / 'data'": 1,
    "def root():\n    return HERE.parent\nHERE = Path(__file__).parent": 1,
    "class Config:\n    root: Path = Path(__file__).resolve().parents[1]": 1,
    "@hydra.main(version_base=None, config_path='../configs', config_name='train')\ndef main(cfg): ...": 1,
    "@hydra.main(version_base=None, config_path='configs')\ndef main(cfg): ...": 0,
    "os.chdir(os.path.dirname(os.path.abspath(__file__)))\nopen('../data/a.csv')": 1,
    "open('../data/a.csv')": 0,  # from the working folder, which is not copied
    "sys.path.append(str(Path(__file__).parent.parent))": 1,
    "sys.path.insert(0, os.path.join(os.path.dirname(__file__), os.pardir))": 1,
    "from config import ROOT\nprint(ROOT / 'data')": 1,
    "from config import HERE\nprint(HERE.parent)": 1,
    "import config as c\nprint(c.HERE.parent.parent)": 2,
    "from pkg.paths import DATA": 1,
    "def main():\n    from config import ROOT": 1,
    "if True:\n    try:\n        R = Path(__file__).parents[1]\n    except Exception:\n        pass": 1,
    "with open(Path(__file__).parent.parent / 'a') as f: ...": 1,
    "x = [open(HERE / '..' / name) for name in names]\nHERE = Path(__file__).parent": 0,  # that is an error
    "p = Path(__file__) if x else None\nq = (p or y).parent.parent": 1,
    "import argparse\nargparse.ArgumentParser().add_argument('--d', default=Path(__file__).parent.parent)": 1,
    "print('Path(__file__).parent.parent')": 0,
    "names = a.parent.parent\nb = x.dirname(y)": 0,
    "this is not Python: Path(__file__).parent.parent": 0,
}


def _project(top: Path, text: str) -> Path:
    folder = top / "a" / "b" / "proj" / "scripts"
    (folder / "pkg").mkdir(parents=True)
    (folder / "config.py").write_text(
        "from pathlib import Path\nHERE = Path(__file__).parent\nROOT = Path('.')\n" if "HERE" in text or "c." in text
        else "from pathlib import Path\nROOT = Path(__file__).resolve().parent.parent\n"
    )  # fmt: skip
    (folder / "pkg" / "__init__.py").touch()
    (folder / "pkg" / "paths.py").write_text("from pathlib import Path\nDATA = Path(__file__).parents[2] / 'data'\n")
    (folder / "unused.py").write_text("ROOT = __import__('pathlib').Path(__file__).parents[3]\n")
    (folder / "train.py").write_text(text)
    return folder


@pytest.mark.parametrize("text", _ABOVE)
def test_the_folder_above_that_a_script_reaches_is_found(tmp_path: Path, text: str) -> None:
    folder = _project(tmp_path, text)
    found = folders_code_uses.of_python(folder / "train.py", folder)
    assert found.top == [folder, *folder.parents][_ABOVE[text]], found
    assert bool(found.places) == bool(_ABOVE[text])
    assert not found.searches


@pytest.mark.parametrize(
    "text",
    [
        "for place in Path(__file__).resolve().parents:\n    if (place / '.git').exists(): break",
        "ROOT = Path(__file__).parent\nwhile not (ROOT / '.git').exists():\n    ROOT = ROOT.parent",
        "ROOT = next(p for p in Path(__file__).parents if (p / 'pyproject.toml').exists())",
        "import rootutils\nrootutils.setup_root(__file__, indicator='.project-root', pythonpath=True)",
    ],
)
def test_a_search_upwards_is_told(tmp_path: Path, text: str) -> None:
    folder = _project(tmp_path, text)
    assert folders_code_uses.of_python(folder / "train.py", folder).searches


def test_modules_that_sys_path_adds_are_followed(tmp_path: Path) -> None:
    folder = _project(tmp_path, "import sys, os\nsys.path.append(os.path.dirname(__file__) + '/../src')\nimport tool")
    (folder.parent / "src").mkdir()
    (folder.parent / "src" / "tool.py").write_text("from pathlib import Path\nDATA = Path(__file__).parents[2] / 'd'\n")
    found = folders_code_uses.of_python(folder / "train.py", folder)
    assert found.top == folder.parent.parent
    assert found.modules == (folder / "train.py", folder.parent / "src" / "tool.py")
    assert found.places == ("train.py:2", "../src/tool.py:2")


@pytest.mark.parametrize(
    ("text", "up"),
    [
        ('cd "$(dirname "$0")/.."', 1),
        ('HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\nls $HERE/../data', 1),
        ('ROOT=$(dirname "$(dirname "$(realpath "$0")")")', 1),
        ('cd "$(dirname "$0")"\nls data', 0),
        ("ls ../data", 0),
        ('echo "$0: wait..."', 0),
    ],
)
def test_a_shell_script_reaches_above_by_its_own_name(tmp_path: Path, text: str, up: int) -> None:
    folder = tmp_path / "proj" / "scripts"
    folder.mkdir(parents=True)
    (folder / "run.sh").write_text(f"#!/bin/bash\n{text}\n")
    found = folders_code_uses.of_shell(folder / "run.sh", folder)
    assert found.top == [folder, *folder.parents][up]
    assert bool(found.places) == bool(up)


_BOMBS = {  # texts for which nothing may grow faster than they are long
    "functions within functions": "".join(f"{' ' * depth}def f{depth}():\n" for depth in range(90)) + " " * 90 + "pass",
    "a long dotted name": "import " + ".".join("a" * 3000),
    "a long name": f"import {'a' * 300}",
    "many folders in one text": "p = __file__ + '" + "a/" * 400_000 + "'",
}


@pytest.mark.parametrize("what", _BOMBS)
def test_a_text_that_is_made_to_be_slow_is_not(tmp_path: Path, what: str) -> None:
    script = tmp_path.resolve() / "train.py"
    script.write_text(f"{_BOMBS[what]}\nfrom pathlib import Path\nROOT = Path(__file__).parent.parent\n")
    assert (
        folders_code_uses.of_python(script, script.parent).top == script.parent.parent
    )  # without an end, pytest's limit tells


def test_of_many_large_modules_only_some_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders_code_uses, "_MOST_BYTES", 1000)
    script = tmp_path.resolve() / "train.py"
    script.write_text("".join(f"import m{number}\n" for number in range(9)))
    for number in range(9):
        (tmp_path / f"m{number}.py").write_text(
            f"from pathlib import Path\nA = Path(__file__).parent.parent#{'x' * 200}"
        )
    assert len(folders_code_uses.of_python(script, script.parent).places) == 3
