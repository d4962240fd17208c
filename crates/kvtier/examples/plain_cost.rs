//! Saves and loads plain chunks, one after the other, for tools that count what an operation costs:
//! `valgrind --tool=callgrind` and `strace -f -c`. The difference of two numbers of operations is
//! that of the operations alone.
//!
//! `plain_cost serve` is a bucket in memory, in a process of its own; it prints its address and ends
//! with its standard input. `plain_cost s3 URL SAVES LOADS BYTES` and `plain_cost file DIR ENGINE SAVES
//! LOADS BYTES` save and load. Under valgrind the engine is `threads`. Without arguments it saves and
//! loads a few chunks.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::io::Read;
use std::time::Duration;

use kvtier::core::{Ctx, Load, Loaded, Observe, Save, Saved, Tier};
use kvtier::file::{FileConfig, FileTier};
use kvtier::mem::{Arena, ArenaConfig};
use kvtier::s3::{BucketAddress, Config, Credentials};
use kvtier::s3_tier::{Evictor, S3Tier, TierConfig};
use kvtier::{Key, Namespace};
use kvtier_testkit::s3::{Server, Setup};

/// The cap of the tiers: nothing is evicted.
const CAP_BYTES: u64 = 8 << 30;
/// How long nothing happens in the background.
const QUIET: Duration = Duration::from_secs(24 * 3600);
/// Chunks that are saved and loaded again and again.
const KEYS: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        // A few, to see that it runs.
        [] => {
            let dir = tempfile::tempdir()?;
            run(&FileTier::open(FileConfig::new(dir.path(), CAP_BYTES))?, 4, 4, 64 << 10)
        }
        ["serve"] => {
            let server = Server::start(Setup::default())?;
            println!("{}", server.url());
            std::io::stdin().read_to_end(&mut Vec::new())?;
            Ok(())
        }
        ["s3", url, saves, loads, bytes] => {
            let address = BucketAddress::new(url).bucket("bucket").region("us-east-1");
            let credentials = Credentials::new("AKIDTEST", "secret/test+key");
            let client = Config::new(address.resolve()?, credentials);
            let mut config = TierConfig::new(client).with_capacity(CAP_BYTES);
            // Work in the background would be counted too, by the time that a run takes.
            config.sync.journal_every = QUIET;
            config.sync.sweep_every = QUIET;
            config.sync.snapshot_every = QUIET;
            config.sync.evictor = Evictor::Single;
            let tier = S3Tier::open(config)?;
            while tier.status().counter("sweeps") == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            run(&tier, saves.parse()?, loads.parse()?, bytes.parse()?)
        }
        ["file", dir, engine, saves, loads, bytes] => {
            let config = FileConfig::new(dir, CAP_BYTES).with_engine(engine.parse()?);
            let tier = FileTier::open(config)?;
            run(&tier, saves.parse()?, loads.parse()?, bytes.parse()?)
        }
        _ => Err("serve | s3 URL SAVES LOADS BYTES | file DIR ENGINE SAVES LOADS BYTES".into()),
    }
}

fn run(tier: &dyn Tier, saves: usize, loads: usize, bytes: usize) -> Result<(), Box<dyn Error>> {
    let arena = Arena::new(ArenaConfig::heap(4 * bytes.next_multiple_of(4096)))?;
    let chunk: Vec<u8> = (0..bytes).map(|at| ((at * 31) >> 3) as u8).collect();
    // Chunks of its own: a bucket may have those of earlier runs.
    let namespace = Namespace::from_name(format!("plain cost {}", std::process::id()));
    let ctx = || Ctx::within(Duration::from_secs(60));
    let keys: Vec<Key> =
        (0..saves.max(1)).map(|n| Key::from_name(&namespace, format!("chunk {n}"))).collect();
    for key in &keys {
        let mut lease = arena.lease(bytes)?;
        lease.write_at(0, &chunk)?;
        let from = vec![lease.freeze()];
        let done = tier.save(&ctx(), vec![Save { key: key.clone(), from }]).wait();
        let [one] = &done[..] else { return Err("one save has one result".into()) };
        if !matches!(one.result, Ok(Saved::Stored | Saved::Present)) {
            return Err(format!("{:?}", one.result).into());
        }
    }
    for key in keys.iter().take(KEYS).cycle().take(loads) {
        let into = vec![arena.lease(bytes)?];
        let done = tier.load(&ctx(), vec![Load { key: key.clone(), into }]).wait();
        let [one] = &done[..] else { return Err("one load has one result".into()) };
        if !matches!(one.result, Ok(Loaded::Hit { .. })) {
            return Err(format!("{:?}", one.result).into());
        }
    }
    Ok(tier.close().wait()?)
}
