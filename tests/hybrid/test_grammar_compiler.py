"""Compiling forms: exact bytes, named refusals, bounded work, a bounded cache."""

import builtins
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from hybrid.grammar import compiler as compiler_module
from hybrid.grammar.compiler import GrammarCompiler
from hybrid.grammar.form_limits import MAX_CACHED
from hybrid.scheduler import InvalidRequest, UnsupportedFeature
from tests.hybrid.form_stand import (
    EOS,
    SPECIAL,
    byte_fallback,
    byte_level,
    compiler_of,
    form,
    num_ids,
)
from tests.hybrid.token_bytes import token_bytes

DOUBLING = "start: R0\n" + "".join(f"R{i}: R{i + 1} R{i + 1}\n" for i in range(30))
DOUBLING += 'R30: "a"'
TEXTS = [
    '{"name": "Alice", "age": 30}\n',
    " two  spaces \t and \u00e9t\u00e9 \u03a9 \u6f22\u5b57 \U0001f600\u200d\x00\x7f",
    "<tool> <|end|",
]


def allowed(compiler: GrammarCompiler, regex: str, tokenizer: Tokenizer) -> set[int]:
    """The ids that may come first."""
    row = np.zeros(num_ids(tokenizer), np.float32)
    compiler.compile(form("regex", regex)).apply(row)
    return set(np.flatnonzero(np.isfinite(row)).tolist())


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_the_bytes_of_every_token_are_exact(make: Callable[[], Tokenizer]) -> None:
    """As the formats' own rules have them; whole texts come back byte for byte."""
    tokenizer, vocabulary = make(), compiler_of(make)._loaded_vocabulary()
    # An added token in angle brackets counts as special, which no text spells; so does
    # the byte 255, which no text holds.
    names = [*SPECIAL, "<tool \u00e9>"]
    special = {tokenizer.token_to_id(name) for name in names} - {None}
    all_ids = range(num_ids(tokenizer))
    spelled = {i: token_bytes(tokenizer, i) for i in all_ids if i not in special}
    special |= {i for i, part in spelled.items() if part == b"\xff"}
    assert special == {i for i in all_ids if vocabulary.is_special_token(i)}
    ids = sorted(set(all_ids) - special)
    assert [vocabulary.decode_bytes([i]) for i in ids] == [spelled[i] for i in ids]
    for text in TEXTS:
        token_ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert b"".join(spelled[i] for i in token_ids) == text.encode()
    # Of a text that may be anything, every token can be the first that begins one.
    anything = allowed(compiler_of(make), r"(?s:.*)", tokenizer) - set(EOS)
    assert anything == {i for i in ids if _begins_text(spelled[i])}


def _begins_text(spelled: bytes) -> bool:
    try:
        spelled.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("json_schema", "{", "EOF"),
        ("json_schema", "[1]", "object"),
        ("json_schema", '{"type": "strin"}', "strin"),
        ("json_schema", '{"not": {"type": "string"}}', "not"),
        ("json_schema", '{"$ref": "http://127.0.0.1:1/x"}', "not fetch"),
        ("json_schema", '{"$ref": "#/$defs/x"}', "x"),
        ("json_schema", '{"type": "string", "pattern": "("}', "regex"),
        ("json_schema", '{"allOf": [{"type": "string"}, {"type": "null"}]}', "nsatisf"),
        ("json_schema", '{"$ref": "#"}', ""),
        ("regex", "([", "regex"),
        ("regex", "a(?=b)", "look"),
        ("regex", "[^\\x00-\\x{10FFFF}]", ""),
        ("grammar", "nonsense", "GBNF"),
        ("grammar", 'root ::= "a" missing', "missing"),
        ("grammar", "start: missing", "missing"),
        ("grammar", "start: " + "(" * 5000 + '"a"' + ")" * 5000, "nested"),
        ("grammar", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "recursion"),
        ("grammar", DOUBLING, "too big"),
        ("json_schema", '{"items":' * 9000 + "{}" + "}" * 9000, "recursion"),
        ("structural_tag", "{", "Expecting"),
        ("structural_tag", '{"format": {"type": "wish"}}', "wish"),
    ],
)
def test_what_cannot_be_followed_is_refused(kind: str, text: str, reason: str) -> None:
    """The message names field, kind and llguidance's reason; it is short."""
    with pytest.raises(InvalidRequest, match="structured_output") as caught:
        compiler_of().compile(form(kind, text))
    assert caught.value.field == "structured_output"
    assert kind in str(caught.value)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 400
    # The next one is none the worse for it.
    compiler_of().compile(form("regex", "a"))


def test_the_longest_chain_of_references_does_not_overflow_the_stack() -> None:
    """In a process of its own: an overflow would end it, as it would a server."""
    body = """
from hybrid.grammar.compiler import GrammarCompiler
from hybrid.scheduler.structured_output import *
from tests.hybrid.form_stand import compiler_of, form
rules = [f"r{i}:((((((r{i + 1}))))))\\n" for i in range(1200)]
compiler_of().compile(form("grammar", "start:r0\\n" + "".join(rules) + 'r1200:"a"'))
defs = ",".join(
    f'"{i}":{{"items":{{"$ref":"#/$defs/{i + 1}"}}}}' for i in range(3000)
)
schema = '{"$ref":"#/$defs/0","$defs":{%s,"3000":{}}}' % defs
compiler_of().compile(form("json_schema", schema))
state = compiler_of().compile(form("json_schema", schema)).copy()
print("fine")
"""
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", body],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_the_stack_of_other_threads_stays_as_it_was() -> None:
    """The size is the process's own setting, and put back."""
    before = threading.stack_size()
    compiler_of().compile(form("regex", "stack"))
    assert threading.stack_size() == before


