"""A remote connector for LMCache's in-process mode."""

import asyncio
import contextlib
import math
from collections.abc import Iterator
from typing import Any, Optional

from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.exceptions import IrrecoverableException
from lmcache.v1.memory_management import BytesBufferMemoryObj, MemoryObj
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.protocol import RemoteMetadata
from lmcache.v1.storage_backend.connector import ConnectorAdapter, ConnectorContext, extract_plugin_type
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from .. import _log, _native, errors
from .._aio import AsyncQueue
from .._log import logger
from . import _cachegen, _extra_config, _hash_check
from ._references import MaybeObjs, release, released_unless_done

_log.follow_lmcache()

# Inside the class, `list` is a method of the connector.
Keys = list[CacheEngineKey]
Objs = list[MemoryObj]
Bufs = list[Any]
Lens = list[int]
Names = list[str]
Read = list[Optional[bytearray]]
Containers = list[Optional[memoryview]]

# The settings below `remote_storage_plugin.<name>`, including those that LMCache reads itself.
SETTINGS = ("module_path", "class_name", "tiers", "url", "metrics")


class KvtierConnectorAdapter(ConnectorAdapter):  # type: ignore[misc]
    """Creates connectors for the plugins ``kvtier`` and ``kvtier.<any name>``, each with its own settings."""

    def __init__(self) -> None:
        super().__init__("plugin://kvtier")

    def can_parse(self, url: str) -> bool:
        name = url.removeprefix("plugin://")
        return name != url and extract_plugin_type(name) == "kvtier"

    def create_connector(self, context: ConnectorContext) -> RemoteConnector:
        name = context.plugin_name or "kvtier"
        return KvtierRemoteConnector(context.loop, context.local_cpu_backend, context.config, context.metadata, name)


