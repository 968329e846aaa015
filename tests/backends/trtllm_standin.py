"""A stand-in for the package ``tensorrt_llm``: its names, its checks, no GPU.

    with installed("1.2.1"):
        ...  # import tensorrt_llm finds the stand-in, in the form of that version

``tensorrt_llm.runtime`` and ``tensorrt_llm.plugin`` are empty here: whoever stands in
for them fills them.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tests.backends.standin_signatures import ERA_1_2, ERA_EARLY_2026, ERA_MID_2026
from tests.backends.standin_thop import StandInAttention

NAMES = (
    "tensorrt_llm",
    "tensorrt_llm.bindings",
    "tensorrt_llm.bindings.internal",
    "tensorrt_llm.bindings.internal.thop",
    "tensorrt_llm.functional",
    "tensorrt_llm.plugin",
    "tensorrt_llm.quantization",
    "tensorrt_llm.runtime",
)
ERAS = {"1.2.1": ERA_1_2, "1.3.0rc10": ERA_EARLY_2026, "1.4.0rc1": ERA_MID_2026}
"""The operator's form by version; which release brought which form is a guess."""


@contextmanager
def installed(version: str) -> Iterator[Any]:
    """Put the stand-in where ``import`` looks, and take it out again.

    Args:
        version: one of ``ERAS``.

    Yields:
        The module ``tensorrt_llm``; its operator remembers what it was called with.
    """
    assert not set(NAMES) & set(sys.modules), "tensorrt_llm is there already"
    modules = {name: ModuleType(name) for name in NAMES}
    for name, module in modules.items():
        is_package = any(other.startswith(f"{name}.") for other in NAMES)
        module.__spec__ = ModuleSpec(name, loader=None, is_package=is_package)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(modules[parent], last, module)
    top: Any = modules["tensorrt_llm"]
    top.__version__ = version
    top.bindings.internal.thop.attention = StandInAttention(ERAS[version])
    sys.modules.update(modules)
    try:
        yield top
    finally:
        for name in NAMES:
            del sys.modules[name]
