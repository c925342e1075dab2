"""Prefixes as files: written for one to keep or read elsewhere, and taken in again."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from tempfile import TemporaryFile
from typing import BinaryIO, cast

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from api.admin.acting import Action, ByAdmins, ByOperators, IdempotencyKey
from api.admin.change_routes import BEGUN
from api.admin.choosing import Chosen, chosen_by
from api.admin.outcome_views import imported_body
from api.admin.requests import SelectionFields
from api.error_schema import Responses, errors
from kvstore.admin.outcome import Exported
from kvstore.admin.progress import Progress
from kvstore.errors import BackendError

FILE_TYPE = "application/octet-stream"
_PIECE_BYTES = 1 << 20
_FILE: Responses = {
    200: {
        "description": "The file, in the format of safetensors.",
        "content": {FILE_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}
_BODY = {
    "requestBody": {
        "required": True,
        "description": "A file that was exported.",
        "content": {FILE_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}

router = APIRouter(prefix="/admin", tags=["files"])


@router.post("/export", response_class=StreamingResponse, responses=_FILE | errors(403, 404))
async def export(action: ByAdmins, fields: SelectionFields) -> Response:
    """Write blocks to a file: tensors where the namespace tells their shape, with all that import needs."""
    chosen = await chosen_by(action.context, action.caller, fields.selection)
    action.on |= chosen.told
    file, exported = await action.now(lambda: _exported(action, chosen))
    headers = {
        "Content-Disposition": 'attachment; filename="prefixes.safetensors"',
        "Content-Length": str(os.fstat(file.fileno()).st_size),
        "X-Prefixd-Blocks": str(exported.num_blocks),
        "X-Prefixd-Left-Out": str(len(exported.stays)),
    }
    return StreamingResponse(_pieces(action, file), media_type=FILE_TYPE, headers=headers)


@router.post("/import", status_code=202, responses=BEGUN, openapi_extra=_BODY)
async def import_(action: ByOperators, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Take a file's blocks in, each verified before it is visible; up to `max_import_bytes`."""
    file, digest = await _received(action, request)
    action.on |= {"bytes": os.fstat(file.fileno()).st_size, "digest": digest.hex()}
    admin = action.context.admin

    def work(progress: Progress) -> dict[str, object]:
        with file:
            return imported_body(admin.import_(file, progress=progress))

    with _closed_on_error(file):
        return action.begin("import", work, None, idempotency_key, digest)


def _exported(action: Action, chosen: Chosen) -> tuple[BinaryIO, Exported]:
    """Return a file with the blocks, which is gone once it is closed, at its beginning; and what is in it.

    Raises ``BackendError``, and ``RequestError`` where there is no block.
    """
    if action.context.model is not None:
        action.context.model.write_computed()
    file = _temporary(action)
    with _closed_on_error(file):
        exported = action.context.admin.export(chosen.blocks, file)
        file.seek(0)
    return file, exported


def _temporary(action: Action) -> BinaryIO:
    """Return a new file, which is gone once it is closed. Raises ``BackendError``."""
    folder = action.context.settings.cache_path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return cast("BinaryIO", TemporaryFile(dir=folder))
    except OSError as error:
        raise _not_written(error) from None


@contextmanager
def _closed_on_error(file: BinaryIO) -> Iterator[None]:
    """Close a file if something goes wrong. Raises ``BackendError`` where it cannot be written."""
    try:
        yield
    except BaseException as error:
        file.close()
        if isinstance(error, OSError):
            raise _not_written(error) from None
        raise


def _not_written(error: OSError) -> BackendError:
    return BackendError("cache_path", "writing a file", error.strerror or str(error))


async def _pieces(action: Action, file: BinaryIO) -> AsyncIterator[bytes]:
    try:
        while piece := await action.now(lambda: file.read(_PIECE_BYTES)):
            yield piece
    finally:
        file.close()


async def _received(action: Action, request: Request) -> tuple[BinaryIO, bytes]:
    """Return a request's body as a file, at its beginning, and its digest. Raises ``BackendError``."""
    file, digest = await action.now(lambda: _temporary(action)), blake2b(digest_size=16)

    def keep(piece: bytes) -> None:
        file.write(piece)
        digest.update(piece)

    with _closed_on_error(file):
        waiting = bytearray()
        async for piece in request.stream():
            waiting += piece
            if len(waiting) >= _PIECE_BYTES:
                await action.now(partial(keep, bytes(waiting)))
                waiting.clear()
        await action.now(partial(keep, bytes(waiting)))
        await action.now(partial(file.seek, 0))
    return file, digest.digest()
