"""A form is compiled beside the event loop and beside the engine."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hybrid import (
    AsyncHybridEngine,
    EngineConfig,
    GrammarKind,
    InvalidRequest,
    SamplingParams,
    StructuredOutput,
    build_engine,
)
from hybrid.grammar import compiler
from tests.hybrid.cli_stand import write_tiny_model
from tests.hybrid.serving_stand import collect, serve

FORM = StructuredOutput(GrammarKind.CHOICE, choices=("yes", "no"))


def start(folder: Path) -> Any:
    """An engine with text over the null executor."""
    config = EngineConfig(
        model=str(write_tiny_model(folder)), executor="null", num_kv_blocks=32
    )
    return build_engine(config, log_requests=False)


def test_others_are_served_while_a_form_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compilation that stands still holds up its own request alone."""
    has_begun, may_end = threading.Event(), threading.Event()
    original = compiler.grammar_source

    def held(*arguments: Any) -> str:
        has_begun.set()
        assert may_end.wait(60)
        return original(*arguments)

    monkeypatch.setattr(compiler, "grammar_source", held)

    async def body(serving: AsyncHybridEngine) -> None:
        params = SamplingParams(structured_output=FORM)
        waiting = asyncio.create_task(collect(serving.generate("x", params)))
        await asyncio.to_thread(has_begun.wait, 60)
        other = await collect(serving.generate("y", SamplingParams(max_tokens=4)))
        assert len(other[-1].outputs[0].token_ids) == 4
        assert not waiting.done()
        may_end.set()
        assert (await waiting)[-1].outputs[0].text in FORM.choices

    try:
        serve(start(tmp_path), body)
    finally:
        may_end.set()


def test_held_forms_hold_up_no_request_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the end of the server: the loop's own threads are fewer than the forms."""
    may_end = threading.Event()

    def held(*_: Any) -> str:
        assert may_end.wait(60)
        raise ValueError("held up")

    monkeypatch.setattr(compiler, "grammar_source", held)

    async def body(serving: AsyncHybridEngine) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        forms = [StructuredOutput(GrammarKind.REGEX, f"a{i}") for i in range(12)]
        waiting = [
            asyncio.create_task(
                collect(serving.generate("x", SamplingParams(structured_output=form)))
            )
            for form in forms
        ]
        for _ in range(3):
            other = await collect(serving.generate("y", SamplingParams(max_tokens=4)))
            assert len(other[-1].outputs[0].token_ids) == 4
        await serving.close()
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    try:
        serve(start(tmp_path), body)
    finally:
        may_end.set()


def test_a_bad_form_is_refused_to_its_caller_alone(tmp_path: Path) -> None:
    """Nothing is queued for it; the next request is answered."""

    async def body(serving: AsyncHybridEngine) -> None:
        bad = StructuredOutput(GrammarKind.JSON_SCHEMA, '{"type": "strin"}')
        with pytest.raises(InvalidRequest, match="strin") as caught:
            await collect(serving.generate("x", SamplingParams(structured_output=bad)))
        assert caught.value.field == "structured_output"
        good = SamplingParams(structured_output=FORM)
        outputs = await collect(serving.generate("x", good))
        assert outputs[-1].outputs[0].text in FORM.choices

    serve(start(tmp_path), body)
