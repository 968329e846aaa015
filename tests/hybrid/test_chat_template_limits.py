"""A chat template is a program of a stranger's: it ends soon and stays small."""

import pytest

from hybrid.scheduler.errors import InvalidRequest
from hybrid.tokenizer.chat_template import MAX_TEMPLATE_CHARACTERS, ChatTemplate
from hybrid.tokenizer.template_budget import MAX_RENDERED_CHARACTERS, MAX_TEMPLATE_STEPS

USER = {"role": "user", "content": "Hi"}
BIG = "{% set s = 'ab ' * 4000000 %}{% set t = 'ab ' * 4000000 %}"


def for_ever(body: str, **state: str) -> str:
    """Build a template that repeats ``body`` as often as it may."""
    values = ", ".join(f"{name}={value}" for name, value in state.items())
    return (
        f"{{% set ns = namespace({values}) %}}"
        f"{{% for i in range(999999) %}}{{% for j in range(9) %}}{body}"
        "{% endfor %}{% endfor %}"
    )


STEPS = {
    "ranges": for_ever(""),
    "strings": (
        "{% set x = 'a' * 1000 %}{% for a in x %}{% for b in x %}"
        "{% endfor %}{% endfor %}"
    ),
    "filtered loop": BIG + "{% for a in s if false %}{% endfor %}",
    "macro": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
        "{% endmacro %}{{ f(40) }}"
    ),
    "recursive loop": (
        "{% for m in [messages] recursive %}{% if loop.depth < 40 %}"
        "{{ loop([m, m]) }}{% endif %}{% endfor %}"
    ),
    "compare": BIG + for_ever("{% if s == t %}{% endif %}"),
    "contain": BIG + for_ever("{% if 'zz' in s %}{% endif %}"),
    "test": BIG + for_ever("{% if s is eq t %}{% endif %}"),
    "slice": BIG + for_ever("{% set y = s[1:] %}"),
    "method": BIG + for_ever("{% set y = s.find('zz') %}"),
    "split": BIG + "{{ s.split() | length }}",
    "list": BIG + "{{ s | list | length }}",
    "json": BIG + for_ever("{% set y = s | tojson %}"),
    "plain text": "{% set x %}" + for_ever("y" * 10_000) + "{% endset %}",
    "map": "{{ range(900000) | map('string') | map('upper') | join | length }}",
}
SIZES = {
    "repeat": "{{ 'x' * 999999999999 }}",
    "repeat a list": "{{ 999999999999 * ['x'] }}",
    "range": "{{ range(999999999) | list }}",
    "percent": "{{ '%999999999d' % 1 }}",
    "many percents": "{{ ('%(a)s' * 100000) % {'a': 'x' * 10000} }}",
    "format filter": "{{ ('%9999d' * 100000) | format(1) }}",
    "braces": "{{ '{:>999999999}'.format(1) }}",
    "many braces": "{{ ('{0}' * 100000).format('x' * 10000) }}",
    "center": "{{ 'x' | center(999999999) }}",
    "ljust": "{{ 'x'.ljust(999999999) }}",
    "zfill": "{{ 'x'.zfill(999999999) }}",
    "indent": "{{ ('\\n' * 100000) | indent(10000) }}",
    "batch": "{{ [1] | batch(99999999, 1) | list | length }}",
    "replace": "{{ ('a' * 100000).replace('a', 'b' * 10000) }}",
    "replace filter": "{{ ('a' * 100000) | replace('a', 'b' * 10000) }}",
    "join": "{{ ('x' * 10000).join('a' * 100000) }}",
    "join filter": "{{ (['a'] * 100000) | join(d='b' * 10000) }}",
    "map": "{{ ([1] * 100000) | map('center', 10000) | join }}",
    "title": "{{ ('a ' * 4000000) | title }}",
    "output": "{% for i in range(200000) %}{{ 'x' * 1000 }}{% endfor %}",
    "shared lists": for_ever("{% set ns.x = [ns.x, ns.x] %}", x="[1]"),
    "shared tuples": for_ever("{% set ns.x = (ns.x, ns.x) %}", x="(1,)"),
}
DOUBLING = {
    "concatenate": for_ever("{% set ns.x = ns.x ~ ns.x %}", x="'a'"),
    "add": for_ever("{% set ns.x = ns.x + ns.x %}", x="'a'"),
    "add lists": for_ever("{% set ns.x = ns.x + ns.x %}", x="[1]"),
}
OTHERS = {
    "power": ("{{ 9 ** 999999999 }}", "integer of over 4096 bits"),
    "product": (for_ever("{% set ns.x = ns.x * ns.x %}", x="3"), "integer of over"),
    "hexadecimal": ("{{ ('f' * 4000000) | int(0, 16) }}", "integer of over"),
    "nesting": (for_ever("{% set ns.x = (ns.x,) %}", x="(1,)"), "deeper than 100"),
    "width": ("{{ '%*d' % (999999999, 1) }}", "width within a format"),
    "brace width": ("{{ '{:{w}}'.format(1, w=999999999) }}", "width within a format"),
    "round": ("{{ 1 | round(-10000000) }}", "16 digits"),
    "sum": ("{{ ([[1]] * 100000) | sum(start=[]) }}", "adds numbers only"),
    "tojson": ("{{ messages | tojson(indent=99999999) }}", "indents by 16"),
    "date": ("{{ strftime_now('%Y' * 100000) }}", "date format has 1000"),
}


