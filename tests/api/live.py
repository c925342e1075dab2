"""Apps on a real port."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from api.bodies import BodiesInPieces
from tests.eventually import eventually


@contextmanager
def live(app: FastAPI) -> Iterator[str]:
    """Serve on a free port in a thread, and yield the URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", ws="none", http=BodiesInPieces))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        eventually(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
