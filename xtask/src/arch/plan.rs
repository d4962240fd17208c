//! The workspace plan: which crate may use which, and which crate may use which outside library.
//!
//! `docs/ARCHITECTURE.md` explains it; a new row here is a decision about the design, not a detail
//! of a change.

/// Crate → the crates it may use, always or by feature.
pub const CRATE_DEPENDENCIES: &[(&str, &[&str])] = &[
    ("key", &[]),
    ("mem", &[]),
    ("os", &[]),
    ("evict", &[]),
    ("codec", &["key"]),
    ("core", &["key", "mem", "os"]),
    ("index", &["key", "evict"]),
    ("uring", &["mem"]),
    ("disk", &["codec", "core", "key", "mem", "os", "index", "evict"]),
    ("file", &["core", "disk", "mem", "uring"]),
    ("gds", &["core", "disk", "mem", "uring"]),
    ("s3", &["mem"]),
    ("s3-tier", &["codec", "core", "evict", "index", "key", "mem", "s3"]),
    (
        "kvtier",
        &[
            "key", "codec", "mem", "core", "os", "evict", "index", "uring", "disk", "file", "gds",
            "s3", "s3-tier",
        ],
    ),
    (
        "faultsim",
        &["codec", "core", "disk", "index", "key", "kvtier", "mem", "os", "s3", "s3-tier"],
    ),
    ("cli", &["kvtier", "faultsim"]),
    ("py", &["codec", "kvtier"]),
    ("benches", &["kvtier"]),
    ("testkit", &["core", "key", "mem"]),
    ("fakegpu", &[]),
    ("xtask", &[]),
    ("host-features", &[]),
];

/// Crates whose tests may not use testkit, because they lie below what it is made of.
pub const TESTED_WITHOUT_TESTKIT: &[&str] = &["index", "evict"];

/// Folders that the fault simulator runs.
pub const SIMULATED: &[&str] = &[
    "crates/core/src/",
    "crates/index/src/",
    "crates/disk/src/",
    "crates/s3-tier/src/",
    "crates/s3/src/",
    "crates/kvtier/src/host/",
    "crates/kvtier/src/stack/",
];

/// Files and folders among them that call the system directly, and why.
pub const OUTSIDE_THE_SIMULATION: &[(&str, &str)] = &[
    ("crates/core/src/clock.rs", "the real clock, which a simulated one replaces"),
    ("crates/core/src/timers.rs", "the thread of the real timers, which a simulation replaces"),
    ("crates/disk/src/thread_pool.rs", "starts no thread in a simulation"),
    ("crates/disk/src/maintenance.rs", "starts no thread in a simulation"),
    ("crates/disk/src/syncfs_thread.rs", "starts no thread in a simulation"),
    ("crates/disk/src/layout/foreign_scan.rs", "starts no thread in a simulation"),
    ("crates/s3/src/local_clock.rs", "the real clock, which a simulated one replaces"),
    ("crates/s3/src/http/tls/", "a simulation has no TLS"),
    ("crates/kvtier/src/stack/executor.rs", "starts no thread in a simulation"),
    ("crates/disk/src/file_system_probe.rs", "tries what the file system of an operator can do"),
    ("crates/disk/src/inspect/", "the tools of operators, which are not simulated"),
];

/// Outside libraries → the only crates that may use them outside tests.
pub const LIBRARIES: &[(&[&str], &[&str])] = &[
    (&["tokio", "tokio-util"], &["s3", "s3-tier", "faultsim", "cli", "testkit"]),
    (&["corosensei", "scoped-tls"], &["faultsim"]),
    (&["cudarc", "libloading"], &["mem", "gds"]),
    (&["io-uring"], &["uring"]),
    (&["hyper", "hyper-util", "rustls", "hyper-rustls", "aws-sigv4", "aws-config"], &["s3"]),
    (&["aws-lc-rs"], &["codec", "s3"]),
    (&["h2", "http", "httparse", "quick-xml", "tokio-rustls"], &["s3", "testkit"]),
    (&["pyo3"], &["py"]),
    (&["clap", "clap_complete", "clap_mangen", "indicatif", "tracing-subscriber"], &["cli"]),
    (
        &["serde-saphyr", "serde_yaml", "serde_yaml_ng", "serde_norway", "saphyr", "saphyr-parser"],
        &["kvtier"],
    ),
    (&["toml"], &["kvtier", "xtask"]),
    (&["proptest"], &["testkit"]),
    (&["criterion"], &["benches"]),
];

/// Libraries that must not come in through another library either.
pub const NOT_EVEN_INDIRECTLY: &[&str] = &["tokio", "cudarc", "io-uring", "pyo3"];

/// Crates that may read environment variables.
pub const ENVIRONMENT: &[&str] = &["kvtier", "cli", "testkit", "fakegpu", "xtask", "benches"];

/// Floors of a crate, the lowest first: folders of its sources that import only from their own
/// floor and from those before it.
pub const FLOORS: &[(&str, &[&str])] = &[("crates/s3-tier", &["state", "ops", "background"])];

/// A crate with files that import each other in cycles.
pub struct Cycle {
    pub member: &'static str,
    /// How many of its files are in cycles. May only shrink.
    pub files: usize,
    pub reason: &'static str,
}

/// The crates that still have cycles of imports between their files.
pub const CYCLES: &[Cycle] = &[];
