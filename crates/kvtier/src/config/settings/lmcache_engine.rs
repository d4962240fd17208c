//! LMCache's settings (0.5.6), and what earlier versions called them.

use super::Kind::{
    Bool, Dict, Float, Floats, Int, Ints, Locations, Mode, Name, Object, Paths, Size, Text, Texts,
    Tiers, Word,
};
use super::Role::{Engine, Extra, Gds, Ignored, Plugin, Refused, Used};
use super::Section::{Engine as InEngine, Extra as InExtra};
use super::{Kind, Role, Section, Setting, at};

const fn key(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    role: Role,
    what: &'static str,
) -> Setting {
    at(InEngine, (name, kind), default, role, what)
}

const fn extra(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    role: Role,
    what: &'static str,
) -> Setting {
    at(InExtra, (name, kind), default, role, what)
}

/// In the order of LMCache's own table.
#[rustfmt::skip]
pub(super) const KEYS: &[Setting] = &[
    key("chunk_size", Int, "256", Engine, "tokens of a chunk"),
    key("local_cpu", Bool, "true", Used, "a host tier of `max_local_cpu_size` on top"),
    key("max_local_cpu_size", Float, "5.0", Used, "the host tier's cap in GiB"),
    key("local_cpu_use_hugepages", Bool, "false", Ignored, "the host tier's pages are the system's; set transparent huge pages there"),
    key("reserve_local_cpu_size", Float, "0.0", Ignored, "the host tier takes what `max_local_cpu_size` says, neither more nor less"),
    key("local_disk", Paths, "null", Used, "a file tier in the folder `kvtier` of this directory; of several, separated by commas, each device has its own"),
    key("local_disk_path_sharding", Text, "by_gpu", Used, "`by_gpu`, the only one: the device's number chooses the directory"),
    key("max_local_disk_size", Float, "0.0", Used, "the file tier's cap in GiB"),
    key("remote_url", Text, "null", Used, "`s3://...`: a bucket; `fs://host:port/path`: a directory"),
    key("remote_serde", Text, "naive", Used, "`naive`, the only one: chunks are stored as they are"),
    key("use_layerwise", Bool, "false", Refused, "chunks of single layers need the keys that only the engine can make"),
    key("save_decode_cache", Bool, "false", Engine, "which chunks are saved"),
    key("pre_caching_hash_algorithm", Text, "builtin", Engine, "how chunks are named"),
    key("enable_blending", Bool, "false", Engine, "blending"),
    key("blend_recompute_ratios", Floats, "null", Engine, "blending"),
    key("blend_thresholds", Floats, "null", Engine, "blending"),
    key("blend_check_layers", Ints, "null", Engine, "blending"),
    key("blend_min_tokens", Int, "256", Engine, "blending"),
    key("blend_special_str", Text, " # # ", Engine, "blending"),
    key("retrieve_locations", Texts, "null", Engine, "which of LMCache's backends are asked"),
    key("store_location", Text, "null", Engine, "which of LMCache's backends are asked"),
    key("enable_p2p", Bool, "false", Engine, "peers"),
    key("p2p_host", Text, "null", Engine, "peers"),
    key("p2p_init_ports", Ints, "null", Engine, "peers"),
    key("p2p_lookup_ports", Ints, "null", Engine, "peers"),
    key("mp_host", Text, "null", Engine, "where the multi-process server is"),
    key("mp_port", Int, "5555", Engine, "where the multi-process server is"),
    key("enable_controller", Bool, "false", Engine, "the controller"),
    key("lmcache_instance_id", Text, "null", Engine, "the controller"),
    key("controller_pull_url", Text, "null", Engine, "the controller"),
    key("controller_reply_url", Text, "null", Engine, "the controller"),
    key("lmcache_worker_ports", Ints, "null", Engine, "the controller"),
    key("lmcache_worker_ids", Ints, "null", Engine, "the controller"),
    key("lmcache_worker_heartbeat_delay_time", Int, "10", Engine, "the controller"),
    key("lmcache_worker_heartbeat_time", Int, "null", Engine, "the controller"),
    key("enable_pd", Bool, "false", Engine, "prefill and decode apart"),
    key("pd_role", Text, "null", Engine, "prefill and decode apart"),
    key("pd_buffer_size", Int, "null", Engine, "prefill and decode apart"),
    key("pd_buffer_device", Text, "null", Engine, "prefill and decode apart"),
    key("pd_peer_host", Text, "null", Engine, "prefill and decode apart"),
    key("pd_peer_init_port", Ints, "null", Engine, "prefill and decode apart"),
    key("pd_peer_alloc_port", Ints, "null", Engine, "prefill and decode apart"),
    key("pd_peer_query_port", Ints, "null", Engine, "prefill and decode apart"),
    key("pd_proxy_host", Text, "null", Engine, "prefill and decode apart"),
    key("pd_proxy_port", Int, "null", Engine, "prefill and decode apart"),
    key("pd_allocation_timeout_sec", Float, "inf", Engine, "prefill and decode apart"),
    key("pd_shutdown_timeout_sec", Float, "5.0", Engine, "prefill and decode apart"),
    key("pd_condition_poll_interval_sec", Float, "0.005", Engine, "prefill and decode apart"),
    key("pd_max_prefill_len", Int, "0", Engine, "prefill and decode apart"),
    key("pd_backend_mode", Text, "async", Engine, "prefill and decode apart"),
    key("pd_skip_proxy_notification", Bool, "false", Engine, "prefill and decode apart"),
    key("pd_bidirectional", Bool, "false", Engine, "prefill and decode apart"),
    key("transfer_channel", Text, "null", Engine, "the transfer channel"),
    key("nixl_backends", Texts, "null", Refused, "the NIXL backend is not ours"),
    key("nixl_buffer_size", Int, "null", Engine, "the NIXL backend's buffers"),
    key("nixl_buffer_device", Text, "null", Engine, "the NIXL backend's buffers"),
    key("gds_path", Text, "null", Gds, "directories of the GPU tier, one for each GPU in turn, in layout `lmcache-gds` (on Weka's file system `lmcache-gds-weka`)"),
    key("gds_path_sharding", Text, "by_gpu", Gds, "`by_gpu`, the only one"),
    key("gds_buffer_size", Int, "null", Gds, "MiB of GPU memory that LMCache reserves for transfers"),
    key("maru_path", Text, "null", Refused, "the Maru backend is not ours"),
    key("maru_pool_size", Float, "4.0", Engine, "the Maru backend's pool"),
    key("use_gds", Bool, "true", Gds, "whether cuFile is used where it works"),
    key("gds_backend", Text, "cufile", Gds, "`cufile`; `hipfile` is not built"),
    key("audit_actual_remote_url", Text, "null", Refused, "the audit backend is not ours"),
    key("internal_api_server_host", Text, "127.0.0.1", Engine, "LMCache's own API server"),
    key("extra_config", Dict, "null", Extra, "settings of backends, below"),
    key("save_unfull_chunk", Bool, "false", Used, "whether chunks shorter than full ones may be saved; true is refused with a bucket under LMCache's names, where LMCache reads full chunks only"),
    key("blocking_timeout_secs", Int, "10", Used, "the deadline of an operation on the remote tier, in seconds"),
    key("external_lookup_client", Text, "null", Engine, "the lookup service"),
    key("py_enable_gc", Bool, "true", Engine, "Python's garbage collector"),
    key("cache_policy", Text, "LRU", Used, "the eviction policy of the host tier and of local_disk: LRU, LFU, FIFO or MRU, in any case; default: kvtier's own policy"),
    key("numa_mode", Text, "null", Ignored, "memory is on the NUMA node of the process; bind the process"),
    key("enable_async_loading", Bool, "false", Ignored, "loads never block here"),
    key("internal_api_server_enabled", Bool, "false", Engine, "LMCache's own API server"),
    key("internal_api_server_port_start", Int, "6999", Engine, "LMCache's own API server"),
    key("priority_limit", Int, "null", Engine, "which requests are cached"),
    key("internal_api_server_include_index_list", Ints, "null", Engine, "LMCache's own API server"),
    key("internal_api_server_socket_path_prefix", Text, "null", Engine, "LMCache's own API server"),
    key("runtime_plugin_locations", Locations, "null", Engine, "plugins that run beside LMCache"),
    key("storage_plugins", Texts, "null", Plugin, "backends that LMCache loads; those that name kvtier are read"),
    key("remote_storage_plugins", Texts, "null", Plugin, "backends that LMCache loads; those that name kvtier are read"),
    key("lookup_timeout_ms", Int, "3000", Engine, "the lookup service"),
    key("min_retrieve_tokens", Int, "0", Engine, "which requests are cached"),
    key("hit_miss_ratio", Float, "null", Engine, "the lookup service"),
    key("lookup_server_worker_ids", Ints, "null", Engine, "the lookup service"),
    key("enable_scheduler_bypass_lookup", Bool, "false", Engine, "the lookup service"),
    key("script_allowed_imports", Texts, "null", Engine, "scripts"),
    key("run_script_api_enabled", Bool, "false", Engine, "scripts"),
    key("enable_lazy_memory_allocator", Bool, "false", Ignored, "arenas take memory when it is first touched"),
    key("lazy_memory_initial_ratio", Float, "0.2", Ignored, "arenas take memory when it is first touched"),
    key("lazy_memory_expand_trigger_ratio", Float, "0.5", Ignored, "arenas take memory when it is first touched"),
    key("lazy_memory_step_ratio", Float, "0.1", Ignored, "arenas take memory when it is first touched"),
    key("lazy_memory_safe_size", Float, "0.0", Ignored, "arenas take memory when it is first touched"),
    key("enable_chunk_statistics", Bool, "false", Engine, "statistics"),
    key("chunk_statistics_auto_start_statistics", Bool, "false", Engine, "statistics"),
    key("chunk_statistics_auto_exit_timeout_hours", Float, "0.0", Engine, "statistics"),
    key("chunk_statistics_auto_exit_target_unique_chunks", Int, "0", Engine, "statistics"),
    key("chunk_statistics_strategy", Text, "memory_bloom_filter", Engine, "statistics"),
    key("enable_kv_events", Bool, "false", Engine, "events for routers"),
    key("use_gpu_connector_v3", Bool, "false", Engine, "the connector of the GPU"),
    key("pin_timeout_sec", Int, "300", Engine, "how long a chunk may stay pinned"),
    key("pin_check_interval_sec", Int, "30", Engine, "how long a chunk may stay pinned"),
    key("remote_config_url", Text, "null", Refused, "settings from a server are not fetched; write them into the file"),
    key("app_id", Text, "null", Engine, "sent to `remote_config_url`"),
    key("enable_hidden_state_cache", Bool, "false", Engine, "hidden states"),
    key("max_hidden_state_cpu_size", Float, "2.0", Engine, "hidden states"),
    key("hidden_state_layers", Ints, "null", Engine, "hidden states"),
    key("hidden_states_retrieve_mode", Mode, "prefix_strict", Engine, "hidden states"),
];

