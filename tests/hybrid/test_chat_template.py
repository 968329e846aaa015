"""Chat templates: transformers' text for good messages, a refusal for bad ones."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from hybrid.scheduler.errors import InvalidRequest
from hybrid.tokenizer.chat_template import ChatTemplate

CHATML = (
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message.content }}\n"
    "    {%- if message.tool_calls is defined %}\n"
    "        {%- for call in message.tool_calls %}\n"
    "            {{- call.function.name }}({{ call.function.arguments | tojson }})\n"
    "        {%- endfor %}\n"
    "    {%- endif %}\n"
    "    {{- '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
STRICT = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "[{{ message['role'] }}]{{ message['content'] | trim }}{% endfor %}"
)
USER = {"role": "user", "content": "Hi <b> & \u00e9"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "1",
            "type": "function",
            "function": {"name": "add", "arguments": '{"a": 1, "b": "<x>"}'},
        }
    ],
}


def render(template: str, messages: Any, **options: Any) -> str:
    """Render with the special tokens of a usual model."""
    return ChatTemplate(template, {"bos_token": "<s>"}).render(messages, **options)


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize(
    ("template", "messages"),
    [
        (CHATML, [USER]),
        (CHATML, [{"role": "system", "content": "Be brief."}, USER]),
        (STRICT, [USER, {"role": "assistant", "content": " yes "}, USER]),
        ("{{ strftime_now('') }}{{ tools | tojson }}{{ nothing }}", [USER]),
        (
            "{% for m in messages %}{% generation %}a\n{% endgeneration %}{% endfor %}",
            [USER],
        ),
        (
            "{% for i in range(9) %}{% if i > 3 %}{% break %}{% endif %}.{% endfor %}",
            [USER],
        ),
        ("{{ '%s-%02d' % ('a', 7) }}{{ 'ab' * 3 }}{{ 2 ** 5 }}{{ 7 % 4 }}", [USER]),
        ("{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}", [USER]),
        ("{{ messages | tojson(indent=2) }}{{ 'x' | center(9) }}", [USER]),
    ],
)
def test_text_equals_transformers(
    template: str, messages: list[dict[str, str]], add_generation_prompt: bool
) -> None:
    """Filters, loops, tags, missing variables and spaces work as in transformers."""
    (expected,), _ = render_jinja_template(
        [messages],
        chat_template=template,
        add_generation_prompt=add_generation_prompt,
        bos_token="<s>",
    )
    ours = render(template, messages, add_generation_prompt=add_generation_prompt)
    assert ours == expected


def test_variables_and_tools_reach_the_template() -> None:
    """Whatever the caller adds can be read."""
    text = render(
        "{{ tools[0].name }} {{ enable_thinking }} {{ bos_token }}",
        [USER],
        tools=[{"name": "add"}],
        enable_thinking=False,
    )
    assert text == "add False <s>"


def test_tool_calls_with_null_content_render() -> None:
    """Null becomes the empty text, arguments as JSON text become an object."""
    text = render(CHATML, [USER, CALL], add_generation_prompt=False)
    assert text.endswith('<|im_start|>assistant\nadd({"a": 1, "b": "<x>"})<|im_end|>\n')
    assert "None" not in text


def test_text_parts_are_joined() -> None:
    """A list of text parts is one text, a line each."""
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    text = render("{{ messages[0].content }}", [{"role": "user", "content": parts}])
    assert text == "one\ntwo"


@pytest.mark.parametrize(
    ("template", "role"),
    [
        ("{{ messages[0].role }}", "system"),
        ("{% if messages[0].role == 'developer' %}dev{% endif %}", "dev"),
    ],
)
def test_developer_is_system_unless_the_template_knows_it(
    template: str, role: str
) -> None:
    """A template that never heard of the role sees the one it was trained with."""
    assert render(template, [{"role": "developer", "content": "x"}]) == role


def test_roles_of_the_templates_own_are_allowed() -> None:
    """A role that the template names is known, others are not."""
    message = {"role": "ipython", "content": "x"}
    template = "{% if messages[0].role == 'ipython' %}tool{% endif %}"
    assert render(template, [message]) == "tool"
    with pytest.raises(InvalidRequest, match=r"messages\[0\]\.role is 'ipython'"):
        render(CHATML, [message])


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "at least one message"),
        (None, "at least one message"),
        ("Hi", "at least one message"),
        ({"role": "user"}, "at least one message"),
        (["Hi"], r"messages\[0\] is no object"),
        ([{"content": "x"}], r"messages\[0\]\.role is None"),
        ([{"role": 5, "content": "x"}], r"messages\[0\]\.role is 5"),
        ([{"role": "", "content": "x"}], "role is ''"),
        ([{"role": "wizard", "content": "x"}], "role is 'wizard'; known roles: system"),
        ([{"role": "user"}], r"messages\[0\]\.content is null"),
        ([{"role": "assistant", "content": None}], "content is null"),
        ([{"role": "user", "content": 5}], "must be text or a list"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            r"content\[0\] is a part of type 'image_url'",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "only text parts"),
        ([{"role": "user", "content": [5]}], "part of type None"),
        ([USER, CALL | {"tool_calls": "add"}], r"messages\[1\]\.tool_calls is no list"),
        ([CALL | {"tool_calls": [5]}], r"tool_calls\[0\] has no function"),
        ([CALL | {"tool_calls": [{"function": {}}]}], "no function with a name"),
        (
            [CALL | {"tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            r"tool_calls\[0\]\.function\.arguments is no JSON",
        ),
        (
            [CALL | {"tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}],
            "arguments is no object",
        ),
    ],
)
def test_bad_histories_are_the_callers_error(messages: object, fault: str) -> None:
    """Each is refused before rendering, naming the message at fault."""
    with pytest.raises(InvalidRequest, match=fault) as caught:
        render(CHATML, messages)
    assert caught.value.field is not None
    assert caught.value.field.startswith("messages")


@pytest.mark.parametrize(
    ("template", "messages", "fault"),
    [
        (STRICT, [{"role": "system", "content": "x"}], "System role not supported"),
        (STRICT, [USER, USER], "Roles must alternate"),
        ("{{ messages[5].content }}", [USER], "has no element 5"),
        ("{{ missing.attribute }}", [USER], "'missing' is undefined"),
        ("{{ 1 / 0 }}", [USER], "division by zero"),
        ("{{ messages[0].content + 1 }}", [USER], "must be str|concatenate"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", [USER], "recursion"),
        ("{{ ''.__class__.__mro__ }}", [USER], "unsafe"),
        ("{{ messages.append(1) }}", [USER], "unsafe|not safely callable"),
        ("{{ raise_exception.__globals__.x }}", [USER], "unsafe"),
    ],
)
def test_what_the_template_rejects_is_the_callers_error(
    template: str, messages: list[dict[str, str]], fault: str
) -> None:
    """The template's own words, its failures, its attempts at escape: refused."""
    with pytest.raises(InvalidRequest, match=fault) as caught:
        render(template, messages)
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{% if %}",
        "{{ }",
        "{% for x in y %}",
        "{{ 1 +",
        "{% break %}",
        "{% if 1 %}" * 200 + "{% endif %}" * 200,
        "{{ " + "(" * 9000 + "1" + ")" * 9000 + " }}",
        "{{ " + "9" * 5000 + " }}",
    ],
    ids=range(8),
)
def test_broken_templates_are_refused(template: str) -> None:
    """What is no Jinja, or no code once compiled, is named as such."""
    with pytest.raises(InvalidRequest, match="no valid Jinja") as caught:
        ChatTemplate(template, {})
    assert caught.value.field == "chat_template"


def test_messages_of_the_caller_stay_as_they_were() -> None:
    """Normalising works on copies."""
    message = {"role": "developer", "content": [{"type": "text", "text": "a"}]}
    before = repr((message, CALL))
    render(CHATML, [message, CALL])
    assert repr((message, CALL)) == before


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "tool_calls", "type", "text", "function", "name"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(messages=JSON)
def test_any_json_renders_or_is_refused(messages: object) -> None:
    """No history, however odd, gives anything but text or a refusal."""
    with contextlib.suppress(InvalidRequest):
        render(CHATML, messages)
