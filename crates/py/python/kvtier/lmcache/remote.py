"""A remote connector of LMCache's in-process mode."""

import asyncio
import contextlib
import math
from collections.abc import Iterator
from typing import Any, Optional

from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.exceptions import IrrecoverableException
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.protocol import RemoteMetadata
from lmcache.v1.storage_backend.connector import ConnectorAdapter, ConnectorContext, extract_plugin_type
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from .. import _log, _native, _told, errors
from .._asking import Asking
from .._log import logger
from . import _hashes, _plugin_settings
from ._references import MaybeObjs, release, released_unless_done

_log.follow_lmcache()

# A method of the connector is called `list`: inside its class the word means that.
Keys = list[CacheEngineKey]
Objs = list[MemoryObj]
Bufs = list[Any]
Lens = list[int]
Names = list[str]

# What the plugin reads below `remote_storage_plugin.<name>`, LMCache's own settings for it included.
SETTINGS = ("module_path", "class_name", "tiers", "url", "metrics")


class KvtierConnectorAdapter(ConnectorAdapter):  # type: ignore[misc]
    """Makes connectors for the plugins ``kvtier`` and ``kvtier.<any name>``, each with settings of its own."""

    def __init__(self) -> None:
        super().__init__("plugin://kvtier")

    def can_parse(self, url: str) -> bool:
        name = url.removeprefix("plugin://")
        return name != url and extract_plugin_type(name) == "kvtier"

    def create_connector(self, context: ConnectorContext) -> RemoteConnector:
        name = context.plugin_name or "kvtier"
        return KvtierRemoteConnector(context.loop, context.local_cpu_backend, context.config, context.metadata, name)


