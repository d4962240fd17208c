//! A tier of one's own, used below host memory in a stack: a map in memory stands for the medium.
//!
//! It keeps the core of the contract: bytes are checked before a hit is answered, an op always
//! returns its memory, and a chunk that fails its check is a miss. Deadlines, holds and events are
//! left out; `kvtier_testkit::conformance!` tests a tier for the whole contract.
#![allow(clippy::print_stdout)]

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtier::core::{
    Caps, Cursor, Error as TierError, KeyInfo, KeyPage, Listener, Removed, Status, Usage,
};
use kvtier::key::BlockSums;
use kvtier::prelude::*;

#[derive(Debug)]
struct MapTier {
    caps: Caps,
    chunks: Mutex<HashMap<Digest, Chunk>>,
}

#[derive(Debug)]
struct Chunk {
    bytes: Vec<u8>,
    sums: BlockSums,
}

impl MapTier {
    fn new() -> Self {
        MapTier { caps: Caps::new("map", 1024, 1 << 30), chunks: Mutex::default() }
    }

    fn chunks(&self) -> MutexGuard<'_, HashMap<Digest, Chunk>> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn save_one(&self, op: &Save) -> Saved {
        let mut chunks = self.chunks();
        if chunks.contains_key(op.key.digest()) {
            return Saved::Present;
        }
        let bytes: Vec<u8> = op.from.iter().flat_map(|view| view.as_ref()).copied().collect();
        let sums = BlockSums::from_bytes(&bytes);
        chunks.insert(*op.key.digest(), Chunk { bytes, sums });
        Saved::Stored
    }

    fn load_one(&self, op: &mut Load) -> Result<Loaded, TierError> {
        let mut chunks = self.chunks();
        let Some(chunk) = chunks.get(op.key.digest()) else {
            return Ok(Loaded::Miss(MissReason::Absent));
        };
        if BlockSums::from_bytes(&chunk.bytes) != chunk.sums {
            chunks.remove(op.key.digest());
            return Ok(Loaded::Miss(MissReason::Corrupt));
        }
        let mut rest = chunk.bytes.as_slice();
        for lease in &mut op.into {
            let (part, after) = rest.split_at(rest.len().min(lease.len()));
            lease.write_at(0, part).map_err(|e| {
                TierError::new(ErrorKind::Unsupported, "cannot write this memory").with_source(e)
            })?;
            rest = after;
        }
        Ok(match rest {
            [] => Loaded::Hit { len: chunk.bytes.len() as u64 },
            _ => Loaded::Miss(MissReason::Length),
        })
    }
}

impl Tier for MapTier {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn lookup(
        &self,
        _: &Ctx,
        keys: Arc<[Key]>,
        _: Mode,
        _: Hold,
    ) -> Ticket<Result<LookedUp, TierError>> {
        let chunks = self.chunks();
        let found = keys.iter().map(|key| match chunks.get(key.digest()) {
            Some(chunk) => Presence::Hit { len: chunk.bytes.len() as u64 },
            None => Presence::Miss,
        });
        Ticket::ready(Ok(LookedUp::new(found.collect(), None)))
    }

    fn load(&self, _: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
        let load = |mut op: Load| Done { result: self.load_one(&mut op), op };
        Ticket::ready(ops.into_iter().map(load).collect())
    }

    fn save(&self, _: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
        let save = |op: Save| Done { result: Ok(self.save_one(&op)), op };
        Ticket::ready(ops.into_iter().map(save).collect())
    }

    fn remove(&self, _: &Ctx, keys: Arc<[Key]>) -> Ticket<Result<Removed, TierError>> {
        let mut removed = Removed::default();
        for key in keys.iter() {
            match self.chunks().remove(key.digest()) {
                Some(_) => removed.removed += 1,
                None => removed.absent += 1,
            }
        }
        Ticket::ready(Ok(removed))
    }

    fn release(&self, _: HoldId) {}

    fn release_keys(&self, _: HoldId, _: &[Digest]) {}

    fn ready(&self, _: &Ctx) -> Ticket<Result<(), TierError>> {
        Ticket::ready(Ok(()))
    }

    fn close(&self) -> Ticket<Result<(), TierError>> {
        Ticket::ready(Ok(()))
    }
}

impl Observe for MapTier {
    fn usage(&self) -> Usage {
        let chunks = self.chunks();
        let mut usage = Usage::default();
        usage.used_bytes = Some(chunks.values().map(|chunk| chunk.bytes.len() as u64).sum());
        usage.chunks = chunks.len() as u64;
        usage
    }

    fn keys(&self, _: Cursor, _: usize) -> KeyPage {
        let info =
            |(key, chunk): (&Digest, &Chunk)| KeyInfo { key: *key, len: chunk.bytes.len() as u64 };
        KeyPage { keys: self.chunks().iter().map(info).collect(), next: None }
    }

    fn listen(&self, _: Arc<dyn Listener>) {}

    fn status(&self) -> Status {
        Status::new(true, vec![], vec![])
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let map = Arc::new(MapTier::new());
    let memory = Arc::new(HostTier::open(HostConfig::new(1 << 20))?);
    let stack = Stack::new("stack", vec![memory.clone(), map.clone()])?;
    let key = Key::from_name(&Namespace::from_name("example"), "chunk 0");
    stack.save_bytes(&key, vec![42; 4096])?;
    memory.remove_key(&key)?;
    // The map still has the chunk, and the load promotes it to memory.
    assert_eq!(stack.load_bytes(&key)?, Some(vec![42; 4096]));
    assert!(memory.contains(&key)?);
    println!("{} bytes in the map", map.usage().used_bytes.unwrap_or_default());
    Ok(())
}
