//! A listing that could not begin for a while shows the bucket as it is when it begins.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use kvtier_core::{Observe, Save, Saved, Tier};
use kvtier_faultsim::Simulation;
use kvtier_key::{Key, Namespace};
use kvtier_mem::{Arena, ArenaConfig};
use kvtier_s3_tier::{S3Tier, TierConfig};
use tokio::time::sleep;

const CHUNK_BYTES: usize = 4096;
const SWEEP_EVERY: Duration = Duration::from_secs(15);
/// No request is repeated for longer.
const REQUEST_MAX: Duration = Duration::from_secs(5);

/// A node asks for a delete while no request gets through. Its listing is due meanwhile, and begins when the
/// store answers again: it finds that another node has deleted the chunk. The key changed before, not while the
/// listing ran.
#[test]
fn a_listing_that_waits_for_the_store_protects_no_key_that_changed_before_it() {
    let outcome = Simulation::run(1, |simulation| async move {
        let machine = simulation.machine("first");
        let mut client = machine.client();
        client.deadline = REQUEST_MAX;
        let mut config = TierConfig::new(client).with_capacity(1 << 20);
        config.sync.sweep_every = SWEEP_EVERY;
        let first = S3Tier::open(config).unwrap();
        let arena = Arena::new(ArenaConfig::heap(1 << 20)).unwrap();
        let key = Key::from_name(&Namespace::from_name("test"), "chunk");
        let mut lease = arena.lease(CHUNK_BYTES).unwrap();
        lease.write_at(0, &[7; CHUNK_BYTES]).unwrap();
        let save = Save { key: key.clone(), from: vec![lease.freeze()] };
        let ctx = |seconds| simulation.ctx(Duration::from_secs(seconds));
        sleep(SWEEP_EVERY - Duration::from_secs(2)).await;
        let saved = first.save(&ctx(5), vec![save]).await;
        assert_eq!(saved[0].result.as_ref().unwrap(), &Saved::Stored);

        machine.set_partitioned(true);
        sleep(Duration::from_secs(4)).await;
        // Its index has the chunk: it asks for the delete.
        assert!(first.remove(&ctx(5), vec![key.clone()].into()).await.is_err());
        // It keeps no journal, so that only a listing shows what it deletes.
        let second = S3Tier::open(TierConfig::new(simulation.machine("second").client())).unwrap();
        let removed = second.remove(&ctx(5), vec![key].into()).await.unwrap();
        assert_eq!((removed.removed, simulation.chunk_bytes()), (1, 0));
        sleep(Duration::from_secs(10)).await;
        assert_ne!(first.usage().used_bytes, Some(0), "it cannot know");

        machine.set_partitioned(false);
        sleep(SWEEP_EVERY / 2).await;
        assert_eq!(first.usage().used_bytes, Some(0));
    });
    assert!(outcome.findings.is_empty(), "{:?}", outcome.findings);
}
