"""The probe: the first that can attend does, and every refusal is told."""

import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext

import pytest

from hybrid.backends.trtllm import probe
from hybrid.backends.trtllm.attention import Attention, AttentionNeeds
from hybrid.backends.trtllm.machine import Machine
from hybrid.backends.trtllm.torch_attention import TorchAttention
from hybrid.scheduler import ConfigError
from tests.backends.trtllm_standin import installed

MACHINE = Machine(("cuda", "cpu"), (9, 0))
NEEDS = AttentionNeeds(
    device="cpu",
    dtype="float32",
    kv_dtype="float32",
    block_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    windows=(None,),
    max_model_len=64,
    max_num_seqs=4,
    scale=0.25,
)


class Kernels(TorchAttention):
    """Serves blocks of 64 tokens, on Hopper."""

    name = "kernels"
    description = "kernels of a library"

    @classmethod
    def refusal(cls, machine: Machine, needs: AttentionNeeds | None) -> str | None:
        """Ask for Hopper, then for the block size."""
        if machine.compute_capability != (9, 0):
            return "needs Hopper"
        if needs is not None and needs.block_size != 64:
            return f"block_size is {needs.block_size}, must be 64"
        return None


@pytest.fixture(autouse=True)
def implementations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels before torch."""
    ways: Mapping[str, Callable[[], type[Attention]]] = {
        "kernels": lambda: Kernels,
        "torch": lambda: TorchAttention,
    }
    monkeypatch.setattr(probe, "IMPLEMENTATIONS", ways)


def test_the_first_that_can_is_taken_and_the_others_say_why() -> None:
    """What the model needs counts, not the machine alone."""
    choice = probe.choose_attention("auto", MACHINE, NEEDS)
    assert choice.name == "torch"
    assert choice.attention is TorchAttention
    assert choice.reasons == {"kernels": "block_size is 32, must be 64"}


def test_one_that_is_asked_for_and_cannot_is_an_error() -> None:
    """No other takes its place in silence."""
    message = "attention 'kernels' cannot serve: block_size is 32, must be 64"
    with pytest.raises(ConfigError, match=re.escape(message)):
        probe.choose_attention("kernels", MACHINE, NEEDS)


def test_the_machine_alone_is_explained() -> None:
    """Before any model: what could serve some model here, and what could not."""
    hopper, elsewhere = probe.explain(MACHINE), probe.explain(Machine(("cpu",), None))
    assert [way.name for way in hopper] == ["kernels", "torch", "engine"]
    assert [way.reason for way in hopper[:2]] == [None, None]
    assert [way.reason for way in elsewhere[:2]] == ["needs Hopper", None]


@pytest.mark.parametrize(
    ("version", "machine", "reason"),
    [
        ("1.2.1", Machine(("cpu",), (9, 0), kernel_device="cpu"), None),
        ("1.2.1", Machine(("cpu",), None), "engines need a cuda device"),
        (
            "1.4.0rc1",
            Machine(("cpu",), (9, 0), kernel_device="cpu"),
            "tensorrt_llm 1.4.0rc1 runs no engines; 1.3.0rc20 is the last",
        ),
        (None, Machine(("cuda", "cpu"), (9, 0)), "tensorrt_llm is not installed"),
    ],
)
def test_what_runs_engines_is_explained(
    version: str | None, machine: Machine, reason: str | None
) -> None:
    """The package, the device and the last version that does."""
    with installed(version) if version else nullcontext():
        found = probe.explain(machine)[-1].reason
    assert (found is None) == (reason is None)
    assert reason is None or reason in str(found)