class KvtierRemoteConnector(RemoteConnector):  # type: ignore[misc]
    """Getting, putting and looking up over the tiers of ``extra_config["remote_storage_plugin.<name>.url"]``, which is what ``remote_url``
    was, or of ``remote_storage_plugin.<name>.tiers``, which are ours.

    All of it runs on LMCache's loop and waits for a descriptor that the tiers' threads ring.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        local_cpu_backend: Any,
        config: LMCacheEngineConfig,
        metadata: Optional[LMCacheMetadata] = None,
        plugin_name: Optional[str] = None,
    ) -> None:
        # LMCache logs any other error and goes on without a connection.
        with _irrecoverable():
            name = plugin_name or _own_name(config)
            metadata = metadata or getattr(local_cpu_backend, "metadata", None)
            if metadata is None:
                raise ValueError("this role of LMCache's gives no metadata: name KvtierConnectorAdapter as class_name")
            super().__init__(config, metadata)
            if _is_bucket(config, name):
                # LMCache's connector for buckets writes no headers, though the base class has them by default.
                self.save_chunk_meta = False
            self.loop = loop
            self.local_cpu_backend = local_cpu_backend
            partial = bool(config.save_unfull_chunk or self.save_chunk_meta)
            chunk_bytes = int(self.full_chunk_size_bytes)
            self._tiers = _native.Tiers(
                {"engine": _settings(config, name, chunk_bytes)},
                engine_keys=True,
                partial=partial,
                timeout_seconds=float(config.blocking_timeout_secs),
                # The model says how long a full chunk is, so that even the first save of another length is refused.
                chunk_bytes=None if partial else chunk_bytes,
                metrics=_plugin_settings.metrics_address(dict(config.extra_config or {}), _place(name), metadata),
                needs_metrics=False,
            )
            _told.opened(self)
        _hashes.warn(config)
        self._asking: Optional[Asking] = None

    async def exists(self, key: CacheEngineKey) -> bool:
        return (await self._lookup([key]))[0] >= 0

    def exists_sync(self, key: CacheEngineKey) -> bool:
        return self.batched_contains([key]) == 1

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: Keys) -> int:
        fault, answers = self._tiers.lookup(_names(keys), prefix=True)
        _told.fault("lookup", fault)
        return _prefix(answers)

    async def batched_async_contains(self, lookup_id: str, keys: Keys, pin: bool = False) -> int:
        return _prefix(await self._lookup(keys, prefix=True, hold=pin))

    async def get(self, key: CacheEngineKey) -> Optional[MemoryObj]:
        return (await self._get([key]))[0]

    def support_batched_get(self) -> bool:
        return True

    async def batched_get(self, keys: Keys) -> MaybeObjs:
        return await self._get(keys)

    async def batched_get_non_blocking(self, lookup_id: str, keys: Keys) -> Objs:
        """What is there from the first key on, up to the first that is not; positions are kept."""
        found = await self._get(keys, prefetch=True)
        first_miss = next((at for at, obj in enumerate(found) if obj is None), len(found))
        release(found[first_miss:])
        return [obj for obj in found[:first_miss] if obj is not None]

    async def put(self, key: CacheEngineKey, memory_obj: MemoryObj) -> None:
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        return True

    async def batched_put(self, keys: Keys, memory_objs: Objs) -> None:
        """Whoever calls us gives up his reference when we are done, which a cancelled call is not: we keep our own until then."""
        ask, memory_objs = self._ask(), list(memory_objs)
        batch = ask.queue.save(_names(keys), [self._with_header(obj) for obj in memory_objs])
        fault, _ = await self._until_done(ask.future(batch), memory_objs)
        errors.check(fault)

    async def list(self) -> Names:
        listing, names = self._tiers.listing(), Names()
        while page := await asyncio.to_thread(listing.page, 1000):
            names.extend(name for name, _ in page)
        return names

    def remove_sync(self, key: CacheEngineKey) -> bool:
        fault, answers = self._tiers.remove(_names([key]))
        _told.fault("remove", fault)
        return answers[0] >= 0

    def support_ping(self) -> bool:
        return True

    async def ping(self) -> int:
        healthy, _, _ = self._tiers.status()
        return 0 if healthy else 1

    async def close(self) -> None:
        await asyncio.to_thread(self._tiers.close)
        if self._asking is not None:
            self._asking.stop()
            self._asking = None

    def __repr__(self) -> str:
        return f"<KvtierRemoteConnector over {self._tiers.name!r}>"

    def _ask(self) -> Asking:
        """LMCache's loop is not running yet when we are made."""
        if self._asking is None:
            self._asking = Asking(self._tiers.queue(), asyncio.get_running_loop())
        return self._asking

    async def _lookup(self, keys: Keys, prefix: bool = False, hold: bool = False) -> Lens:
        ask = self._ask()
        fault, answers = await ask.future(ask.queue.lookup(_names(keys), prefix=prefix, hold=hold))
        _told.fault("lookup", fault)
        return answers

    async def _until_done(self, ended: Any, objs: Objs) -> Any:
        """Keeps a reference of each object until the tiers are done with its memory, also where the caller no longer waits."""
        for obj in objs:
            obj.ref_count_up()

        def give_back(_: Any) -> None:
            for obj in objs:
                obj.ref_count_down()

        ended.add_done_callback(give_back)
        return await asyncio.shield(ended)

    async def _get(self, keys: Keys, prefetch: bool = False) -> MaybeObjs:
        if self.save_chunk_meta:
            return await self._get_with_headers(keys, prefetch)
        objs: MaybeObjs = []
        with released_unless_done(objs):
            for _ in keys:
                objs.append(self.local_cpu_backend.allocate(self.meta_shapes, self.meta_dtypes, self.meta_fmt))
            lens = await self._load(keys, objs, [None if obj is None else obj.byte_array for obj in objs], prefetch)
            for n, len in enumerate(lens):
                objs[n] = self._cut(objs[n], len)
        return objs

    async def _load(
        self, keys: Keys, objs: MaybeObjs, bufs: Bufs, prefetch: bool
    ) -> Lens:
        """Loads where there is memory. Answers lengths, of misses -1. The objects stay the caller's, which releases them when this fails."""
        at = [n for n, obj in enumerate(objs) if obj is not None]
        if not at:
            return [-1] * len(keys)
        lens = [-1] * len(keys)
        ask = self._ask()
        names, into = _names([keys[n] for n in at]), [bufs[n] for n in at]
        batch = ask.queue.load(names, into, exact=False, prefetch=prefetch)
        fault, answers = await self._until_done(ask.future(batch), [objs[n] for n in at])
        _told.fault("load", fault)
        for n, answer in zip(at, answers):
            lens[n] = answer
        return lens

    def _cut(self, obj: Optional[MemoryObj], len: int) -> Optional[MemoryObj]:
        """A chunk of fewer tokens is an object of fewer tokens; one of part of a token is none."""
        if obj is None:
            return None
        if len >= 0:
            try:
                return self.reshape_partial_chunk(obj, len)
            except ValueError as e:
                logger.warning("load: %s", e)
        obj.ref_count_down()
        return None

    def _with_header(self, obj: MemoryObj) -> Any:
        if not self.save_chunk_meta:
            return obj.byte_array
        header = RemoteMetadata(obj.get_size(), obj.get_shapes(), obj.get_dtypes(), obj.get_memory_format())
        return (header.serialize(), obj.byte_array)

    async def _get_with_headers(self, keys: Keys, prefetch: bool) -> MaybeObjs:
        """Where a header says what the chunk looks like, one of full length is taken to be a full chunk, and looked at again when its header
        is there; any other takes the way through memory of ours."""
        there = await self._lookup(keys, hold=True)
        full = self.remote_metadata_bytes + self.full_chunk_size_bytes
        objs: MaybeObjs = [None] * len(keys)
        with released_unless_done(objs):
            await self._get_full(keys, [n for n, len_there in enumerate(there) if len_there == full], objs, prefetch)
            odd = [n for n, len_there in enumerate(there) if objs[n] is None and len_there > self.remote_metadata_bytes]
            found = await self._get_odd([keys[n] for n in odd], [there[n] for n in odd], prefetch)
        for n, obj in zip(odd, found):
            objs[n] = obj
        return objs

    async def _get_full(self, keys: Keys, at: Lens, objs: MaybeObjs, prefetch: bool) -> None:
        """Fills `objs` at these places with chunks whose headers say that they are full ones."""
        headers = [bytearray(self.remote_metadata_bytes) for _ in keys]
        for n in at:
            objs[n] = self.local_cpu_backend.allocate(self.meta_shapes, self.meta_dtypes, self.meta_fmt)
        bufs = [None if obj is None else (header, obj.byte_array) for obj, header in zip(objs, headers)]
        lens = await self._load(keys, objs, bufs, prefetch)
        full = self.remote_metadata_bytes + self.full_chunk_size_bytes
        for n, obj in enumerate(objs):
            if obj is not None and not (lens[n] == full and self._is_full(headers[n])):
                objs[n] = None
                obj.ref_count_down()

    def _is_full(self, header: bytearray) -> bool:
        told = _header(header)
        return (
            told is not None
            and told.length == self.full_chunk_size_bytes
            and list(told.shapes) == list(self.meta_shapes)
            and list(told.dtypes) == list(self.meta_dtypes)
            and told.fmt == self.meta_fmt
        )

    async def _get_odd(
        self, keys: Keys, lens: Lens, prefetch: bool
    ) -> MaybeObjs:
        whole = [bytearray(len_there) for len_there in lens]
        ask = self._ask()
        fault, found = await ask.future(ask.queue.load(_names(keys), whole, prefetch=prefetch))
        _told.fault("load", fault)
        objs: MaybeObjs = []
        with released_unless_done(objs):
            for read, answer in zip(whole, found):
                objs.append(self._of_whole(read) if answer >= 0 else None)
        return objs

    def _of_whole(self, read: bytearray) -> Optional[MemoryObj]:
        told, data = _header(read[: self.remote_metadata_bytes]), memoryview(read)[self.remote_metadata_bytes :]
        if told is None or told.length != len(data) or _bytes_of(told) != len(data):
            # Asked for what such a header says, LMCache would look for that much memory until there is some.
            logger.warning("load: a chunk of %d bytes has no header that fits", len(read))
            return None
        obj = self.local_cpu_backend.allocate(told.shapes, told.dtypes, told.fmt)
        if obj is None:
            return None
        if obj.get_size() != len(data):
            logger.warning("load: a chunk of %d bytes has a header for %d", len(data), obj.get_size())
            obj.ref_count_down()
            return None
        obj.byte_array.cast("B")[:] = data
        return obj


