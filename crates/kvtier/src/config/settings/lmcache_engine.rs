//! LMCache's settings (0.5.6), and what earlier versions called them.

use super::Section::{Engine, Extra, Porting};
use super::lmcache_adapter::{
    ACCESS_KEY, EXPRESS, IO_MODE, NO_THREADS, READ_AHEAD, SECRET_KEY, TEMPORARY_FILES,
};
use super::{Role, Setting, ValueKind};

/// In the order of LMCache's own table.
pub(super) const KEYS: &[Setting] = settings! {
    Engine => {
        "chunk_size" Int "256" Engine "tokens of a chunk";
        "local_cpu" Bool "true" Used "a host tier of `max_local_cpu_size` on top";
        "max_local_cpu_size" Float "5.0" Used "the host tier's cap in GiB";
        "local_cpu_use_hugepages" Bool "false" Ignored "the host tier's pages are the system's; set transparent huge pages there";
        "reserve_local_cpu_size" Float "0.0" Ignored "the host tier takes what `max_local_cpu_size` says, neither more nor less";
        "local_disk" Paths "null" Used "a file tier in the folder `kvtier` of this directory; of several, separated by commas, each device has its own";
        "local_disk_path_sharding" Text "by_gpu" Used "`by_gpu`, the only one: the device's number chooses the directory";
        "max_local_disk_size" Float "0.0" Used "the file tier's cap in GiB";
        "remote_url" Text "null" Used "`s3://...`: a bucket; `fs://host:port/path`: a directory";
        "remote_serde" Text "naive" Used "`naive`: chunks are stored as they are; `cachegen`, lossy: LMCache encodes them in front of kvtier's connector";
        "use_layerwise" Bool "false" Refused "chunks of single layers need the keys that only the engine can make";
        "save_decode_cache" Bool "false" Engine "which chunks are saved";
        "pre_caching_hash_algorithm" Text "builtin" Engine "how chunks are named";
        "enable_blending" Bool "false", "blend_recompute_ratios" Floats "null",
        "blend_thresholds" Floats "null", "blend_check_layers" Ints "null",
        "blend_min_tokens" Int "256", "blend_special_str" Text " # # " Engine "blending";
        "retrieve_locations" Texts "null", "store_location" Text "null" Engine "which of LMCache's backends are asked";
        "enable_p2p" Bool "false", "p2p_host" Text "null", "p2p_init_ports" Ints "null",
        "p2p_lookup_ports" Ints "null" Engine "peers";
        "mp_host" Text "null", "mp_port" Int "5555" Engine "where the multi-process server is";
        "enable_controller" Bool "false", "lmcache_instance_id" Text "null",
        "controller_pull_url" Text "null", "controller_reply_url" Text "null",
        "lmcache_worker_ports" Ints "null", "lmcache_worker_ids" Ints "null",
        "lmcache_worker_heartbeat_delay_time" Int "10", "lmcache_worker_heartbeat_time" Int "null"
            Engine "the controller";
        "enable_pd" Bool "false", "pd_role" Text "null", "pd_buffer_size" Int "null",
        "pd_buffer_device" Text "null", "pd_peer_host" Text "null",
        "pd_peer_init_port" Ints "null", "pd_peer_alloc_port" Ints "null",
        "pd_peer_query_port" Ints "null", "pd_proxy_host" Text "null", "pd_proxy_port" Int "null",
        "pd_allocation_timeout_sec" Float "inf", "pd_shutdown_timeout_sec" Float "5.0",
        "pd_condition_poll_interval_sec" Float "0.005", "pd_max_prefill_len" Int "0",
        "pd_backend_mode" Text "async", "pd_skip_proxy_notification" Bool "false",
        "pd_bidirectional" Bool "false" Engine "prefill and decode apart";
        "transfer_channel" Text "null" Engine "the transfer channel";
        "nixl_backends" Texts "null" Refused "the NIXL backend is not ours";
        "nixl_buffer_size" Int "null", "nixl_buffer_device" Text "null" Engine "the NIXL backend's buffers";
        "gds_path" Text "null" Gds "directories of the GPU tier, one for each GPU in turn, in layout `lmcache-gds` (on Weka's file system `lmcache-gds-weka`)";
        "gds_path_sharding" Text "by_gpu" Gds "`by_gpu`, the only one";
        "gds_buffer_size" Int "null" Gds "MiB of GPU memory that LMCache reserves for transfers";
        "maru_path" Text "null" Refused "the Maru backend is not ours";
        "maru_pool_size" Float "4.0" Engine "the Maru backend's pool";
        "use_gds" Bool "true" Gds "whether cuFile is used where it works";
        "gds_backend" Text "cufile" Gds "`cufile`; `hipfile` is not built";
        "audit_actual_remote_url" Text "null" Refused "the audit backend is not ours";
        "internal_api_server_host" Text "127.0.0.1" Engine "LMCache's own API server";
        "extra_config" Dict "null" Extra "settings of backends, below";
        "save_unfull_chunk" Bool "false" Used "whether chunks shorter than full ones may be saved; true is refused with a bucket under LMCache's names, where LMCache reads full chunks only";
        "blocking_timeout_secs" Int "10" Used "the deadline of an operation on the remote tier, in seconds";
        "external_lookup_client" Text "null" Engine "the lookup service";
        "py_enable_gc" Bool "true" Engine "Python's garbage collector";
        "cache_policy" Text "LRU" Used "the eviction policy of the host tier and of local_disk: LRU, LFU, FIFO or MRU, in any case; default: kvtier's own policy";
        "numa_mode" Text "null" Ignored "memory is on the NUMA node of the process; bind the process";
        "enable_async_loading" Bool "false" Ignored "loads never block here";
        "internal_api_server_enabled" Bool "false", "internal_api_server_port_start" Int "6999" Engine "LMCache's own API server";
        "priority_limit" Int "null" Engine "which requests are cached";
        "internal_api_server_include_index_list" Ints "null",
        "internal_api_server_socket_path_prefix" Text "null" Engine "LMCache's own API server";
        "runtime_plugin_locations" Locations "null" Engine "plugins that run beside LMCache";
        "storage_plugins" Texts "null", "remote_storage_plugins" Texts "null" Plugin "backends that LMCache loads; those that name kvtier are read";
        "lookup_timeout_ms" Int "3000" Engine "the lookup service";
        "min_retrieve_tokens" Int "0" Engine "which requests are cached";
        "hit_miss_ratio" Float "null", "lookup_server_worker_ids" Ints "null",
        "enable_scheduler_bypass_lookup" Bool "false" Engine "the lookup service";
        "script_allowed_imports" Texts "null", "run_script_api_enabled" Bool "false" Engine "scripts";
        "enable_lazy_memory_allocator" Bool "false", "lazy_memory_initial_ratio" Float "0.2",
        "lazy_memory_expand_trigger_ratio" Float "0.5", "lazy_memory_step_ratio" Float "0.1",
        "lazy_memory_safe_size" Float "0.0" Ignored "arenas take memory when it is first touched";
        "enable_chunk_statistics" Bool "false",
        "chunk_statistics_auto_start_statistics" Bool "false",
        "chunk_statistics_auto_exit_timeout_hours" Float "0.0",
        "chunk_statistics_auto_exit_target_unique_chunks" Int "0",
        "chunk_statistics_strategy" Text "memory_bloom_filter" Engine "statistics";
        "enable_kv_events" Bool "false" Engine "events for routers";
        "use_gpu_connector_v3" Bool "false" Engine "the connector of the GPU";
        "pin_timeout_sec" Int "300", "pin_check_interval_sec" Int "30" Engine "how long a chunk may stay pinned";
        "remote_config_url" Text "null" Refused "settings from a server are not fetched; write them into the file";
        "app_id" Text "null" Engine "sent to `remote_config_url`";
        "enable_hidden_state_cache" Bool "false", "max_hidden_state_cpu_size" Float "2.0",
        "hidden_state_layers" Ints "null", "hidden_states_retrieve_mode" Mode "prefix_strict"
            Engine "hidden states";
    }
};

