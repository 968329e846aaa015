"""The engine: a scheduler, an executor, and the loop between them.

Knows neither how a model is loaded nor how requests arrive; one thread drives it.
"""

import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Final

import structlog

from hybrid.backends.interface import Executor
from hybrid.scheduler import (
    EngineClosed,
    ExecutorFailed,
    FinishReason,
    KvEvent,
    SamplingParams,
    Scheduler,
    StepPlan,
)

from .executor_calls import capabilities_of, close_executor
from .forward_pass import ForwardPass
from .idle_check import IdleCheck
from .input_processor import InputProcessor
from .metrics import EngineMetrics, EngineSnapshot, takes_blocks
from .output_processor import OutputProcessor
from .outputs import RequestOutput
from .part_guard import GuardedPart, PartGuard
from .plugins.lifecycle import LifecycleHooks
from .processed_request import ProcessedRequest
from .prompt import Prompt
from .sampler.sampled_step import SampledStep
from .sampler.sampler import Sampler
from .step_abort import abort_all
from .step_report import StepReport

if TYPE_CHECKING:
    # Text is an extra: without it the engine takes and gives token ids.
    from .tokenizer.tokenizer import Tokenizer

log = structlog.get_logger()


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
        tokenizer: "Tokenizer | None" = None,
        block_size: int,
        max_logprobs: int = 20,
        max_model_len: int | None = None,
        log_requests: bool = True,
        hooks: LifecycleHooks | None = None,
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
            hooks: of plugins that watch; ``None``: nobody does.
            clock: monotonic seconds.
        """
        self.scheduler: Final = scheduler
        self.executor: Final = executor
        self.tokenizer: Final = tokenizer
        can = capabilities_of(executor)
        self.executor_name: Final = f"executor {can.name}"
        self.input_processor: Final = InputProcessor(
            tokenizer,
            can,
            vocab_size=sampler.num_ids,
            max_logprobs=max_logprobs,
            max_model_len=max_model_len,
            clock=clock,
        )
        self._sampler: Final = sampler
        self._block_size: Final = block_size
        self._clock: Final = clock
        self._metrics: Final = EngineMetrics()
        self._hooks: Final = hooks or LifecycleHooks()
        self._outputs: Final = OutputProcessor(
            tokenizer, self._metrics, log_requests=log_requests, clock=clock
        )
        self._end_reason: str | None = None
        self._part: Final = PartGuard(self._drop, self._fail)
        self._report: Final = StepReport(self._hooks)
        self._idle_check: Final = IdleCheck(scheduler)
        self._forward: Final = ForwardPass(executor, can, sampler)

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
        processed = self.input_processor.process(
            request_id, prompt, sampling_params, priority=priority
        )
        self.add_processed(processed, stream=stream)

    def add_processed(
        self, processed: ProcessedRequest, *, stream: bool = True
    ) -> None:
        """Queue what ``input_processor`` made; see ``add_request``."""
        self._check_open()
        request = processed.request
        self.scheduler.add(request)
        try:
            self._sampler.add_request(request, processed.form)
        except BaseException:
            self.scheduler.abort(request.request_id)
            raise
        self._outputs.add(request, processed.text, stream=stream)
        self._report.follow_logging()

    def step(self) -> list[RequestOutput]:
        """Run one step.

        Returns:
            Outputs so far of the requests that stream and got a token, and the last
            outputs of those that have ended.

        Raises:
            EngineFailed: the step raised; the engine has ended, and so has every
                request (``ExecutorFailed``: by the executor). A draw that is
                impossible ends its own request alone.
            KeyboardInterrupt, SystemExit: an interrupt of the executor passes through;
                the requests of the step are aborted, the engine goes on.
            EngineClosed: it had ended before.
        """
        self._check_open()
        started_s = self._clock()
        with self._scheduling:
            self._idle_check.run_if_due(started_s)
            plan = self.scheduler.schedule()
            if plan.finished:
                self._sampler.release(plan.finished)
            if not plan.scheduled:
                if self.scheduler.has_unfinished():
                    # No assertion: without it callers would ask for steps forever.
                    raise RuntimeError("requests wait, and it plans none of them")
                return []
            asked = self._forward.ask(plan)
        with self._part(self.executor_name, plan, ExecutorFailed):
            result = self._forward.run(asked)
        with self._part("sampling", plan):
            sampled = self._sampler.sample(asked, result)
        outputs = self._commit(plan, sampled, started_s)
        if finished := self._outputs.take_finished():
            self._hooks.tell_of_requests(finished)
        if self._report.is_wanted:
            self._report.tell(plan, self._clock() - started_s)
        return outputs

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request in whatever state; its blocks are free at once.

        Returns:
            Its last output (finish reason ``abort``), or ``None`` if it is unknown or
            has ended: no error.
        """
        if self._end_reason is not None:
            return None
        with self._scheduling:
            self.scheduler.abort(request_id)
        output = self._outputs.end(request_id, FinishReason.ABORT)
        self._hooks.tell_of_requests(self._outputs.take_finished())
        return output

    def has_unfinished_requests(self) -> bool:
        """Whether ``step`` has anything to do."""
        if self._end_reason is not None:
            return False
        with self._scheduling:
            return self.scheduler.has_unfinished()

    def stats(self) -> EngineSnapshot:
        """Counters and gauges of now."""
        with self._scheduling:
            return self._metrics.snapshot(self.scheduler.stats(), self._block_size)

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; ``False`` (and nothing done) while any is in use."""
        with self._scheduling:
            return self.scheduler.reset_prefix_cache()

    def take_kv_events(self) -> tuple[KvEvent, ...]:
        """What the prefix cache came to hold and lost, if the scheduler records it."""
        with self._scheduling:
            return self.scheduler.take_kv_events()

    def close(self) -> list[RequestOutput]:
        """End every request as aborted and free the executor. Twice is no error."""
        if self._end_reason is not None:
            return []
        outputs = self._end_all(None, None)
        log.info("engine.stopped", num_requests=self._metrics.num_requests)
        return outputs

    def _commit(
        self, plan: StepPlan, sampled: SampledStep, started_s: float
    ) -> list[RequestOutput]:
        """Tell scheduler and callers what the step gave."""
        with self._scheduling:
            for error in sampled.failed:
                self.scheduler.abort(error.request_id)
            updates = self.scheduler.update(plan, sampled.token_ids)
            stats = None
            if takes_blocks(plan, self._block_size):
                stats = self.scheduler.stats()
        with self._part("output processing"):
            if stats is not None:
                self._metrics.observe_pool(stats)
            failed: list[RequestOutput] = []
            if sampled.failed:
                failed = self._outputs.end_failed(sampled.failed, self.executor_name)
            answers, stopped = self._outputs.process(
                plan, sampled, updates, started_s=started_s
            )
        if stopped:
            with self._scheduling:
                for key in stopped:
                    self.scheduler.stop(key)
        return failed + answers

    @cached_property
    def _scheduling(self) -> GuardedPart:
        """Stands around every call of the scheduler."""
        return self._part(f"scheduler {type(self.scheduler).__name__}")

    def _drop(self, plan: StepPlan) -> None:
        """Abort the requests of a step that was cut short, and close its plan."""
        request_ids = dict.fromkeys(e.request.request_id for e in plan.scheduled)
        abort_all(self.scheduler, request_ids, plan)
        for request_id in request_ids:
            self._outputs.end(request_id, FinishReason.ABORT)
        self._hooks.tell_of_requests(self._outputs.take_finished())

    def _fail(self, reason: str, plan: StepPlan | None) -> list[RequestOutput]:
        """End the engine: what its parts hold can no longer be trusted."""
        if self._end_reason is not None:
            return []
        num_ended = len(self._outputs.request_ids)
        log.error("engine.failed", reason=reason, num_requests_ended=num_ended)
        return self._end_all(reason, plan)

    def _end_all(self, error: str | None, plan: StepPlan | None) -> list[RequestOutput]:
        """End the engine and every request, by an error or, without one, by closing."""
        self._end_reason = error or "the engine was closed"
        abort_all(self.scheduler, self._outputs.request_ids, plan)
        close_executor(self.executor)
        reason = FinishReason.ABORT if error is None else FinishReason.ERROR
        self._outputs.end_all(reason, error)
        outputs = self._outputs.take_finished()
        self._hooks.tell_of_requests(outputs)
        self._hooks.tell_of_end(error, self._metrics.num_requests)
        return outputs

    def _check_open(self) -> None:
        if self._end_reason is not None:
            raise EngineClosed(self._end_reason)
