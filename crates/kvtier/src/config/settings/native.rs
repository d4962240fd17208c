//! The native form's own settings.

use super::Section::{Level, Of, Stack};
use super::{Role, Setting, ValueKind};

/// The types of tiers that no adapter of LMCache's is.
pub(in crate::config) const OWN_TYPES: &[&str] = &["host", "file", "gds"];

const NAME: &str = "the tier's name in errors and reports";

const POLICY: &str = "the eviction policy: `default`, `lru`, `mru`, `fifo`, `lfu`, `arc`, `isolated-lru`, `noop` or another that `kvtier sim` supports";

const QUOTAS: &str = "the most bytes of each tenant (cache salt), as sizes by tenant, `*` for every other salt. Chunks without a salt, or with an unknown one, are the tenant of the empty name. Above its quota a tenant's own chunks are evicted, under every policy. When space is short chunks above a quota are evicted first; then the policy decides, `isolated-lru` for the tenant with the most bytes";

const COMPAT: &str = "emulates LMCache's eviction exactly: once a second, at `watermark` (0.8) a share `ratio` (0.2) of all chunks; `true`, or a mapping of these two";

const FAIR: &str = "guarantees each tenant in `quotas` its quota, or its share of the cap where quotas add up to more. When space is short, chunks of tenants above theirs, and of tenants that it does not name, are evicted first";

const ENCODE: &str = "in layout `kvtier`: what chunks are encoded with, in this order: `bf16-split`, `lz4`, `zstd` or `zstd:LEVEL`, `aes-256-gcm`, as names or objects with a `name`. bf16-split takes `dtype`, if the engine declares none; `cachegen`, which is lossy, takes `layers`, `kv_width` and `chunk_tokens`; aes-256-gcm takes `key_file` or `key_command`, `key_id` and `old_keys`; see ENCODINGS.md";

const DECODE_KEYS: &str = "in a tier that does not encrypt: keys of encrypted chunks that it loads, as objects of `key_file` or `key_command` and `key_id`";

const ENCODE_BYTES: &str = "memory for chunks that are being encoded or decoded, half for saves and half for loads; allocated when it is first used";

pub(super) const KEYS: &[Setting] = settings! {
    Stack => {
        "tiers" Tiers "" Used "the tiers, fastest first: objects of type `host`, `file`, `gds`, `s3`, `fs`, `fs_native` or `raw_block`";
        "name" Name "stack" Used "the stack's name in errors and reports, if there are several tiers";
        "dirty_max" Size "256MiB" Used "the most bytes that wait to be written to tiers with `write: back` or `spill`; a save that would exceed it waits for the tier, and an evicted chunk that would exceed it is dropped";
        "computed_per_s" Size "null" Used "how many bytes of KV cache the engine computes in a second (prefill tokens a second, times the bytes of a token): a chunk that takes longer to load, as measured, is a miss";
        "prices" Object "null" Used "the prices of tiers that count requests, in dollars: `per_1000_writes`, `per_1000_reads`, `per_gb_read`, `per_gb_written`; shown as a metric";
    }

    Level => {
        "write" Word "through" Used "how saves reach the tier: `through`, they wait for it; `back`, it is written soon after, from a tier above; `spill`, it gets the chunks that the tier above, of type `host`, evicts; the first tier is always `through`";
        "admit" Word "policy" Used "which chunks found below are promoted to the tier: `policy`, those that its policy accepts; a number, those found at least this often; `never`";
        "answer_within_ms" Positive "null" Used "how long a lookup or load may take in the tier; later answers count as misses";
    }

    Of("host") => {
        "bytes" Size "" Used "the cap";
        "policy" Word "default" Used POLICY;
        "quotas" Object "null" Used QUOTAS;
        "fair" Switch "false" Used FAIR;
        "compat" Marks "false" Used COMPAT;
        "name" Name "host" Used NAME;
    }

    Of("file") => {
        "path" Name "" Used "the directory; created if it does not exist, refused if it belongs to another program";
        "bytes" Size "" Used "the cap; also spelled `capacity`; here it may also be a share of the file system, such as `80%`";
        "shrink" Switch "false" Used "allow chunks to be evicted if `bytes` is smaller than last time and the directory holds more; otherwise opening fails, in layouts of other programs nothing is evicted";
        "layout" Word "kvtier" Used "the layout of the directory: `kvtier`, or byte for byte that of LMCache 0.5.6: `lmcache-mp` (adapters `fs`, `fs_native`), `lmcache` (FSConnector, one base path), `lmcache-gds` (GdsBackend), `lmcache-gds-weka` (the same on Weka's file system); or that of vLLM 0.33.0: `vllm-fs` (tier `fs`, whose `root_dir` is `path`); see FORMAT.md";
        "shape" Text "null" Used "with `lmcache-gds`, whose files contain it: the tensor of a full chunk, as axes joined by `x`. `2x32x256x1024` is keys and values, layers, tokens, elements; `1x...` with multi-head latent attention. Another of LMCache's formats follows after a blank. Without it the shape is that of the first save whose caller sets one, or of existing files of the same model and worker. Until then nothing can be saved";
        "vllm_run_config" Object "null" Used "with `vllm-fs`: the fields that vLLM writes to `config.json` (`FileMapper.get_run_config()`). They are written there where they are missing; a directory with others under the same name is refused, and so are keys of another configuration. Without it chunks of every configuration are served";
        "verify" Word "lenient" Used "chunks of a foreign layout without checksums, because another program wrote them: `lenient` loads them at exactly the requested length and counts them, `strict` refuses them";
        "engine" Word "auto" Used "`auto`, `uring` or `threads`";
        "durability" Word "none" Used "when a save is answered: `none`, once the chunk is written and named; `fdatasync`, once it is on the device; `syncfs`, the same, synced once for all concurrent saves";
        "free_min" Size "null" Used "bytes of the file system that stay free, whatever the cap; the default is one hundredth of it, at most 1 GiB";
        "bounce" Size "64MiB" Used "memory for chunks in memory that is not page-aligned; 0 refuses them";
        "policy" Word "default" Used POLICY;
        "quotas" Object "null" Used QUOTAS;
        "fair" Switch "false" Used FAIR;
        "compat" Marks "false" Used COMPAT;
        "encode" Encodings "null" Used ENCODE;
        "decode_keys" Keys "null" Used DECODE_KEYS;
        "encode_bytes" Size "256MiB" Used ENCODE_BYTES;
        "name" Text "file" Used NAME;
    }

    Of("gds") => {
        "cufile" Word "auto" Used "whether loads go directly to the GPU by cuFile: `off`; `auto`, where it works; `require`, opening fails where it does not; see GDS.md";
        "proof" Word "always" Used "which loads by cuFile are verified: `always`; `sample`, one in 16; `off`; loads through pinned memory always are; `verify` with one of these words is the same setting";
        "gpu" Int "null" Used "the GPU that decides at the start whether cuFile is used; without it the first GPU memory that is used decides";
        "cufile_library" Text "null" Used "the path of libcufile, if not where packages and wheels install it";
        "piece" Size "4MiB" Used "bytes read at once on their way to a GPU";
        "buffers" Size "64MiB" Used "pinned memory for loads";
        "staging" Size "256MiB" Used "pinned memory for saves, and so the longest chunk that can be saved from a GPU";
        "threads" Int "4" Used "threads for each GPU";
    }
};
