"""The messages of all errors are those of the golden page: a change of wording is read there, in one place."""

from __future__ import annotations

import ast

import pytest

import messages
from golden_files import compare


def test_the_messages_are_the_golden_ones(request: pytest.FixtureRequest) -> None:
    compare(messages.PAGE, messages.page(), request)


CODE = """
def f(kind, name, text, step):
    hint = f"Add {name} to it."
    if kind:
        hint = "Remove it now."
    raise OddError(f"No {kind} {name!r}" + ("s" if many else ""), place=f"{path}:{line}", hint=step or "Try again.")
    raise other.OddError("text of " + str(name), hint=in_words("See hpcml help.", 3))
    raise OddError("Text", hint=hint)
    raise OddError(text)
    raise ValueError("not an error of hpcml")
"""


def test_values_and_choices_of_a_message_are_shown() -> None:
    assert list(messages.messages_of(ast.parse(CODE), {"OddError"})) == [
        "OddError: No {} {}[s / ] ({}:{}). [{} / Try again.]",
        "OddError: text of {}. {See hpcml help.}",
        "OddError: Text. [Add {} to it. / Remove it now.]",
    ]


def test_the_classes_of_all_modules_are_known() -> None:
    assert {"HpcmlError", "UsageError", "ConfigError", "StorageError"} <= messages.error_classes()
    assert "ValueError" not in messages.error_classes()
