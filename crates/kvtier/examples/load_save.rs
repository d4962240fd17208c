//! Saves a chunk through host memory over files, loads it again, and shows what each tier did.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use kvtier::file::{FileConfig, FileTier};
use kvtier::prelude::*;

const CHUNK: usize = 256 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::temp_dir().join(format!("kvtier-example-{}", std::process::id()));
    let shown = show(&dir);
    std::fs::remove_dir_all(&dir)?;
    shown
}

fn show(dir: &std::path::Path) -> Result<(), Box<dyn Error>> {
    let host = Arc::new(HostTier::open(HostConfig::new(16 << 20))?);
    let file = Arc::new(FileTier::open(FileConfig::new(dir, 64 << 20))?);
    let stack = Stack::new("stack", vec![host.clone(), file.clone()])?;
    let arena = Arena::new(ArenaConfig::heap(1 << 20))?;
    file.register(&arena)?;

    let ns = Arc::new(Namespace::new("example", Digest::derive("layout", b"llama")));
    let id = ObjectKey::new("llama", KvRank(0), 0, ChunkHash::new(&[1; 32]), "")?;
    let key = Key::new(ns, KeyId::Object(id));
    let ctx = Ctx::within(Duration::from_secs(10));

    let mut chunk = arena.lease(CHUNK)?;
    chunk.write_at(0, &[42; CHUNK])?;
    for done in stack.save(&ctx, vec![Save { key: key.clone(), from: vec![chunk.freeze()] }]).wait()
    {
        println!("save: {:?}", done.result?);
    }
    // As if memory had been short meanwhile: the file has it still, and the load brings it back up.
    host.remove(&ctx, [key.clone()].into()).wait()?;
    for done in stack.load(&ctx, vec![Load { key, into: vec![arena.lease(CHUNK)?] }]).wait() {
        println!("load: {:?}", done.result?);
    }
    stack.close().wait()?;
    for tier in stack.tiers() {
        println!("{}: {:?}", tier.caps().name, tier.status().counters);
    }
    Ok(())
}
