//! The settings of LMCache's `--l2-adapter` objects (0.5.6), with kvtier's additions. The same
//! objects are tiers of the native form.

use super::Section::{Adapter, Of};
use super::{Role, Setting, ValueKind};

/// LMCache's types that kvtier has tiers for.
pub(crate) const TYPES: &[&str] =
    &["s3", "fs", "fs_native", "raw_block", "plugin", "native_plugin"];

/// LMCache's types that kvtier has no tier for.
pub(crate) const FOREIGN: &[&str] = &[
    "aerospike",
    "bigtable",
    "dax",
    "fault_inject",
    "hf3fs",
    "hfbucket",
    "mock",
    "mooncake_store",
    "nixl_native",
    "nixl_store",
    "nixl_store_dynamic",
    "p2p",
    "resp",
    "sagemaker-hyperpod",
    "valkey",
];

/// The settings of an object of this type.
pub(crate) fn of(kind: &str) -> impl Iterator<Item = &'static Setting> {
    KEYS.iter()
        .filter(move |key| key.section == Adapter || matches!(key.section, Of(own) if own == kind))
}

/// The settings of an `eviction` object.
pub(crate) fn of_eviction() -> impl Iterator<Item = &'static Setting> {
    KEYS.iter().filter(|key| key.section == Of("eviction"))
}

// Descriptions of several settings; those that are not private are also of LMCache's file.
pub(super) const ACCESS_KEY: &str = "the access key; with its secret, or neither: then the default chain (environment, profiles, roles)";
pub(super) const SECRET_KEY: &str = "the secret of `aws_access_key_id`";
pub(super) const EXPRESS: &str = "the bucket is an S3 Express directory bucket";
pub(super) const TEMPORARY_FILES: &str =
    "unfinished files are in a directory of the tier and are deleted at the next start";
pub(super) const READ_AHEAD: &str = "a chunk is read at once";
pub(super) const IO_MODE: &str = "the file tier chooses the best mode of the machine";
pub(super) const NO_THREADS: &str = "the file tier needs no pool of threads";
const PLUGIN_MODULE: &str =
    "the Python module; `kvtier` and what is below it are kvtier's, others LMCache loads itself";
const PLUGIN_PARAMS: &str = "for kvtier's module: one tier, or `tiers`, in the native form";