@pytest.mark.parametrize("template", STEPS.values(), ids=STEPS.keys())
def test_templates_that_take_too_long_are_stopped(template: str) -> None:
    """Whatever repeats, and whatever is slow on long values, is counted."""
    with pytest.raises(
        InvalidRequest,
        match=f"the chat template is stopped.*{MAX_TEMPLATE_STEPS} steps",
    ) as caught:
        ChatTemplate(template, {}).render([USER])
    assert caught.value.field == "chat_template"


@pytest.mark.parametrize("template", SIZES.values(), ids=SIZES.keys())
def test_templates_that_make_too_much_are_stopped(template: str) -> None:
    """Before it is made."""
    with pytest.raises(
        InvalidRequest, match=f"stopped.*{MAX_RENDERED_CHARACTERS} characters"
    ):
        ChatTemplate(template, {}).render([USER])


@pytest.mark.parametrize("template", DOUBLING.values(), ids=DOUBLING.keys())
def test_templates_that_double_are_stopped(template: str) -> None:
    """By the size of what they make or by the work of making it."""
    with pytest.raises(InvalidRequest, match="is stopped"):
        ChatTemplate(template, {}).render([USER])


@pytest.mark.parametrize(("template", "fault"), OTHERS.values(), ids=OTHERS.keys())
def test_other_limits_are_named(template: str, fault: str) -> None:
    """Numbers, depth, and arguments whose work no size tells."""
    with pytest.raises(InvalidRequest, match=f"stopped.*{fault}"):
        ChatTemplate(template, {}).render([USER])


@pytest.mark.parametrize(
    "template",
    [
        "{{ ('\\t' * 10000000).expandtabs(10000) }}",
        "{{ 'abc'.translate({97: 'x' * 16000000}) }}",
        "{{ (1).to_bytes(999999999, 'big') }}",
        "{{ ([namespace(x=1)] * 100000) | join(attribute='x') }}",
        "{{ lipsum(n=100000) }}",
        "{{ ('a' * 1000000) | wordwrap(1) }}",
    ],
)
def test_what_cannot_be_bounded_is_not_there(template: str) -> None:
    """Methods and filters that no real template uses."""
    with pytest.raises(InvalidRequest, match=r"chat.template"):
        ChatTemplate(template, {}).render([USER])


def test_namespaces_that_hold_one_another_print_short() -> None:
    """Printing what each holds would double with each."""
    template = "{% set a = namespace(x=1) %}" + 60 * (
        "{% set b = namespace(x=a, y=a) %}{% set a = namespace(x=b, y=b) %}"
    )
    text = ChatTemplate(template + "{{ a }}", {}).render([USER])
    assert text == "<Namespace>"


def test_a_source_that_is_too_long_is_refused() -> None:
    """Compiling takes time too."""
    with pytest.raises(InvalidRequest, match=f"at most {MAX_TEMPLATE_CHARACTERS}"):
        ChatTemplate("x" * (MAX_TEMPLATE_CHARACTERS + 1), {})


def test_long_conversations_stay_within_the_limits() -> None:
    """A thousand messages of 8,000 characters, as careful templates treat them."""
    template = (
        "{% set ns = namespace(seen=[], last=messages|length - 1) %}"
        "{% for m in messages[::-1] %}"
        "{% set ns.seen = ns.seen + [m.role] %}{% endfor %}{% for m in messages %}"
        "{% if loop.index0 == messages|length - 1 %}!{% endif %}"
        "{% if '</think>' in m.content %}"
        "{% set text = m.content.split('</think>')[-1].lstrip('\\n') %}"
        "{{ '<' + m.role + '>' + text | trim + '</s>' }}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}{{ ns.seen | length }}"
    )
    thought = "</think>\n" + 8000 * "y"
    text = ChatTemplate(template, {}).render(
        [{"role": "user", "content": thought}] * 1000
    )
    assert text.endswith("y</s>1000")


def test_each_rendering_has_its_own_budget() -> None:
    """A template that takes half of the steps renders again and again."""
    template = ChatTemplate("{% for i in range(600000) %}{% endfor %}", {})
    assert [template.render([USER]) for _ in range(3)] == ["", "", ""]


def test_errors_name_the_template() -> None:
    """A model may have several."""
    template = ChatTemplate(for_ever(""), {}, "tool_use")
    with pytest.raises(InvalidRequest, match="the chat template 'tool_use' is stopped"):
        template.render([USER])
