"""Structural tags: free text outside, content of a form inside, in both notations."""

import json
import re
from typing import Any

import numpy as np
import pytest

from hybrid.scheduler import FinishReason, InvalidRequest, StructuredOutput
from tests.hybrid.form_stand import (
    EOS,
    answer,
    byte_level,
    compiler_of,
    form,
    num_ids,
    random_logits,
)
from tests.hybrid.token_bytes import token_bytes

FLAG = {
    "type": "object",
    "properties": {"x": {"type": "boolean"}},
    "required": ["x"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
FLAGS = r'\{"x":(true|false)\}'


def json_tag(begin: str, end: str | list[str] = "</f>") -> dict[str, Any]:
    """A tag around a flag."""
    content = {"type": "json_schema", "json_schema": FLAG}
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def triggered(**options: Any) -> dict[str, Any]:
    """Two tags behind one trigger."""
    tags = [json_tag("<f=a>"), json_tag("<f=b>")]
    return {"type": "triggered_tags", "triggers": ["<f="], "tags": tags} | options


def tag_form(part: dict[str, Any]) -> StructuredOutput:
    """A format as a request has it."""
    return form("structural_tag", json.dumps({"format": part}))


def spell(output: StructuredOutput, text: str) -> list[int] | None:
    """The tokens of a whole answer that is ``text``; ``None`` if it may not be that."""
    state = compiler_of().compile(output)
    rest, drawn = text.encode(), []
    while True:
        row = np.zeros(num_ids(byte_level()), np.float32)
        state.apply(row)
        if state.fault is not None:
            return None
        if not rest:
            return drawn if np.isfinite(row[EOS[0]]) else None
        parts = {
            int(token_id): token_bytes(byte_level(), int(token_id))
            for token_id in np.flatnonzero(np.isfinite(row))
        }
        fitting = [
            token_id for token_id, part in parts.items() if rest.startswith(part)
        ]
        if not fitting:
            return None
        longest = max(fitting, key=lambda token_id: len(parts[token_id]))
        rest = rest[len(parts[longest]) :]
        drawn.append(longest)
        state.advance(longest)


def is_taken(part: dict[str, Any], text: str) -> bool:
    """Whether an answer may be exactly ``text``."""
    return spell(tag_form(part), text) is not None


A, B = '<f=a>{"x":true}</f>', '<f=b>{"x":false}</f>'
THINK = {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}
SEPARATED = {
    "type": "tags_with_separator",
    "tags": [json_tag("<f=a>"), json_tag("<f=b>")],
    "separator": ",",
}


@pytest.mark.parametrize(
    ("part", "taken", "refused"),
    [
        (
            triggered(),
            ["", "no tag", A, "so: " + A + B + " done"],
            ["<f=", "so <f=c>", A + "<f=", '<f=a>{"x":1}</f>'],
        ),
        (triggered(at_least_one=True), [A, B + " and " + A], ["", "no tag", "so " + A]),
        (triggered(stop_after_first=True), ["", "so " + A], [A + " more", A + B]),
        (triggered(at_least_one=True, stop_after_first=True), [A], ["", A + B, "x"]),
        (triggered(excludes=["no"]), ["yes " + A], ["no " + A]),
        (SEPARATED, ["", A, A + "," + B + "," + A], [A + B, A + ",", "x"]),
        (SEPARATED | {"at_least_one": True}, [A, A + "," + A], [""]),
        (SEPARATED | {"stop_after_first": True}, ["", A], [A + "," + A]),
        (json_tag("", ["</a>", ""]), ['{"x":true}</a>', '{"x":true}'], ["</a>"]),
        (THINK, ["<t></t>", "<t>a < b\n</t>"], ["<t>", "<t>a</t>b</t>"]),
        (
            {"type": "tag", "begin": "", "end": ["z", "zz"]}
            | {"content": {"type": "regex", "pattern": "[a-z]*"}},
            ["z", "az", "azz"],
            ["", "a"],
        ),
        ({"type": "const_string", "value": 'a"\\/'}, ['a"\\/'], ["a", ""]),
        ({"type": "regex", "pattern": "^a/b\\/\n[0-9]$"}, ["a/b/\n1"], ["a/b/1"]),
        ({"type": "any_text", "excludes": ["a/"]}, ["", "a b"], ["a/"]),
        (
            {
                "type": "sequence",
                "elements": [
                    THINK,
                    {
                        "type": "or",
                        "elements": [
                            {"type": "const_string", "value": "no"},
                            json_tag("<f>"),
                        ],
                    },
                ],
            },
            ["<t>so</t>no", '<t></t><f>{"x":true}</f>'],
            ["no", "<t></t>", "<t></t>nono"],
        ),
        ({"type": "json_schema", "json_schema": True}, ["1", "[]"], ["x"]),
    ],
)
def test_a_format_takes_what_it_says(
    part: dict[str, Any], taken: list[str], refused: list[str]
) -> None:
    """Each text that fits can be drawn to its end; each that does not, cannot."""
    for text in taken:
        assert is_taken(part, text), text
    for text in refused:
        assert not is_taken(part, text), text


@pytest.mark.parametrize("seed", range(6))
def test_random_answers_keep_to_their_tags(seed: int) -> None:
    """Whatever is drawn between the tags."""
    part = triggered(at_least_one=True, stop_after_first=True)
    got = answer(tag_form(part), random_logits(seed), seed=seed)
    assert got.reason is FinishReason.STOP
    assert re.fullmatch(rf"<f=[ab]>{FLAGS}</f>", got.text)


def test_the_older_notation_means_the_same() -> None:
    """Structures and triggers, as vLLM's clients wrote them first."""
    old = {
        "structures": [{"begin": "<f=a>", "schema": FLAG, "end": "</f>"}],
        "triggers": ["<f="],
    }
    for text, is_fitting in ((f"so {A} done", True), (B, False)):
        drawn = spell(form("structural_tag", json.dumps(old)), text)
        assert (drawn is not None) is is_fitting


def test_a_special_token_in_a_tag_is_the_token_itself() -> None:
    """No text spells it, neither in the tag nor in the free text around."""
    part = {
        "type": "triggered_tags",
        "triggers": ["<|call|>"],
        "tags": [json_tag("<|call|>f:", "<|call|>")],
    }
    drawn = spell(tag_form(part), 'a<|call|>f:{"x":true}<|call|>b')
    assert drawn is not None
    call = byte_level().token_to_id("<|call|>")
    assert drawn.count(call) == 2
    row = np.zeros(num_ids(byte_level()), np.float32)
    compiler_of().compile(tag_form(part | {"at_least_one": True})).apply(row)
    assert np.flatnonzero(np.isfinite(row)).tolist() == [call]


@pytest.mark.parametrize(
    ("tag", "reason"),
    [
        ([], "format"),
        ({}, "format"),
        ({"format": {}}, "type"),
        ({"format": {"type": "qwen_xml_parameter"}}, "qwen_xml_parameter"),
        ({"format": {"type": "sequence", "elements": []}}, "empty"),
        (
            {"format": {"type": "sequence", "elements": [{"type": "any_text"}] * 2}},
            "any_text goes on",
        ),
        (
            {
                "format": {
                    "type": "tag",
                    "begin": "",
                    "content": triggered(),
                    "end": "a",
                }
            },
            "triggered_tags goes on",
        ),
        ({"format": {"type": "sequence", "elements": ["a"]}}, "type"),
        ({"format": {"type": "const_string", "value": 1}}, "value"),
        ({"format": {"type": "json_schema", "json_schema": "{}"}}, "json_schema"),
        (
            {"format": {"type": "json_schema", "json_schema": {}, "style": "glm_xml"}},
            "glm_xml",
        ),
        ({"format": {"type": "json_schema", "json_schema": {"type": 5}}}, ""),
        ({"format": {"type": "any_text", "excludes": [1]}}, "excludes"),
        ({"format": triggered(triggers=["<f=", "<g"])}, "<g"),
        ({"format": triggered(triggers=["<f=a"])}, "<f=b>"),
        ({"format": triggered(tags=[])}, "<f="),
        ({"structures": [], "triggers": ["a"]}, "'a'"),
        ({"structures": [{"begin": "a", "end": "b"}], "triggers": ["a"]}, "schema"),
        ({"structures": [5], "triggers": ["a"]}, "schema"),
    ],
)
def test_what_is_no_structural_tag_is_refused(tag: Any, reason: str) -> None:
    """The message names the entry at fault."""
    with pytest.raises(InvalidRequest, match="structural_tag") as caught:
        compiler_of().compile(form("structural_tag", json.dumps(tag)))
    assert caught.value.field == "structured_output"
    assert reason in str(caught.value)
