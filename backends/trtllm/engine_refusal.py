"""Why a machine runs no TensorRT engines, before there is one to look at."""

from importlib.util import find_spec

from hybrid.scheduler.errors import UnsupportedFeature

from .engine_check import LAST_CANDIDATE, runs_engines
from .engine_session import installed_version
from .machine import Machine


def engine_refusal(machine: Machine) -> str | None:
    """Ask machine and package; the package last, its import is slow.

    Returns:
        The reason, or ``None``.
    """
    device = machine.kernel_device
    if device not in machine.devices:
        return f"engines need a {device} device, which is not to be had here"
    if find_spec("tensorrt_llm") is None:
        return "the package tensorrt_llm is not installed"
    try:
        version = installed_version()
    except UnsupportedFeature as error:
        return str(error)
    if not runs_engines(version):
        return (
            f"tensorrt_llm {version} runs no engines; 1.3.0rc{LAST_CANDIDATE} is the "
            "last that does"
        )
    return None
