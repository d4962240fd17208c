"""``KvtierTier``: kvtier's tiers below vLLM's memory for offloaded KV."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Optional

import numpy as np
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingMetricMetadata,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from .. import __version__, _engine, _log, _native
from . import _identity, _stats
from ._request_params import Request, Requests, Wishes, wishes

PARAMS = ("tiers", "config", "weights", "timeout_seconds", "enable_kv_events", "locality", "backpressure")
WHERE = "kvtier.vllm.KvtierTier"
# The most chunks of a request whose use is counted at once, in the scheduler's thread.
TOUCHED_MAX = 16_384
# The native answers to a lookup, in order.
RESULTS = (LookupResult.MISS, LookupResult.HIT, LookupResult.RETRY)


@dataclass(slots=True)
class Job:
    """A job in flight."""

    keys: list[OffloadKey]
    is_load: bool


class KvtierTier(SecondaryTierManager):  # type: ignore[misc]
    """A secondary tier of vLLM's ``TieringOffloadingSpec``.

    ``tiers`` is a list of kvtier's specs, the fastest first; ``config`` is the path of a configuration file instead. ``weights`` names the model's
    weights: engines with other weights do not share chunks. A job ends at the latest after
    ``timeout_seconds``, with the chunks that were transferred until then. With ``enable_kv_events`` the tier reports stored and removed chunks as
    vLLM's KV events. ``locality`` and ``backpressure`` are vLLM's.
    """

    medium: ClassVar[Medium] = Medium.STORAGE
    cache_hit_source: ClassVar[CacheHitSource] = CacheHitSource.DISK

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        tiers: Optional[list[dict[str, Any]]] = None,
        config: Optional[str] = None,
        weights: Optional[str] = None,
        timeout_seconds: float = 30.0,
        enable_kv_events: bool = False,
        locality: Optional[str] = None,
        **unknown: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        _log.follow_vllm()
        _engine.check_params(WHERE, unknown, PARAMS)
        if not isinstance(enable_kv_events, bool):
            raise ValueError(f"{WHERE}: enable_kv_events = {enable_kv_events!r}: write true or false")
        if weights is not None and not isinstance(weights, str):
            raise ValueError(f"{WHERE}: weights = {weights!r}: write a text that names the model's weights, such as a revision")
        self._weights = weights
        self.locality = _locality(locality)
        timeout_seconds = _engine.positive(WHERE, "timeout_seconds", timeout_seconds)
        tiers = _identity.with_run_config(tiers, offloading_spec)
        self._core = _engine.Core(WHERE, tiers, config, timeout_seconds)
        self._native = self._core.native
        self._core.register(primary_kv_view)
        self._stats = _stats.Stats(self._native.tiers(), self._native)
        self._jobs: dict[int, Job] = {}
        self._ended: list[JobResult] = []
        self._identity: Optional[_identity.Identity] = None
        # What is wrong with the engine's identity is an error now, except for the root of its hashes: vLLM makes that later.
        self._state_identity()
        self._must_flush = False
        self._has_events = self._may_send_events(enable_kv_events)
        if self._has_events:
            self._native.record_events()
        _log.opened(f"{WHERE} over {self._core.name!r}, chunks of {self.block_size_bytes} bytes")

    def _may_send_events(self, is_enabled: bool) -> bool:
        if not is_enabled:
            return False
        if self._offloading_spec.kv_events_config.enable_kv_cache_events:
            return True
        _log.logger.warning(
            "enable_kv_events is set on %s, but KV events are disabled in vLLM: set enable_kv_cache_events in --kv-events-config", WHERE
        )
        return False

    # -- requests ---------------------------------------------------------------------------------

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        self._begin(req_context)
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        states = req_context.get_state(Requests)
        request = None if states is None else states.by_tier.pop(id(self), None)
        if request is not None:
            self._touch_used(req_context, request)

    def _touch_used(self, req_context: ReqContext, request: Request) -> None:
        """Counts a use of the request's chunks that vLLM had itself, on the GPU or in its CPU tier: nothing else says so, and without it what is used
        most would be the first to be evicted here."""
        positions = getattr(req_context, "_offload_key_positions", None)
        if request.native is None or not isinstance(positions, dict):
            return
        used = [key for key in islice(positions, TOUCHED_MAX) if key not in request.moved]
        if used:
            self._native.touch(used, list(map(positions.get, used)), request.native)

    def _request(self, req_context: ReqContext) -> Request:
        states = req_context.get_state(Requests)
        request = None if states is None else states.by_tier.get(id(self))
        return self._begin(req_context) if request is None else request

    def _begin(self, req_context: ReqContext) -> Request:
        """Reads what the request says to kvtier, once."""
        found = wishes(req_context)
        self._stats.count(_stats.IGNORED, by=found.ignored)
        native = self._native_request(found)
        request = Request(native, req_context.load_tier_filter.allows(self.medium, self.locality))
        states = req_context.get_state(Requests)
        if states is None:
            states = Requests()
            req_context.set_state(states)
        states.by_tier[id(self)] = request
        return request

    def _native_request(self, found: Wishes) -> Optional[_native.EngineRequest]:
        """The request below; ``None`` if it is refused, which is counted, and logged once for each cause."""
        try:
            if self._identity is None:
                self._identify()
        except Exception as e:
            # An exception would end the engine's scheduler. The next request tries again.
            self._core.log_once(f"requests neither load nor store, since the identity of the engine cannot be had: {type(e).__name__}: {e}")
            self._stats.count(_stats.REFUSED, ("identity",))
            return None
        if found.is_served:
            try:
                return self._native.request(found.tenant, found.priority, found.ttl_seconds)
            except ValueError:
                # The name may be a secret, and so may the text of the error.
                pass
            except RuntimeError:
                # After `shutdown`.
                return None
        self._core.log_once(
            "a request with an invalid tenant neither loads nor stores, nor do others like it: a tenant is a text of at most 128 characters without "
            "@ and control characters"
        )
        self._stats.count(_stats.REFUSED, ("tenant",))
        return None

    def _state_identity(self) -> tuple[_identity.Identity, str]:
        """States the engine's configuration below. Returns it, and the digest of its namespace."""
        identity = _identity.of_engine(self._offloading_spec, self.block_size_bytes, self._weights)
        try:
            digest = self._native.identify(
                (identity.model, identity.rank, list(identity.group_tokens), self.block_size_bytes, identity.text, identity.dtype)
            )
        except ValueError as e:
            raise ValueError(f"{WHERE}: vLLM's configuration cannot be named in keys: {e}") from e
        return identity, digest

    def _identify(self) -> None:
        """States the engine's configuration again. The root of its hashes is known only now."""
        self._identity, digest = self._state_identity()
        _log.logger.info("chunks of this engine have the namespace %s: %s", digest, self._identity.text)
        if _identity.has_random_hashes():
            _log.logger.warning(
                "the prefix caching hash has a random seed in each process, so nothing stored now is found after a restart or by another engine: "
                "set PYTHONHASHSEED to the same value everywhere, or use prefix_caching_hash_algo sha256"
            )

    # -- lookups ----------------------------------------------------------------------------------

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        request = self._request(req_context)
        if request.native is None or not request.may_load:
            return LookupResult.MISS
        answer = self._native.lookup(key, request.native)
        if answer == 2:
            self._must_flush = True
        return RESULTS[answer]

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        request = self._request(req_context)
        if request.native is not None and keys:
            used = list(islice(keys, TOUCHED_MAX))
            self._native.touch(used, list(map(req_context.get_offload_key_position, used)), request.native)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        if self._must_flush:
            self._must_flush = self._native.flush_lookups()

    # -- jobs -------------------------------------------------------------------------------------

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._submit(job_metadata, False)

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._submit(job_metadata, True)

    def _submit(self, job: TransferJob, is_load: bool) -> None:
        request = self._request(job.req_context)
        keys = list(job.keys)
        if request.native is None:
            # Refused: nothing was stored, which is no failure of a medium that vLLM should hold stores back for.
            if is_load:
                self._stats.unloaded(len(keys), "refused")
            self._ended.append(JobResult(job.job_id, not is_load))
            return
        row_bytes = self.block_size_bytes
        offsets = (np.asarray(job.chunk_ids, dtype=np.int64) * row_bytes).tolist()
        ends = list(map(job.req_context.get_offload_key_position, keys))
        native_job = (job.job_id, keys, offsets, ends, row_bytes)
        try:
            (self._native.load if is_load else self._native.save)(native_job, request.native)
        except Exception as e:
            # An exception would end the engine's scheduler. Without its job a request computes.
            self._core.log_failure("load" if is_load else "store", (type(e).__name__, str(e)))
            if is_load:
                self._stats.unloaded(len(keys), "failed")
            self._ended.append(JobResult(job.job_id, False))
            return
        request.moved.update(keys)
        self._jobs[job.job_id] = Job(keys, is_load)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        # In most steps of the scheduler nothing has ended.
        if self._jobs and self._native.may_have_ended():
            self._collect()
        ended = self._ended
        if ended:
            self._ended = []
        return ended

    def _collect(self) -> None:
        if not self._jobs:
            return
        for job_id, done, error, seconds, transferred in self._native.poll():
            job = self._jobs.pop(job_id)
            direction = "load" if job.is_load else "store"
            self._stats.job(direction, seconds, done is None)
            loaded = None
            if done is not None:
                self._core.log_failure(direction, error)
                if job.is_load:
                    loaded = tuple(key for key, is_done in zip(job.keys, done) if is_done) or None
            self._ended.append(JobResult(job_id, done is None, loaded, seconds, transferred))

    def has_pending_work(self) -> bool:
        return bool(self._jobs) or bool(self._ended) or self._must_flush

    def drain_jobs(self) -> None:
        self._core.drain()
        self._collect()

    # -- what the engine reports ------------------------------------------------------------------

    def take_events(self) -> Iterable[OffloadingEvent]:
        if not self._has_events:
            return ()
        taken, dropped = self._native.take_events()
        self._stats.count(_stats.DROPPED, by=dropped)
        events: list[OffloadingEvent] = []
        for is_removed, name in taken:
            key = OffloadKey(name)
            if events and events[-1].removed == is_removed:
                events[-1].keys.append(key)
            else:
                events.append(OffloadingEvent([key], self.medium, is_removed, self.locality, ownership=self.tier_type))
        return events

    def get_stats(self) -> Optional[Any]:
        return self._stats.take()

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        return _stats.definitions()

    @classmethod
    def config_info_keys(cls, tier_config: dict[str, Any]) -> tuple[str, ...]:
        return ("kvtier_version", "kvtier_tiers", "kvtier_timeout_seconds")

    def config_info(self) -> dict[str, Any]:
        return {
            "kvtier_version": __version__,
            "kvtier_tiers": self._core.name,
            "kvtier_timeout_seconds": self._core.timeout_seconds,
        }

    def shutdown(self) -> None:
        """Ends all work and releases every view of vLLM's memory.

        :raises TimeoutError: if a medium still uses the memory. vLLM then keeps it mapped.
        """
        # The numbers hold the tiers too, which end with their last holder.
        self._stats.close()
        self._core.close()
        self._collect_closed()

    def _collect_closed(self) -> None:
        """Nothing is polled after the end: jobs that vLLM did not collect are forgotten."""
        self._jobs.clear()
        self._ended.clear()


def _locality(name: Optional[str]) -> Optional[Locality]:
    if name is None:
        return None
    try:
        return Locality(name.upper())
    except (ValueError, AttributeError):
        raise ValueError(f"{WHERE}: locality = {name!r}: write LOCAL or REMOTE, or leave it out") from None