class KvtierRemoteConnector(RemoteConnector):  # type: ignore[misc]
    """Loads, saves and looks up chunks over the tier of ``extra_config["remote_storage_plugin.<name>.url"]`` (formerly ``remote_url``), or over
    the kvtier tiers of ``remote_storage_plugin.<name>.tiers``.

    It runs on LMCache's loop, which watches a descriptor that the tiers' threads signal.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        local_cpu_backend: Any,
        config: LMCacheEngineConfig,
        metadata: Optional[LMCacheMetadata] = None,
        plugin_name: Optional[str] = None,
    ) -> None:
        # LMCache logs any other error and continues without a connection.
        with _irrecoverable():
            name = plugin_name or _own_name(config)
            metadata = metadata or getattr(local_cpu_backend, "metadata", None)
            if metadata is None:
                raise ValueError("LMCache passes no metadata in this role: name KvtierConnectorAdapter as class_name")
            super().__init__(config, metadata)
            if _is_bucket(config, name):
                # LMCache's connector for buckets writes no headers, although the base class does by default.
                self.save_chunk_meta = False
            self.loop = loop
            self.local_cpu_backend = local_cpu_backend
            self._cachegen = _cachegen.open_reader(config, metadata)
            # The length of an encoded chunk depends on its data.
            partial = bool(config.save_unfull_chunk or self.save_chunk_meta or self._cachegen)
            chunk_bytes = int(self.full_chunk_size_bytes)
            self._tiers = _native.Tiers(
                {"engine": _settings(config, name, chunk_bytes)},
                engine_keys=True,
                partial=partial,
                timeout_seconds=float(config.blocking_timeout_secs),
                # The model defines the length of a full chunk, so that even a first save of another length is refused.
                chunk_bytes=None if partial else chunk_bytes,
                metrics=_extra_config.metrics_address(dict(config.extra_config or {}), _place(name), metadata),
                needs_metrics=False,
            )
            _log.opened(self)
        _hash_check.warn(config)
        self._queue: Optional[AsyncQueue] = None

    async def exists(self, key: CacheEngineKey) -> bool:
        return (await self._lookup([key]))[0] >= 0

    def exists_sync(self, key: CacheEngineKey) -> bool:
        return self.batched_contains([key]) == 1

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: Keys) -> int:
        error, answers = self._tiers.lookup(_names(keys), prefix=True)
        _log.batch_error("lookup", error)
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
        """Loads the chunks before the first miss, in the order of the keys."""
        found = await (self._get(keys, prefetch=True) if self._cachegen is None else self._get_decoded(keys))
        first_miss = next((at for at, obj in enumerate(found) if obj is None), len(found))
        release(found[first_miss:])
        return [obj for obj in found[:first_miss] if obj is not None]

    async def put(self, key: CacheEngineKey, memory_obj: MemoryObj) -> None:
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        return True

    async def batched_put(self, keys: Keys, memory_objs: Objs) -> None:
        """The caller drops its references when the call returns, also if it was cancelled. The batch has its own until it completes."""
        queue = self._async_queue()
        memory_objs = list(memory_objs)
        batch = queue.native.save(_names(keys), [self._with_header(obj) for obj in memory_objs])
        error, _ = await self._keep_until(queue.completion(batch), memory_objs)
        errors.check(error)

    async def list(self) -> Names:
        listing, names = self._tiers.listing(), Names()
        while page := await asyncio.to_thread(listing.page, 1000):
            names.extend(name for name, _ in page)
        return names

    def remove_sync(self, key: CacheEngineKey) -> bool:
        error, answers = self._tiers.remove(_names([key]))
        _log.batch_error("remove", error)
        return answers[0] >= 0

    def support_ping(self) -> bool:
        return True

    async def ping(self) -> int:
        healthy, _, _ = self._tiers.status()
        return 0 if healthy else 1

    async def close(self) -> None:
        await asyncio.to_thread(self._tiers.close)
        if self._queue is not None:
            self._queue.detach()
            self._queue = None

    def __repr__(self) -> str:
        encoded = "" if self._cachegen is None else ", chunks encoded with CacheGen (lossy)"
        return f"<KvtierRemoteConnector over {self._tiers.name!r}{encoded}>"

    def _async_queue(self) -> AsyncQueue:
        """Creates the queue on first use, since LMCache's loop does not run yet when the connector is created."""
        if self._queue is None:
            self._queue = AsyncQueue(self._tiers.queue(), asyncio.get_running_loop())
        return self._queue

    async def _lookup(self, keys: Keys, prefix: bool = False, hold: bool = False) -> Lens:
        queue = self._async_queue()
        error, answers = await queue.completion(queue.native.lookup(_names(keys), prefix=prefix, hold=hold))
        _log.batch_error("lookup", error)
        return answers

    async def _keep_until(self, completion: Any, objs: Objs) -> Any:
        """Holds a reference of each object until the batch completes, also if the caller is cancelled."""
        for obj in objs:
            obj.ref_count_up()

        def release_all(_: Any) -> None:
            for obj in objs:
                obj.ref_count_down()

        completion.add_done_callback(release_all)
        return await asyncio.shield(completion)

    async def _get(self, keys: Keys, prefetch: bool = False) -> MaybeObjs:
        if self._cachegen is not None:
            # LMCache's deserializer decodes them.
            containers = await self._get_containers(keys, prefetch)
            return [None if found is None else BytesBufferMemoryObj(found) for found in containers]
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
        """Loads into the objects that were allocated. Returns lengths, -1 for a miss. The caller owns the objects and releases them on failure."""
        at = [n for n, obj in enumerate(objs) if obj is not None]
        if not at:
            return [-1] * len(keys)
        lens = [-1] * len(keys)
        queue = self._async_queue()
        names, into = _names([keys[n] for n in at]), [bufs[n] for n in at]
        batch = queue.native.load(names, into, exact=False, prefetch=prefetch)
        error, answers = await self._keep_until(queue.completion(batch), [objs[n] for n in at])
        _log.batch_error("load", error)
        for n, answer in zip(at, answers):
            lens[n] = answer
        return lens

    def _cut(self, obj: Optional[MemoryObj], len: int) -> Optional[MemoryObj]:
        """Shortens an object to the tokens of its chunk; ``None`` for a miss or a length that is not a multiple of a token."""
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
        """Loads chunks with headers. A chunk of full length is loaded straight into an object, and kept if its header confirms a full chunk. All
        others are loaded into temporary memory first."""
        stored = await self._lookup(keys, hold=True)
        full = self.remote_metadata_bytes + self.full_chunk_size_bytes
        objs: MaybeObjs = [None] * len(keys)
        with released_unless_done(objs):
            await self._get_full(keys, [n for n, stored_len in enumerate(stored) if stored_len == full], objs, prefetch)
            odd = [n for n, stored_len in enumerate(stored) if objs[n] is None and stored_len > self.remote_metadata_bytes]
            found = await self._get_odd([keys[n] for n in odd], [stored[n] for n in odd], prefetch)
        for n, obj in zip(odd, found):
            objs[n] = obj
        return objs

    async def _get_full(self, keys: Keys, at: Lens, objs: MaybeObjs, prefetch: bool) -> None:
        """Loads full chunks into ``objs`` at these indices, and drops those whose headers do not confirm it."""
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
        metadata = _header(header)
        return (
            metadata is not None
            and metadata.length == self.full_chunk_size_bytes
            and list(metadata.shapes) == list(self.meta_shapes)
            and list(metadata.dtypes) == list(self.meta_dtypes)
            and metadata.fmt == self.meta_fmt
        )

    async def _get_odd(
        self, keys: Keys, lens: Lens, prefetch: bool
    ) -> MaybeObjs:
        objs: MaybeObjs = []
        with released_unless_done(objs):
            for read in await self._load_bytes(keys, lens, prefetch):
                objs.append(None if read is None else self._from_bytes(read))
        return objs

    async def _load_bytes(self, keys: Keys, lens: Lens, prefetch: bool) -> Read:
        """Loads chunks of these lengths into temporary memory."""
        whole = [bytearray(stored_len) for stored_len in lens]
        queue = self._async_queue()
        error, answers = await queue.completion(queue.native.load(_names(keys), whole, prefetch=prefetch))
        _log.batch_error("load", error)
        return [read if answer >= 0 else None for read, answer in zip(whole, answers)]

    async def _get_containers(self, keys: Keys, prefetch: bool) -> Containers:
        """Loads chunks that LMCache encoded."""
        reader, header_bytes = self._cachegen, self.remote_metadata_bytes if self.save_chunk_meta else 0
        assert reader is not None
        stored = await self._lookup(keys, hold=True)
        at = [n for n, stored_len in enumerate(stored) if header_bytes < stored_len <= header_bytes + reader.bytes_max]
        found: Containers = [None] * len(keys)
        for n, read in zip(at, await self._load_bytes([keys[n] for n in at], [stored[n] for n in at], prefetch)):
            if read is not None:
                header = _header(read[:header_bytes]) if header_bytes else None
                found[n] = _cachegen.container(read, header, header_bytes, reader)
        return found

    async def _get_decoded(self, keys: Keys) -> MaybeObjs:
        """Loads chunks that LMCache encoded, and decodes them up to the first miss: what LMCache loads ahead it does not decode itself."""
        objs: MaybeObjs = []
        with released_unless_done(objs):
            for found in await self._get_containers(keys, prefetch=True):
                obj = None if found is None else await self._decoded(found)
                if obj is None:
                    break
                objs.append(obj)
        return objs

    async def _decoded(self, container: memoryview) -> Optional[MemoryObj]:
        reader = self._cachegen
        assert reader is not None
        shapes = [_cachegen.shape(self.meta_shapes[0], reader.tokens(container))]
        obj = self.local_cpu_backend.allocate(shapes, self.meta_dtypes, self.meta_fmt)
        if obj is None:
            return None
        objs: MaybeObjs = [obj]
        with released_unless_done(objs):
            work = asyncio.get_running_loop().run_in_executor(None, reader.decode, container, obj.byte_array)
            try:
                await self._keep_until(work, [obj])
            except ValueError as e:
                logger.warning("load: %s", e)
                obj.ref_count_down()
                return None
        return obj

    def _from_bytes(self, read: bytearray) -> Optional[MemoryObj]:
        metadata = _header(read[: self.remote_metadata_bytes])
        data = memoryview(read)[self.remote_metadata_bytes :]
        if metadata is None or metadata.length != len(data) or _tensor_bytes(metadata) != len(data):
            # LMCache would wait until it can allocate what such a header states.
            logger.warning("load: a chunk of %d bytes has no matching header", len(read))
            return None
        obj = self.local_cpu_backend.allocate(metadata.shapes, metadata.dtypes, metadata.fmt)
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
    """The name of this plugin if LMCache does not pass it: the one that names the class."""
    extra = config.extra_config or {}
    names = config.remote_storage_plugins or []
    own = [n for n in names if str(extra.get(f"remote_storage_plugin.{n}.class_name")) == "KvtierRemoteConnector"]
    if len(own) != 1:
        raise ValueError(
            f"{len(own)} plugins name KvtierRemoteConnector: with several, name KvtierConnectorAdapter as class_name of each"
        )
    return str(own[0])


