"""The integrity check finds what it is there to find."""

from collections.abc import Callable

import pytest

from hybrid.scheduler import PagedScheduler
from hybrid.scheduler.sequence_state import SequenceState
from tests.scheduler.factories import make_request, make_scheduler

Spoil = Callable[[PagedScheduler, SequenceState, SequenceState], None]


def lose_a_block(scheduler: PagedScheduler, *_: SequenceState) -> None:
    """A free block that no list holds."""
    scheduler._manager.pool._free.pop()


def free_an_owned_block(
    scheduler: PagedScheduler, first: SequenceState, _: SequenceState
) -> None:
    """The pool gives a block away that a table still names."""
    scheduler._manager.pool.free(first.table.block_ids[-1])


def own_without_reference(
    _: PagedScheduler, first: SequenceState, second: SequenceState
) -> None:
    """A table names a block of another sequence."""
    first.table.block_ids = (*first.table.block_ids[:-1], second.table.block_ids[-1])


def share_a_written_block(
    scheduler: PagedScheduler, first: SequenceState, second: SequenceState
) -> None:
    """Two sequences own, and would write, the same partial block."""
    scheduler._manager.pool.share(second.table.block_ids[-1])
    scheduler._manager.pool.free(first.table.block_ids[-1])
    own_without_reference(scheduler, first, second)


def change_cached_tokens(
    scheduler: PagedScheduler, first: SequenceState, _: SequenceState
) -> None:
    """A block is findable under tokens that it does not hold."""
    contents = scheduler._manager.pool._contents
    block_id = first.table.block_ids[0]
    contents[block_id] = contents[block_id]._replace(token_ids=(9, 9, 9, 9))


def change_own_tokens(_: PagedScheduler, first: SequenceState, __: object) -> None:
    """A sequence's tokens are not those that were computed."""
    first.token_ids[0] += 1


def publish_a_partial_block(
    scheduler: PagedScheduler, first: SequenceState, second: SequenceState
) -> None:
    """A block is findable before it is full."""
    pool = scheduler._manager.pool
    full, partial = second.table.block_ids
    contents = pool._contents.pop(full)
    pool._contents[partial] = contents
    pool._by_hash[contents.block_hash] = partial
    assert first is not second


def forget_a_place(scheduler: PagedScheduler, *_: SequenceState) -> None:
    """A running sequence that is not counted."""
    scheduler._roster.num_places -= 1


def queue_twice(scheduler: PagedScheduler, first: SequenceState, _: object) -> None:
    """A running sequence waits as well."""
    scheduler._roster.waiting.add(first)


@pytest.mark.parametrize(
    "spoil",
    [
        lose_a_block,
        free_an_owned_block,
        own_without_reference,
        share_a_written_block,
        change_cached_tokens,
        change_own_tokens,
        publish_a_partial_block,
        forget_a_place,
        queue_twice,
    ],
)
def test_each_corruption_is_found(spoil: Spoil) -> None:
    """A healthy scheduler passes; after one lie it does not."""
    scheduler = make_scheduler()
    for request_id in "ab":
        scheduler.add(make_request(request_id, 6))
    scheduler.update(scheduler.schedule(), [(1,), (1,)])
    scheduler.check_integrity()
    first, second = scheduler._roster.running.items
    spoil(scheduler, first, second)
    with pytest.raises(AssertionError):
        scheduler.check_integrity()
