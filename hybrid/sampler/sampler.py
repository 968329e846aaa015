"""The sampler: one step's logits in, one step's tokens out. numpy on the host only.

Rows are independent: no row's result depends on which others share the step. The
executor's memory is looked at without a copy and never written; only a row that masks,
processors or penalties change is copied.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.interface import ForwardResult
from hybrid.grammar.grammar_state import GrammarState
from hybrid.scheduler.errors import SamplingFailed, UnsupportedFeature
from hybrid.scheduler.generate_request import GenerateRequest
from hybrid.scheduler.plan import ScheduledRequest, SequenceKey, StepPlan

from .candidates import likeliest_ids
from .entry_share import UNDRAWN, EntryShare, output_logprobs, placeholder
from .logits_array import logits_array
from .logits_processor import LogitsProcessor
from .request_sampler import RequestSampler
from .sampled_step import SampledStep, TokenLogprobs
from .token_logprobs import token_logprobs
from .uniform import derive_seed

BadWordEncoder = Callable[[str], Sequence[tuple[int, ...]]]
"""The id sequences that spell a word, with and without a space before."""


class Sampler:
    """Draws for every request by ``SamplingParams``; keeps what later draws need.

    Driven by one thread, in the engine's order: ``add_request`` once per request,
    ``release(plan.finished)`` and ``sample`` once per step.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        num_valid_ids: int | None = None,
        seed: int = 0,
        encode_bad_word: BadWordEncoder | None = None,
        logits_processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        """Start without requests.

        Args:
            vocab_size: columns of the logits.
            num_valid_ids: ids that the tokenizer knows; columns above (a padded head)
                do not exist for draws and log-probabilities. ``None``: all columns.
            seed: source of the seeds of requests that bring none: the i-th request
                added gets the i-th.
            encode_bad_word: without it ``bad_words`` are refused.
            logits_processors: applied in this order to the requests each names.
        """
        self._vocab_size = vocab_size
        self._num_ids = min(vocab_size, num_valid_ids or vocab_size)
        self._seed = seed
        self._encode_bad_word = encode_bad_word
        self._processors = tuple(logits_processors)
        self._requests: dict[str, RequestSampler] = {}
        self._watched: set[str] = set()
        """Those of them that want more than the likeliest id."""
        self._num_arrived = 0

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        return self._vocab_size

    @property
    def num_ids(self) -> int:
        """Ids that can be drawn: those below it. What the parameters may name, too."""
        return self._num_ids

    @property
    def num_requests(self) -> int:
        """Requests with a sequence that has not been released."""
        return len(self._requests)

    def add_request(
        self, request: GenerateRequest, form: GrammarState | None = None
    ) -> None:
        """Prepare for a request that the scheduler has admitted.

        An ended request of the same id whose release is still to come makes way.

        Args:
            request: checked against the vocabulary already.
            form: its ``structured_output``, at the beginning; this sampler's own.

        Raises:
            UnsupportedFeature: ``bad_words`` without an encoder, or
                ``structured_output`` without its ``form``.
            SamplingFailed: a logits processor cannot say whether it applies.
        """
        output = request.sampling_params.structured_output
        if output is not None and form is None:
            raise UnsupportedFeature(
                f"structured_output has a {output.kind.value} that nobody has compiled"
            )
        seed = request.sampling_params.seed
        if seed is None:
            seed = derive_seed(self._seed, self._num_arrived)
        drawer = RequestSampler(
            request,
            seed=seed,
            num_ids=self._num_ids,
            bad_words=self._spell_bad_words(request),
            processors=self._processors,
            grammar=form,
        )
        # From here on nothing raises: a refused request leaves no trace.
        self._num_arrived += 1
        ended = self._requests.get(request.request_id)
        if ended is not None:
            drawer.stale_samples = ended.stale_samples | ended.live_samples
        self._requests[request.request_id] = drawer
        self._watched.discard(request.request_id)
        if not drawer.is_plain:
            self._watched.add(request.request_id)

    def release(self, keys: Iterable[SequenceKey]) -> None:
        """Forget ended sequences (``plan.finished``); unknown keys are no error."""
        for request_id, sample_index in keys:
            drawer = self._requests.get(request_id)
            if drawer is None:
                continue
            if sample_index in drawer.stale_samples:
                drawer.stale_samples.discard(sample_index)
                continue
            drawer.drop(sample_index)
            if not drawer.live_samples:
                del self._requests[request_id]
                self._watched.discard(request_id)

    def wants_likeliest(self, plan: StepPlan) -> bool:
        """Whether every entry has one row and draws its likeliest id, and no more.

        The usual greedy step: nobody looks at logits if their highest is known.
        """
        watched = self._watched
        for entry in plan.scheduled:
            if entry.num_samples != 1 or entry.num_logits_rows != 1:
                return False
            if entry.num_draft_tokens:
                return False
            if watched and entry.request.request_id in watched:
                return False
        return True

    def sample(self, plan: StepPlan, result: ForwardResult) -> SampledStep:
        """Draw the tokens of one step; what later draws look back at is kept.

        A request whose draw is impossible is named in ``failed`` and nothing of it is
        committed; it does not touch the others.

        Args:
            plan: what was executed; ``needs_logits`` is False at most where
                ``wants_likeliest`` was true of it.
            result: what came out of it, checked against the plan; without logits only
                if all its ``likeliest_ids`` can be drawn. Tokens that the executor
                sampled itself are taken as they are, without log-probabilities.
        """
        if result.sampled_token_ids is not None:
            return self._adopt(plan, result.sampled_token_ids)
        likeliest = None if plan.needs_logits else self._draw_likeliest(result)
        if likeliest is not None:
            none = (None,) * len(likeliest)
            return SampledStep(likeliest, none, none)
        logits = self._view(result)
        failed: dict[str, SamplingFailed] = {}
        shares: list[EntryShare] = []
        end = 0
        for entry in plan.scheduled:
            start, end = end, end + entry.num_logits_rows
            request_id = entry.request.request_id
            share = UNDRAWN
            if request_id not in failed:
                try:
                    share = self._draw(entry, logits[start:end])
                except SamplingFailed as error:
                    failed[request_id] = error
            shares.append(share)
        for i, entry in enumerate(plan.scheduled):
            if entry.request.request_id in failed:
                # Its earlier samples may have been drawn before a later one failed.
                shares[i] = placeholder(entry)
            else:
                self._commit(entry, shares[i].token_ids)
        return SampledStep(
            tuple(share.token_ids for share in shares),
            tuple(share.logprobs for share in shares),
            tuple(share.prompt_logprobs for share in shares),
            tuple(failed.values()),
        )

    def _spell_bad_words(self, request: GenerateRequest) -> list[tuple[int, ...]]:
        sequences: list[tuple[int, ...]] = []
        for word in request.sampling_params.bad_words:
            if self._encode_bad_word is None:
                raise UnsupportedFeature(
                    f"bad_words has {word!r}, but this engine has no tokenizer to "
                    "spell it"
                )
            sequences.extend(self._encode_bad_word(word))
        return sequences

    def _view(self, result: ForwardResult) -> NDArray[np.float32]:
        """The executor's logits ``[rows, num_ids]``, without a copy, not to be changed.

        Nor marked as read-only: numpy's argmax copies what it may not write.
        """
        if result.logits is None:
            return np.empty((0, self._num_ids), np.float32)
        return logits_array(result.logits)[:, : self._num_ids]

    def _draw_likeliest(
        self, result: ForwardResult
    ) -> tuple[tuple[int, ...], ...] | None:
        """Draw for a step of which no more than the likeliest ids is wanted.

        In one search over all rows, or in none where the executor has searched.
        ``None``: one of its draws fails, or the rows are better searched one by one.
        """
        named = list(result.likeliest_ids or ())
        # An id that no tokenizer knows is the highest of more columns than count.
        if result.logits is None or (
            named and min(named) >= 0 and max(named) < self._num_ids
        ):
            return tuple(zip(named))
        logits = self._view(result)
        if not logits.flags.c_contiguous:  # searched at once they would be copied
            return None
        best = likeliest_ids(logits)
        return None if best is None else tuple(zip(best))

    def _draw(self, entry: ScheduledRequest, logits: NDArray[np.float32]) -> EntryShare:
        """Draw for one entry; commits nothing."""
        if entry.num_draft_tokens:
            raise UnsupportedFeature(
                f"request {entry.request.request_id!r} has "
                f"{entry.num_draft_tokens} draft tokens: the sampler verifies none"
            )
        token_ids: tuple[int, ...] = ()
        if entry.num_samples:
            drawer = self._requests[entry.request.request_id]
            token_ids = drawer.draw(logits[-1], entry.sample_index, entry.num_samples)
        return EntryShare(
            token_ids,
            output_logprobs(entry, logits, token_ids),
            self._prompt_logprobs(entry, logits),
        )

    def _prompt_logprobs(
        self, entry: ScheduledRequest, logits: NDArray[np.float32]
    ) -> tuple[TokenLogprobs, ...] | None:
        """Those of the prompt tokens that these rows are the first to predict."""
        num_top = entry.request.sampling_params.prompt_logprobs
        if num_top is None:
            return None
        if entry.sample_index != 0:
            return ()
        prompt = entry.request.prompt_token_ids
        end = entry.num_computed_tokens + len(entry.token_ids)
        # Row i is that of position first + i and predicts the token after it.
        first = end - len(logits)
        drawer = self._requests[entry.request.request_id]
        wanted = drawer.next_prompt_position
        found: list[TokenLogprobs] = []
        for target in range(max(first + 1, wanted), min(end + 1, len(prompt))):
            row = logits[target - 1 - first]
            drawer.check_highest(float(row.max()))
            found += token_logprobs(row, (prompt[target],), num_top)
        return tuple(found)

    def _commit(self, entry: ScheduledRequest, token_ids: tuple[int, ...]) -> None:
        drawer = self._requests[entry.request.request_id]
        if token_ids:
            drawer.commit(entry.sample_index, token_ids)
        if entry.num_logits_rows and entry.sample_index == 0:
            end = entry.num_computed_tokens + len(entry.token_ids)
            drawer.next_prompt_position = max(drawer.next_prompt_position, end + 1)

    def _adopt(
        self, plan: StepPlan, sampled: tuple[tuple[int, ...], ...]
    ) -> SampledStep:
        for entry, token_ids in zip(plan.scheduled, sampled, strict=True):
            drawer = self._requests[entry.request.request_id]
            if entry.num_samples > 1:
                drawer.commit(entry.sample_index, token_ids)
            else:
                drawer.append_run(entry.sample_index, token_ids)
        none = (None,) * len(sampled)
        return SampledStep(sampled, none, none)
