//! Saves a chunk to a directory, loads it, and finds it again after the directory was reopened.
#![allow(clippy::print_stdout)]

use std::error::Error;

use kvtier::file::{FileConfig, FileTier};
use kvtier::{Blocking, Key, Namespace};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::temp_dir().join(format!("kvtier-file-tier-{}", std::process::id()));
    let ns = Namespace::from_name("llama-3-8b bf16, 256 tokens");
    let key = Key::from_name(&ns, "prompt 7, chunk 0");

    let tier = FileTier::open(FileConfig::new(&dir, 64 << 20))?;
    println!("save: {:?}", tier.save_bytes(&key, vec![42; 256 << 10])?);
    drop(tier);

    let tier = FileTier::open(FileConfig::new(&dir, 64 << 20))?;
    let loaded = tier.load_bytes(&key)?.ok_or("a miss")?;
    assert_eq!(loaded, vec![42; 256 << 10]);
    println!("load: {} bytes", loaded.len());
    drop(tier);
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
