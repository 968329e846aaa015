"""Holds what an executor says of itself against the contract, before it is used."""

from hybrid.backends.interface import Capabilities
from hybrid.scheduler import PluginError
from hybrid.scheduler.shown_value import shown


def check_capabilities(capabilities: Capabilities, name: str) -> None:
    """Refuse an executor whose capabilities nobody could build an engine from.

    Args:
        capabilities: as it declares them.
        name: that it was chosen by; errors and events take its own word for it.

    Raises:
        PluginError: names the field and its value.
    """
    if capabilities.name != name:
        raise PluginError(
            f"it calls itself {shown(capabilities.name)} in its capabilities, must be "
            f"{name!r}"
        )
    for field in ("devices", "dtypes", "block_sizes", "kv_orders"):
        if not getattr(capabilities, field):
            raise PluginError(f"its capabilities have no {field}")
    for size in capabilities.block_sizes:
        if type(size) is not int or size < 1:
            raise PluginError(f"block_sizes has {shown(size)}, must be 1 or more")
    for device in capabilities.devices:
        fast = capabilities.fast_dtypes.get(device, ())
        if not fast or not {*fast} <= {*capabilities.dtypes}:
            raise PluginError(
                f"fast_dtypes of {device!r} are {shown(fast)}, must be some of dtypes: "
                f"{', '.join(capabilities.dtypes)}"
            )
