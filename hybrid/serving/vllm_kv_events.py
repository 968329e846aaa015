"""What the prefix cache holds, as the protocol's messages.

A subscriber's first messages are a snapshot: they lead from any state to the present
one, so a router that comes back needs no history.

    engine's batches:   7 (all there is)           8         9
    messages:           7  8  9 (snapshot of 3)    10        11
"""

import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Final

from smg_grpc_proto.generated import common_pb2 as pb

from hybrid.kv_event_hub import KvEventBatch
from hybrid.scheduler.kv_events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    KvEvent,
)

MAX_SNAPSHOT_TOKENS: Final = 2**15
"""Of one message, which is built in one go in the loop that serves everybody: some
milliseconds. Well below the 4 MiB that clients take unless told otherwise."""


class KvEventMessages:
    """The messages of one subscription."""

    def __init__(self) -> None:
        self._num_extra: int | None = None
        """Messages that the snapshot took beyond one; ``None``: it is still to come."""
        self._event_ids: Final = count(1)

    def take(self, batch: KvEventBatch) -> Iterator[Any]:
        """Messages for a batch; ``KvEventBatch`` of the protocol each."""
        if self._num_extra is None:
            chunks = _chunks(batch.events)
            self._num_extra = len(chunks) - 1
            yield from _snapshot(batch.sequence_number, chunks)
            return
        numbered = zip(batch.events, self._event_ids, strict=False)
        events = [_event(event, event_id) for event, event_id in numbered]
        yield _message(batch.sequence_number + self._num_extra, events)


def _snapshot(first_number: int, chunks: Sequence[Sequence[KvEvent]]) -> Iterator[Any]:
    """All that can be found now; by the protocol its events have no number."""
    num_blocks = sum(
        len(event.block_hashes)
        for chunk in chunks
        for event in chunk
        if isinstance(event, BlocksStored)
    )
    for index, chunk in enumerate(chunks):
        message = _message(first_number + index, [_event(event, 0) for event in chunk])
        message.snapshot.index = index
        message.snapshot.count = len(chunks)
        message.snapshot.blocks = num_blocks
        yield message


def _chunks(events: Sequence[KvEvent]) -> list[list[KvEvent]]:
    """Part a snapshot's events, in order, into what one message may hold."""
    chunks: list[list[KvEvent]] = [[]]
    num_tokens = 0
    for event in events:
        for piece in _pieces(event):
            size = len(piece.token_ids) if isinstance(piece, BlocksStored) else 0
            if num_tokens + size > MAX_SNAPSHOT_TOKENS and chunks[-1]:
                chunks.append([])
                num_tokens = 0
            chunks[-1].append(piece)
            num_tokens += size
    return chunks


def _pieces(event: KvEvent) -> Iterator[KvEvent]:
    """The event itself, or a long chain of blocks link by link."""
    if not isinstance(event, BlocksStored):
        yield event
        return
    hashes, size = event.block_hashes, event.block_size
    step = max(MAX_SNAPSHOT_TOKENS // size, 1)
    for start in range(0, len(hashes), step):
        yield BlocksStored(
            hashes[start : start + step],
            hashes[start - 1] if start else event.parent_hash,
            event.token_ids[start * size : (start + step) * size],
            size,
        )


def _message(number: int, events: Sequence[Any]) -> Any:
    return pb.KvEventBatch(
        sequence_number=number, timestamp=time.time(), dp_rank=0, events=events
    )


def _event(event: KvEvent, event_id: int) -> Any:
    match event:
        case BlocksStored():
            return pb.KvCacheEvent(event_id=event_id, stored=_stored(event))
        case BlocksRemoved(block_hashes):
            removed = pb.KvBlocksRemoved(block_hashes=block_hashes)
            return pb.KvCacheEvent(event_id=event_id, removed=removed)
        case CacheCleared():
            return pb.KvCacheEvent(event_id=event_id, cleared=pb.KvCacheCleared())


def _stored(event: BlocksStored) -> Any:
    size = event.block_size
    blocks = [
        pb.KvBlock(
            block_hash=block_hash,
            token_ids=event.token_ids[place * size : (place + 1) * size],
            block_size=size,
        )
        for place, block_hash in enumerate(event.block_hashes)
    ]
    return pb.KvBlocksStored(blocks=blocks, parent_block_hash=event.parent_hash)
