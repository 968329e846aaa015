"""What the prefix cache holds, as the protocol's messages.

A subscriber's first message is a snapshot: it leads from any state to the present one,
so a router that comes back needs no history.
"""

import time
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


class KvEventMessages:
    """The messages of one subscription."""

    def __init__(self) -> None:
        self._is_first = True
        self._event_ids: Final = count(1)

    def message(self, batch: KvEventBatch) -> Any:
        """Make a ``KvEventBatch`` of the protocol; the first is the snapshot."""
        is_first, self._is_first = self._is_first, False
        return pb.KvEventBatch(
            sequence_number=batch.sequence_number,
            timestamp=time.time(),
            dp_rank=0,
            # Events of a snapshot never happened: by the protocol they have no number.
            events=[
                _event(event, 0 if is_first else next(self._event_ids))
                for event in batch.events
            ],
            snapshot=_whole(batch) if is_first else None,
        )


def _whole(batch: KvEventBatch) -> Any:
    """Say that a batch is all there is: the one chunk of a snapshot."""
    num_blocks = sum(
        len(event.block_hashes)
        for event in batch.events
        if isinstance(event, BlocksStored)
    )
    return pb.KvSnapshotChunk(index=0, count=1, blocks=num_blocks)


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
