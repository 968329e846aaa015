"""OpenVINO's one runtime of this process."""

from functools import cache

import openvino as ov


@cache
def core() -> ov.Core:
    """Return the runtime, made once and kept until the process ends.

    OpenVINO's CPU plugin gives the thread that loads it another stack for signals, and
    takes the memory away when the plugin goes, leaving the kernel its address: with a
    runtime for each model, the first Ctrl-C after one was closed would be a crash.
    Source: OpenVINO 2026.4, ``src/plugins/intel_cpu/src/plugin.cpp`` (seen).
    """
    return ov.Core()
