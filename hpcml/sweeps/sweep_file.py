"""A sweep file as Weights & Biases writes it (YAML: ``method``, ``metric``, ``parameters``), as far as it is plain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcml.errors import HpcmlError, NotFoundError, UsageError

if TYPE_CHECKING:
    from yaml.nodes import Node

ENDS = (".yaml", ".yml")
_TOP = ("method", "metric", "parameters", "run_cap")
_PASSED_OVER = ("program", "name", "description", "project", "entity")  # SCRIPT and --name say it here
# The numbers that each distribution takes, with those that may be left out.
_NUMBERS: dict[str, dict[str, float | None]] = {
    "uniform": {"min": None, "max": None},
    "int_uniform": {"min": None, "max": None},
    "q_uniform": {"min": None, "max": None, "q": 1.0},
    "log_uniform_values": {"min": None, "max": None},
    "normal": {"mu": 0.0, "sigma": 1.0},
}
_LISTS = {"constant": "value", "categorical": "values"}
_KNOWN = ", ".join([*_LISTS, *_NUMBERS])


class Parameter(NamedTuple):
    """One parameter: its values as texts, ``plain`` those that stood without quotes; or a distribution's numbers."""

    name: str
    texts: tuple[str, ...] = ()
    plain: tuple[bool, ...] = ()
    distribution: str = ""
    numbers: tuple[float, ...] = ()


class SweepFile(NamedTuple):
    """What a file says: ``method`` is grid or random, ``draws`` its run_cap (0: not said)."""

    method: str
    metric: str
    maximize: bool
    draws: int
    parameters: tuple[Parameter, ...]


def read(text: str, place: str) -> SweepFile:
    """Return what a sweep file says.

    Raises
    ------
    NotFoundError
        If PyYAML is not installed.
    UsageError
        If it is no YAML, or holds something that is not supported; the sentence names the line.
    """
    try:
        import yaml
    except ImportError:
        hint = "Install it: pip install 'hpcml[sweep]'."
        raise NotFoundError("A sweep file in YAML needs PyYAML", place=place, hint=hint) from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _wrong(line, f"is no YAML: {error.problem}", place, "Correct it there.") from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise UsageError("The file is no YAML", place=place, hint="Write it as text, with few levels.") from None
    if root is None:
        raise UsageError("The file holds no points", place=place, hint="Write method and parameters.")
    return _File(place).sweep(root)


