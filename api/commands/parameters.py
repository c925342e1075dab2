"""Lets several commands have the same parameters, made into one value of each; and which were given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

Command = Callable[..., Any]


def replacing(
    name: str, parameters: Mapping[str, Any], make: Callable[..., Any]
) -> Callable[[Command], Command]:
    """Return a decorator: the command's parameter ``name`` is what ``make`` returns for ``parameters``.

    They are annotations by name, ``(annotation, default)`` where the default is not ``None``.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [parameter for other, parameter in signature.parameters.items() if other != name]

        def run(**given: Any) -> Any:
            made = make(**{parameter: given.pop(parameter) for parameter in parameters})
            return command(**{name: made}, **given)

        added = [_parameter(other, annotation) for other, annotation in parameters.items()]
        run.__signature__ = signature.replace(parameters=_ordered([*own, *added]))  # type: ignore[attr-defined]  # read by typer
        run.__annotations__ = {}
        run.__doc__ = command.__doc__
        run.__name__ = command.__name__
        return run

    return decorate


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return those that are not ``None``."""
    return {name: value for name, value in fields.items() if value is not None}


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    kind, default = annotation if isinstance(annotation, tuple) else (annotation, None)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _ordered(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """Return them as a signature wants them: those that are named last."""
    return sorted(parameters, key=lambda parameter: parameter.kind is inspect.Parameter.KEYWORD_ONLY)
