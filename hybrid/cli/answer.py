"""An answer as it comes: its new text to stdout at once, what it cost to stderr."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybrid.scheduler.errors import EngineClosed, HybridError
from hybrid.scheduler.interface import FinishReason

from .standard_streams import stdout

if TYPE_CHECKING:
    from hybrid import RequestOutput


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished (or interrupted) request."""

    output: "RequestOutput"
    """Last state, cumulative."""
    first_token_s: float
    """From the request to its first text or token."""
    total_s: float

    @property
    def num_output_tokens(self) -> int:
        """Tokens of all samples together."""
        return sum(len(sample.token_ids) for sample in self.output.outputs)

    @property
    def tokens_per_s(self) -> float:
        """Rate after the first token; 0 where there is no second."""
        span_s = self.total_s - self.first_token_s
        return max(self.num_output_tokens - 1, 0) / span_s if span_s > 0 else 0.0

    def stats_line(self) -> str:
        """Sum it up for a person."""
        metrics = self.output.metrics
        reasons = ", ".join(
            str(s.finish_reason or "interruption") for s in self.output.outputs
        )
        return (
            f"{metrics.num_prompt_tokens} prompt tokens "
            f"({metrics.num_cached_tokens} cached), "
            f"{self.num_output_tokens} output tokens, "
            f"first token {self.first_token_s:.2f} s, "
            f"{self.tokens_per_s:.1f} tokens/s, finished by {reasons}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Sum it up for a program; plain values."""
        return {
            "prompt": self.output.prompt,
            "outputs": [
                {
                    "index": sample.index,
                    "text": sample.text,
                    "token_ids": list(sample.token_ids),
                    "finish_reason": _plain(sample.finish_reason),
                    "stop_reason": sample.stop_reason,
                }
                for sample in self.output.outputs
            ],
            "usage": {
                "prompt_tokens": self.output.metrics.num_prompt_tokens,
                "completion_tokens": self.num_output_tokens,
                "cached_tokens": self.output.metrics.num_cached_tokens,
            },
            "first_token_s": round(self.first_token_s, 4),
            "total_s": round(self.total_s, 4),
        }


def _plain(reason: object) -> str | None:
    return None if reason is None else str(reason)


def follow(
    outputs: Iterator["RequestOutput"],
    write: Callable[[str], None] | None,
    stopped: Callable[[], bool] = lambda: False,
) -> Answer | None:
    """Take outputs to the end, or until ``stopped()``; write the first sample's text.

    Returns:
        The answer; ``None`` if it was stopped before anything came.

    Raises:
        SamplingFailed: the request ended in an error; its text so far is written.
        EngineClosed: somebody else ended it.
        HybridError: the same of whatever ``outputs`` raises.
    """
    started_s = time.perf_counter()
    first_s: float | None = None
    last: RequestOutput | None = None
    num_written = 0
    try:
        for last in outputs:
            if first_s is None:
                first_s = time.perf_counter() - started_s
            text = last.outputs[0].text
            if write is not None and len(text) > num_written:
                write(text[num_written:])
                num_written = len(text)
            if stopped():
                break
        if last is not None and not stopped():
            _check_end(last)
    except HybridError:
        # What is told of it starts a line of its own.
        if num_written:
            write_now("\n")
        raise
    finally:
        # A generator that is closed early takes its request out of the engine.
        close = getattr(outputs, "close", None)
        if close is not None:
            close()
    if last is None:
        return None
    return Answer(last, first_s or 0.0, time.perf_counter() - started_s)


def _check_end(output: "RequestOutput") -> None:
    output.raise_if_failed()
    reasons = [sample.finish_reason for sample in output.outputs]
    if FinishReason.ABORT in reasons:
        raise EngineClosed("the answer is cut off: whoever serves it ended it")


def write_now(text: str) -> None:
    """Write to stdout without waiting for a line's end."""
    stream = stdout()
    stream.write(text)
    stream.flush()