class _File:
    """Reads the nodes of one file; ``place`` is for its errors."""

    def __init__(self, place: str) -> None:
        self.place = place

    def sweep(self, root: Node) -> SweepFile:
        table = self.table(root, "the file")
        for name, node in table.items():
            if name not in (*_TOP, *_PASSED_OVER):
                hint = {
                    "early_terminate": "Take it out, and give --halving METRIC.",
                    "command": "Take it out: the script gets each value as --NAME VALUE.",
                }.get(name, f"Take it out; there are {', '.join(_TOP)}.")
                raise self.wrong(node, f"has '{name}', which is not supported", hint)
        if "method" not in table:
            raise self.wrong(root, "begins a file without 'method'", "Write method: grid, or method: random.")
        method = self.text(table["method"], "method")
        if method not in ("grid", "random"):
            hint = "Write method: grid, or method: random."
            raise self.wrong(table["method"], f"asks for the method '{method}', which is not supported", hint)
        if "parameters" not in table:
            raise self.wrong(root, "begins a file without 'parameters'", "Write parameters:, and each below it.")
        found = self.table(table["parameters"], "parameters")
        if not found:
            raise self.wrong(table["parameters"], "has no parameters", "Write at least one.")
        parameters = tuple(self.parameter(name, node, method) for name, node in found.items())
        metric, maximize = self.metric(table["metric"]) if "metric" in table else ("", False)
        draws = self.cap(table["run_cap"]) if "run_cap" in table else 0
        return SweepFile(method, metric, maximize, draws, parameters)

    def metric(self, node: Node) -> tuple[str, bool]:
        table = self.table(node, "metric")
        for name, value in table.items():
            if name not in ("name", "goal"):
                raise self.wrong(value, f"has '{name}', which is not supported", "There are name and goal.")
        goal = self.text(table["goal"], "goal") if "goal" in table else "minimize"
        if goal not in ("minimize", "maximize"):
            raise self.wrong(table["goal"], f"has the goal '{goal}'", "Write minimize or maximize.")
        return self.text(table["name"], "name") if "name" in table else "", goal == "maximize"

    def cap(self, node: Node) -> int:
        number = self.number(node, "run_cap")
        if number < 1 or number != int(number):
            raise self.wrong(node, "has a run_cap that is no whole number above 0", "Write run_cap: 50.")
        return int(number)

    def parameter(self, name: str, node: Node, method: str) -> Parameter:
        table = self.table(node, name)
        if "parameters" in table:
            hint = "Write its parameters beside the others."
            raise self.wrong(table["parameters"], f"has parameters in the parameter '{name}'", hint)
        kind = self.kind(name, node, table)
        allowed = ("distribution", _LISTS[kind]) if kind in _LISTS else ("distribution", *_NUMBERS[kind])
        for key, value in table.items():
            if key not in allowed:
                hint = f"It takes {' and '.join(allowed[1:])}."
                raise self.wrong(value, f"has '{key}', which a {kind} parameter does not take here", hint)
        if kind in _LISTS:
            return self.listed(name, node, table.get(_LISTS[kind]), kind)
        numbers = []
        for key, default in _NUMBERS[kind].items():
            if key not in table and default is None:
                raise self.wrong(node, f"has no '{key}' for '{name}'", f"{kind} takes {', '.join(_NUMBERS[kind])}.")
            numbers.append(self.number(table[key], key) if key in table else float(default or 0))
        self.check(name, node, kind, numbers)
        if method == "grid" and kind != "int_uniform":
            hint = "Write values: […], or method: random."
            raise self.wrong(node, f"has a {kind} parameter, of which a grid cannot take every value", hint)
        return Parameter(name, distribution=kind, numbers=tuple(numbers))

    def kind(self, name: str, node: Node, table: Mapping[str, Node]) -> str:
        """Return the distribution: as it is written, else what the keys tell."""
        if "distribution" in table:
            kind = self.text(table["distribution"], "distribution")
            if kind not in _LISTS and kind not in _NUMBERS:
                hint = f"There are {_KNOWN}."
                raise self.wrong(table["distribution"], f"has the distribution '{kind}', which is not supported", hint)
            return kind
        for kind, key in _LISTS.items():
            if key in table:
                return kind
        if "min" in table and "max" in table:
            whole = all(table[key].tag == "tag:yaml.org,2002:int" for key in ("min", "max"))
            return "int_uniform" if whole else "uniform"
        hint = "Write values: […], value: …, or min: … and max: …."
        raise self.wrong(node, f"does not say what the values of '{name}' are", hint)

    def listed(self, name: str, node: Node, values: Node | None, kind: str) -> Parameter:
        if values is None:
            raise self.wrong(node, f"has no '{_LISTS[kind]}' for '{name}'", f"{kind} takes {_LISTS[kind]}.")
        nodes: Sequence[Node] = [values]
        if kind == "categorical":
            if values.id != "sequence" or not values.value:
                raise self.wrong(values, f"has no list of values for '{name}'", "Write values: [8, 16].")
            nodes = values.value
        texts = tuple(self.value(one, name) for one in nodes)
        return Parameter(name, texts, tuple(one.style is None for one in nodes))

    def check(self, name: str, node: Node, kind: str, numbers: Sequence[float]) -> None:
        """Refuse numbers that no draw could keep."""
        if kind == "normal":
            if numbers[1] <= 0:
                raise self.wrong(node, f"has a sigma for '{name}' that is not above 0", "Write sigma: 1.")
            return
        low, high = numbers[:2]
        if kind == "int_uniform" and (low != int(low) or high != int(high)):
            raise self.wrong(node, f"has bounds for '{name}' that are no whole numbers", "Write min: 1 and max: 8.")
        if low > high or (low == high and kind != "int_uniform"):
            raise self.wrong(node, f"has a min for '{name}' that is not below its max", "Turn them round.")
        if kind == "log_uniform_values" and low <= 0:
            raise self.wrong(node, f"has a min for '{name}' that is not above 0", "A logarithm needs that.")
        if kind == "q_uniform" and numbers[2] <= 0:
            raise self.wrong(node, f"has a q for '{name}' that is not above 0", "Write q: 0.5.")

    # -- nodes of YAML -------------------------------------------------------------------------------------------------

    def table(self, node: Node, what: str) -> dict[str, Node]:
        if node.id != "mapping":
            raise self.wrong(node, f"has no table for {what}", "Write NAME: VALUE, on lines of their own.")
        found: dict[str, Node] = {}
        for key, value in node.value:
            if key.id != "scalar":
                raise self.wrong(key, "has a name that is no text", "Write NAME: VALUE.")
            if key.value in found:
                raise self.wrong(key, f"gives '{key.value}' twice", "Give each name once.")
            found[key.value] = value
        return found

    def text(self, node: Node, what: str) -> str:
        if node.id != "scalar" or not node.value:
            raise self.wrong(node, f"has no text for {what}", f"Write {what}: TEXT.")
        return str(node.value)

    def value(self, node: Node, name: str) -> str:
        """Return a value as the script gets it: True and False so, a number as Python writes it, else the text."""
        made = self.made(node) if node.id == "scalar" else None
        if made is None or made == "" or (isinstance(made, float) and not math.isfinite(made)):
            hint = "Write numbers, texts, true or false."
            raise self.wrong(node, f"has a value of '{name}' that is no number and no text", hint)
        return made if isinstance(made, str) else str(made)

    def number(self, node: Node, what: str) -> float:
        made = self.made(node) if node.id == "scalar" else None
        try:
            number = float(made) if not isinstance(made, bool) and made is not None else math.nan  # YAML 1.1: '1e-3'
        except (ValueError, OverflowError):  # is a text
            number = math.nan
        if not math.isfinite(number):
            raise self.wrong(node, f"has no number for {what}", f"Write {what}: 1.0.")
        return number

    def made(self, node: Any) -> int | float | bool | str | None:
        """Return a scalar by its kind; a date is a text, as the script gets it."""
        from yaml.constructor import SafeConstructor

        makers = {
            "tag:yaml.org,2002:int": SafeConstructor.construct_yaml_int,
            "tag:yaml.org,2002:float": SafeConstructor.construct_yaml_float,
            "tag:yaml.org,2002:bool": SafeConstructor.construct_yaml_bool,
        }
        if node.tag in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:timestamp"):
            return str(node.value)
        maker = makers.get(node.tag)
        try:
            made: int | float | bool | None = maker(SafeConstructor(), node) if maker else None
        except (ValueError, KeyError):
            return None
        return made

    def wrong(self, node: Node, what: str, hint: str) -> HpcmlError:
        return _wrong(node.start_mark.line + 1, what, self.place, hint)


def _wrong(line: int, what: str, place: str, hint: str) -> HpcmlError:
    return UsageError(f"Line {line} {what}", place=place, hint=hint)
