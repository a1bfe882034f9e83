"""From what was given of options, on a command line or in Python, to the request."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from hpcml.errors import UsageError, did_you_mean, nearest
from hpcml.kinds import KINDS
from hpcml.options.sbatch_options import directive, instead
from hpcml.options.table import OPTIONS, of
from hpcml.request import variables
from hpcml.request.option import Option, as_word
from hpcml.request.record import OPTIONAL, Code, RunRequest
from hpcml.terminal import json_text
from hpcml.workload_forms import Form


def request_of(given: Mapping[str, Any], code: Code) -> RunRequest:
    """Return the request; ``given`` is by option a text, a list of texts or True, and None or False where it was not.

    An option that has the name of a kind of run chooses that kind.

    Raises
    ------
    HpcmlError
        If a value cannot be read, or the kind of run has no such option; the place is the option.
    """
    request = RunRequest(code)
    chosen = code.form.traits.kind or next((kind for kind in KINDS if _is_given(given, kind)), request.kind)
    request = request._replace(kind=chosen)
    values: dict[str, Any] = {"environment": variables.read(given.get("env_file") or (), given.get("env") or ())}
    for name, option in OPTIONS.items():
        if not _is_given(given, name) or name == "sbatch":
            continue
        _check_kind(option, request.kind)
        is_part = name in OPTIONAL or bool(option.kinds)
        if is_part or isinstance(given[name], str):  # --in is no part of the request, but a bad value of it is refused
            value = option.read(given[name], option.word)
            values |= {name: value} if is_part else {}
    if "gpus_per_node" in values:
        values["gpu_type"], values["gpus_per_node"] = values["gpus_per_node"]
    values["settings"] = tuple(given.get("set") or ())
    values["line_settings"] = tuple(given.get("line_set") or ())
    as_is = code.form is Form.BATCH
    passed = (directive(text, "hpcml submit", as_is=as_is) for text in given.get("sbatch") or ())
    values["sbatch"] = tuple(dict(passed).items())
    return request.changed(**values)


def _check_kind(option: Option, kind: str) -> None:
    """Raise UsageError if runs of a kind do not have an option."""
    if option.kinds and kind not in option.kinds:
        kinds = " and ".join(sorted(option.kinds))
        message = f"{option.word} is for runs of kind {kinds}, but this run is of kind {kind}"
        choice = next((f", or add {as_word(name)}" for name in option.kinds if name in OPTIONS), "")
        raise UsageError(message, place=option.word, hint=f"Remove {option.word}{choice}.")


def _is_given(given: Mapping[str, Any], name: str) -> bool:
    return given.get(name) is not None and given[name] is not False


def given_by_keywords(keywords: Mapping[str, Any], allowed: Collection[str], caller: str) -> dict[str, Any]:
    """Return keywords of Python as :func:`request_of` takes them.

    Parameters
    ----------
    allowed
        Names of options: ``table.of("map")``.
    caller
        What the user called, for errors.

    Raises
    ------
    UsageError
        If there is no such option, or a flag has another value than True and False.
    """
    given: dict[str, Any] = {}
    for name, value in keywords.items():
        if name not in allowed:
            hint = (
                f"Remove {name}: only hpcml.submit() takes this argument."
                if name in of("python")
                else instead(as_word(name))
            )
            hint = hint or did_you_mean(
                nearest(name, allowed),
                "hpcml submit --help-all lists all options. To wait for the run, use run.wait().",
            )
            raise UsageError(f"{caller} has no option '{name}'", place=f"{name}={value!r}", hint=hint)
        if value is None or value is False:
            continue
        option = OPTIONS[name]
        if option.is_flag and value is not True:
            raise UsageError(f"'{name}' must be True or False", place=f"{name}={value!r}", hint=f"Write {name}=True.")
        if option.passed:
            passed = option.word if option.is_flag else f"{option.word}={as_text(value)}"
            given.setdefault("sbatch", []).append(passed)
        elif option.is_flag:
            given[name] = True
        elif option.several:
            given.setdefault(name, []).extend(as_texts(value))
        else:
            given[name] = as_text(value)
    return given


def as_texts(value: object) -> list[str]:
    """Return the values of an option that may be repeated; a mapping is ``KEY=VALUE`` for each key."""
    if isinstance(value, Mapping):
        return [f"{key}={as_text(one)}" for key, one in value.items()]
    return [as_text(element) for element in (value if isinstance(value, (list, tuple)) else [value])]


def as_text(value: object) -> str:
    """Return a value as it is typed."""
    return json_text(value) if isinstance(value, (bool, list, tuple, dict)) else str(value)