/// Under `extra_config`.
pub(super) const EXTRA: &[Setting] = settings! {
    Extra => {
        "s3_region" Text "" Used "the region to sign for";
        "s3_num_io_threads" Int "null" Used "the most requests in flight, and the most connections; of this and the next two the least counts (64 where none is set), and none sizes a thread pool";
        "s3_max_io_concurrency" Int "null", "s3_max_inflight_reqs" Int "null" Used "the most requests in flight";
        "s3_prefer_http2" Bool "false" Used "offer HTTP/2 over TLS; without it only HTTP/1.1, which costs less";
        "s3_enable_s3express" Bool "false" Used EXPRESS;
        "s3_file_prefix" Text "null" Used "the prefix of every object name";
        "save_chunk_meta" Bool "false" Used "must be false with a bucket; in a directory LMCache's header is part of the chunk";
        "disable_tls" Bool "false" Used "plain HTTP";
        "aws_access_key_id" Text "null" Used ACCESS_KEY;
        "aws_secret_access_key" Text "null" Used SECRET_KEY;
        "fs_base_path" Text "null" Used "the directory of an `fs` remote";
        "fs_connector_relative_tmp_dir" Text "null" Ignored TEMPORARY_FILES;
        "fs_connector_read_ahead_size" Int "null" Ignored READ_AHEAD;
        "fs_connector_use_odirect" Bool "false", "use_odirect" Bool "false" Ignored IO_MODE;
        "disk_io_threads" Int "4" Ignored NO_THREADS;
        "use_direct_io" Bool "false" Gds "past the page cache, as the GPU tier always does where the file system can";
        "kvtier.gds_shape" Text "null" Gds "ours: the tensor of a full chunk, as `shape` of the native form; without it, the shape comes from the first save that states one, or from existing files of the same model and worker; until then nothing can be saved";
        "shm_name" Text "null" Engine "LMCache's shared memory";
        "local_cpu.pinned_align_bytes" Int "null" Ignored "arenas are aligned to pages";
        "gpu_to_numa_mapping" Dict "null" Ignored "memory is on the NUMA node of the process; bind the process";
        "first_rank_max_local_cpu_size" Float "null" Engine "LMCache's memory on the first rank";
        "save_only_first_rank" Bool "false" Engine "which ranks save";
        "use_exists_sync" Bool "false" Ignored "lookups never block here";
        "remote_enable_mla_worker_id_as0" Bool "false" Engine "how chunks of MLA models are named";
        "audit_backend_enabled" Bool "false" Refused "the audit backend is not ours";
        "enable_nixl_storage" Bool "false" Refused "the NIXL backend is not ours";
        "remote_storage_plugin.<name>.module_path" Text "null" Used "the Python module of a plugin in `remote_storage_plugins`; `kvtier` and what is below it are ours; the same under `storage_plugin.<name>` for `storage_plugins`";
        "remote_storage_plugin.<name>.class_name" Text "null" Engine "the class of that plugin";
        "remote_storage_plugin.<name>.tiers" Tiers "null" Used "ours: the tiers of a kvtier plugin, in the native form";
        "remote_storage_plugin.<name>.url" Text "null" Used "ours: instead of `.tiers`, what `remote_url` would be";
        "remote_storage_plugin.<name>.metrics" Text "null" Used "ours: where the Python module serves the metrics of a kvtier plugin, such as `127.0.0.1:9464`; the worker's number is added to the port; also under `storage_plugin.<name>`";
        "storage_plugin.<name>.gds_path" Text "null" Used "ours: instead of `.tiers`, what `gds_path` would be, for `KvtierGdsBackend`";
        "storage_plugin.<name>.bytes" Size "null" Used "ours: the cap of the directory of `.gds_path`; without it the size of the file system";
        "storage_plugin.<name>.save_from" Word "host" Used "ours: where LMCache puts a chunk before `KvtierGdsBackend` saves it: `host`, or `gpu` as in its own backend";
        "remote_storage_plugin.<name>.base_path" Text "null" Used "the directory of LMCache's plugin `fs`";
    }
};

/// The form of LMCache's guide for porting to its S3 storage.
pub(super) const PORTING: &[Setting] = settings! {
    Porting => {
        "local_device" Text "null" Used "`cpu`, read as `local_cpu: true`; `file://` and a directory, read as `local_disk`";
        "storage_backend" Object "null" Used "the remote store: `{type: remote, connector: {...}}`, read as `remote_url` and settings below `extra_config`; unknown settings in it are errors";
        "storage_backend.type" Word "" Used "`remote`, the only one";
        "storage_backend.connector" Object "" Used "the bucket";
        "storage_backend.connector.type" Word "" Used "`s3`, the only one";
        "storage_backend.connector.bucket" Name "" Used "the bucket's name, read as `remote_url: s3://...`";
        "storage_backend.connector.prefix" Text "null" Used "read as `extra_config.s3_file_prefix`";
        "storage_backend.connector.region" Name "null" Used "read as `extra_config.s3_region`; the default is that of the environment (`AWS_REGION`, `AWS_DEFAULT_REGION`)";
    }
};

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
