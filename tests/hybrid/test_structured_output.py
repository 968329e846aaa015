"""The form of an answer as a value: shape, before anything is compiled."""

import copy
import pickle
from typing import Any

import pytest

from hybrid.scheduler import GrammarKind, InvalidRequest, SamplingParams
from hybrid.scheduler.structured_output import StructuredOutput

TEXTUAL = ["json_schema", "regex", "grammar", "structural_tag"]


@pytest.mark.parametrize(
    ("kind", "text", "choices", "field"),
    [
        *((kind, "", (), "structured_output") for kind in TEXTUAL),
        *((kind, "a", ("a",), "structured_output") for kind in TEXTUAL),
        ("json_object", "{}", (), "structured_output"),
        ("json_object", "", ("a",), "structured_output"),
        ("choice", "a", ("a",), "structured_output"),
        ("choice", "", (), "structured_output"),
        ("choice", "", ("a", ""), "structured_output.choices"),
        ("choice", "", (1,), "structured_output.choices"),
        ("choice", "", ("\ud800",), "structured_output.choices"),
        ("regex", 5, (), "structured_output.text"),
        ("regex", b"a", (), "structured_output.text"),
        ("regex", "\ud800", (), "structured_output.text"),
        ("json", "{}", (), "structured_output.kind"),
        (None, "{}", (), "structured_output.kind"),
    ],
)
def test_a_malformed_form_names_its_field(
    kind: Any, text: Any, choices: Any, field: str
) -> None:
    """What is missing, out of place or of the wrong type is refused."""
    with pytest.raises(InvalidRequest, match=r"^structured_output") as caught:
        StructuredOutput(kind, text, choices)
    assert caught.value.field == field


def test_names_and_lists_come_in_one_shape() -> None:
    """A kind may be given by its name, choices in any sequence."""
    form = StructuredOutput("choice", choices=["a", "b"])  # type: ignore[arg-type]
    assert form.kind is GrammarKind.CHOICE
    assert form.choices == ("a", "b")


def test_equal_forms_hash_copy_and_pickle_alike() -> None:
    """It is a value: it crosses processes, and keys the cache of compiled ones."""
    form = StructuredOutput(GrammarKind.REGEX, "a+")
    for twin in (copy.deepcopy(form), pickle.loads(pickle.dumps(form))):  # noqa: S301 - our own bytes
        assert twin == form
        assert hash(twin) == hash(form)
    assert form != StructuredOutput(GrammarKind.GRAMMAR, "a+")


def test_going_on_past_the_end_contradicts_a_form() -> None:
    """A form ends by the model's end, which may not be ignored."""
    form = StructuredOutput(GrammarKind.JSON_OBJECT)
    with pytest.raises(InvalidRequest, match="ignore_eos") as caught:
        SamplingParams(structured_output=form, ignore_eos=True)
    assert caught.value.field == "ignore_eos"