def test_a_form_is_compiled_once_as_long_as_it_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By content; the one that was not asked for the longest makes way."""
    compiled: list[str] = []
    original = compiler_module.grammar_source

    def counting(output: Any, special: Any) -> str:
        compiled.append(output.text)
        return original(output, special)

    monkeypatch.setattr(compiler_module, "grammar_source", counting)
    compiler = GrammarCompiler(byte_level(), num_ids(byte_level()), EOS)
    for _ in range(3):
        compiler.compile(form("regex", "a0"))
    assert compiled == ["a0"]
    for index in range(1, MAX_CACHED):
        compiler.compile(form("regex", f"a{index}"))
    compiler.compile(form("regex", "a0"))
    compiler.compile(form("regex", "one more"))
    assert compiler.num_cached == MAX_CACHED
    compiled.clear()
    compiler.compile(form("regex", "a0"))
    compiler.compile(form("regex", "a1"))
    assert compiled == ["a1"]


def test_the_cache_is_bounded_by_size_too() -> None:
    """Large forms leave room for few; the newest is always there to start."""
    compiler = GrammarCompiler(byte_level(), num_ids(byte_level()), EOS)
    for index in range(12):
        large = form("choice", choices=[f"{index}", "x" * 100_000])
        compiler.compile(large)
    assert compiler.num_cached == 10


def test_many_threads_compile_at_once() -> None:
    """Each gets what it asked for."""
    compiler = GrammarCompiler(byte_level(), num_ids(byte_level()), EOS)
    wrong: list[str] = []

    def work(digit: str) -> None:
        for _ in range(5):
            tokens = allowed(compiler, digit + "x*", byte_level())
            texts = {token_bytes(byte_level(), i)[:1] for i in tokens}
            if texts != {digit.encode()}:
                wrong.append(digit)

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong


def test_without_the_library_the_field_is_refused_and_says_how_to_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everything else works without it."""
    original = builtins.__import__

    def without(name: str, *args: Any, **keywords: Any) -> Any:
        if name == "llguidance":
            raise ImportError("no llguidance", name="llguidance")
        return original(name, *args, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    compiler = GrammarCompiler(byte_level(), num_ids(byte_level()), EOS)
    with pytest.raises(InvalidRequest, match=r"llguidance.*\[grpc\]") as caught:
        compiler.compile(form("regex", "a"))
    assert caught.value.field == "structured_output"


def test_a_model_without_an_end_is_refused() -> None:
    """A complete answer could not end."""
    compiler = GrammarCompiler(byte_level(), num_ids(byte_level()), ())
    with pytest.raises(UnsupportedFeature, match="token that ends"):
        compiler.compile(form("regex", "a"))


def test_an_end_that_is_no_id_is_left_out() -> None:
    """Files name ends of a larger vocabulary; without any other there is none."""
    beyond = num_ids(byte_level()) + 5
    GrammarCompiler(byte_level(), beyond - 5, (0, beyond)).compile(form("regex", "a"))
    compiler = GrammarCompiler(byte_level(), beyond - 5, (beyond,))
    with pytest.raises(UnsupportedFeature, match="token that ends"):
        compiler.compile(form("regex", "a"))


def test_a_head_that_is_smaller_than_the_vocabulary_is_masked_too() -> None:
    """Some ids have no column, an end that is a text among them."""
    tokenizer = byte_level()
    end = num_ids(tokenizer) - 2
    compiler = GrammarCompiler(tokenizer, num_ids(tokenizer), (0, end))
    row = np.zeros(200, np.float32)
    compiler.compile(form("regex", "[ab]c")).apply(row)
    firsts = {tokenizer.token_to_id("a"), tokenizer.token_to_id("b")}
    assert set(np.flatnonzero(np.isfinite(row)).tolist()) == firsts


def test_a_tokenizer_that_forgets_bytes_is_refused() -> None:
    """Whole words with an unknown for the rest: its tokens spell no exact text."""
    words = Tokenizer(models.WordLevel({"</s>": 0, "a": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.decoder = decoders.WordPiece()
    compiler = GrammarCompiler(words, 3, (0,))
    with pytest.raises(UnsupportedFeature, match="tokenizer"):
        compiler.compile(form("regex", "a"))


def test_a_schema_may_speak_to_llguidance_itself() -> None:
    """Then it says what is blank; otherwise 32 in a row are the most."""
    own = {"type": "object", "x-guidance": {"whitespace_flexible": False}}
    tokenizer = byte_level()
    for schema, num_blanks, is_allowed in (
        ({"type": "object"}, 31, True),
        ({"type": "object"}, 32, False),
        (own, 0, False),
    ):
        state = compiler_of().compile(form("json_schema", json.dumps(schema)))
        for text in ("{", *" " * num_blanks):
            state.advance(tokenizer.encode(text).ids[0])
        assert state.fault is None
        row = np.zeros(num_ids(tokenizer), np.float32)
        state.apply(row)
        assert bool(np.isfinite(row[tokenizer.encode(" ").ids[0]])) is is_allowed
