"""The surface that plugins may lean on, one line a promise, and its snapshot.

The modules are ``hybrid.api`` and ``hybrid.testing``; a parameter is a line of its own.
``python -m tests.hybrid.api_surface`` renews the snapshot, ``api_surface.txt``, and
refuses to while ``API_VERSION`` does not say what changed. ``--unreleased`` renews it
under the same version, for a version that nobody has been given yet.
"""

import dataclasses
import enum
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pluggy import HookimplMarker

from hybrid import api, testing

SNAPSHOT: Final = Path(__file__).with_name("api_surface.txt")
ADVICE: Final = (
    "hybrid.api or hybrid.testing is not what the snapshot says: {needed} needs "
    "API_VERSION's {part} raised (backends/interface.py, now {version}); then "
    "renew the snapshot with `python -m tests.hybrid.api_surface`"
)
_MODULE_PATH: Final = re.compile(r"\b(?:[A-Za-z_]\w*\.)+([A-Za-z_]\w*)")
_ARRAY: Final = re.compile(r"ndarray\[.*?dtype\[([\w]+)\]\]")


def version() -> str:
    """The version as the first line of a snapshot has it."""
    return f"API {api.API_VERSION[0]}.{api.API_VERSION[1]}"


def surface() -> list[str]:
    """Every promise of the modules, sorted; the version is not among them."""
    lines: list[str] = []
    for module in (api, testing):
        for name in module.__all__:
            value = getattr(module, name)
            if name == "API_VERSION":
                continue
            if inspect.isclass(value):
                lines += _class_lines(name, value)
            elif inspect.isfunction(value):
                lines += _call_lines("def", name, value)
            elif isinstance(value, HookimplMarker):
                lines.append(f"{name} = HookimplMarker({value.project_name!r})")
            else:
                lines.append(f"{name} = {_plain(repr(value))}")
    return sorted(lines)


def change(old: list[str], new: list[str]) -> str | None:
    """What a difference asks for: ``major``, ``minor``, or ``None`` without one.

    A line that is gone, or a duty that is new (an abstract method, a parameter or field
    without a default, of what was there before), breaks those who wrote against the old
    surface; other lines do not.
    """
    added = set(new) - set(old)
    owners = {
        re.split(r"[ (]", line)[1]
        for line in old
        if line.startswith(("class ", "def ", "method "))
    }
    duties = [
        line
        for line in added
        if (line.startswith("required ") and re.split(r"[ (]", line)[1] in owners)
        or (line.startswith("abstract ") and re.split(r"[ .]", line)[1] in owners)
    ]
    if set(old) - set(new) or duties:
        return "major"
    return "minor" if added else None


def is_raised(old_version: str, part: str) -> bool:
    """Whether the version has gone up, since a snapshot's, by what a change needs."""
    old, now = (
        [int(number) for number in text.removeprefix("API ").split(".")]
        for text in (old_version, version())
    )
    return now[0] > old[0] or (part == "minor" and now > old)


def advice(part: str, old: list[str], new: list[str]) -> str:
    """What to do about a difference, and the lines that differ."""
    needed = "a change or removal" if part == "major" else "an addition"
    head = ADVICE.format(needed=needed, part=part, version=version())
    gone = [f"- {line}" for line in old if line not in new]
    return "\n".join([head, *gone, *(f"+ {line}" for line in new if line not in old)])


def _class_lines(name: str, kind: type[Any]) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in kind.__bases__)
    yield f"class {name}({bases})"
    if issubclass(kind, enum.Enum):
        for member in kind:
            yield f"member {name}.{member.name} = {member.value!r}"
        return
    yield from _state_lines(name, kind)
    for attribute, value in vars(kind).items():
        if attribute.startswith("_") or attribute in getattr(kind, "_fields", ()):
            continue
        if inspect.isfunction(value):
            yield from _method_lines(f"{name}.{attribute}", kind, value)
        elif isinstance(value, property):
            assert value.fget is not None
            hint = inspect.signature(value.fget).return_annotation
            yield f"property {name}.{attribute}: {_plain(_name_of(hint))}"


def _state_lines(name: str, kind: type[Any]) -> Iterator[str]:
    """How an object is made, and what a subclass may set."""
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        yield from _parameter_lines(name, inspect.signature(kind).parameters)
    elif "__init__" in vars(kind) and not getattr(kind, "_is_protocol", False):
        yield from _call_lines("method", f"{name}.__init__", kind.__init__)
    for attribute, hint in inspect.get_annotations(kind).items():
        if str(hint).startswith("typing.ClassVar"):
            default = getattr(kind, attribute, "?")
            yield f"attribute {name}.{attribute}: {_plain(hint)} = {_plain(default)}"


def _method_lines(
    path: str, kind: type[Any], method: Callable[..., Any]
) -> Iterator[str]:
    """A method: its callers may be given more parameters, its authors may not."""
    signature = inspect.signature(method)
    if kind is api.HookSpecs:
        # pluggy passes by name what an implementation asks for.
        yield f"hook {path}"
        for parameter in list(signature.parameters.values())[1:]:
            yield f"argument {path}({_plain(parameter)})"
    elif method.__name__ in getattr(kind, "__abstractmethods__", ()):
        yield f"abstract {path}{_plain(signature)}"
    elif kind is testing.ExecutorCase:
        yield f"replaceable {path}{_plain(signature)}"
    else:
        yield from _call_lines("method", path, method)


def _call_lines(word: str, path: str, function: Callable[..., Any]) -> Iterator[str]:
    signature = inspect.signature(function)
    yield f"{word} {path} -> {_plain(_name_of(signature.return_annotation))}"
    yield from _parameter_lines(path, signature.parameters)


def _parameter_lines(
    path: str, parameters: Mapping[str, inspect.Parameter]
) -> Iterator[str]:
    for index, parameter in enumerate(parameters.values()):
        needs = "required" if parameter.default is parameter.empty else "optional"
        # Given by position, a parameter that moves is another one.
        is_keyword = parameter.kind is parameter.KEYWORD_ONLY
        place = "" if is_keyword else f"{index}: "
        yield f"{needs} {path}({place}{_plain(parameter)})"


def _name_of(hint: Any) -> str:
    return hint.__name__ if inspect.isclass(hint) else str(hint)


def _plain(value: object) -> str:
    """Without module paths, which may change, and numpy's own spelling of arrays."""
    return _ARRAY.sub(r"NDArray[\1]", _MODULE_PATH.sub(r"\1", str(value)))


def main(arguments: list[str]) -> int:
    """Renew the snapshot; the exit code."""
    old_version, *old = SNAPSHOT.read_text("utf-8").splitlines()
    new = surface()
    part = change(old, new)
    may = "--unreleased" in arguments or part is None or is_raised(old_version, part)
    if not may and part is not None:
        sys.stderr.write(f"{advice(part, old, new)}\n")
        return 1
    SNAPSHOT.write_text("\n".join([version(), *new]) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
