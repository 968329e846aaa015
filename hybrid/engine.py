"""The engine: a scheduler, an executor, and the loop between them.

Knows neither how a model is loaded nor how requests arrive; one thread drives it.
"""

import time
from collections.abc import Callable
from typing import Final

import structlog

from hybrid.backends.interface import Executor
from hybrid.scheduler import (
    EngineClosed,
    ExecutorFailed,
    FinishReason,
    GenerateRequest,
    SamplingFailed,
    SamplingParams,
    Scheduler,
    StepPlan,
)

from .input_processor import InputProcessor
from .metrics import EngineMetrics, EngineSnapshot
from .output_processor import OutputProcessor
from .outputs import RequestOutput
from .prompt import Prompt
from .sampler.sampled_step import SampledStep
from .sampler.sampler import Sampler
from .tokenizer.tokenizer import Tokenizer

log = structlog.get_logger()

CHECK_INTERVAL_S: Final = 60.0
"""The check walks every block, so an engine that falls idle often does it seldom."""


class HybridEngine:
    """One scheduler over one executor.

    ``build_engine`` composes one from options; by hand, any ``Scheduler`` goes with any
    loaded ``Executor`` whose pool has the scheduler's blocks.
    """

    def __init__(  # noqa: PLR0913 - the parts it is composed of
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        sampler: Sampler,
        tokenizer: Tokenizer | None = None,
        block_size: int,
        max_logprobs: int = 20,
        max_model_len: int | None = None,
        log_requests: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Compose an engine.

        Args:
            scheduler: decides; owns the block tables.
            executor: loaded, its pool allocated.
            sampler: draws from the executor's logits.
            tokenizer: ``None`` takes and gives token ids only.
            block_size: tokens per block, for the metrics.
            max_logprobs: most log-probabilities per position.
            max_model_len: lets a text too long by far be refused unread.
            log_requests: whether a request's end is an INFO event, else DEBUG.
            clock: monotonic seconds.
        """
        self.scheduler: Final = scheduler
        self.executor: Final = executor
        self.tokenizer: Final = tokenizer
        self.input_processor: Final = InputProcessor(
            tokenizer,
            executor.capabilities(),
            vocab_size=sampler.num_ids,
            max_logprobs=max_logprobs,
            max_model_len=max_model_len,
            clock=clock,
        )
        self._sampler: Final = sampler
        self._block_size: Final = block_size
        self._clock: Final = clock
        self._metrics: Final = EngineMetrics()
        self._outputs: Final = OutputProcessor(
            tokenizer, self._metrics, log_requests=log_requests, clock=clock
        )
        self._failure: ExecutorFailed | None = None
        self._is_closed = False
        self._next_check_s = 0.0

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        stream: bool = True,
    ) -> None:
        """Queue a prompt.

        Args:
            request_id: not in use by an unfinished request.
            prompt: text, token ids, or a mapping of either.
            sampling_params: ``None``: the defaults.
            priority: lower runs first under the priority policy.
            stream: whether ``step`` returns every step's output, or the last alone.

        Raises:
            InvalidRequest: the request is at fault; nothing was queued.
            UnsupportedFeature: the executor cannot do what it asks.
            EngineClosed: the engine has ended.
        """
        request, text = self.input_processor.process(
            request_id, prompt, sampling_params, priority=priority
        )
        self.add_processed(request, text, stream=stream)

    def add_processed(
        self, request: GenerateRequest, text: str | None, *, stream: bool = True
    ) -> None:
        """Queue what ``input_processor`` made; see ``add_request``."""
        self._check_open()
        self.scheduler.add(request)
        try:
            self._sampler.add_request(request)
        except BaseException:
            self.scheduler.abort(request.request_id)
            raise
        self._outputs.add(request, text, stream=stream)

    def step(self) -> list[RequestOutput]:
        """Run one step.

        Returns:
            Outputs so far of the requests that stream and got a token, and the last
            outputs of those that have ended.

        Raises:
            ExecutorFailed: the step raised; the engine has ended, and so has every
                request. A draw that is impossible ends its own request alone.
            BaseException: an interrupt of the executor passes through; the requests of
                the step are aborted, the engine goes on.
            EngineClosed: it had ended before.
        """
        self._check_open()
        started_s = self._clock()
        plan = self.scheduler.schedule()
        self._sampler.release(plan.finished)
        if not plan.scheduled:
            assert not self.scheduler.has_unfinished(), "requests wait, none can run"
            return []
        try:
            result = self.executor.execute(plan)
            sampled = self._sampler.sample(plan, result)
        except Exception as error:
            raise self._fail(error) from error
        except BaseException:
            # An interrupt: what the step wrote is unknown, so its requests end with it.
            self._drop(plan)
            raise
        try:
            outputs = self._commit(plan, sampled, started_s)
        except Exception as error:
            raise self._fail(error) from error
        self._log_step(plan, started_s)
        self._check_when_idle()
        return outputs

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request in whatever state; its blocks are free at once.

        Returns:
            Its last output (finish reason ``abort``), or ``None`` if it is unknown or
            has ended: no error.
        """
        if self._is_closed:
            return None
        self.scheduler.abort(request_id)
        return self._outputs.end(request_id, FinishReason.ABORT)

    def has_unfinished_requests(self) -> bool:
        """Whether ``step`` has anything to do."""
        return not self._is_closed and self.scheduler.has_unfinished()

    def stats(self) -> EngineSnapshot:
        """Counters and gauges of now."""
        return self._metrics.snapshot(self.scheduler.stats(), self._block_size)

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; ``False`` (and nothing done) while any is in use."""
        return self.scheduler.reset_prefix_cache()

    def close(self) -> list[RequestOutput]:
        """End every request as aborted and free the executor. Twice is no error."""
        if self._is_closed:
            return []
        self._is_closed = True
        outputs = self._outputs.end_all(FinishReason.ABORT)
        self.executor.close()
        log.info("engine.stopped", num_requests=self._metrics.num_requests)
        return outputs

    def _commit(
        self, plan: StepPlan, sampled: SampledStep, started_s: float
    ) -> list[RequestOutput]:
        """Tell scheduler and callers what the step gave."""
        outputs = [self._end_failed(error) for error in sampled.failed]
        updates = self.scheduler.update(plan, sampled.token_ids)
        self._metrics.observe_pool(self.scheduler.stats())
        answers, stopped = self._outputs.process(
            plan, sampled, updates, started_s=started_s
        )
        for key in stopped:
            self.scheduler.stop(key)
        return outputs + answers

    def _drop(self, plan: StepPlan) -> None:
        """Abort the requests of a step that was cut short, and close its plan."""
        for entry in plan.scheduled:
            self.abort(entry.request.request_id)
        placeholders = [(0,) * entry.num_samples for entry in plan.scheduled]
        self.scheduler.update(plan, placeholders)

    def _end_failed(self, error: SamplingFailed) -> RequestOutput:
        """End one request whose draw is impossible; the step goes on without it."""
        log.error("request.failed", request_id=error.request_id, reason=str(error))
        self.scheduler.abort(error.request_id)
        output = self._outputs.end(error.request_id, FinishReason.ERROR)
        assert output is not None, "a scheduled request has a state"
        return output

    def _check_when_idle(self) -> None:
        """Check the pool's invariants when nothing runs, at most once a minute."""
        if self.scheduler.has_unfinished():
            return
        now_s = self._clock()
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + CHECK_INTERVAL_S
            self.scheduler.check_integrity()

    def _fail(self, error: Exception) -> ExecutorFailed:
        """End the engine: what the executor holds can no longer be trusted."""
        name = self.executor.capabilities().name
        failure = ExecutorFailed(
            f"executor {name} failed and the engine has ended: "
            f"{type(error).__name__}: {error}"
        )
        self._failure = failure
        self._is_closed = True
        ended = self._outputs.end_all(FinishReason.ERROR)
        log.error("executor.failed", executor=name, num_requests_ended=len(ended))
        self.executor.close()
        return failure

    def _check_open(self) -> None:
        if self._failure is not None:
            raise EngineClosed(str(self._failure))
        if self._is_closed:
            raise EngineClosed("the engine was closed")

    def _log_step(self, plan: StepPlan, started_s: float) -> None:
        log.debug(
            "step.finished",
            step=plan.step,
            num_seqs=len(plan.scheduled),
            num_tokens=plan.num_scheduled_tokens,
            total_s=self._clock() - started_s,
        )
