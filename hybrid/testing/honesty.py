"""What is declared works; an option that is not known is refused, by name."""

from contextlib import closing
from dataclasses import fields, replace

import numpy as np
import pytest

from hybrid.bridge import KVOrder
from hybrid.capability_check import check_capabilities
from hybrid.scheduler import (
    ConfigError,
    GenerateRequest,
    SamplingParams,
    ScheduledRequest,
    StepPlan,
)

from .answer import Answer, check_answers
from .bench import Bench
from .engine_run import fresh_ids, ids_of
from .executor_case import ExecutorCase, FindSource
from .workload import GREEDY, TokenIds

UNKNOWN_OPTION = "no_such_option"


class HonestyTests(ExecutorCase):
    """Capabilities, sizes and refusals agree with what the executor does."""

    def test_capabilities_do_not_change(self, bench: Bench) -> None:
        """The same of every instance; of a loaded model but for prompt logprobs."""
        loaded = bench.capabilities
        if not loaded.prompt_logprobs:
            loaded = replace(loaded, prompt_logprobs=self.declared().prompt_logprobs)
        assert self.declared() == loaded
        with closing(self.make_executor()) as executor:
            assert executor.capabilities() == self.declared()

    def test_capabilities_make_sense(self) -> None:
        """An engine could be built from them; nothing repeats, nothing is misspelt."""
        can = self.declared()
        check_capabilities(can, can.name)
        for field in ("devices", "dtypes", "block_sizes", "kv_orders"):
            values = getattr(can, field)
            assert len(set(values)) == len(values), f"{field} repeats itself: {values}"
        assert set(can.kv_orders) <= set(KVOrder), f"kv_orders: {can.kv_orders}"
        assert set(can.fast_dtypes) == set(can.devices), "fast_dtypes, by device"
        unknown = set(can.sampling_fields) - {
            field.name for field in fields(SamplingParams)
        }
        assert not unknown, f"sampling_fields are no SamplingParams': {unknown}"

    def test_every_declared_dtype_gives_the_right_tokens(
        self, dtype_bench: Bench
    ) -> None:
        """Two after each prefix: the reference's own, but for rounding.

        From one prefix to the next nothing builds on a token that fell otherwise.
        """
        prefixes, wanted = _cut(dtype_bench)
        outputs = dtype_bench.run(prefixes, replace(GREEDY, max_tokens=2))
        check_answers(
            wanted,
            ids_of(outputs),
            tolerance=dtype_bench.tolerance,
            setting=f"{dtype_bench.label}, after each prefix of the right answers",
        )

    def test_logits_come_as_rows_of_float32(self, every_bench: Bench) -> None:
        """One row for each that the plan wants, and none where it wants none."""
        _check_rows(every_bench)

    def test_likeliest_ids_alone_are_those_of_the_logits(
        self, every_bench: Bench
    ) -> None:
        """Who leaves out what nobody needs names the same ids, and can do it again."""
        _check_likeliest_alone(every_bench)

    def test_the_pool_is_the_one_asked_for(self, every_bench: Bench) -> None:
        """Layout, sizes before it and capabilities tell one story."""
        loaded, spec = every_bench.loaded, every_bench.loaded.executor.kv_spec()
        assert spec.order in every_bench.capabilities.kv_orders
        assert spec.available_bytes >= 0
        wanted = None
        if spec.cell_bytes is None:
            wanted = spec.layout(loaded.num_blocks + 1, loaded.block_size)
        assert loaded.layout == wanted, f"{every_bench.label}: not what kv_spec says"

    def test_an_unknown_option_is_refused_by_name(
        self, find_source: FindSource
    ) -> None:
        """A misspelt option is no silent default."""
        load = self.first_load()
        config = self.executor_config(load)
        options = {**config.options, UNKNOWN_OPTION: 1}
        source = find_source(load.architecture)
        with (
            closing(self.make_executor()) as executor,
            pytest.raises(ConfigError, match=UNKNOWN_OPTION),
        ):
            executor.load(source, replace(config, options=options))


