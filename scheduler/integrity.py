"""Asserts that block tables, pool and sequences agree: for tests and idle engines."""

from collections import Counter
from collections.abc import Iterable

from .block_manager import BlockManager
from .sequence_state import SequenceState, SequenceStatus


def check_tables(
    manager: BlockManager,
    running: Iterable[SequenceState],
    waiting: Iterable[SequenceState],
) -> None:
    """Assert the pool's own invariants and those between pool and tables."""
    pool = manager.pool
    pool.check_integrity()
    owners: Counter[int] = Counter()
    for sequence in running:
        owners.update(sequence.table.block_ids)
        _check_running(manager, sequence)
    for block_id in range(1, pool.num_blocks + 1):
        counted, held = pool.ref_count(block_id), owners[block_id]
        assert counted == held, f"block {block_id}: ref_count {counted}, {held} owners"
    for sequence in waiting:
        assert sequence.status is SequenceStatus.WAITING, sequence.key
        assert not sequence.table.block_ids, f"{sequence.key} waits and owns blocks"
        assert sequence.num_computed_tokens == 0, sequence.key


def _check_running(manager: BlockManager, sequence: SequenceState) -> None:
    table, size = sequence.table, manager.block_size
    num_computed = sequence.num_computed_tokens
    assert sequence.status is SequenceStatus.RUNNING, sequence.key
    assert num_computed < len(sequence.token_ids), f"{sequence.key} has nothing to do"
    assert num_computed <= table.num_slots, f"{sequence.key}: table too short"
    assert 0 not in table.block_ids, f"{sequence.key} owns the null block"
    assert len(set(table.block_ids)) == len(table.block_ids), "a block twice in a table"
    num_full = num_computed // size
    for index, block_id in enumerate(table.block_ids):
        contents = manager.pool.contents(block_id)
        if index < num_full:
            tokens = tuple(sequence.token_ids[index * size : (index + 1) * size])
            assert contents is None or contents.token_ids == tokens, (
                f"block {block_id} is cached under other tokens"
            )
            continue
        # From here on the sequence writes: nobody else may own or find these blocks,
        # except that the partial tail of a fork waits for its first writer's copy.
        assert contents is None, f"block {block_id} can be found half written"
        is_shared_tail = table.shares_tail and block_id == table.block_ids[-1]
        is_writable = manager.pool.ref_count(block_id) == 1
        assert is_writable or is_shared_tail, f"block {block_id} has two writers"
