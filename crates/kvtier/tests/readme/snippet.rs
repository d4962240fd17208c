use kvtier::{config::Config, prelude::*};
use std::{error::Error, time::Duration};

fn main() -> Result<(), Box<dyn Error>> {
    let tiers = Config::new().with_host(64 << 20).with_file("kv-cache", 256 << 20).open()?;
    let arena = Arena::new(ArenaConfig::heap(4 << 20))?;
    let id = ObjectKey::new("llama", KvRank(0), 0, ChunkHash::new(&[1; 32]), "")?;
    let key = Key::new(Namespace::new("tenant", Digest::derive("layout", b"llama")).into(), id.into());
    let ctx = Ctx::within(Duration::from_secs(10));
    let mut chunk = arena.lease(1 << 20)?;
    chunk.write_at(0, &[42; 1 << 20])?;
    tiers.top.save(&ctx, vec![Save { key: key.clone(), from: vec![chunk.freeze()] }]).wait();
    let done = tiers.top.load(&ctx, vec![Load { key, into: vec![arena.lease(1 << 20)?] }]).wait();
    assert!(matches!(done[0].result, Ok(Loaded::Hit { len: 1_048_576 })));
    Ok(())
}