def _cut(bench: Bench) -> tuple[list[TokenIds], list[Answer]]:
    """Cut the right answers after each token but the last: what comes before and after.

    A prompt of its own computes the first of two tokens, a decode step the second.
    """
    prompts = bench.workload.prompts
    cuts = [
        (prompt, answer, position)
        for prompt, answer in zip(prompts, bench.expected(prompts), strict=True)
        for position in range(len(answer.token_ids) - 1)
    ]
    prefixes = [(*prompt, *answer.token_ids[:at]) for prompt, answer, at in cuts]
    wanted = [
        Answer(answer.token_ids[at : at + 2], answer.margins[at : at + 2])
        for _, answer, at in cuts
    ]
    return prefixes, wanted


def _check_rows(bench: Bench) -> None:
    """Run prompts that want no row, one row and every row, and look at the logits."""
    size = bench.loaded.block_size
    rows = [0, 1, size] if bench.capabilities.prompt_logprobs else [0, 1]
    if not bench.capabilities.chunked_prefill:
        rows.remove(0)
    prompt = bench.workload.shared_prefix[:size]
    entries = tuple(
        _entry(prompt, block_id, num_rows)
        for block_id, num_rows in enumerate(rows, start=1)
    )
    plan = StepPlan(0, entries, len(entries), (), (), ())
    result = bench.loaded.executor.execute(plan)
    if not bench.capabilities.returns_logits:
        tokens = result.sampled_token_ids
        assert tokens is not None, f"{bench.label}: no tokens, though it samples itself"
        assert list(map(len, tokens)) == [entry.num_samples for entry in entries]
        return
    assert result.logits is not None, f"{bench.label}: no logits"
    logits = np.from_dlpack(result.logits)
    assert logits.dtype == np.float32, f"{bench.label}: logits are {logits.dtype}"
    wanted = (sum(rows), bench.loaded.info.vocab_size)
    assert logits.shape == wanted, f"{bench.label}: logits {logits.shape}, not {wanted}"
    assert np.isfinite(logits).all(), f"{bench.label}: logits are not finite"
    if result.likeliest_ids is not None:
        best = logits.argmax(axis=1).tolist()
        named = zip(result.likeliest_ids, best, strict=True)
        assert all(token_id in {-1, highest} for token_id, highest in named), (
            f"{bench.label}: likeliest_ids are {[*result.likeliest_ids]}, not {best}"
        )


def _check_likeliest_alone(bench: Bench) -> None:
    """Run prompts once for all that there is, then for their likeliest ids, twice."""
    if not bench.capabilities.returns_logits:
        pytest.skip(f"executor {bench.capabilities.name} samples itself")
    prompt = bench.workload.shared_prefix[: bench.loaded.block_size]
    entries = (_entry(prompt[:1], 1, 1), _entry(prompt, 2, 1))
    plan = StepPlan(0, entries, len(entries), (), (), ())
    result = bench.loaded.executor.execute(plan)
    assert result.logits is not None, f"{bench.label}: no logits"
    logits = np.array(np.from_dlpack(result.logits))  # the next step overwrites them
    best = logits.argmax(axis=1).tolist()
    for _ in range(2):
        result = bench.loaded.executor.execute(replace(plan, needs_logits=False))
        named = result.likeliest_ids
        if result.logits is not None:
            named = np.from_dlpack(result.logits).argmax(axis=1).tolist()
        assert named is not None, f"{bench.label}: neither logits nor likeliest ids"
        for row, token_id, highest in zip(logits, named, best, strict=True):
            gap = row[highest] - row[token_id]
            is_right = (
                gap <= bench.tolerance if bench.tolerance else token_id == highest
            )
            assert token_id == -1 or is_right, (
                f"{bench.label}: likeliest_ids alone are {[*named]}, not {best}"
            )


def _entry(prompt: TokenIds, block_id: int, num_rows: int) -> ScheduledRequest:
    request = GenerateRequest(fresh_ids(1)[0], prompt, GREEDY)
    return ScheduledRequest(
        request, 0, prompt, 0, (block_id,), num_rows, min(num_rows, 1)
    )
