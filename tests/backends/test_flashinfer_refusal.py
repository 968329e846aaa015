"""FlashInfer is passed over with a reason that a user understands."""

from dataclasses import replace
from typing import Any

import pytest

from hybrid.backends.trtllm.attention import AttentionNeeds
from hybrid.backends.trtllm.flashinfer_attention import FlashInferAttention
from hybrid.backends.trtllm.machine import Machine
from tests.backends.standin_flashinfer import installed

HOPPER = Machine(("cpu",), (9, 0), kernel_device="cpu")
NEEDS = AttentionNeeds(
    device="cpu",
    dtype="bfloat16",
    kv_dtype="bfloat16",
    block_size=32,
    num_heads=8,
    num_kv_heads=2,
    head_dim=128,
    windows=(None, 16),
    max_model_len=256,
    max_num_seqs=4,
    scale=0.125,
)


def reason(
    capability: tuple[int, int], needs: AttentionNeeds | None, without: str = ""
) -> str | None:
    """Ask on a machine whose kernels run on the CPU."""
    machine = replace(HOPPER, compute_capability=capability)
    with installed(capability, without=without):
        return FlashInferAttention.refusal(machine, needs)


@pytest.mark.parametrize(
    "capability", [(9, 0), (10, 0), (10, 3), (12, 0), (12, 1)], ids=str
)
@pytest.mark.parametrize("needs", [None, NEEDS], ids=["machine", "model"])
def test_a_gpu_with_kernels_is_served(
    capability: tuple[int, int], needs: AttentionNeeds | None
) -> None:
    """With a model, and where only the machine is asked about."""
    assert reason(capability, needs) is None


@pytest.mark.parametrize(
    ("capability", "change", "message"),
    [
        ((8, 0), {}, "SM90, SM100, SM103, SM120, SM121; this GPU is SM80"),
        ((8, 9), {}, "this GPU is SM89"),
        ((11, 0), {}, "this GPU is SM110"),
        ((9, 0), {"device": "cuda"}, "run on cpu, the model is on cuda"),
        ((9, 0), {"block_size": 8}, "block_size is 8; on this GPU it takes 16, 32, 64"),
        ((10, 0), {"block_size": 128}, "block_size is 128"),
        ((9, 0), {"head_dim": 72}, "head_dim is 72; on this GPU it takes 32, 48, 64"),
        ((10, 0), {"head_dim": 96}, "head_dim is 96; on this GPU it takes 64, 128"),
        ((12, 0), {"head_dim": 80}, "head_dim is 80"),
        (
            (9, 0),
            {"num_heads": 66},
            "33 query heads share a KV head; it takes at most 32",
        ),
        ((9, 0), {"dtype": "float32"}, "dtype is float32; it takes bfloat16, float16"),
        ((9, 0), {"kv_dtype": "int8"}, "kv_dtype is int8"),
        ((12, 0), {"kv_dtype": "float8_e4m3fn"}, "no prefill kernel"),
    ],
)
def test_what_there_is_no_kernel_for_is_named(
    capability: tuple[int, int], change: dict[str, Any], message: str
) -> None:
    """The value, and what would do instead."""
    found = reason(capability, replace(NEEDS, **change))
    assert found is not None
    assert message in found


def test_an_8_bit_cache_is_served_where_prefill_takes_it() -> None:
    """On Hopper and the data-centre Blackwells."""
    needs = replace(NEEDS, kv_dtype="float8_e4m3fn")
    assert reason((9, 0), needs) is None
    assert reason((10, 0), needs) is None


@pytest.mark.parametrize(
    ("capability", "function", "since"),
    [
        ((9, 0), "trtllm_fmha_v2_prefill", "0.6.7"),
        ((10, 0), "trtllm_batch_context_with_kv_cache", "0.2.9"),
        ((9, 0), "trtllm_batch_decode_with_kv_cache", "0.6.7"),
    ],
)
def test_a_version_that_lacks_a_kernel_is_named(
    capability: tuple[int, int], function: str, since: str
) -> None:
    """With the release to take instead."""
    assert (
        reason(capability, NEEDS, without=function)
        == f"FlashInfer 0.7.4 has no {function}; it takes {since} or newer"
    )


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (Machine(("cpu",), None), "its kernels need a cuda device"),
        (replace(HOPPER, devices=("cuda",)), "its kernels need a cpu device"),
    ],
)
def test_a_machine_without_the_kernels_device(machine: Machine, message: str) -> None:
    """No GPU, or none that is asked for."""
    with installed((9, 0)):
        found = FlashInferAttention.refusal(machine, None)
    assert found is not None
    assert message in found


def test_what_is_not_installed_is_said_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashInfer; and, where there is a GPU, Triton."""
    gpu = Machine(("cuda", "cpu"), (9, 0))

    def refusal_without(*names: str) -> str | None:
        def find(name: str) -> object:
            return None if name in names else object()

        monkeypatch.setattr("hybrid.backends.trtllm.flashinfer_refusal.find_spec", find)
        return FlashInferAttention.refusal(gpu, None)

    assert refusal_without("flashinfer", "triton") == (
        "FlashInfer is not installed (pip install flashinfer-python)"
    )
    found = refusal_without("triton")
    assert found is not None
    assert found.startswith("Triton is not installed")