def _settings(config: LMCacheEngineConfig, name: str, chunk_bytes: int) -> dict[str, Any]:
    """The settings that configure the tiers: only those of this plugin. A full chunk has ``chunk_bytes`` bytes."""
    extra, place = dict(config.extra_config or {}), _place(name)
    url = extra.get(f"{place}.url")
    if config.remote_url:
        shown = _extra_config.masked(str(config.remote_url))
        raise ValueError(
            f"remote_url = {shown!r} starts LMCache's own connector on the same store as kvtier's: move it to "
            f"extra_config[{place + '.url'!r}]"
        )
    others = [_place(str(other)) for other in config.remote_storage_plugins or []]
    _extra_config.refuse_unknown(extra, place, SETTINGS, others)
    if url is None and f"{place}.tiers" not in extra:
        raise ValueError(f"extra_config[{place + '.url'!r}] is missing: write there what remote_url was")
    extra[f"{place}.module_path"] = "kvtier.lmcache"
    extra.pop(f"{place}.metrics", None)
    if _is_bucket(config, name):
        if config.use_layerwise:
            raise ValueError(
                "use_layerwise: true with a bucket under LMCache's names: objects there are full chunks, not layers; write false, or put the "
                f"bucket into extra_config[{place + '.tiers'!r}], in a kvtier layout"
            )
        # LMCache's own default for a bucket, whose objects have no headers.
        extra.setdefault("save_chunk_meta", False)
        if not _cachegen.is_set(config):
            # The model defines the length of a full chunk, so that even a first save of another length is refused.
            extra.setdefault("chunk_bytes", chunk_bytes)
    return {
        "remote_storage_plugins": [name],
        "extra_config": extra,
        "blocking_timeout_secs": config.blocking_timeout_secs,
        "save_unfull_chunk": bool(config.save_unfull_chunk),
        "remote_serde": _cachegen.NAME if _cachegen.is_set(config) else "naive",
    }


def _place(name: str) -> str:
    """The prefix of the plugin's settings in ``extra_config``."""
    return f"remote_storage_plugin.{name}"


def _is_bucket(config: LMCacheEngineConfig, name: str) -> bool:
    """Whether ``url`` names a bucket with objects in the form of LMCache's own connector."""
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


def _tensor_bytes(metadata: RemoteMetadata) -> int:
    """The size of its tensors."""
    return sum(math.prod(shape) * (dtype.itemsize if dtype else 1) for shape, dtype in zip(metadata.shapes, metadata.dtypes))
