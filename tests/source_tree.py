"""The files of this project, as the structure tests read them."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
ROOMS: Final = ("scheduler", "bridge", "backends")
PACKAGE_FOLDERS: Final = (*ROOMS, "hybrid")
"""What the wheel of the engine holds."""
PLUGINS: Final = "plugins"
"""The folder of the distributions beside it."""
_NOT_OURS: Final = {"build", "dist", "shared", "__pycache__"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


def project_files() -> Iterator[Path]:
    """Yield every file that belongs to the project; no links, no caches, no builds."""
    folders = [ROOT]
    while folders:
        for path in folders.pop().iterdir():
            ours = path.name not in _NOT_OURS and not path.name.endswith(".egg-info")
            hidden = path.name.startswith(".") and path.name != ".ci"
            if path.is_symlink() or not ours or (hidden and path.is_dir()):
                continue
            if (path / "pyvenv.cfg").exists():
                continue
            if path.is_dir():
                folders.append(path)
            else:
                yield path


def python_files(*folders: str) -> list[Path]:
    """List the Python files under some top-level folders, all of them by default."""
    files = [path for path in project_files() if path.suffix == ".py"]
    tops = set(folders) or {path.relative_to(ROOT).parts[0] for path in files}
    return sorted(p for p in files if p.relative_to(ROOT).parts[0] in tops)


def parse(path: Path) -> ast.Module:
    """Read one file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def place(path: Path, node: ast.AST | None = None) -> str:
    """Say where something is, for a failure's message."""
    line = getattr(node, "lineno", None)
    return f"{path.relative_to(ROOT)}" + (f":{line}" if line else "")


def functions(tree: ast.AST) -> Iterator[Function]:
    """Yield every function and method, nested ones included."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def num_code_lines(function: Function) -> int:
    """Count a function's lines from its ``def`` on, without its docstring."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    text = function.body[0]
    assert text.end_lineno is not None
    return lines - (text.end_lineno - text.lineno + 1)


def public_definitions(
    body: list[ast.stmt], prefix: str = ""
) -> Iterator[tuple[str, Definition]]:
    """Yield public classes, functions and methods with their dotted names."""
    for node in body:
        if isinstance(node, (ast.If, ast.Try)):
            yield from public_definitions(node.body, prefix)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if node.name.startswith("_"):
            continue
        yield f"{prefix}{node.name}", node
        if isinstance(node, ast.ClassDef):
            yield from public_definitions(node.body, f"{prefix}{node.name}.")