pub(super) const KEYS: &[Setting] = settings! {
    Adapter => {
        "affinity_tag" Name "_default" Engine "which workers use the adapter";
        "shared" Bool "false" Engine "whether LMCache treats what is stored as seen by all";
        "persist_enabled" Bool "true" Ignored "chunks stay when the process ends";
        "serde" Object "null" Engine "beside `adapter_params` of a plugin: LMCache encodes chunks in front of kvtier with `fp8` (lossy) or `aesgcm`; in every other object it is refused";
        "eviction" Object "null" Used "when and in which order chunks are evicted; its fields are below";
    }

    Of("eviction") => {
        "eviction_policy" Word "" Used "`LRU`, `ARC`, `IsolatedLRU` or `noop`, in exactly this spelling; under `noop` there is no cap";
        "trigger_watermark" Float "0.8" Used "the share of the capacity that is the cap";
        "eviction_ratio" Float "0.2" Used "the largest share of the chunks evicted at once; fewer are evicted if fewer suffice";
        "compat" Bool "false" Used "ours: watermark and ratio mean the same as in LMCache: once a second, at the watermark, that share of all chunks is evicted; the capacity is the cap";
        "extra_logging_enabled" Bool "false", "extra_logging_interval" Float "10.0" Ignored "evictions are counted in the metrics";
    }

    Of("s3") => {
        "s3_endpoint" Name "" Used "`s3://bucket`, `bucket.host`, `https://host:port/bucket`, ...; in the native form it may be left out where `bucket` names one at AWS";
        "s3_region" Name "" Used "the region to sign for; in the native form it may be left out where the host or the provider says it";
        "s3_num_io_threads" Positive "64" Used "the most requests in flight, and the most connections; of this and the next two the least counts, and none sizes a thread pool";
        "s3_max_io_concurrency" Positive "null", "s3_max_inflight_reqs" Positive "null" Used "ours: the most requests in flight";
        "s3_prefer_http2" Switch "true" Used "offer HTTP/2 over TLS; unwritten it is off here, though LMCache's own default is true: HTTP/1.1 costs less and is what LMCache's client speaks in effect";
        "http2" Word "null" Used "ours: whether HTTP/2 is spoken: `off`; `auto`, over TLS where the server chooses it; `prior-knowledge` (h2c), over plain HTTP without asking, over TLS as `auto`; outranks `s3_prefer_http2`";
        "s3_enable_s3express" Switch "false" Used EXPRESS;
        "disable_tls" Switch "false" Used "plain HTTP";
        "aws_access_key_id" Text "null" Used ACCESS_KEY;
        "aws_secret_access_key" Text "null" Used SECRET_KEY;
        "instance_metadata" Switch "null" Used "ours: whether the metadata service of the instance is asked for credentials if no other source has any; by default only at AWS";
        "max_capacity_gb" Number "0.0" Used "the cap in GiB; 0 and less: none, usage is unknown and nothing is evicted";
        "bucket" Name "null" Used "ours: the bucket, where the endpoint does not name it";
        "path_style" Switch "null" Used "ours: whether URLs have the bucket in the path instead of the host";
        "prefix" Text "null" Used "ours: the prefix of every object name; also as `s3_file_prefix`";
        "s3_file_prefix" Text "null" Used "ours: another name for `prefix`";
        "ca_bundle" Name "null" Used "ours: a file of certificates (PEM) to trust instead of the system's";
        "profile" Word "null" Used "ours: the provider, if the host does not determine it: `aws`, `express`, `coreweave`, `ceph`, `swift`, `garage`, `minio`, `gcs`, `r2` or `other`";
        "layout" Word "null" Used "ours: `kvtier`, `lmcache-mp` or `lmcache`; `lmcache-mp` in an `--l2-adapter`, `kvtier` in the native form";
        "verify" Word "lenient" Used "ours: chunks of a foreign layout without checksums: `lenient` loads them at exactly the requested length and counts them, `strict` refuses them";
        "evictor" Word "lease" Used "ours: which of the nodes on one bucket evicts: `lease`, one that they elect; `single`, this one; `never`, another; a store that does not honour `If-None-Match` needs one node with `single`";
        "policy" Word "default" Used "ours: the eviction policy, if there is a cap: `default`, `lru`, `mru`, `fifo`, `lfu`, `arc`, `isolated-lru`, `noop` or another that `kvtier sim` supports; `eviction_policy` is the same setting in LMCache's words, and only one of them may be written";
        "quotas" Object "null" Used "ours: the most bytes of each tenant (cache salt), as sizes by tenant, `*` for every other salt. Chunks without a salt, or with an unknown one, are the tenant of the empty name. Above its quota a tenant's own chunks are evicted, under every policy. When space is short chunks above a quota are evicted first; then the policy decides, `isolated-lru` for the tenant with the most bytes. It needs a cap";
        "fair" Switch "false" Used "ours: guarantees each tenant in `quotas` its quota, or its share of the cap where quotas add up to more. When space is short, chunks of tenants above theirs, and of tenants that it does not name, are evicted first";
        "checksum" Word "null" Used "ours: the checksum that the store verifies: `none`, `crc32c`, `crc64nvme` or `sha256`; the default depends on the provider";
        "storage_class" Name "null" Used "ours: the storage class of chunks (`x-amz-storage-class`), such as `INTELLIGENT_TIERING`; the default is the bucket's; classes that must be restored before they are read (`GLACIER`, `DEEP_ARCHIVE`) are refused";
        "chunk_bytes" Size "null" Used "ours: the size of a full chunk; saves of another size are refused, but for shorter ones if partial chunks are allowed; without it the longest save of a kind counts";
        "deadline_secs" Positive "30" Used "ours: how long an operation may take, retries included";
        "encode" Encodings "null" Used "ours: in layout `kvtier`: what chunks are encoded with, as in a tier `file`; see ENCODINGS.md";
        "decode_keys" Keys "null" Used "ours: in a tier that does not encrypt: keys of encrypted chunks that it loads, as in a tier `file`";
        "encode_bytes" Size "null" Used "ours: memory for chunks that are being encoded or decoded, half for saves and half for loads (256 MiB); allocated when it is first used";
        "name" Name "s3" Used "ours: the tier's name in errors and reports";
    }

    Of("fs") => {
        "base_path" Name "" Used "the directory";
        "relative_tmp_dir" Text "null" Ignored TEMPORARY_FILES;
        "read_ahead_size" Positive "null" Ignored READ_AHEAD;
        "use_odirect" Switch "false" Ignored IO_MODE;
    }

    Of("fs_native") => {
        "base_path" Name "" Used "the directory";
        "num_workers" Positive "4" Ignored NO_THREADS;
        "relative_tmp_dir" Text "" Ignored TEMPORARY_FILES;
        "use_odirect" Switch "false" Ignored IO_MODE;
        "read_ahead_size" Positive "null" Ignored READ_AHEAD;
        "max_capacity_gb" Amount "0.0" Used "the cap in GiB; 0: the size of the file system";
    }

    Of("raw_block") => {
        "device_path" Name "" Used "a directory for the file tier, which needs a file system; a device itself is refused";
        "slot_bytes" Positive "" Ignored "the largest chunk; files have no slots";
        "capacity_bytes" Count "0" Used "the cap in bytes; 0: the size of the file system";
        "use_odirect" Bool "true" Ignored IO_MODE;
        "block_align" Positive "4096" Ignored "files are aligned to pages";
        "header_bytes" Count "4096", "meta_total_bytes" Count "268435456",
        "meta_magic" Text "LMCIDX01", "meta_version" Int "1" Ignored "of LMCache's format on the device";
        "meta_checkpoint_interval_sec" Float "60", "meta_idle_quiet_ms" Int "100",
        "meta_enable_periodic" Bool "true" Ignored "the journal is written within 10 s";
        "load_checkpoint_on_init" Bool "true" Ignored "chunks are always found again";
        "meta_verify_on_load" Bool "true" Ignored "every load is verified";
        "enable_zero_copy" Bool "true" Ignored "bytes move once";
        "io_engine" Word "posix" Ignored "`posix` or `io_uring`; the file tier chooses the best mode of the machine";
        "iouring_queue_depth" Positive "256" Ignored "the file tier chooses";
        "use_uring_cmd" Bool "false" Ignored "files have no passthrough";
        "max_data_transfer_size" Count "0" Ignored "the kernel determines it";
        "fdp_enabled" Bool "false", "fdp_placement_ids" Text "null",
        "fdp_data_placement_policy" Text "none", "fdp_slot_reuse_policy" Text "none",
        "meta_checkpoint_placement_id" Int "null" Ignored "of devices";
        "num_store_workers" Positive "2", "num_lookup_workers" Positive "1",
        "num_load_workers" Positive "4" Ignored NO_THREADS;
    }

    Of("plugin") => {
        "module_path" Name "" Used PLUGIN_MODULE;
        "class_name" Name "" Engine "the class";
        "adapter_params" Object "{}" Used PLUGIN_PARAMS;
        "config_class_name" Text "null" Engine "the class of its settings";
    }

    Of("native_plugin") => {
        "module_path" Name "" Used PLUGIN_MODULE;
        "class_name" Name "" Engine "the class";
        "adapter_params" Object "{}" Used PLUGIN_PARAMS;
        "max_capacity_gb" Amount "0.0" Engine "the capacity that LMCache assumes; kvtier's cap is in `adapter_params`";
    }
};
