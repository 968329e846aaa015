"""Holds what an executor says of itself against the contract, before it is used."""

from collections.abc import Mapping
from typing import Final

from hybrid.backends.interface import Capabilities
from hybrid.bridge.kv_layout import KVOrder
from hybrid.scheduler import PluginError
from hybrid.scheduler.shown_value import shown

_TUPLES_OF: Final[Mapping[str, type]] = {
    "devices": str,
    "dtypes": str,
    "block_sizes": int,
    "kv_orders": KVOrder,
    "sampling_fields": str,
    "model_files": str,
}
_NEVER_EMPTY: Final = ("devices", "dtypes", "block_sizes", "kv_orders")
_FLAGS: Final = (
    "returns_logits",
    "prefix_reuse",
    "chunked_prefill",
    "aligned_chunks",
    "block_copy",
    "prompt_logprobs",
)


def check_capabilities(capabilities: Capabilities, name: str) -> None:
    """Refuse an executor whose capabilities nobody could build an engine from.

    Args:
        capabilities: as it declares them.
        name: that it was chosen by; errors and events take its own word for it.

    Raises:
        PluginError: names the field and its value.
    """
    if type(capabilities.name) is not str or capabilities.name != name:
        raise PluginError(
            f"it calls itself {shown(capabilities.name)} in its capabilities, must be "
            f"{name!r}"
        )
    if not isinstance(capabilities.description, str):
        raise _wrong("description", capabilities.description, "a str")
    for field in _FLAGS:
        value = getattr(capabilities, field)
        if not isinstance(value, bool):
            raise _wrong(field, value, "True or False")
    for field, kind in _TUPLES_OF.items():
        _check_tuple(field, getattr(capabilities, field), kind)
    for field in _NEVER_EMPTY:
        if not getattr(capabilities, field):
            raise PluginError(f"its capabilities have no {field}")
    for size in capabilities.block_sizes:
        if size < 1:
            raise PluginError(f"block_sizes has {shown(size)}, must be 1 or more")
    _check_fast_dtypes(capabilities)


def _check_fast_dtypes(capabilities: Capabilities) -> None:
    by_device = capabilities.fast_dtypes
    if not isinstance(by_device, Mapping):
        raise _wrong("fast_dtypes", by_device, "a mapping of a tuple by device")
    for device in capabilities.devices:
        fast = by_device.get(device, ())
        _check_tuple(f"fast_dtypes of {device!r}", fast, str)
        if not fast or not {*fast} <= {*capabilities.dtypes}:
            raise PluginError(
                f"fast_dtypes of {device!r} are {shown(fast)}, must be some of dtypes: "
                f"{', '.join(capabilities.dtypes)}"
            )


def _check_tuple(field: str, value: object, kind: type) -> None:
    if not (isinstance(value, tuple) and all(_is_proper(item, kind) for item in value)):
        # A text would be taken letter by letter.
        raise _wrong(field, value, f"a tuple of {kind.__name__}")


def _is_proper(item: object, kind: type) -> bool:
    # True is an int, and no size.
    return isinstance(item, kind) and not isinstance(item, bool) and item != ""


def _wrong(field: str, value: object, must_be: str) -> PluginError:
    return PluginError(f"its {field} is {shown(value)}, must be {must_be}")
