//! Moves a batch of chunks between a tier and memory that the program owns, without a copy on the
//! program's side: views for saves, leases for loads.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::time::Duration;

use kvtier::prelude::*;

const CHUNK: usize = 256 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let tier = HostTier::open(HostConfig::new(16 << 20))?;
    let ns = Namespace::from_name("example");
    let keys: Vec<Key> = (0..4u8).map(|n| Key::from_name(&ns, [n])).collect();
    let ctx = Ctx::within(Duration::from_secs(10));

    // A chunk may consist of several pieces, here one of keys and one of values.
    let saves = keys.iter().map(|key| {
        let from = vec![View::from_owner(vec![1; CHUNK / 2]), View::from_owner(vec![2; CHUNK / 2])];
        Save { key: key.clone(), from }
    });
    for done in tier.save(&ctx, saves.collect()).wait() {
        println!("save: {:?}", done.result?);
    }

    // An arena is page-aligned memory that tiers can register with the kernel; `Lease::from` takes
    // a vector as it is.
    let arena = Arena::new(ArenaConfig::heap(4 * CHUNK))?;
    let mut loads = Vec::new();
    for key in &keys {
        loads.push(Load { key: key.clone(), into: vec![arena.lease(CHUNK)?] });
    }
    loads[0].into = vec![Lease::from(vec![0; CHUNK])];
    for done in tier.load(&ctx, loads).wait() {
        assert_eq!(done.result?, Loaded::Hit { len: CHUNK as u64 });
        let bytes = done.op.into[0].as_host().ok_or("host memory")?;
        assert!(bytes[..CHUNK / 2] == [1; CHUNK / 2] && bytes[CHUNK / 2..] == [2; CHUNK / 2]);
    }
    Ok(())
}
