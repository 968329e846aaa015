"""One round: a workload on an engine, and the clock."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from hybrid.engine import HybridEngine
from hybrid.outputs import RequestOutput
from hybrid.scheduler import EngineFailed, SamplingParams

from .process_memory import peak_rss_bytes, reset_peak_rss
from .workload import Workload


@dataclass(frozen=True, slots=True)
class RoundRun:
    """What one round took; seconds from the arrival of all its requests."""

    workload: Workload
    total_s: float
    prefill_s: float
    """Until every request had its first token."""
    num_prefill_tokens: int
    """Answer tokens drawn until then."""
    ttft_s: tuple[float, ...]
    """One a request."""
    gaps_s: tuple[float, ...]
    """Between a token and the next one of the same request, over all requests."""
    peak_rss_bytes: int

    @property
    def total_tokens_per_s(self) -> float:
        """Answer tokens a second, prefill included."""
        return self.workload.batch * self.workload.output_tokens / self.total_s

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens a second until every request had its first token."""
        return self.workload.batch * self.workload.input_tokens / self.prefill_s

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Answer tokens a second after that; ``None`` where there are none."""
        num_tokens = self.workload.batch * self.workload.output_tokens
        num_decoded = num_tokens - self.num_prefill_tokens
        if not num_decoded:
            return None
        return num_decoded / (self.total_s - self.prefill_s)


def run_round(
    engine: HybridEngine, workload: Workload, *, vocab_size: int, seed: int
) -> RoundRun:
    """Run a workload to its end, greedy, without text.

    Args:
        engine: idle, its prefix cache off.
        workload: what to run.
        vocab_size: ids of the prompts lie below it.
        seed: of the prompts.

    Raises:
        HybridError: the engine refused a request, or a request failed.
        EngineFailed: answers are shorter than asked for.
    """
    prompts = workload.prompts(vocab_size, seed)
    params = SamplingParams(
        temperature=0.0,
        max_tokens=workload.output_tokens,
        ignore_eos=True,
        detokenize=False,
    )
    clock = _TokenClock()
    reset_peak_rss()
    started_s = time.perf_counter()
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), prompt, params)
    while engine.has_unfinished_requests():
        clock.note(engine.step(), time.perf_counter() - started_s)
    num_tokens = sum(clock.num_tokens.values())
    if num_tokens != workload.batch * workload.output_tokens:
        raise EngineFailed(f"{workload}: the answers have {num_tokens} tokens in all")
    return RoundRun(
        workload=workload,
        total_s=max(clock.last_s.values()),
        prefill_s=max(clock.ttft_s),
        num_prefill_tokens=clock.num_prefill_tokens,
        ttft_s=tuple(clock.ttft_s),
        gaps_s=tuple(clock.gaps_s),
        peak_rss_bytes=peak_rss_bytes(),
    )


class _TokenClock:
    """Notes when each request's tokens came."""

    def __init__(self) -> None:
        self.num_tokens: dict[str, int] = {}
        """By request, so far."""
        self.last_s: dict[str, float] = {}
        """When each request's newest came."""
        self.ttft_s: list[float] = []
        self.gaps_s: list[float] = []
        self.num_prefill_tokens = 0
        """Drawn by the end of the last step that gave a request its first."""

    def note(self, outputs: Sequence[RequestOutput], now_s: float) -> None:
        """Take the outputs of a step that ended now.

        Raises:
            SamplingFailed: a request ended in an error.
        """
        num_started = len(self.last_s)
        for output in outputs:
            output.raise_if_failed()
            name = output.request_id
            if name in self.last_s:
                self.gaps_s.append(now_s - self.last_s[name])
            else:
                self.ttft_s.append(now_s)
            self.last_s[name] = now_s
            self.num_tokens[name] = len(output.outputs[0].token_ids)
        if len(self.last_s) > num_started:
            self.num_prefill_tokens = sum(self.num_tokens.values())
