"""New K and V land where the slots say, in every dtype, and nothing else moves."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hybrid.backends.trtllm.kv_scatter import scatter_by_indexing, scatter_kv
from hybrid.backends.trtllm.scaled_kv_pool import FP8_MAX, ScaledKVPool
from hybrid.bridge import KVLayout, KVOrder
from tests.backends.kv_scatter_property import check_scatter, layer_cells
from tests.source_tree import ROOT

_KERNEL = """
from hybrid.backends.trtllm.kv_scatter import scatter_by_kernel
from tests.backends.kv_scatter_property import check_scatter
check_scatter(scatter_by_kernel, max_examples=25)
print("held")
"""


def test_indexing_writes_what_the_slots_say() -> None:
    """Against numbers that are placed one by one."""
    check_scatter(scatter_by_indexing)


def test_the_kernel_writes_what_the_slots_say() -> None:
    """The same property, the kernel in Triton's interpreter, in a process of its own.

    What switches the interpreter on must be said before Triton is imported.
    """
    pytest.importorskip("triton")
    run = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", _KERNEL],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "held\n"), run.stderr


@pytest.mark.parametrize("capability", [90, 100, 120])
@pytest.mark.parametrize("stored", ["bf16", "fp8e4nv"])
def test_the_kernel_compiles_for_the_gpus(
    capability: int, stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To machine code, by the assembler that Triton brings; no GPU is asked."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415 - optional
    from triton.compiler import ASTSource  # noqa: PLC0415

    from hybrid.backends.trtllm.kv_scatter_kernel import (  # noqa: PLC0415
        OPTIONS,
        _scatter,
    )

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    sizes = {"block_size": 32, "head_dim": 96, "padded_dim": 128, "limit": None}
    if stored == "fp8e4nv":
        sizes["limit"] = FP8_MAX
    signature = {
        "qkv": "*bf16",
        "keys": f"*{stored}",
        "values": f"*{stored}",
        "slots": "*i64",
        "kv_scale": "fp32",
        "row_stride": "i32",
        "first_key": "i32",
        "num_kv_heads": "i32",
        "block_stride": "i32",
        **dict.fromkeys(sizes, "constexpr"),
    }
    compiled = triton.compile(
        ASTSource(_scatter, signature, constexprs=sizes),
        target=GPUTarget("cuda", capability, 32),
        options=OPTIONS,
    )
    assert compiled.asm["cubin"]
    # Rounded to the nearest and saturated by one instruction.
    is_rounded = "cvt.rn.satfinite.e4m3x2.f32" in compiled.asm["ptx"]
    assert is_rounded == (stored == "fp8e4nv")


@pytest.mark.parametrize("order", list(KVOrder))
def test_rounding_to_8_bits_is_the_pools_own(order: KVOrder) -> None:
    """Any numbers, a scale that is no power of two: bit for bit as the pool writes."""
    layout = KVLayout(4, 2, 2, 16, 16, "float8_e4m3fn", order)
    qkv = torch.randn(9, 8 * 16, generator=torch.Generator().manual_seed(1)) * 60
    slots = torch.arange(9, dtype=torch.int64) * 7
    pool = ScaledKVPool(
        layout, torch.device("cpu"), scale=0.3, computed_dtype=torch.float32
    )
    heads = torch.arange(2)[:, None]
    rows = slots // 16 * pool.row_stride + heads
    places = (rows * 16 + slots % 16).reshape(-1)
    new = qkv[:, -64:].view(9, 2, 2, 16).permute(1, 2, 0, 3)
    pool.write(1, places, new[0], new[1])
    found = torch.zeros(layout.shape, dtype=torch.float8_e4m3fn)
    scatter_kv(qkv, *layer_cells(found, layout, 1), slots, 0.3)
    assert torch.equal(found.view(torch.uint8), pool.memory.view(torch.uint8))
    assert found.float().abs().max() == 448
