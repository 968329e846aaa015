"""Files, functions and classes stay small enough to be read at once."""

import ast
from typing import Final

from tests.source_tree import (
    PACKAGE_FOLDERS,
    PLUGINS,
    ROOT,
    functions,
    num_code_lines,
    parse,
    place,
    public_definitions,
    python_files,
)

MAX_FILE_LINES: Final = 300
MAX_FUNCTION_LINES: Final = 40
MAX_PUBLIC_METHODS: Final = 12


def test_files_are_short() -> None:
    """No Python file has more than 300 lines."""
    lengths = {place(p): len(p.read_text("utf-8").splitlines()) for p in python_files()}
    assert not {p: n for p, n in lengths.items() if n > MAX_FILE_LINES}


def test_functions_are_short() -> None:
    """No function has more than 40 lines besides its docstring, tests left out."""
    lengths = {
        f"{place(path, function)} {function.name}": num_code_lines(function)
        for path in python_files(*PACKAGE_FOLDERS, PLUGINS)
        for function in functions(parse(path))
    }
    assert not {name: n for name, n in lengths.items() if n > MAX_FUNCTION_LINES}


def test_classes_have_few_public_methods() -> None:
    """No class has more than 12 public methods; properties are not counted."""
    counts: dict[str, int] = {}
    for path in python_files(*PACKAGE_FOLDERS, PLUGINS):
        for name, node in public_definitions(parse(path).body):
            if isinstance(node, ast.ClassDef):
                counts[f"{place(path, node)} {name}"] = len(_public_methods(node))
    assert counts
    assert not {name: n for name, n in counts.items() if n > MAX_PUBLIC_METHODS}


def _public_methods(node: ast.ClassDef) -> list[str]:
    return [
        item.name
        for item in node.body
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))
        and not item.name.startswith("_")
        and not any("property" in ast.unparse(d) for d in item.decorator_list)
    ]


def test_init_modules_only_re_export() -> None:
    """A room's ``__init__`` holds imports and ``__all__``, no code of its own."""
    coded = [
        place(path, node)
        for path in python_files("scheduler", "bridge", "backends")
        if path.name == "__init__.py"
        for node in parse(path).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.For, ast.While))
    ]
    assert not coded
    assert (ROOT / "hybrid" / "__init__.py").is_file()
