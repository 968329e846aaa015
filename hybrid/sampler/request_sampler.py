"""All that the sampler remembers of one request, from arrival to its last sequence."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybrid.failure_reason import INTERRUPTS
from hybrid.grammar.grammar_state import GrammarState
from hybrid.scheduler.errors import FormFailed, SamplingFailed
from hybrid.scheduler.generate_request import GenerateRequest

from .candidates import candidates
from .logits_processor import LogitsProcessor
from .penalties import apply_penalties, has_penalties, start_history
from .token_history import TokenHistory
from .token_masks import build_masks
from .uniform import uniform


class RequestSampler:
    """Draws for one request. A draw changes nothing; ``commit`` does."""

    def __init__(
        self,
        request: GenerateRequest,
        *,
        seed: int,
        num_ids: int,
        bad_words: Sequence[Sequence[int]],
        processors: Sequence[LogitsProcessor],
        grammar: GrammarState | None = None,
    ) -> None:
        """Prepare the masks and the empty history of sample 0.

        Args:
            request: checked against the vocabulary already.
            seed: the key of its draws.
            num_ids: columns of the rows it will see.
            bad_words: its bad words as id sequences.
            processors: the engine's, in order; those that apply to it are kept.
            grammar: the form of the answer, at its beginning.

        Raises:
            SamplingFailed: a processor cannot say whether it applies.
        """
        params = request.sampling_params
        self.request = request
        self.next_prompt_position = 1
        """The first prompt token whose log-probability has not been reported."""
        self.stale_samples: set[int] = set()
        """Samples of an ended request of the same id that are yet to be released."""
        self._seed = seed
        self._masks = build_masks(request, bad_words, num_ids)
        self._processors = [p for p in processors if self._is_for_us(p)]
        self._has_penalties = has_penalties(params)
        self._is_greedy = params.is_greedy or params.top_k == 1
        history = start_history(params, request.prompt_token_ids, num_ids)
        history.grammar = grammar
        self._histories = {0: history}
        self._always_raw = not (
            grammar or self._masks or self._processors or self._has_penalties
        )
        self.is_plain: Final = (
            self._always_raw
            and self._is_greedy
            and params.logprobs is None
            and params.prompt_logprobs is None
        )
        """Whether all it ever wants is the likeliest id of its row. Its histories are
        then of no use, and may lack tokens."""

    @property
    def live_samples(self) -> frozenset[int]:
        """The samples that have not been released."""
        return frozenset(self._histories)

    def drop(self, sample_index: int) -> None:
        """Forget one sample; unknown is no error."""
        self._histories.pop(sample_index, None)

    def draw(
        self, raw: NDArray[np.float32], sample_index: int, num_samples: int
    ) -> tuple[int, ...]:
        """Draw the next token of one sample, or the first ones of a fork.

        Args:
            raw: the executor's logits, float32 ``[vocab]``; not changed.
            sample_index: the sequence that the row belongs to.
            num_samples: 1, or the size of the fork: draw j is then sample j's.

        Raises:
            SamplingFailed: the row is not finite, a processor raised or left nothing.
            FormFailed: the answer's form cannot go on.
        """
        if self._always_raw and self._is_greedy:
            token_id = int(raw.argmax())
            # argmax stops at the first NaN, so one look tells.
            self.check_highest(float(raw[token_id]))
            return (token_id,) * num_samples
        self.check_highest(float(raw.max()))
        history = self._histories[sample_index]
        if num_samples == 1:
            return self._draw_samples(raw, history, (sample_index,))
        if not self._processors:
            return self._draw_samples(raw, history, range(num_samples))
        return tuple(
            self._draw_samples(raw, history, (sample,))[0]
            for sample in range(num_samples)
        )

    def commit(self, sample_index: int, token_ids: Sequence[int]) -> None:
        """Append what was drawn; more than one token is a fork of ``sample_index``."""
        trunk = self._histories[sample_index]
        if len(token_ids) == 1:
            trunk.append(token_ids[0])
            return
        for sample in range(1, len(token_ids)):
            self._histories[sample] = trunk.fork()
            self._histories[sample].append(token_ids[sample])
        trunk.append(token_ids[0])

    def append_run(self, sample_index: int, token_ids: Sequence[int]) -> None:
        """Append several tokens to one sample (an executor's accepted run)."""
        for token_id in token_ids:
            self._histories[sample_index].append(token_id)

    def check_highest(self, highest: float) -> None:
        """Raise ``SamplingFailed`` if a row with this maximum is no distribution."""
        if not math.isfinite(highest):
            raise self._fault(
                f"the executor's highest logit is {highest}", is_executors=True
            )

    def _draw_samples(
        self, raw: NDArray[np.float32], history: TokenHistory, samples: Sequence[int]
    ) -> tuple[int, ...]:
        """One token for each of ``samples``, which share ``history`` and the row."""
        row = self._processed(raw, history, samples[0])
        if self._is_greedy:
            return (int(row.argmax()),) * len(samples)
        choice = candidates(row, self.request.sampling_params)
        position = len(history.output_token_ids)
        return tuple(
            choice.pick(uniform(self._seed, position, sample)) for sample in samples
        )

    def _processed(
        self, raw: NDArray[np.float32], history: TokenHistory, sample_index: int
    ) -> NDArray[np.float32]:
        """The row after masks, processors, penalties; ``raw`` itself if unchanged."""
        outputs = history.output_token_ids
        masks = [mask for mask in self._masks if mask.is_active(len(outputs))]
        grammar = history.grammar
        if not (grammar or masks or self._processors or self._has_penalties):
            return raw
        row = raw.copy()
        if grammar is not None:
            grammar.apply(row)
            if grammar.fault is not None:
                raise self._form_fault(grammar.fault)
        for mask in masks:
            mask.apply(outputs, row)
        if grammar is not None and not np.isfinite(row.max()):
            raise self._form_fault("the request's other fields leave none of its ids")
        for processor in self._processors:
            self._run(processor, sample_index, outputs, row)
        if self._has_penalties:
            apply_penalties(row, self.request.sampling_params, history)
        highest = float(row.max())
        if not np.isfinite(highest):
            raise self._fault(
                f"masks, processors and penalties left {highest} as the highest logit"
            )
        return row

    def _is_for_us(self, processor: LogitsProcessor) -> bool:
        try:
            return processor.applies_to(self.request)
        except INTERRUPTS:
            raise
        except BaseException as error:
            raise self._fault(
                f"logits processor {type(processor).__name__} raised "
                f"{type(error).__name__} in applies_to: {error}"
            ) from error

    def _run(
        self,
        processor: LogitsProcessor,
        sample_index: int,
        outputs: Sequence[int],
        row: NDArray[np.float32],
    ) -> None:
        name = type(processor).__name__
        try:
            processor.apply(self.request, sample_index, outputs, row)
        except INTERRUPTS:
            raise
        except BaseException as error:
            raise self._fault(
                f"logits processor {name} raised {type(error).__name__}: {error}"
            ) from error
        highest = float(row.max())
        if not np.isfinite(highest):
            raise self._fault(
                f"logits processor {name} left {highest} as the highest logit"
            )

    def _form_fault(self, why: str) -> FormFailed:
        request_id = self.request.request_id
        return FormFailed(
            f"request {request_id!r}: structured_output cannot go on: {why}",
            request_id=request_id,
        )

    def _fault(self, what: str, *, is_executors: bool = False) -> SamplingFailed:
        request_id = self.request.request_id
        return SamplingFailed(
            f"request {request_id!r}: no token can be drawn: {what}",
            request_id=request_id,
            is_executors=is_executors,
        )
