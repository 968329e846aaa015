"""The engine asks of an executor what it declares, and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hybrid import LLM, ConfigError, EngineConfig, SamplingParams
from hybrid.backends.interface import ForwardResult
from hybrid.backends.null import executor as null_executor
from hybrid.backends.null.executor import CAPABILITIES, NullExecutor
from hybrid.model_resolution import resolve_options
from hybrid.scheduler import ScheduledRequest, StepPlan

GREEDY = SamplingParams(temperature=0, max_tokens=4)
MAX_MODEL_LEN = 64
BLOCK_SIZE = 16
PROMPTS = [list(range(start, start + 40)) for start in (0, 100, 200)]
"""A step that holds one of them, whole, has room for a part of the next."""


def contexts_with(
    monkeypatch: pytest.MonkeyPatch, **changes: bool
) -> list[ScheduledRequest]:
    """Every context that an executor sees while the prompts are run, twice."""
    lacking = replace(CAPABILITIES, **changes)
    monkeypatch.setattr(null_executor, "CAPABILITIES", lacking)
    contexts: list[ScheduledRequest] = []
    execute: Callable[[NullExecutor, StepPlan], ForwardResult] = NullExecutor.execute

    def watched(self: NullExecutor, plan: StepPlan) -> ForwardResult:
        contexts.extend(plan.scheduled[: plan.num_contexts])
        return execute(self, plan)

    monkeypatch.setattr(NullExecutor, "execute", watched)
    with LLM(
        executor="null",
        block_size=BLOCK_SIZE,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=MAX_MODEL_LEN,
    ) as llm:
        llm.generate(PROMPTS, GREEDY)
        llm.generate(PROMPTS, GREEDY)
    return contexts


def test_without_chunked_prefill_no_prompt_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every context is whole; with it, the same budget cuts some."""
    contexts = contexts_with(monkeypatch, chunked_prefill=False)
    assert all(entry.num_logits_rows == 1 for entry in contexts)
    assert not all(
        entry.num_logits_rows == 1
        for entry in contexts_with(monkeypatch, chunked_prefill=True)
    )


def test_prompts_are_cut_where_blocks_end_for_an_executor_that_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every part but the last; without the need the same budget cuts elsewhere."""

    def ends(**changes: bool) -> list[int]:
        """Where the parts that are not a prompt's last end, within a block."""
        return [
            (entry.num_computed_tokens + len(entry.token_ids)) % BLOCK_SIZE
            for entry in contexts_with(monkeypatch, **changes)
            if entry.num_samples == 0
        ]

    cut = ends(aligned_chunks=True)
    assert cut
    assert not any(cut)
    assert any(ends(aligned_chunks=False))


def test_without_prefix_reuse_every_prompt_begins_at_its_first_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No context has computed tokens; with it, the second time most have."""
    lacking = {"prefix_reuse": False, "chunked_prefill": False}
    contexts = contexts_with(monkeypatch, **lacking)
    assert not any(entry.num_computed_tokens for entry in contexts)
    reused = contexts_with(monkeypatch, prefix_reuse=True, chunked_prefill=False)
    assert any(entry.num_computed_tokens for entry in reused)


@pytest.mark.parametrize(
    "chosen", [{"block_size": 7919}, {"dtype": "float2"}, {"device": "abacus"}]
)
def test_an_undeclared_size_dtype_or_device_is_refused(chosen: dict[str, Any]) -> None:
    """Before anything is loaded, with the executor's name and the value."""
    with pytest.raises(ConfigError, match="executor null") as refusal:
        resolve_options(EngineConfig(**chosen), CAPABILITIES, None)
    assert str(next(iter(chosen.values()))) in str(refusal.value)
