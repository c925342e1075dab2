"""A client's connections to a store's server, while they last."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from kvstore.errors import AccessError, ChannelError, ConfigError
from kvstore.frame import copy_and_checksum
from kvstore.remote import wire
from kvstore.remote.channel import Channel, Message
from kvstore.remote.staging import Staging
from kvstore.remote.wire import Kind, Place
from kvstore.shared_memory import SlabView, view_slab, view_staging

_CONNECT_S = 2.0
_ANSWER_S = 10.0
_MOST_STAGING_BYTES = 1 << 34

OnNews = Callable[["Link", Message], None]


class _Speaker:
    """A connection over which one caller speaks at a time. Thread-safe."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._lock = Lock()

    def call(self, kind: Kind, parts: tuple[bytes | memoryview, ...]) -> Message:
        """Send a message and return its answer."""
        with self._lock:
            self.channel.send(kind, *parts)
            return _not_refused(self.channel.receive())

    def say(self, kind: Kind, parts: tuple[bytes | memoryview, ...]) -> None:
        """Send a message that has no answer."""
        with self._lock:
            self.channel.send(kind, *parts)


class Link:
    """Connections to a server, its slabs and the staging memory. Thread-safe.

    Whoever hears the news must not wait for a call that waits for the news to be heard: so there is a
    connection for calls, one for what is said ``aside``, and one for news.

    When the server is gone, or what it says makes no sense, every method raises ``ChannelError`` and
    ``on_lost`` is called, once. News are given to ``on_news`` on a thread of the link's own.
    """

    def __init__(
        self, path: Path, token: str | None, on_news: OnNews, on_lost: Callable[[Link], None]
    ) -> None:
        """Connect.

        Raises ``ChannelError``, ``AccessError`` (the token) or ``ConfigError`` (another release).
        """
        self._path = path
        self._on_news = on_news
        self._on_lost = on_lost
        self._mapping = Lock()
        self._slabs: dict[int, SlabView] = {}
        self._slots: dict[int, int] = {}
        self._is_lost = False
        calls, welcome = _connect(path, Kind.HELLO, {"token": token})
        self._calls = _Speaker(calls)
        self.facts: dict[str, Any] = wire.unpack_json(welcome.body)
        self._mine = {"client": self.facts["client"], "secret": self.facts["secret"]}
        self.staging = Staging(_view_staging(welcome, self.facts["staging_bytes"]))
        self.tiers: tuple[str, ...] = tuple(self.facts["tiers"])
        self._aside = _Speaker(_connect(path, Kind.JOIN, self._mine)[0])
        self._news, _ = _connect(path, Kind.LISTEN, self._mine)
        self._news.set_timeout(None)
        Thread(target=self._listen, name="store-news", daemon=True).start()

    def call(self, kind: Kind, *parts: bytes | memoryview) -> Message:
        """Return the answer to a message; blocks, but not for long."""
        with self._losing():
            return self._calls.call(kind, parts)

    def say(self, kind: Kind, *parts: bytes | memoryview) -> None:
        """Send a message that has no answer; the server takes it in before the next call."""
        with self._losing():
            self._calls.say(kind, parts)

    def say_aside(self, kind: Kind, *parts: bytes | memoryview) -> None:
        """Send a message that has no answer, and waits for no call."""
        with self._losing():
            self._aside.say(kind, parts)

    def call_long(self, method: str, timeout_s: float, **said: object) -> Any:
        """Return what a method of the server returns that may take ``timeout_s``, over its own connection."""
        channel, _ = _connect(self._path, Kind.JOIN, self._mine)
        try:
            channel.set_timeout(timeout_s + _ANSWER_S)
            channel.send(Kind.CALL, wire.pack_json({"method": method, "timeout_s": timeout_s, **said}))
            return wire.unpack_json(_not_refused(channel.receive()).body)["value"]
        finally:
            channel.shut()
            channel.close()

    def call_method(self, method: str, **said: object) -> Any:
        """Return what a quick method of the server returns."""
        answer = self.call(Kind.CALL, wire.pack_json({"method": method, **said}))
        return wire.unpack_json(answer.body)["value"]

    def copy(self, place: Place, out: memoryview) -> bool:
        """Copy a block from the server's memory and verify it; ``False``: it is not there any more.

        The slot's generation is looked at before and after, so that bytes of another block are noticed even
        if the lease has ended meanwhile.
        """
        slab = self._slab(place.slab)
        if slab is None or place.nbytes != len(out):
            return False
        stride = self._slots[place.slab]
        slot = place.offset // stride
        end = place.offset + place.nbytes
        is_there = slot < len(slab.generations) and end <= (slot + 1) * stride
        if not is_there or slab.generations[slot] != place.generation:
            return False
        is_whole = copy_and_checksum(slab.slots[place.offset : end], out) == place.checksum
        return is_whole and slab.generations[slot] == place.generation

    def lose(self) -> None:
        """End the connections; idempotent."""
        with self._mapping:
            if self._is_lost:
                return
            self._is_lost = True
        for channel in (self._calls.channel, self._aside.channel, self._news):
            channel.shut()
        self._on_lost(self)

    def _listen(self) -> None:
        try:
            while True:
                self._on_news(self, self._news.receive())
        except ChannelError:
            pass
        finally:
            self.lose()
            for channel in (self._calls.channel, self._aside.channel, self._news):
                channel.close()

    @contextmanager
    def _losing(self) -> Iterator[None]:
        try:
            yield
        except ChannelError:
            self.lose()
            raise

    def _slab(self, number: int) -> SlabView | None:
        slab = self._slabs.get(number)
        if slab is not None or not number:
            return slab
        with self._mapping:
            mapped = list(self._slabs)
        with self._losing():
            answer = self._aside.call(Kind.MAP, (b"".join(map(wire.SLAB_NUMBER.pack, [number, *mapped])),))
        stride, num_slots, is_there = wire.unpack(wire.SLAB_HEAD, answer.body)
        gone = wire.SLAB_NUMBER.iter_unpack(answer.body[wire.SLAB_HEAD.size :])
        with self._mapping:
            for (absent,) in gone:
                self._slabs.pop(absent, None)
            if is_there:
                self._slots[number] = stride
                self._slabs[number] = _view_slab(answer, stride, num_slots)
            return self._slabs.get(number)


