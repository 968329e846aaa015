"""Lent memory stays where it is, and as long as somebody holds its address."""

import gc
import weakref

import pytest
import torch

from hybrid.bridge.lent_memory import LentMemory
from hybrid.scheduler import ExecutorFailed


def test_a_lease_gives_the_address_as_long_as_it_lasts() -> None:
    """It is the tensor's; the ended lease gives none."""
    tensor = torch.zeros(64)
    memory = LentMemory("pool", tensor)
    lease = memory.lend("kernel")
    assert lease.address == lease.address == tensor.data_ptr()
    assert memory.address == tensor.data_ptr()
    lease.end()
    lease.end()
    with pytest.raises(ExecutorFailed, match="kernel: its lease of memory has ended"):
        assert lease.address


def test_memory_is_not_released_while_it_is_lent() -> None:
    """The error names who holds pointers; the last lease that ends lets it go."""
    memory = LentMemory("pool", torch.zeros(64))
    leases = [memory.lend(name) for name in ("kernel", "graph")]
    with pytest.raises(ExecutorFailed, match=r"pool: .* held by graph, kernel"):
        memory.release()
    leases[0].end()
    with pytest.raises(ExecutorFailed, match=r"held by graph$"):
        memory.release()
    leases.clear()
    gc.collect()
    memory.release()
    memory.release()
    with pytest.raises(ExecutorFailed, match="pool: its memory was released"):
        assert memory.address
    with pytest.raises(ExecutorFailed, match="released"):
        assert memory.lend("late").address


def test_a_lease_keeps_the_memory() -> None:
    """Even if everybody else has let go of it."""
    tensor = torch.zeros(64)
    watched = weakref.ref(tensor)
    lease = LentMemory("pool", tensor).lend("kernel")
    del tensor
    gc.collect()
    assert watched() is not None
    lease.end()
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize("num_elements", [1 << 20, 0, 63])
def test_moved_or_resized_memory_is_caught_at_the_next_use(num_elements: int) -> None:
    """It happens silently, and a shrunken memory may keep its address."""
    tensor = torch.zeros(64)
    memory = LentMemory("pool", tensor)
    lease = memory.lend("kernel")
    tensor.untyped_storage().resize_(num_elements * 4)
    message = f"pool: its memory was 256 bytes at 0x.* is {num_elements * 4:,} bytes"
    with pytest.raises(ExecutorFailed, match=message):
        assert lease.address
    with pytest.raises(ExecutorFailed, match=message):
        assert memory.address


def test_a_tensor_that_resize_moves_is_caught() -> None:
    """The way it happens: ``resize_`` for a larger batch."""
    tensor = torch.zeros(64)
    lease = LentMemory("pool", tensor).lend("kernel")
    tensor.resize_(1 << 20)
    with pytest.raises(ExecutorFailed, match="pointers to it are out"):
        assert lease.address
