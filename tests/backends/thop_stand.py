"""A ``ThopAttention`` over the stand-in package, with sizes for tests."""

from typing import Any

from hybrid.backends.trtllm.attention import AttentionNeeds
from hybrid.backends.trtllm.machine import Machine
from hybrid.backends.trtllm.scaled_kv_pool import make_pool
from hybrid.backends.trtllm.thop_attention import ThopAttention

MACHINE = Machine(("cpu",), (9, 0), kernel_device="cpu")
NUM_BLOCKS = 24


def thop_needs(**changes: Any) -> AttentionNeeds:
    """Two layers, two query heads to a head of K and V."""
    sizes: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "kv_dtype": "float32",
        "block_size": 16,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "windows": (None, None),
        "max_model_len": 96,
        "max_num_seqs": 6,
        "scale": 0.3,
    }
    return AttentionNeeds(**{**sizes, **changes})


def make_thop(needs: AttentionNeeds) -> ThopAttention:
    """Over a pool of its own; the package must be there."""
    return ThopAttention(needs, make_pool(needs, NUM_BLOCKS))
