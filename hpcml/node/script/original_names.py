"""Warnings and tracebacks name the files that were submitted; what runs is the run's copy of them."""

from __future__ import annotations

import functools
import traceback
import warnings
from typing import Any

from hpcml.node.settings import load


def install() -> None:
    """Have this process name them; the lines that it shows are still the copy's, as the original may have changed."""
    context = load()
    if not context.settings.code.copy_of:
        return
    copy, original = f"{context.run.code}/", f"{context.settings.code.copy_of}/"
    _rename(getattr(traceback, "StackSummary", None), "format_frame_summary", f'  File "{copy}', f'  File "{original}')
    _rename(warnings, "_formatwarnmsg_impl", copy, original)  # formatwarning, which is public, gets no source


def _rename(owner: Any, name: str, copy: str, original: str) -> None:
    """Have a function's text begin with the original's name; nothing where a module beside the script is the owner."""
    function = getattr(owner, name, None)
    if function is None or hasattr(function, "__wrapped__"):
        return

    @functools.wraps(function)
    def renamed(*arguments: Any, **options: Any) -> Any:
        text = function(*arguments, **options)
        return original + text[len(copy) :] if isinstance(text, str) and text.startswith(copy) else text

    setattr(owner, name, renamed)
