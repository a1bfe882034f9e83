"""The batch script's template as a Python function, which spares each submission the import and the work of Jinja2."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

from jinja2 import nodes

from hpcml import assets
from hpcml.plan import batch_script

FILE = Path(batch_script.__file__).with_name("compiled_template.py")
HEAD = '''"""What batch.sh.j2 says, as a function: written by `make bless`, never by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hpcml.plan.plan import Plan

TEMPLATE_CRC = {crc}  # of the template that this was made from


def lay_out(
    plan: Plan,
    sh: Callable[[object], str],
    argv: Callable[[Sequence[str]], str],
    directive: Callable[[tuple[str, str]], str],
    comment: Callable[[object], str],
) -> Iterator[str]:
    """Yield the pieces of the batch script."""
'''


def layout() -> str:
    """Return the module that lays a plan out as the template does.

    Raises
    ------
    NotImplementedError
        If the template uses what this does not translate.
    """
    source = (assets.folder("templates") / batch_script.TEMPLATE).read_text(encoding="utf-8")
    environment = batch_script._environment(())
    lines = _lines(environment.parse(source).body, "    ")
    return HEAD.format(crc=zlib.crc32(source.encode())) + "\n".join(lines) + "\n"


def _lines(body: list[nodes.Node], indent: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, nodes.Output):
            pieces = [repr(one.data) if isinstance(one, nodes.TemplateData) else _value(one) for one in node.nodes]
            yield f"{indent}yield from ({', '.join(pieces)},)"
        elif isinstance(node, nodes.Block):
            yield from _lines(node.body, indent)
        elif isinstance(node, nodes.For) and not (node.else_ or node.test or node.recursive):
            yield f"{indent}for {_value(node.target)} in {_value(node.iter)}:"
            yield from _lines(node.body, f"{indent}    ")
        elif isinstance(node, nodes.If):
            for word, one in (("if", node), *(("elif", other) for other in node.elif_)):
                yield f"{indent}{word} {_value(one.test)}:"
                yield from _lines(one.body, f"{indent}    ")
            if node.else_:
                yield f"{indent}else:"
                yield from _lines(node.else_, f"{indent}    ")
        else:
            raise NotImplementedError(f"{type(node).__name__} in line {node.lineno}")


def _value(node: nodes.Node | None) -> str:
    if isinstance(node, nodes.Name):
        return node.name
    if isinstance(node, nodes.Const):
        return repr(node.value)
    if isinstance(node, nodes.Neg):
        return f"-{_value(node.node)}"
    if isinstance(node, nodes.Not):
        return f"not {_value(node.node)}"
    if isinstance(node, nodes.Getattr):
        return f"{_value(node.node)}.{node.attr}"
    if isinstance(node, nodes.Tuple):
        return ", ".join(map(_value, node.items))
    if isinstance(node, nodes.Filter) and not (node.args or node.kwargs):
        return f"{node.name}({_value(node.node)})"
    if isinstance(node, nodes.Compare) and [one.op for one in node.ops] == ["eq"]:
        return f"{_value(node.expr)} == {_value(node.ops[0].expr)}"
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice) and node.arg.step is None:
        start, stop = (_value(end) if end else "" for end in (node.arg.start, node.arg.stop))
        return f"{_value(node.node)}[{start}:{stop}]"
    raise NotImplementedError(f"{type(node).__name__} in line {node.lineno if node else '?'}")
