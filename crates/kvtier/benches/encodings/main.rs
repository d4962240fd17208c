//! What encodings cost and gain in whole saves and loads: encryption in a directory, and `bf16-split`
//! in a bucket behind a link of 1 Gbit/s, each beside the same tier that stores plain chunks.
//!
//! `cargo xtask bench encodings`, or `cargo bench -p kvtier --features s3 --bench encodings`. The
//! directory is below the variable `KVTIER_BENCH_DIR`, or in the build's own folder.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

mod bucket;
mod chunks;
mod directory;
mod turns;

use std::path::Path;

fn main() {
    let is_smoke = std::env::args().any(|arg| arg == "--test");
    directory::measure(is_smoke);
    bucket::measure(is_smoke);
}

/// A new key of AES in a file of this directory, as a stage of `encode`.
fn new_aes_stage(dir: &Path) -> String {
    let path = dir.join("key");
    kvtier::config::write_new_key_file(&path).unwrap();
    format!(r#"{{"name": "aes-256-gcm", "key_file": {path:?}, "key_id": 7}}"#)
}
