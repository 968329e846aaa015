"""``hybrid executors`` tells how the CPU executor would compute here."""

import pytest

from hybrid.backends.cpu import implementations
from hybrid.backends.cpu.executor import CpuExecutor
from hybrid.backends.cpu.native_library import VARIANT_VARIABLE
from hybrid.executors import list_executors
from hybrid.plugins.loader import load_plugins
from tests.backends import kernel_stand


@pytest.mark.skipif(not kernel_stand.VARIANTS, reason="the CPU kernels are not built")
def test_an_unknown_instruction_set_costs_the_kernels_row_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With and without the ways to compute, the executor is as available."""
    monkeypatch.setenv(VARIANT_VARIABLE, "mmx")
    native, *others = implementations.explain()
    assert str(native.reason).startswith(f"{VARIANT_VARIABLE}=mmx: ")
    assert [way.reason for way in others] == [None, None]
    name = CpuExecutor().capabilities().name
    for explain in (False, True):
        entries = list_executors(load_plugins(), explain=explain)
        assert next(e for e in entries if e.name == name).available
