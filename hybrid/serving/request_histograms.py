"""How long requests take and how large they are: a watcher of an engine host.

Times are the engine's own, so that a slow reader does not show as a slow engine.
"""

from dataclasses import dataclass
from typing import Final

from hybrid.outputs import RequestOutput
from hybrid.scheduler import SamplingParams

from .histogram import Histogram, bounds_125

# Bounds as in vLLM 0.32 (vllm/v1/metrics/loggers.py), so that its dashboards fit.
FIRST_TOKEN_BOUNDS_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_BOUNDS_S: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_BOUNDS_S: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0),
    *(50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


@dataclass(slots=True)
class _Progress:
    """How far one answer has come."""

    at_s: float
    """From the request's arrival."""
    num_tokens: int
    """Over all samples."""
    num_steps: int
    """Tokens of the longest sample."""


class RequestHistograms:
    """Filled in the event loop; a ``RequestWatcher``."""

    def __init__(self, max_model_len: int) -> None:
        self.first_token_s: Final = Histogram(FIRST_TOKEN_BOUNDS_S)
        self.inter_token_s: Final = Histogram(TOKEN_BOUNDS_S)
        self.total_s: Final = Histogram(REQUEST_BOUNDS_S)
        self.queue_s: Final = Histogram(REQUEST_BOUNDS_S)
        self.prefill_s: Final = Histogram(REQUEST_BOUNDS_S)
        self.decode_s: Final = Histogram(REQUEST_BOUNDS_S)
        self.prompt_tokens: Final = Histogram(bounds_125(max_model_len))
        self.generation_tokens: Final = Histogram(bounds_125(max_model_len))
        self.num_prompt_tokens = 0
        """Of the requests that got a token."""
        self._progress: Final[dict[str, _Progress]] = {}

    def began(self, request_id: str, params: SamplingParams) -> None:
        """Nothing is known yet."""

    def progressed(self, output: RequestOutput) -> None:
        """Time the tokens that are new; several may have come in one output."""
        metrics = output.metrics
        if metrics.ttft_s is None:
            return
        progress = self._progress.get(output.request_id)
        if progress is None:
            self.first_token_s.observe(metrics.ttft_s)
            self.num_prompt_tokens += metrics.num_prompt_tokens
            progress = _Progress(metrics.ttft_s, len(output.outputs), 1)
            self._progress[output.request_id] = progress
        num_new = metrics.num_output_tokens - progress.num_tokens
        if num_new <= 0:
            return
        num_steps = max(len(sample.token_ids) for sample in output.outputs)
        took_s = metrics.total_s - progress.at_s
        step_s = took_s / max(num_steps - progress.num_steps, 1)
        self.inter_token_s.observe(step_s, num_new)
        progress.at_s = metrics.total_s
        progress.num_tokens = metrics.num_output_tokens
        progress.num_steps = num_steps

    def ended(self, request_id: str, end: RequestOutput | BaseException) -> None:
        """Add a whole request up, if there is a last output of it."""
        self._progress.pop(request_id, None)
        if isinstance(end, BaseException):
            return
        metrics = end.metrics
        self.total_s.observe(metrics.total_s)
        self.prompt_tokens.observe(metrics.num_prompt_tokens)
        for sample in end.outputs:
            self.generation_tokens.observe(len(sample.token_ids))
        if metrics.queue_s is not None:
            self.queue_s.observe(metrics.queue_s)
        if metrics.ttft_s is not None and metrics.queue_s is not None:
            self.prefill_s.observe(metrics.ttft_s - metrics.queue_s)
            self.decode_s.observe(metrics.total_s - metrics.ttft_s)
