"""What several rounds of one workload on one engine come to."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from .round_run import RoundRun
from .workload import Workload


@dataclass(frozen=True, slots=True)
class Spread:
    """A rate over the rounds: machines are noisy, so the range stands beside it."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of a latency, seconds, pooled over requests and rounds."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Of at least one value; interpolated linearly."""
        p50, p90, p99 = np.percentile(list(values), (50, 90, 99)).tolist()
        return cls(p50, p90, p99)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A workload on an engine."""

    engine: str
    """Its label."""
    workload: Workload
    num_rounds: int
    total_tokens_per_s: Spread
    prefill_tokens_per_s: Spread
    decode_tokens_per_s: Spread | None
    """``None`` where answers have one token."""
    ttft_s: Percentiles
    inter_token_s: Percentiles | None
    """As above."""
    peak_rss_bytes: int
    """Of the engine's process, over the rounds; its load is left out."""
    kv_bytes: int
    """Of the blocks that the requests hold at their ends."""

    @classmethod
    def of(cls, engine: str, runs: Sequence[RoundRun], *, kv_bytes: int) -> Self:
        """Sum up rounds of one workload, at least one."""
        decode = [run.decode_tokens_per_s for run in runs]
        rates = [rate for rate in decode if rate is not None]
        gaps = [gap for run in runs for gap in run.gaps_s]
        return cls(
            engine=engine,
            workload=runs[0].workload,
            num_rounds=len(runs),
            total_tokens_per_s=Spread.of([run.total_tokens_per_s for run in runs]),
            prefill_tokens_per_s=Spread.of([run.prefill_tokens_per_s for run in runs]),
            decode_tokens_per_s=Spread.of(rates) if rates else None,
            ttft_s=Percentiles.of(value for run in runs for value in run.ttft_s),
            inter_token_s=Percentiles.of(gaps) if gaps else None,
            peak_rss_bytes=max(run.peak_rss_bytes for run in runs),
            kv_bytes=kv_bytes,
        )
