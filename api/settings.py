"""Every setting of the service, in one frozen object; ``docs/settings.md`` is rendered from it."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.folders import cache_folder
from api.lora_setting import LoraFolders
from api.setting_types import (
    AutoBytes,
    Bytes,
    Count,
    Dtype,
    File,
    Folder,
    KVDtype,
    ModeName,
    Name,
    Seconds,
    Secret,
    TierTimeToLive,
    TimeToLive,
    Token,
    WriteMode,
    setting,
    tier_ttl,
)


def _disk_path() -> Path:
    return cache_folder() / "blocks"


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Settings(BaseModel):
    """The settings of one server. Sizes are in bytes, times in seconds; 0 bytes switch a tier off."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    model: Folder | None = setting(
        "Model", None, "Folder with the model: config.json, safetensors weights and tokenizer."
    )
    served_model_name: Name | None = setting(
        "Model", None, "Name that requests use for the model.", shown="the folder's name"
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "Model", "auto", "Where to compute; auto takes a GPU when there is one."
    )
    compute_dtype: Dtype = setting(
        "Model", "auto", "Number format of the model; auto is float32 on a CPU and bfloat16 on a GPU."
    )
    kv_dtype: KVDtype = setting(
        "Model",
        "auto",
        "Number format of keys and values; auto is that of the model. int8 and fp8 take half the bytes of "
        "bfloat16 and are less exact: see the page about KV forms.",
    )
    cpu_weights: Literal["auto", "plain"] = setting(
        "Model",
        "auto",
        "How weights lie in memory on a CPU; auto keeps a second copy of those in bfloat16, in the order in "
        "which it multiplies: faster, and it takes their bytes again.",
    )
    lora: LoraFolders = setting(
        "Model",
        dict,
        "LoRA adapters that requests choose by name, as NAME=DIR (a folder that PEFT saved); the flag may be "
        "repeated, the variable holds them with commas between, the file a table of them.",
        shown="none",
    )

    host: Name = setting(
        "Server", "127.0.0.1", "Address to listen on; any but a loopback address needs a token."
    )
    port: Annotated[int, Field(ge=0, le=65_535)] = setting(
        "Server", 8000, "TCP port to listen on; 0 takes a free one and prints it."
    )
    socket: File | None = setting(
        "Server",
        None,
        "Unix socket at which engines on this machine use a store that is served without a model.",
        shown="store.sock in cache_path",
    )
    socket_access: Literal["owner", "group"] = setting(
        "Server", "owner", "Who may use that socket: the user that the server runs as, or its group too."
    )
    api_token: Token | None = setting(
        "Server",
        None,
        "The operator's secret, sent as `Authorization: Bearer TOKEN`; it may do everything.",
    )
    tokens: File | None = setting(
        "Server",
        None,
        "TOML file with more tokens, each with a role (read, data, admin) and perhaps a tenant: see the page "
        "about access.",
    )
    max_body_bytes: Annotated[Bytes, Field(ge=1024)] = setting(
        "Server", 16 * 2**20, "Largest request body; a larger one is answered with 413."
    )
    max_import_bytes: Annotated[Bytes, Field(ge=1024)] = setting(
        "Server", 16 * 2**30, "Largest file that may be imported; it waits in cache_path meanwhile."
    )
    audit_log: File | None = setting(
        "Server",
        None,
        "File in which administrative actions are noted as lines of JSON, for its owner alone.",
    )
    drain_s: Seconds = setting(
        "Server", 10.0, "How long a stopping server lets running requests finish before it cancels them."
    )
    cache_path: Folder = setting(
        "Server",
        cache_folder,
        "Folder of what is kept between starts: digests of weights, and what steps and loads cost here.",
        shown="~/.cache/prefixd, or under $XDG_CACHE_HOME",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "Server", "info", "Least level that is logged, on stderr; prompts and tokens never are."
    )

    max_batched_tokens: Count = setting(
        "Scheduling", 512, "Most tokens computed in one step; long prompts are computed in chunks of it."
    )
    max_sequences: Count = setting("Scheduling", 8, "Most requests that compute at the same time.")
    decode_graphs: Literal["auto", "off"] = setting(
        "Scheduling", "auto", "Whether a GPU replays steps that only decode as CUDA graphs, where it can."
    )
    max_waiting: Count = setting(
        "Scheduling", 256, "Most requests that wait for their turn; further ones are answered with 429."
    )

    block_tokens: Annotated[int, Field(ge=1, le=1024)] = setting(
        "Cache", 16, "Tokens of one block, the unit of sharing and storage; another size is another cache."
    )
    reload_policy: Name = setting(
        "Cache", "measured", "Decides which blocks are loaded and which computed again, by plugin name."
    )
    mode: ModeName = setting(
        "Cache",
        "serve",
        "How far lower tiers are trusted: serve loads from them; verify does, but computes and compares a "
        "share of the hits; observe stores and predicts only; off is no cache at all. Can be changed while "
        "running.",
    )
    verify_share: Annotated[float, Field(ge=0, le=1)] = setting(
        "Cache", 0.05, "Share of the hits that mode verify computes and compares."
    )
    recheck_share: Annotated[float, Field(ge=0, le=1)] = setting(
        "Cache",
        0.02,
        "Share of the idle time in which stored blocks are computed once more and compared, in a part of the "
        "device tier (up to an eighth); 0 for none of both.",
    )
    recheck_memory_bytes: Annotated[Bytes, Field(ge=2**16)] = setting(
        "Cache", 4 * 2**20, "Memory for the tokens of prompts, which that needs; never shown or written."
    )
    default_ttl_s: TimeToLive = setting(
        "Cache",
        86_400.0,
        "Life of a block whose request names no kv.ttl_s, counted from its last use; never for no end.",
    )
    retention: File | None = setting(
        "Cache", None, "TOML file with rules of tenants and prefixes, which may hold secrets: see its page."
    )
    load_deadline_s: Seconds = setting(
        "Cache", 10.0, "Longest wait for a load; what has not come by then is computed."
    )

    shadow_policies: Name = setting(
        "Learning from traffic",
        "lru,arc,reuse",
        "Eviction policies whose hits are estimated beside the live one's, for the host tier and a disk tier "
        "that is written through, by names with commas between; none for none. They take 5 % of a core at "
        "most.",
    )
    record_trace: File | None = setting(
        "Learning from traffic",
        None,
        "File in which requests are recorded for prefixd simulate: digests of blocks, lengths, times and "
        "hints, neither tokens nor text. What was recorded there before is put aside, with .1 behind its "
        "name.",
    )
    record_trace_bytes: Annotated[Bytes, Field(ge=2**16)] = setting(
        "Learning from traffic",
        256 * 2**20,
        "Most bytes of that recording and the one put aside together; at half of it a new one is begun.",
    )

    device_bytes: AutoBytes = setting(
        "Device tier",
        None,
        "Memory for blocks where the model computes; auto is 1 GiB on a CPU, and on a GPU 0.85 of "
        "what the model leaves free.",
        shown="auto",
    )
    device_eviction: Name = setting(
        "Device tier",
        "lru",
        "Which blocks go first when it is full: lru, lfu, s3fifo, arc, reuse, or a plugin's name.",
    )

    host_bytes: Bytes = setting(
        "Host tier", 2 * 2**30, "Memory of the machine for blocks; 0 for no host tier."
    )
    host_eviction: Name = setting(
        "Host tier", "lru", "Which blocks go first when it is full: see device_eviction."
    )

    host_ttl_s: TierTimeToLive = tier_ttl("Host tier")

    disk_bytes: Bytes = setting("Disk tier", 8 * 2**30, "Disk space for blocks; 0 for no disk tier.")
    disk_path: Folder = setting(
        "Disk tier",
        _disk_path,
        "Folder of the blocks; one server at a time uses it.",
        shown="~/.cache/prefixd/blocks, or under $XDG_CACHE_HOME",
    )
    disk_write: WriteMode = setting(
        "Disk tier",
        "through",
        "When a block is written: through at once, back when the host tier evicts it, second-use when it is "
        "wanted for the first time; without a host tier through alone.",
    )
    disk_eviction: Name = setting(
        "Disk tier", "lru", "Which blocks go first when it is full: see device_eviction."
    )
    disk_ttl_s: TierTimeToLive = tier_ttl("Disk tier")

    redis_url: Secret | None = setting(
        "Redis tier",
        None,
        "Redis or Valkey server for blocks, which several servers may share: redis://HOST[:PORT][/DB], "
        "rediss:// for TLS, or unix:///PATH. A secret, since it may hold a password.",
    )
    redis_bytes: Bytes = setting(
        "Redis tier",
        8 * 2**30,
        "Memory there for the blocks that this server stores; 0 for no such tier. The server's own maxmemory "
        "bounds what all store together.",
    )
    redis_username: Name | None = setting("Redis tier", None, "User to log in as; none for the default one.")
    redis_password: Secret | None = setting("Redis tier", None, "Password to log in with.")
    redis_ca_file: File | None = setting(
        "Redis tier",
        None,
        "Certificates (PEM) of authorities to trust for rediss://; none for the system's.",
    )
    redis_cert_file: File | None = setting(
        "Redis tier", None, "Certificate (PEM) to show a server that asks for one."
    )
    redis_key_file: File | None = setting("Redis tier", None, "Private key (PEM) of that certificate.")
    redis_timeout_s: Seconds = setting(
        "Redis tier", 2.0, "Longest wait for a connection, and for each answer of the server after that."
    )
    redis_write: WriteMode = setting("Redis tier", "through", "When a block is written: see disk_write.")
    redis_eviction: Name = setting(
        "Redis tier",
        "lru",
        "Which of its own blocks go first when redis_bytes are full: see device_eviction.",
    )
    redis_ttl_s: TierTimeToLive = tier_ttl("Redis tier")
    redis_codec: Name = setting(
        "Redis tier", "zstd-planes", "Lossless form of blocks there, by plugin name; none for as they are."
    )

    @model_validator(mode="after")
    def _strangers_need_a_token(self) -> Self:
        if self.api_token is None and self.tokens is None and not is_loopback(self.host):
            raise ValueError(
                f"api_token: required because {self.host} is reachable from other machines; "
                "set PREFIXD_API_TOKEN, or tokens, or listen on 127.0.0.1"
            )
        return self

    @model_validator(mode="after")
    def _adapters_have_names_of_their_own(self) -> Self:
        if self.lora and self.model_name in self.lora:
            raise ValueError(f"lora: {self.model_name} is the name of the model itself; choose another one")
        return self

    @property
    def model_name(self) -> str:
        """The name that requests use: the one set, or the model folder's."""
        return self.served_model_name or (self.model.resolve().name if self.model else "")