/// Under `extra_config`.
#[rustfmt::skip]
pub(super) const EXTRA: &[Setting] = &[
    extra("s3_region", Text, "", Used, "the region to sign for"),
    extra("s3_num_io_threads", Int, "null", Used, "the most requests in flight, and the most connections; of this and the next two the least counts (64 where none is set), and none sizes a thread pool"),
    extra("s3_max_io_concurrency", Int, "null", Used, "the most requests in flight"),
    extra("s3_max_inflight_reqs", Int, "null", Used, "the most requests in flight"),
    extra("s3_prefer_http2", Bool, "false", Used, "offer HTTP/2 over TLS; without it only HTTP/1.1, which costs less"),
    extra("s3_enable_s3express", Bool, "false", Used, "the bucket is an S3 Express directory bucket"),
    extra("s3_file_prefix", Text, "null", Used, "the prefix of every object name"),
    extra("save_chunk_meta", Bool, "false", Used, "must be false with a bucket; in a directory LMCache's header is part of the chunk"),
    extra("disable_tls", Bool, "false", Used, "plain HTTP"),
    extra("aws_access_key_id", Text, "null", Used, "the access key; with its secret, or neither: then the default chain (environment, profiles, roles)"),
    extra("aws_secret_access_key", Text, "null", Used, "the secret of `aws_access_key_id`"),
    extra("fs_base_path", Text, "null", Used, "the directory of an `fs` remote"),
    extra("fs_connector_relative_tmp_dir", Text, "null", Ignored, "unfinished files are in a directory of the tier and are deleted at the next start"),
    extra("fs_connector_read_ahead_size", Int, "null", Ignored, "a chunk is read at once"),
    extra("fs_connector_use_odirect", Bool, "false", Ignored, "the file tier chooses the best mode of the machine"),
    extra("use_odirect", Bool, "false", Ignored, "the file tier chooses the best mode of the machine"),
    extra("disk_io_threads", Int, "4", Ignored, "the file tier needs no pool of threads"),
    extra("use_direct_io", Bool, "false", Gds, "past the page cache, as the GPU tier always does where the file system can"),
    extra("kvtier.gds_shape", Text, "null", Gds, "ours: the tensor of a full chunk, as `shape` of the native form; without it, the shape comes from the first save that states one, or from existing files of the same model and worker; until then nothing can be saved"),
    extra("shm_name", Text, "null", Engine, "LMCache's shared memory"),
    extra("local_cpu.pinned_align_bytes", Int, "null", Ignored, "arenas are aligned to pages"),
    extra("gpu_to_numa_mapping", Dict, "null", Ignored, "memory is on the NUMA node of the process; bind the process"),
    extra("first_rank_max_local_cpu_size", Float, "null", Engine, "LMCache's memory on the first rank"),
    extra("save_only_first_rank", Bool, "false", Engine, "which ranks save"),
    extra("use_exists_sync", Bool, "false", Ignored, "lookups never block here"),
    extra("remote_enable_mla_worker_id_as0", Bool, "false", Engine, "how chunks of MLA models are named"),
    extra("audit_backend_enabled", Bool, "false", Refused, "the audit backend is not ours"),
    extra("enable_nixl_storage", Bool, "false", Refused, "the NIXL backend is not ours"),
    extra("remote_storage_plugin.<name>.module_path", Text, "null", Used, "the Python module of a plugin in `remote_storage_plugins`; `kvtier` and what is below it are ours; the same under `storage_plugin.<name>` for `storage_plugins`"),
    extra("remote_storage_plugin.<name>.class_name", Text, "null", Engine, "the class of that plugin"),
    extra("remote_storage_plugin.<name>.tiers", Tiers, "null", Used, "ours: the tiers of a kvtier plugin, in the native form"),
    extra("remote_storage_plugin.<name>.url", Text, "null", Used, "ours: instead of `.tiers`, what `remote_url` would be"),
    extra("remote_storage_plugin.<name>.metrics", Text, "null", Used, "ours: where the Python module serves the metrics of a kvtier plugin, such as `127.0.0.1:9464`; the worker's number is added to the port; also under `storage_plugin.<name>`"),
    extra("storage_plugin.<name>.gds_path", Text, "null", Used, "ours: instead of `.tiers`, what `gds_path` would be, for `KvtierGdsBackend`"),
    extra("storage_plugin.<name>.bytes", Size, "null", Used, "ours: the cap of the directory of `.gds_path`; without it the size of the file system"),
    extra("storage_plugin.<name>.save_from", Word, "host", Used, "ours: where LMCache puts a chunk before `KvtierGdsBackend` saves it: `host`, or `gpu` as in its own backend"),
    extra("remote_storage_plugin.<name>.base_path", Text, "null", Used, "the directory of LMCache's plugin `fs`"),
];

