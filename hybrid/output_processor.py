"""From tokens to what a caller sees: text, stop strings, log-probabilities, metrics."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from hybrid.scheduler import (
    FinishReason,
    FormFailed,
    GenerateRequest,
    SamplingFailed,
    SequenceKey,
    SequenceUpdate,
    StepPlan,
)

from .metrics import EngineMetrics
from .outputs import Logprob, PositionLogprobs, RequestOutput
from .request_state import RequestState, SampleState
from .sampler.sampled_step import SampledStep, TokenLogprobs
from .tokenizer.detokenizer import IncrementalDetokenizer
from .tokenizer.output_text import OutputText

if TYPE_CHECKING:
    # Text is an extra: without it the engine takes and gives token ids.
    from .tokenizer.tokenizer import Tokenizer

log = structlog.get_logger()


class OutputProcessor:
    """Keeps the state of every unfinished request; one thread calls it."""

    def __init__(
        self,
        tokenizer: "Tokenizer | None",
        metrics: EngineMetrics,
        *,
        log_requests: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokenizer: Final = tokenizer
        self._metrics: Final = metrics
        self._clock: Final = clock
        self._log_finished: Final = log.info if log_requests else log.debug
        self._states: Final[dict[str, RequestState]] = {}
        self._finished: list[RequestOutput] = []

    @property
    def request_ids(self) -> tuple[str, ...]:
        """The unfinished requests, in the order of adding."""
        return tuple(self._states)

    def take_finished(self) -> list[RequestOutput]:
        """The last outputs since the last call, however their requests ended."""
        finished, self._finished = self._finished, []
        return finished

    def add(self, request: GenerateRequest, text: str | None, *, stream: bool) -> None:
        """Begin a request that the scheduler has taken."""
        params = request.sampling_params
        defers_text = not stream and not params.stop
        state = RequestState(request, text, stream, defers_text=defers_text)
        if params.prompt_logprobs is not None:
            # Nothing comes before the first token, so nothing predicts it.
            state.prompt_logprobs = [None]
        self._add_sample(state)
        self._states[request.request_id] = state
        self._metrics.num_requests += 1

    def process(
        self,
        plan: StepPlan,
        sampled: SampledStep,
        updates: Sequence[SequenceUpdate],
        *,
        started_s: float,
    ) -> tuple[list[RequestOutput], list[SequenceKey]]:
        """Take in one step.

        Args:
            plan: what ran.
            sampled: what was drawn.
            updates: what the scheduler made of it, in the plan's order.
            started_s: when the plan was made, on this object's clock.

        Returns:
            The outputs of requests that stream or have ended, and the sequences that a
            stop string has ended: the scheduler does not know yet.
        """
        now_s = self._clock()
        self._note_plan(plan, started_s)
        stopped: list[SequenceKey] = []
        changed: dict[str, RequestState] = {}
        remaining = iter(updates)
        for index, entry in enumerate(plan.scheduled):
            state = self._states.get(entry.request.request_id)
            if state is None:
                # Its draw was impossible: it has ended, the scheduler left it out too.
                continue
            prompt_logprobs = sampled.prompt_logprobs[index]
            if prompt_logprobs is not None:
                self._take_prompt_logprobs(state, prompt_logprobs)
            if not sampled.token_ids[index]:
                continue
            if state.first_token_at_s is None:
                state.first_token_at_s = now_s
            logprobs = sampled.logprobs[index]
            for draw in range(entry.num_samples):
                update = next(remaining)
                own = logprobs and _logprobs_of(logprobs, draw, entry.num_samples)
                if self._take_update(state, update, own):
                    key = SequenceKey(update.request.request_id, update.sample_index)
                    stopped.append(key)
                if state.stream or state.samples[update.sample_index].finish_reason:
                    changed[update.request.request_id] = state
        outputs = [
            self._output(state, now_s)
            for state in changed.values()
            if state.stream or state.is_finished
        ]
        return outputs, stopped

    def end(
        self, request_id: str, reason: FinishReason, error: str | None = None
    ) -> RequestOutput | None:
        """End a request early; its last output, or ``None`` if it is not known."""
        state = self._states.get(request_id)
        if state is None:
            return None
        state.error = error
        state.end_all(reason)
        return self._finish(state, self._clock(), reason)

    def end_failed(
        self, failed: Sequence[SamplingFailed], executor: str
    ) -> list[RequestOutput]:
        """End requests whose draws are impossible; their last outputs."""
        outputs = []
        for error in failed:
            reason = f"{error} ({executor})" if error.is_executors else str(error)
            is_form_failure = isinstance(error, FormFailed)
            # A form is its client's, no fault of ours.
            note = log.warning if is_form_failure else log.error
            note("request.failed", request_id=error.request_id, reason=reason)
            if error.request_id in self._states:
                self._states[error.request_id].is_form_failure = is_form_failure
            outputs.append(self.end(error.request_id, FinishReason.ERROR, reason))
        return [output for output in outputs if output is not None]

    def end_all(self, reason: FinishReason, error: str | None = None) -> None:
        """End every request early."""
        for request_id in self.request_ids:
            self.end(request_id, reason, error)

    def _output(self, state: RequestState, now_s: float) -> RequestOutput:
        if state.is_finished:
            # A request of several samples is logged by the first one's end.
            reason = state.samples[0].finish_reason
            assert reason is not None
            return self._finish(state, now_s, reason)
        return state.output(now_s)

    def _finish(
        self, state: RequestState, now_s: float, reason: FinishReason
    ) -> RequestOutput:
        del self._states[state.request.request_id]
        output = state.output(now_s, is_over=True)
        metrics = output.metrics
        self._metrics.observe_finished(reason, metrics)
        self._log_finished(
            "request.finished",
            request_id=output.request_id,
            finish_reason=reason.value,
            queue_s=metrics.queue_s,
            ttft_s=metrics.ttft_s,
            total_s=metrics.total_s,
            num_prompt_tokens=metrics.num_prompt_tokens,
            num_output_tokens=metrics.num_output_tokens,
            num_cached_tokens=metrics.num_cached_tokens,
            num_preemptions=metrics.num_preemptions,
        )
        self._finished.append(output)
        return output

    def _note_plan(self, plan: StepPlan, started_s: float) -> None:
        for entry in plan.scheduled[: plan.num_contexts]:
            state = self._states.get(entry.request.request_id)
            if state is not None and state.scheduled_at_s is None:
                state.scheduled_at_s = started_s
        for key in plan.preempted:
            preempted = self._states.get(key.request_id)
            if preempted is not None:
                preempted.num_preemptions += 1
                log.debug("request.preempted", request_id=key.request_id)

    def _take_update(
        self,
        state: RequestState,
        update: SequenceUpdate,
        logprobs: Sequence[TokenLogprobs] | None,
    ) -> bool:
        """Append one sample's new tokens; whether a stop string ended it just now."""
        if update.sample_index == len(state.samples):
            self._add_sample(state)
        sample = state.samples[update.sample_index]
        token_ids = update.new_token_ids
        state.num_cached_tokens = update.num_cached_tokens
        sample.finish_reason = update.finish_reason
        sample.stop_reason = update.stop_reason
        matched = None
        if sample.text is not None and (sample.finish_reason or not state.defers_text):
            matched = sample.text.append(
                sample.without_text(token_ids) if state.defers_text else token_ids,
                is_last=update.finish_reason is not None,
                ends_at_stop_token=update.finish_reason is FinishReason.STOP,
            )
            if matched is not None:
                num_kept = sample.text.num_tokens_consumed - len(sample.token_ids)
                token_ids = token_ids[:num_kept]
                sample.finish_reason = FinishReason.STOP
                sample.stop_reason = matched
        sample.token_ids.extend(token_ids)
        self._metrics.num_generated_tokens += len(token_ids)
        if logprobs is not None:
            self._take_logprobs(sample, logprobs[: len(token_ids)])
        return matched is not None and update.finish_reason is None

    def _add_sample(self, state: RequestState) -> None:
        params = state.request.sampling_params
        text = None
        if self._tokenizer is not None and params.detokenize:
            detokenizer = IncrementalDetokenizer(
                self._tokenizer,
                prompt_token_ids=state.request.prompt_token_ids,
                skip_special_tokens=params.skip_special_tokens,
            )
            text = OutputText(params, detokenizer)
        logprobs: list[PositionLogprobs] | None = None
        if params.logprobs is not None:
            logprobs = []
        state.samples.append(SampleState(len(state.samples), text, logprobs=logprobs))

    def _take_logprobs(
        self, sample: SampleState, logprobs: Sequence[TokenLogprobs]
    ) -> None:
        assert sample.logprobs is not None
        for entry in logprobs:
            sample.logprobs.append(self._position(entry))
            sample.cumulative_logprob += entry.logprob

    def _take_prompt_logprobs(
        self, state: RequestState, logprobs: Sequence[TokenLogprobs]
    ) -> None:
        if state.prompt_logprobs is not None:
            state.prompt_logprobs.extend(self._position(entry) for entry in logprobs)

    def _position(self, entry: TokenLogprobs) -> PositionLogprobs:
        position = {
            token_id: Logprob(logprob, rank, self._decode(token_id))
            for rank, (token_id, logprob) in enumerate(
                zip(entry.top_token_ids, entry.top_logprobs, strict=True), start=1
            )
        }
        if entry.token_id not in position:
            position[entry.token_id] = Logprob(
                entry.logprob, entry.rank, self._decode(entry.token_id)
            )
        return position

    def _decode(self, token_id: int) -> str | None:
        if self._tokenizer is None:
            return None
        return self._tokenizer.decode([token_id], skip_special_tokens=False)


def _logprobs_of(
    logprobs: Sequence[TokenLogprobs], draw: int, num_samples: int
) -> Sequence[TokenLogprobs]:
    """Draws of a fork are one token each; a run is one sample's."""
    return logprobs if num_samples == 1 else logprobs[draw : draw + 1]
