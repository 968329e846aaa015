"""Every unfinished sequence and its whole way: waiting, running, forked, ended.

Keeps queues, places and blocks in step with each other; decides nothing.
"""

from .block_manager import BlockManager
from .errors import DuplicateRequest
from .generate_request import GenerateRequest
from .integrity import check_tables
from .plan import SequenceKey
from .ranked_queue import RankedQueue
from .sequence_state import Rank, SequenceState, SequenceStatus
from .shown_value import shown


class SequenceRoster:
    """A sequence is in ``waiting`` or in ``running``, never in both, until it ends.

    ::

        add -> waiting -> admit -> running -> fork -> n times running -> finish
                  ^                   |                     |
                  +--- preempt_last --+---------------------+
    """

    def __init__(self, manager: BlockManager) -> None:
        self.waiting = RankedQueue()
        self.running = RankedQueue()
        self.num_places = 0
        """Places of ``max_num_seqs`` taken: before its fork a request takes ``n``."""
        self._manager = manager
        # Unfinished sequences by request id and sample index.
        self._requests: dict[str, dict[int, SequenceState]] = {}
        self._finished: list[SequenceKey] = []

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    def check_unused(self, request_id: str) -> None:
        """Refuse the id of an unfinished request.

        Raises:
            DuplicateRequest: it is in use.
        """
        if request_id in self._requests:
            raise DuplicateRequest(
                f"request_id {shown(request_id)} is in use by an unfinished request",
                field="request_id",
                value=request_id,
            )

    def add(self, request: GenerateRequest, rank: Rank, max_num_tokens: int) -> None:
        """Queue the one sequence of a new request."""
        table = self._manager.new_table(request.adapter, request.cache_salt)
        sequence = SequenceState(request, rank, max_num_tokens, table)
        self._requests[request.request_id] = {0: sequence}
        self.waiting.add(sequence)

    def find(self, key: SequenceKey) -> SequenceState | None:
        """One unfinished sequence."""
        return self._requests.get(key.request_id, {}).get(key.sample_index)

    def find_request(self, request_id: str) -> tuple[SequenceState, ...]:
        """A request's unfinished sequences; empty if it is unknown or has ended."""
        return tuple(self._requests.get(request_id, {}).values())

    def admit(self, sequence: SequenceState, cached: tuple[int, ...]) -> None:
        """Let a waiting sequence run, its table beginning with these cached blocks."""
        self.waiting.remove(sequence)
        self.running.add(sequence)
        self.num_places += sequence.num_samples
        sequence.status = SequenceStatus.RUNNING
        self._manager.attach_cached(sequence.table, cached)
        sequence.num_computed_tokens = sequence.table.num_slots
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = sequence.num_computed_tokens

    def preempt_last(self) -> SequenceState:
        """Take the blocks of the worst-ranked running sequence and queue it again."""
        sequence = self.running.last()
        self._release(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.num_computed_tokens = 0
        self.waiting.add(sequence)
        return sequence

    def fork(self, sequence: SequenceState) -> list[SequenceState]:
        """Turn a request whose prompt is computed into its samples, blocks shared."""
        num_samples, sequence.num_samples = sequence.num_samples, 1
        samples = [sequence]
        for index in range(1, num_samples):
            table = self._manager.fork(sequence.table, sequence.num_computed_tokens)
            samples.append(sequence.fork(index, table))
            self.running.add(samples[-1])
            self._requests[sequence.key.request_id][index] = samples[-1]
        return samples

    def finish(self, sequence: SequenceState) -> None:
        """End a sequence, wherever it is; its blocks are free at once."""
        if sequence.status is SequenceStatus.RUNNING:
            self._release(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        self._finished.append(sequence.key)
        samples = self._requests[sequence.key.request_id]
        del samples[sequence.key.sample_index]
        if not samples:
            del self._requests[sequence.key.request_id]

    def take_finished(self) -> tuple[SequenceKey, ...]:
        """The sequences that ended since the last call."""
        finished = tuple(self._finished)
        self._finished.clear()
        return finished

    def check_integrity(self) -> None:
        """Assert that queues, places, tables and pool agree."""
        running, waiting = self.running.items, self.waiting.items
        check_tables(self._manager, running, waiting)
        known = [s for samples in self._requests.values() for s in samples.values()]
        assert {s.key for s in known} == {s.key for s in (*running, *waiting)}
        assert len(known) == len(self), "a sequence is queued twice"
        num_places = sum(sequence.num_samples for sequence in running)
        assert num_places == self.num_places, "places are lost"

    def _release(self, sequence: SequenceState) -> None:
        self.running.remove(sequence)
        self.num_places -= sequence.num_samples
        self._manager.free(sequence.table)