/// The form of LMCache's guide for porting to its S3 storage.
#[rustfmt::skip]
pub(super) const PORTING: &[Setting] = &[
    ported("local_device", Text, "null", "`cpu`, read as `local_cpu: true`; `file://` and a directory, read as `local_disk`"),
    ported("storage_backend", Object, "null", "the remote store: `{type: remote, connector: {...}}`, read as `remote_url` and settings below `extra_config`; unknown settings in it are errors"),
    ported("storage_backend.type", Word, "", "`remote`, the only one"),
    ported("storage_backend.connector", Object, "", "the bucket"),
    ported("storage_backend.connector.type", Word, "", "`s3`, the only one"),
    ported("storage_backend.connector.bucket", Name, "", "the bucket's name, read as `remote_url: s3://...`"),
    ported("storage_backend.connector.prefix", Text, "null", "read as `extra_config.s3_file_prefix`"),
    ported("storage_backend.connector.region", Name, "null", "read as `extra_config.s3_region`; the default is that of the environment (`AWS_REGION`, `AWS_DEFAULT_REGION`)"),
];

const fn ported(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    what: &'static str,
) -> Setting {
    at(Section::Porting, (name, kind), default, Used, what)
}

/// Older names in LMCache 0.5.6's own table of aliases. LMCache reads only those that it also calls
/// deprecated.
pub(crate) const ALIASES: &[(&str, &str)] = &[
    ("enable_xpyd", "enable_pd"),
    ("nixl_peer_host", "pd_peer_host"),
    ("nixl_peer_init_port", "pd_peer_init_port"),
    ("nixl_peer_alloc_port", "pd_peer_alloc_port"),
    ("nixl_proxy_host", "pd_proxy_host"),
    ("nixl_proxy_port", "pd_proxy_port"),
    ("nixl_buffer_size", "pd_buffer_size"),
    ("nixl_role", "pd_role"),
    ("controller_url", "controller_pull_url"),
    ("lmcache_worker_port", "lmcache_worker_ports"),
    ("plugin_locations", "runtime_plugin_locations"),
    ("external_backends", "storage_plugins"),
];

/// Names that LMCache calls deprecated. The first has no successor.
pub(crate) const DEPRECATED: &[&str] = &["nixl_peer_port", "plugin_locations", "external_backends"];

/// Settings of earlier versions that LMCache 0.5.6 drops with a warning, or without one, and that
/// are read here under their new names.
pub(super) const OLD: &[(&str, &str)] = &[
    ("cufile_buffer_size", "gds_buffer_size"),
    ("use_cufile", "use_gds"),
    ("plugin_locations", "runtime_plugin_locations"),
    ("external_backends", "storage_plugins"),
];

/// Variables with the prefix of settings that are none: the path of the file, logging, and variables
/// that LMCache no longer reads.
pub(crate) const NOT_SETTINGS: &[&str] = &[
    "CONFIG_FILE",
    "USE_EXPERIMENTAL",
    "LOG_LEVEL",
    "LOG_FORMAT",
    "TRACK_USAGE",
    "TRACK_FILE",
    "DEBUG",
    "WORKER_ID",
    "EXTRA",
    "EC",
    "CUDA_VERSION",
    "CACHE_DIR",
    "PATH",
];
