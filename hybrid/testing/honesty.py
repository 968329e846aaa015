"""What is declared works; what is not declared is refused, by name."""

from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hybrid.bridge import KVOrder
from hybrid.capability_check import check_capabilities
from hybrid.engine_config import EngineConfig
from hybrid.model_resolution import resolve_options
from hybrid.scheduler import (
    ConfigError,
    GenerateRequest,
    ScheduledRequest,
    StepPlan,
    UnsupportedFeature,
)

from .bench import Bench
from .engine_run import fresh_ids, run
from .executor_case import ExecutorCase, FindSource
from .workload import GREEDY, WILD, TokenIds

UNKNOWN_OPTION = "no_such_option"
UNDECLARED = {"block_size": 7919, "dtype": "float2", "device": "abacus"}


class HonestyTests(ExecutorCase):
    """Capabilities, sizes and refusals agree with what the executor does."""

    def test_capabilities_do_not_change(self, bench: Bench) -> None:
        """The same before loading, after it, and of every instance."""
        assert self.declared() == bench.capabilities
        with closing(self.make_executor()) as executor:
            assert executor.capabilities() == self.declared()

    def test_capabilities_make_sense(self) -> None:
        """Something is declared of each kind, nothing twice, nothing contradictory."""
        can = self.declared()
        check_capabilities(can, can.name)
        assert can.name, "the name is empty"
        for field in ("devices", "dtypes", "block_sizes", "kv_orders"):
            values = getattr(can, field)
            assert values, f"{field} is empty"
            assert len(set(values)) == len(values), f"{field} repeats itself: {values}"
        assert min(can.block_sizes) >= 1, f"block_sizes: {can.block_sizes}"
        assert set(can.kv_orders) <= set(KVOrder), f"kv_orders: {can.kv_orders}"
        assert set(can.fast_dtypes) == set(can.devices), "fast_dtypes, by device"
        for device, dtypes in can.fast_dtypes.items():
            assert set(dtypes) <= set(can.dtypes), f"fast_dtypes of {device}: {dtypes}"

    def test_every_declared_dtype_answers(self, dtype_bench: Bench) -> None:
        """A model loads in it, and its logits are finite."""
        _check_rows(dtype_bench)

    def test_logits_come_as_rows_of_float32(self, every_bench: Bench) -> None:
        """One row for each that the plan wants, and none where it wants none."""
        _check_rows(every_bench)

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

    @pytest.mark.parametrize("option", UNDECLARED)
    def test_an_undeclared_size_dtype_or_device_is_refused(self, option: str) -> None:
        """The engine refuses, before it loads, what the executor does not declare."""
        can = self.declared()
        chosen: dict[str, Any] = {option: UNDECLARED[option]}
        with pytest.raises(ConfigError, match=can.name) as refusal:
            resolve_options(EngineConfig(**chosen), can, None)
        assert str(UNDECLARED[option]) in str(refusal.value)

    def test_undeclared_prompt_logprobs_are_refused(self, bench: Bench) -> None:
        """They are not left out in silence."""
        if bench.capabilities.prompt_logprobs:
            pytest.skip("it declares prompt_logprobs")
        params = replace(GREEDY, prompt_logprobs=0)
        with pytest.raises(UnsupportedFeature, match="prompt_logprobs"):
            bench.engine().add_request("refused", (1, 2, 3), params)

    def test_undeclared_sampling_fields_are_refused(self, bench: Bench) -> None:
        """Who samples itself is asked for nothing that it did not name."""
        can = bench.capabilities
        if can.returns_logits:
            pytest.skip("it returns logits: the engine samples")
        if "temperature" in can.sampling_fields:
            pytest.skip("it declares temperature")
        with pytest.raises(UnsupportedFeature, match="temperature"):
            bench.engine().add_request("refused", (1, 2, 3), WILD)

    def test_without_chunked_prefill_no_prompt_is_cut(self, bench: Bench) -> None:
        """Every context that it sees is whole."""
        if bench.capabilities.chunked_prefill:
            pytest.skip("it declares chunked_prefill")
        bench.run(bench.workload.prompts)
        for plan in bench.recorder.plans:
            for entry in plan.scheduled[: plan.num_contexts]:
                assert entry.num_logits_rows == 1, f"a chunk in step {plan.step}"

    def test_without_prefix_reuse_every_prompt_begins_at_its_first_token(
        self, bench: Bench
    ) -> None:
        """No context that it sees has computed tokens."""
        if bench.capabilities.prefix_reuse:
            pytest.skip("it declares prefix_reuse")
        prompts, engine = bench.workload.prompts, bench.engine()
        outputs = [*run(engine, prompts, GREEDY), *run(engine, prompts, GREEDY)]
        assert not [o for o in outputs if o.metrics.num_cached_tokens]


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


def _entry(prompt: TokenIds, block_id: int, num_rows: int) -> ScheduledRequest:
    request = GenerateRequest(fresh_ids(1)[0], prompt, GREEDY)
    return ScheduledRequest(
        request, 0, prompt, 0, (block_id,), num_rows, min(num_rows, 1)
    )
