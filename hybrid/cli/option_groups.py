"""One data class of options, shared by several commands.

A command takes ``engine: EngineOptions``; on the command line each field is an option
of its own, with the help, default and names that stand on the field.
"""

import dataclasses
import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, get_type_hints


def expand_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter whose type is a data class by the class's fields.

    Raises:
        TypeError: two groups, or a group and the command, use one name.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            groups[name] = hint  # type: ignore[assignment]
            parameters += _field_parameters(hint)  # type: ignore[arg-type]
        else:
            keyword = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(kind=keyword, annotation=hint))
    names = [parameter.name for parameter in parameters]
    if len(names) != len(set(names)):
        raise TypeError(f"{command.__name__}: an option is there twice: {names}")

    @wraps(command)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            fields = [field.name for field in dataclasses.fields(group)]
            values[name] = group(**{field: values.pop(field) for field in fields})
        command(**values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    del call.__wrapped__
    return call


def _field_parameters(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=(
                inspect.Parameter.empty
                if field.default is dataclasses.MISSING
                else field.default
            ),
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]
