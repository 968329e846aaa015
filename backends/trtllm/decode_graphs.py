"""Decode steps as CUDA graphs: captured once for a number of sequences, then replayed.

A step of S generations is padded to the next captured size with sequences of one token
on the null block, so that nobody else needs to know of padding.

Source: PyTorch's CUDA graph notes (https://docs.pytorch.org/docs/stable/notes/cuda.html)
for warming up on a side stream and for static inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch

from hybrid.bridge import NULL_BLOCK, pack_batch
from hybrid.scheduler.generate_request import GenerateRequest
from hybrid.scheduler.plan import ScheduledRequest, StepPlan
from hybrid.scheduler.sampling_params import SamplingParams

from .attention import Attention
from .sent_array import SentArray

Forward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""``[N]`` ids and ``[N]`` positions to ``[N, vocab_size]`` logits."""
Capture = Callable[[Callable[[], torch.Tensor]], "CapturedStep"]
"""Records what a call launches."""


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """Launches that can be repeated, and where they leave their answer."""

    replay: Callable[[], None]
    output: torch.Tensor


def cuda_graph_capture() -> Capture:
    """Record graphs that share their memory: one is replayed at a time, and read."""
    memory = torch.cuda.graph_pool_handle()

    def capture(launch: Callable[[], torch.Tensor]) -> CapturedStep:
        _warm_up(launch)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory):
            # Recorded, not computed: the first replay does.
            output = launch()
        return CapturedStep(graph.replay, output)

    return capture


def _warm_up(launch: Callable[[], torch.Tensor]) -> None:
    """Let libraries allocate and choose before anything is recorded."""
    side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        launch()
    torch.cuda.current_stream().wait_stream(side)


_PADDING: Final = ScheduledRequest(
    request=GenerateRequest("padding", (0,), SamplingParams()),
    sample_index=0,
    token_ids=(0,),
    num_computed_tokens=0,
    block_ids=(NULL_BLOCK,),
    num_logits_rows=1,
    num_samples=1,
)


def pad_plan(plan: StepPlan, num_seqs: int) -> StepPlan:
    """Add generations on the null block, whose answers nobody reads."""
    padding = (_PADDING,) * (num_seqs - len(plan.scheduled))
    return replace(plan, scheduled=plan.scheduled + padding)


def graph_memory_bytes(max_num_seqs: int, vocab_size: int, dtype: torch.dtype) -> int:
    """Memory that graphs of all sizes keep: the logits of each are its own.

    What else a step needs they share, and it is little beside.
    """
    num_rows = sum(_sizes(max_num_seqs))
    return num_rows * vocab_size * dtype.itemsize


def _sizes(max_num_seqs: int) -> list[int]:
    """Powers of two, and the most there may be."""
    powers = range((max_num_seqs - 1).bit_length())
    return [*(1 << power for power in powers), max_num_seqs]


class DecodeGraphs:
    """Graphs by number of sequences, of ``_sizes``."""

    def __init__(
        self,
        forward: Forward,
        attention: Attention,
        max_num_seqs: int,
        device: torch.device,
        new_capture: Callable[[], Capture] = cuda_graph_capture,
    ) -> None:
        self._forward: Final = forward
        self._attention: Final = attention
        self._max_num_seqs: Final = max_num_seqs
        self._sizes: Final = _sizes(max_num_seqs)
        self._new_capture: Final = new_capture
        self._capture = new_capture()
        # Rows: ids, positions.
        self._inputs: Final = SentArray.zeros((2, max_num_seqs), torch.int64, device)
        self._captured: Final[dict[int, CapturedStep]] = {}
        self._key = attention.capture_key

    def takes(self, plan: StepPlan) -> bool:
        """Whether a step is nothing but generations, each of whose logits is wanted."""
        return (
            0 < len(plan.scheduled) <= self._max_num_seqs
            and plan.num_contexts == 0
            and all(entry.num_logits_rows == 1 for entry in plan.scheduled)
        )

    def run(self, plan: StepPlan) -> torch.Tensor:
        """Replay the step, capturing it when its size is new.

        Returns:
            ``[S, vocab_size]``, overwritten by the next call.
        """
        num_seqs = len(plan.scheduled)
        size = next(size for size in self._sizes if size >= num_seqs)
        padded = pad_plan(plan, size)
        batch = pack_batch(padded)
        self._attention.begin_step(padded, batch)
        ids, positions = self._inputs.put(batch.input_ids, batch.positions)
        self._drop_outdated()
        while size not in self._captured:
            self._captured[size] = self._record(ids, positions)
            # What it launches may itself have moved memory.
            self._drop_outdated()
        step = self._captured[size]
        step.replay()
        return step.output[:num_seqs]

    def _drop_outdated(self) -> None:
        """Forget graphs that know addresses which are no longer right."""
        key = self._attention.capture_key
        if key != self._key:
            self._captured.clear()
            # torch takes no memory of graphs for others once the last of them is gone.
            self._capture = self._new_capture()
            self._key = key

    def _record(self, ids: torch.Tensor, positions: torch.Tensor) -> CapturedStep:
        with self._attention.captured(len(ids)):
            return self._capture(lambda: self._forward(ids, positions))
