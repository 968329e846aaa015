"""The torch executor passes the conformance kit, against transformers' own tokens."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from hybrid.testing import ARCHITECTURES, ExecutorConformance


class TestTorch(ExecutorConformance):
    """On the CPU, on a fixed thread count."""

    executor = "torch"
    device: ClassVar[str | None] = "cpu"
    num_threads: ClassVar[int | None] = 1


class TestTorchFamilies(TestTorch):
    """Softcapped logits beside a window, and projections that are fused."""

    architectures: ClassVar[Sequence[str]] = ("phi3", "gemma2")
    """The first is run in every dtype, for which softcapped logits lie too close."""
    block_sizes: ClassVar[Sequence[int] | None] = (16,)


class TestTorchBlockFirst(TestTorch):
    """The pool's other physical order is invisible in the answers."""

    architectures: ClassVar[Sequence[str]] = ARCHITECTURES[:1]
    block_sizes: ClassVar[Sequence[int] | None] = (16,)
    executor_options: ClassVar[Mapping[str, Any]] = {"kv_order": "block_first"}


@pytest.mark.gpu
class TestTorchCuda(ExecutorConformance):
    """On a GPU."""

    executor = "torch"
    device: ClassVar[str | None] = "cuda"
    architectures: ClassVar[Sequence[str]] = (*ARCHITECTURES, "gemma2", "phi3")
    block_sizes: ClassVar[Sequence[int] | None] = (16, 64)
