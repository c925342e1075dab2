"""Serves a store to other processes of this machine, over a unix socket and shared memory."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock, Thread

from kvstore.arena import Arena
from kvstore.errors import AccessError, ChannelError, ConfigError, PrefixdError, one_line
from kvstore.remote.calls import Calls
from kvstore.remote.channel import Channel, Message
from kvstore.remote.session import Session
from kvstore.remote.tenancy import Authenticate, Owners, Tenant, open_to_all
from kvstore.remote.wire import PROTOCOL_VERSION, Kind, pack_json, unpack_json
from kvstore.shared_memory import create_staging
from kvstore.store import TieredStore

_log = logging.getLogger(__name__)

_MOST_CLIENTS = 256
_MOST_OF_A_TENANT = 128
_MOST_CONNECTIONS = 2048
_MOST_CHANNELS = 32
_HELLO_S = 5.0
_TICK_S = 1.0
_PAUSE_S = 0.1
_MOST_PATH_BYTES = 107


@dataclass(frozen=True, slots=True)
class SocketConfig:
    """Where the socket is, who may open it (mode bits), and how much staging memory each client gets."""

    path: Path
    mode: int = 0o600
    staging_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class _Client:
    session: Session
    secret: str
    channels: list[Channel]


class SocketServer:
    """Accepts clients until ``close``; each connection has a thread of its own."""

    def __init__(
        self,
        store: TieredStore,
        arena: Arena,
        config: SocketConfig,
        authenticate: Authenticate = open_to_all,
        owners: Owners | None = None,
    ) -> None:
        """Begin to accept; ``owners`` are those that the store was opened with.

        Raises ``ConfigError`` when the socket cannot be opened.
        """
        self._store = store
        self._arena = arena
        self._config = config
        self._authenticate = authenticate
        self._owners = owners or Owners()
        self._clients: dict[int, _Client] = {}
        self._num_clients = 0
        self._num_connections = 0
        self._lock = Lock()
        self._is_open = True
        self._listener = _listen(config)
        self._accepting = Thread(target=self._accept, name="socket-accepts", daemon=True)
        self._accepting.start()

    @property
    def is_accepting(self) -> bool:
        """Whether new clients are let in: its thread lives."""
        return self._accepting.is_alive()

    @property
    def num_clients(self) -> int:
        """Clients that are connected."""
        return len(self._clients)

    def close(self) -> None:
        """Send all clients away, give back what they held, and remove the socket; idempotent."""
        self._is_open = False
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.connect(str(self._config.path))  # wakes who accepts
        self._accepting.join()
        with self._lock:
            clients = list(self._clients.values())
        for client in clients:
            _part_with(client)

    def _accept(self) -> None:
        with self._listener:
            while self._is_open:
                try:
                    self._accept_one()
                except Exception:  # noqa: BLE001  no fault of one moment may keep all later clients out
                    _log.exception("a client could not be let in")
                    time.sleep(_PAUSE_S)
        with suppress(OSError):
            self._config.path.unlink()

    def _accept_one(self) -> None:
        """Let the next client in, if one comes within a tick."""
        try:
            connected, _ = self._listener.accept()
        except TimeoutError:
            self._tick()
            return
        with self._lock:
            is_full = self._num_connections >= _MOST_CONNECTIONS
            self._num_connections += not is_full
        if is_full:
            connected.close()
            return
        try:
            connected.settimeout(_HELLO_S)
            channel = Channel(connected, takes_descriptors=False)
            Thread(target=self._serve, args=(channel,), name="client", daemon=True).start()
        except BaseException:
            connected.close()
            self._forget_connection()
            raise
        self._tick()

    def _forget_connection(self) -> None:
        with self._lock:
            self._num_connections -= 1

    def _tick(self) -> None:
        with self._lock:
            sessions = [client.session for client in self._clients.values()]
        for session in sessions:
            session.sweep(self._store.now_s())

    def _serve(self, channel: Channel) -> None:
        """Answer one connection until it ends."""
        try:
            self._greet(channel, channel.receive())
        except ChannelError:
            pass
        except (AccessError, ConfigError) as error:
            _refuse(channel, error)
        except Exception:  # noqa: BLE001  one client must not end the others
            _log.exception("a client's connection is ended")
        finally:
            channel.shut()
            channel.close()
            self._forget_connection()

    def _greet(self, channel: Channel, message: Message) -> None:
        said = unpack_json(message.body)
        if said.get("version") != PROTOCOL_VERSION:
            reason = f"the client speaks version {said.get('version')}, the server {PROTOCOL_VERSION}"
            raise ConfigError("connect", f"{reason}: use the same release of prefixd on both sides")
        if message.kind == Kind.HELLO:
            self._welcome(channel, self._authenticate(_text(said.get("token"))))
        elif message.kind in {Kind.LISTEN, Kind.JOIN}:
            self._join(channel, said, is_listening=message.kind == Kind.LISTEN)
        else:
            raise ChannelError("a connection must begin with a greeting")

    def _welcome(self, channel: Channel, tenant: Tenant) -> None:
        staging, descriptor = create_staging(self._config.staging_bytes)
        with ExitStack() as leaving:
            try:
                session = Session(self._store, tenant, self._owners, self._config.staging_bytes, staging)
                number, client = self._enter(session, channel)
                leaving.callback(self._leave, number)
                welcome = {
                    "client": number,
                    "secret": client.secret,
                    "staging_bytes": self._config.staging_bytes,
                    "tiers": self._store.tier_names,
                    "asks_media": self._store.asks_media,
                }
                channel.send(Kind.WELCOME, pack_json(welcome), descriptor=descriptor)
            finally:
                os.close(descriptor)
            self._answer(channel, session)

    def _enter(self, session: Session, channel: Channel) -> tuple[int, _Client]:
        client = _Client(session, secrets.token_hex(16), [channel])
        name = session.tenant.name
        with self._lock:
            num_own = sum(other.session.tenant.name == name for other in self._clients.values())
            is_full = len(self._clients) >= _MOST_CLIENTS or (name and num_own >= _MOST_OF_A_TENANT)
            if is_full or not self._is_open:
                session.close()
                raise ConfigError("connect", f"{len(self._clients)} clients are connected already")
            session.on_ended = partial(_shut_all, client)  # not before: who is refused has to hear of it
            self._num_clients += 1
            self._clients[self._num_clients] = client
            return self._num_clients, client

    def _leave(self, number: int) -> None:
        with self._lock:
            client = self._clients.pop(number)
        _part_with(client)

    def _join(self, channel: Channel, said: dict[str, object], *, is_listening: bool) -> None:
        number = said.get("client")
        with self._lock:
            client = self._clients.get(number) if isinstance(number, int) else None
        secret = (_text(said.get("secret")) or "").encode()
        if client is None or not secrets.compare_digest(client.secret.encode(), secret):
            raise AccessError("there is no such client")
        if len(client.channels) >= _MOST_CHANNELS:
            raise ConfigError("connect", f"a client may have {_MOST_CHANNELS} connections")
        client.channels.append(channel)
        channel.send(Kind.WELCOME, pack_json({}))
        if is_listening:
            client.session.listen(channel)
        try:
            self._answer(channel, client.session)
        finally:
            client.channels.remove(channel)

    def _answer(self, channel: Channel, session: Session) -> None:
        channel.set_timeout(None)
        calls = Calls(session, self._store, self._arena, channel)
        while self._is_open:
            try:
                calls.answer(channel.receive())
            except PrefixdError as error:
                if isinstance(error, ChannelError):
                    raise
                _refuse(channel, error)


def _part_with(client: _Client) -> None:
    _shut_all(client)
    client.session.close()


def _shut_all(client: _Client) -> None:
    for channel in list(client.channels):
        channel.shut()


def _refuse(channel: Channel, error: PrefixdError) -> None:
    with suppress(ChannelError):
        channel.send(Kind.REFUSED, pack_json({"error": type(error).__name__, "reason": one_line(error)}))


def _text(value: object) -> str | None:
    """Return a text that was sent; ``None``: it is none, or cannot be one."""
    return value if isinstance(value, str) and value.isascii() else None


def _listen(config: SocketConfig) -> socket.socket:
    """Return a socket that listens. One that a dead server has left behind is replaced."""
    path = str(config.path)
    if len(path.encode()) > _MOST_PATH_BYTES:
        raise ConfigError(
            "socket", f"{path} is longer than the {_MOST_PATH_BYTES} bytes that a socket's path has"
        )
    if config.path.exists():
        _remove_if_dead(config.path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        config.path.parent.mkdir(parents=True, exist_ok=True)
        mask = os.umask(0o777 & ~config.mode)
        try:
            listener.bind(path)
        finally:
            os.umask(mask)
        listener.listen(_MOST_CLIENTS)
    except OSError as error:
        listener.close()
        raise ConfigError("socket", f"{path} cannot be opened: {error.strerror}") from error
    listener.settimeout(_TICK_S)
    return listener


def _remove_if_dead(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            if not path.is_socket():
                raise ConfigError(
                    "socket", f"{path} is there and is no socket: choose another path"
                ) from None
            path.unlink(missing_ok=True)
            return
    raise ConfigError("socket", f"another server answers at {path}: stop it, or choose another path")
