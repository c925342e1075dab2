"""What a body asks of the form of its answers, and its compilation off the event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from api.few_threads import FewThreads
from api.openai_schema import GenerationFields
from engine_adapter.engine.constraints import Constraint, Constraints
from kvstore.errors import RequestError

Compile = Callable[[Constraints], Constraint]


async def compiled(
    fields: GenerationFields, constraints: Constraints, threads: FewThreads
) -> Constraint | None:
    """Return what the answers must look like, compiled on ``threads``; ``None``: like anything.

    Raises ``RequestError`` naming the body's field, or ``OverloadedError``.
    """
    asked = list(_asked(fields))
    if not asked:
        return None
    name, compile_one = asked[-1]
    if len(asked) > 1:
        raise RequestError(name, "answers are held to one constraint; leave out the others")
    try:
        return await threads.run(lambda: compile_one(constraints))
    except RequestError as error:
        raise RequestError(name, error.reason) from None


def _asked(fields: GenerationFields) -> Iterator[tuple[str, Compile]]:
    form, wanted = fields.response_format, fields.structured_outputs
    if form is not None and form.type != "text":
        yield "response_format", partial(Constraints.json_schema, schema=form.as_schema)
    if wanted is None:
        return
    if (schema := wanted.as_schema) is not None:
        yield "structured_outputs", partial(Constraints.json_schema, schema=schema)
    if wanted.regex is not None:
        yield "structured_outputs", partial(Constraints.regex, pattern=wanted.regex)
    if wanted.choice is not None:
        yield "structured_outputs", partial(Constraints.choice, choices=wanted.choice)
