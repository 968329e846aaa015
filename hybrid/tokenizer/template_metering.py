"""Compiles templates so that loops, comparisons and literals report what they do.

Jinja's sandbox already asks before calls and operators, and filters can be replaced;
for the rest this puts filters into the parsed template.
"""

from typing import Any, Final

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.visitor import NodeTransformer

METERED: Final = " metered"
"""Filter around what a loop goes over."""
WEIGHED: Final = " weighed"
"""Filter around what is cut out or listed."""
COMPARED: Final = " compared"
"""Filter around each operand of a comparison."""
CONCATENATED: Final = " concatenated"
"""Filter that stands for ``~``. No template can spell these names."""


class MeteringGenerator(CodeGenerator):
    """Jinja's compiler, after ``_Metering``."""

    def visit_Template(  # noqa: N802  (jinja2's name)
        self, node: nodes.Template, frame: Frame | None = None
    ) -> None:
        """Compile ``node``."""
        super().visit_Template(_Metering().visit(node), frame)


class _Metering(NodeTransformer):
    def visit_For(self, node: nodes.For) -> Any:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filter(node.iter, METERED)
        return node

    def visit_Concat(self, node: nodes.Concat) -> Any:  # noqa: N802
        self.generic_visit(node)
        values = nodes.List(node.nodes, lineno=node.lineno)
        return _filter(values, CONCATENATED)

    def visit_Compare(self, node: nodes.Compare) -> Any:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filter(node.expr, COMPARED)
        for operand in node.ops:
            operand.expr = _filter(operand.expr, COMPARED)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> Any:  # noqa: N802
        self.generic_visit(node)
        return _filter(node, WEIGHED) if isinstance(node.arg, nodes.Slice) else node

    def visit_TemplateData(self, node: nodes.TemplateData) -> Any:  # noqa: N802
        # Plain text is put out uncounted, a constant is not.
        return nodes.Const(node.data, lineno=node.lineno)

    def _visit_literal(self, node: Any) -> Any:
        self.generic_visit(node)
        is_target = getattr(node, "ctx", "load") != "load"
        return node if is_target else _filter(node, WEIGHED)

    visit_List = visit_Tuple = visit_Dict = _visit_literal  # noqa: N815


def _filter(node: Any, name: str) -> Any:
    if isinstance(node, nodes.Const):
        return node
    wrapped = nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
    wrapped.environment = node.environment
    return wrapped
