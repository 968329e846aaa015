"""Compiling beside everything else: once a form, few at a time, never for nobody."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hybrid.grammar import compile_queue
from hybrid.grammar import compiler as compiler_module
from hybrid.grammar.compiler import GrammarCompiler
from hybrid.grammar.form_limits import (
    MAX_FORM_CHARACTERS,
    MAX_GRAMMAR_CHARACTERS,
    MAX_THREADS,
)
from hybrid.scheduler import InvalidRequest, Overloaded, StructuredOutput
from tests.hybrid.form_stand import EOS, byte_level, form, num_ids

TIMEOUT_S = 60.0


class Gate:
    """Holds whatever is being compiled until it is opened, and counts it."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.has_begun = threading.Semaphore(0)
        self.is_open = threading.Event()
        self._original = compiler_module.grammar_source

    def __call__(self, output: StructuredOutput, special: Any) -> str:
        """Stand in for ``grammar_source``."""
        self.begun.append(output.text)
        self.has_begun.release()
        assert self.is_open.wait(TIMEOUT_S)
        return self._original(output, special)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """A closed one; opened at the end, whatever happens."""
    made = Gate()
    monkeypatch.setattr(compiler_module, "grammar_source", made)
    yield made
    made.is_open.set()


def make_compiler() -> GrammarCompiler:
    """One that keeps nothing yet."""
    return GrammarCompiler(byte_level(), num_ids(byte_level()), EOS)


def hold_all_threads(
    compiler: GrammarCompiler, gate: Gate, pool: ThreadPoolExecutor
) -> None:
    """Give every thread of the compiler a form that does not come to an end."""
    for index in range(MAX_THREADS):
        pool.submit(compiler.compile, form("regex", f"held{index}"))
        assert gate.has_begun.acquire(timeout=TIMEOUT_S)


def test_a_form_that_many_ask_for_at_once_is_compiled_once(gate: Gate) -> None:
    """Everybody gets a beginning of their own."""
    compiler = make_compiler()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(compiler.compile, form("regex", "a")) for _ in range(8)]
        assert gate.has_begun.acquire(timeout=TIMEOUT_S)
        gate.is_open.set()
        states = {id(future.result(TIMEOUT_S)) for future in asked}
    assert gate.begun == ["a"]
    assert len(states) == 8


def test_a_bad_form_is_refused_to_all_who_asked(gate: Gate) -> None:
    """It is compiled for all of them at once, and not kept."""
    compiler = make_compiler()
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(compiler.compile, form("regex", "(")) for _ in range(3)]
        gate.is_open.set()
        errors = [future.exception(TIMEOUT_S) for future in asked]
    assert {type(error) for error in errors} == {InvalidRequest}
    assert compiler.num_cached == 0


def test_few_are_compiled_at_a_time_and_no_thread_stays(gate: Gate) -> None:
    """The others wait; what is done leaves no thread behind."""
    compiler = make_compiler()
    with ThreadPoolExecutor(MAX_THREADS + 3) as pool:
        hold_all_threads(compiler, gate, pool)
        later = [pool.submit(compiler.compile, form("regex", f"{i}")) for i in "abc"]
        assert len(gate.begun) == MAX_THREADS
        threads = [t for t in threading.enumerate() if t.name == "hybrid-grammar"]
        assert len(threads) == MAX_THREADS
        gate.is_open.set()
        for future in later:
            future.result(TIMEOUT_S)
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("limit", "value"), [("MAX_WAITING", 1), ("MAX_WAITING_CHARACTERS", 10)]
)
def test_a_full_queue_refuses_new_forms(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    """By number and by size; one that waits already may be joined."""
    monkeypatch.setattr(compile_queue, limit, value)
    compiler = make_compiler()

    async def main() -> None:
        first = asyncio.create_task(compiler.compile_async(form("regex", "a" * 9)))
        twin = asyncio.create_task(compiler.compile_async(form("regex", "a" * 9)))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match=rf"at most.*{value}") as caught:
            await compiler.compile_async(form("regex", "bb"))
        assert caught.value.retry_after_s > 0
        gate.is_open.set()
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(first, twin)
        await compiler.compile_async(form("regex", "bb"))

    with ThreadPoolExecutor(MAX_THREADS) as pool:
        hold_all_threads(compiler, gate, pool)
        asyncio.run(main())


def test_what_nobody_waits_for_any_more_is_not_begun(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that leaves gives its place back."""
    monkeypatch.setattr(compile_queue, "MAX_WAITING", 1)
    compiler = make_compiler()

    async def main() -> None:
        left = asyncio.create_task(compiler.compile_async(form("regex", "left")))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        stays = asyncio.create_task(compiler.compile_async(form("regex", "stays")))
        await asyncio.sleep(0)
        gate.is_open.set()
        async with asyncio.timeout(TIMEOUT_S):
            await stays

    with ThreadPoolExecutor(MAX_THREADS) as pool:
        hold_all_threads(compiler, gate, pool)
        asyncio.run(main())
    assert "stays" in gate.begun
    assert "left" not in gate.begun


def in_a_thread(compiler: GrammarCompiler, output: StructuredOutput) -> None:
    """Wait as a thread does."""
    compiler.compile(output)


def in_a_loop(compiler: GrammarCompiler, output: StructuredOutput) -> None:
    """Wait as an event loop does."""
    asyncio.run(compiler.compile_async(output))


Ask = Callable[[GrammarCompiler, StructuredOutput], None]


@pytest.mark.parametrize("ask", [in_a_thread, in_a_loop])
def test_what_takes_too_long_is_refused(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    """The caller is not kept for longer than the limit says."""
    monkeypatch.setattr(compile_queue, "COMPILE_TIMEOUT_S", 0.5)
    with pytest.raises(InvalidRequest, match=r"more than 0\.5 s"):
        ask(make_compiler(), form("regex", "slow"))
    assert gate.begun == ["slow"]


@pytest.mark.parametrize("ask", [in_a_thread, in_a_loop])
def test_waiting_for_others_too_long_is_not_the_forms_fault(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    """A compilation that never ends has its thread for good, and may not be blamed."""
    compiler = make_compiler()
    with ThreadPoolExecutor(MAX_THREADS) as pool:
        hold_all_threads(compiler, gate, pool)
        monkeypatch.setattr(compile_queue, "COMPILE_TIMEOUT_S", 0.05)
        with pytest.raises(Overloaded, match=r"waited for 0\.05 s"):
            ask(compiler, form("regex", "late"))
        gate.is_open.set()


@pytest.mark.parametrize(
    "kind", ["json_schema", "regex", "grammar", "structural_tag", "choice"]
)
def test_the_size_is_limited(gate: Gate, kind: str) -> None:
    """The limit itself is taken, one character more names it and is not compiled."""
    limit = MAX_GRAMMAR_CHARACTERS if kind == "grammar" else MAX_FORM_CHARACTERS

    def make(size: int) -> StructuredOutput:
        if kind == "choice":
            return form("choice", choices=("a", "b" * (size - 1)))
        return form(kind, "a" * size)

    with pytest.raises(InvalidRequest, match=rf"at most {limit}$") as caught:
        make_compiler().compile(make(limit + 1))
    assert caught.value.field == "structured_output"
    assert caught.value.value == limit + 1
    assert gate.begun == []
    gate.is_open.set()
    try:
        make_compiler().compile(make(limit))
    except InvalidRequest as error:
        assert "at most" not in str(error)  # noqa: PT017 - it may be refused as no schema
    assert len(gate.begun) == 1
