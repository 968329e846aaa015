"""Which form of TensorRT-LLM's attention operator is installed, by its own word.

The operator prints its argument list into ``__doc__``. A form that we do not know is
refused with the names that make the difference: a value in a wrong place would not fail
but attend wrongly.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hybrid.scheduler.errors import UnsupportedFeature

from .optional_library import import_library
from .thop_eras import ERAS, ThopEra


@dataclass(frozen=True, slots=True)
class ThopSignature:
    """The operator's arguments."""

    names: tuple[str, ...]
    """In the order of the call."""
    required: frozenset[str]
    """Those without a default."""


@dataclass(frozen=True, slots=True)
class InstalledThop:
    """The operator that was found, and how it is called."""

    operator: Callable[..., Any]
    version: str
    """Of ``tensorrt_llm``."""
    signature: ThopSignature
    era: ThopEra


def find_installed_thop() -> InstalledThop:
    """Import ``tensorrt_llm`` and look at its operator.

    Raises:
        UnsupportedFeature: it cannot be imported, or has a form that we do not know.
    """
    package = import_library("tensorrt_llm")
    version = str(getattr(package, "__version__", "of unknown version"))
    # Part of one compiled module: only its attributes can be relied upon.
    thop = getattr(import_library("tensorrt_llm.bindings.internal"), "thop", None)
    operator = getattr(thop, "attention", None)
    if operator is None:
        raise UnsupportedFeature(f"tensorrt_llm {version} has no thop.attention")
    signature = read_signature(operator.__doc__ or "")
    if signature is None:
        raise UnsupportedFeature(
            f"thop.attention of tensorrt_llm {version} does not say what its arguments "
            "are"
        )
    return InstalledThop(operator, version, signature, find_era(signature, version))


def read_signature(doc: str) -> ThopSignature | None:
    """Read ``attention(q: torch.Tensor, k: torch.Tensor | None = None, ...) -> None``.

    Args:
        doc: as nanobind and pybind11 print it, on its first line.

    Returns:
        The arguments, or ``None`` if there is no such line.
    """
    line = re.match(r"attention\((.*)\)", doc)
    if line is None:
        return None
    text = line[1]
    # Commas inside brackets belong to a type.
    while (bare := re.sub(r"\[[^\[\]]*\]", "", text)) != text:
        text = bare
    parts = [part.partition(":")[::2] for part in text.split(",")]
    return ThopSignature(
        names=tuple(name.strip() for name, _ in parts),
        required=frozenset(name.strip() for name, kind in parts if "=" not in kind),
    )


def find_era(signature: ThopSignature, version: str) -> ThopEra:
    """Tell whose form this is.

    Args:
        signature: the operator's arguments.
        version: for the message.

    Raises:
        UnsupportedFeature: no era's; names the arguments that differ.
    """
    names = set(signature.names)
    era = next((era for era in ERAS if era.marks <= names), None)
    if era is None:
        raise UnsupportedFeature(
            f"thop.attention of tensorrt_llm {version} has a form that is not known "
            f"here; it has {', '.join(signature.names)}"
        )
    lacking = sorted(era.needed - names)
    unknown = sorted(signature.required - era.known)
    faults = [
        f"{verb} {', '.join(some)}"
        for verb, some in (("lacks", lacking), ("wants", unknown))
        if some
    ]
    if not faults and era.positions not in {None, signature.names}:
        faults = [f"has its arguments in another order: {', '.join(signature.names)}"]
    if faults:
        raise UnsupportedFeature(
            f"thop.attention of tensorrt_llm {version} is like that of {era.label}, "
            f"but {' and '.join(faults)}"
        )
    return era