def _connect(path: Path, kind: Kind, said: dict[str, object]) -> tuple[Channel, Message]:
    """Return a connection and the server's welcome."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel = Channel(connected)
    connected.settimeout(_CONNECT_S)
    try:
        connected.connect(str(path))
        channel.send(kind, wire.pack_json({"version": wire.PROTOCOL_VERSION, **said}))
        welcome = _not_refused(channel.receive())
    except OSError as error:
        channel.close()
        raise ChannelError(f"no server answers at {path}: {error.strerror or error}") from error
    except Exception:
        channel.close()
        raise
    channel.set_timeout(_ANSWER_S)
    return channel, welcome


def _not_refused(message: Message) -> Message:
    if message.kind != Kind.REFUSED:
        return message
    said = wire.unpack_json(message.body)
    reason = str(said.get("reason", ""))
    if said.get("error") == "AccessError":
        raise AccessError(reason)
    setting, _, why = reason.partition(": ")
    raise ConfigError(setting, why or reason)


def _view_staging(welcome: Message, nbytes: object) -> memoryview:
    if welcome.descriptor < 0 or not isinstance(nbytes, int) or not 0 < nbytes <= _MOST_STAGING_BYTES:
        raise ChannelError("the server gave no staging memory")
    try:
        return view_staging(welcome.descriptor, nbytes)
    except (OSError, ValueError) as error:
        raise ChannelError(f"the staging memory cannot be mapped: {error}") from error
    finally:
        os.close(welcome.descriptor)


def _view_slab(answer: Message, stride: int, num_slots: int) -> SlabView:
    if answer.descriptor < 0:
        raise ChannelError("the server gave no memory")
    try:
        return view_slab(answer.descriptor, stride, num_slots)
    except (OSError, ValueError) as error:
        raise ChannelError(f"the server's memory cannot be mapped: {error}") from error
    finally:
        os.close(answer.descriptor)