@contextlib.contextmanager
def _irrecoverable() -> Iterator[None]:
    try:
        yield
    except Exception as e:
        raise IrrecoverableException(f"kvtier: {e}") from e


def _own_name(config: LMCacheEngineConfig) -> str:
    """Which plugin is us, where LMCache does not say."""
    extra = config.extra_config or {}
    names = config.remote_storage_plugins or []
    ours = [n for n in names if str(extra.get(f"remote_storage_plugin.{n}.class_name")) == "KvtierRemoteConnector"]
    if len(ours) != 1:
        raise ValueError(
            f"{len(ours)} plugins name KvtierRemoteConnector: with several, name KvtierConnectorAdapter as class_name of each"
        )
    return str(ours[0])


def _settings(config: LMCacheEngineConfig, name: str, chunk_bytes: int) -> dict[str, Any]:
    """What of LMCache's settings means tiers here: those of this plugin alone. A full chunk has `chunk_bytes` bytes."""
    extra, place = dict(config.extra_config or {}), _place(name)
    url = extra.get(f"{place}.url")
    if config.remote_url:
        shown = _plugin_settings.masked(str(config.remote_url))
        raise ValueError(
            f"remote_url = {shown!r} starts LMCache's own connector beside ours, on the same store: move it to "
            f"extra_config[{place + '.url'!r}]"
        )
    others = [_place(str(other)) for other in config.remote_storage_plugins or []]
    _plugin_settings.refuse_unknown(extra, place, SETTINGS, others)
    if url is None and f"{place}.tiers" not in extra:
        raise ValueError(f"extra_config[{place + '.url'!r}] is missing: write there what remote_url was")
    extra[f"{place}.module_path"] = "kvtier.lmcache"
    extra.pop(f"{place}.metrics", None)
    if _is_bucket(config, name):
        if config.use_layerwise:
            raise ValueError(
                "use_layerwise: true with a bucket under LMCache's names: objects there are full chunks, not layers; write false, or put the "
                f"bucket into extra_config[{place + '.tiers'!r}], in a layout of ours"
            )
        # LMCache's own default for a bucket, which knows no headers.
        extra.setdefault("save_chunk_meta", False)
        # The model says how long a full chunk is, so that even the first save of another length is refused.
        extra.setdefault("chunk_bytes", chunk_bytes)
    return {
        "remote_storage_plugins": [name],
        "extra_config": extra,
        "blocking_timeout_secs": config.blocking_timeout_secs,
        "save_unfull_chunk": bool(config.save_unfull_chunk),
    }


def _place(name: str) -> str:
    """What stands before the plugin's settings in ``extra_config``."""
    return f"remote_storage_plugin.{name}"


def _is_bucket(config: LMCacheEngineConfig, name: str) -> bool:
    """Whether `url` names a bucket, whose objects are what LMCache's own connector writes."""
    return str((config.extra_config or {}).get(f"{_place(name)}.url", "")).startswith("s3://")


def _names(keys: list[CacheEngineKey]) -> list[str]:
    return [key.to_string() for key in keys]


def _prefix(answers: list[int]) -> int:
    return next((at for at, answer in enumerate(answers) if answer < 0), len(answers))


def _header(text: bytearray) -> Optional[RemoteMetadata]:
    try:
        return RemoteMetadata.deserialize(bytes(text))
    except (ValueError, KeyError, AssertionError) as e:
        logger.warning("load: a chunk's header cannot be read: %s", e)
        return None


def _bytes_of(told: RemoteMetadata) -> int:
    """What its tensors take."""
    return sum(math.prod(shape) * (dtype.itemsize if dtype else 1) for shape, dtype in zip(told.shapes, told.dtypes))
