//! A tier's memory does not grow with what went through it: saves over a full cap, loads, misses,
//! removes. The server is in another process; nothing else runs here.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Key, Loaded, Observe, Saved, ShedReason, Tier};
use kvtier_s3_tier::{S3Tier, TierConfig};
use kvtier_testkit::conformance::Fixture;
use support::remote::Remote;
use support::rss::rss_kib;

const LEN: usize = 1 << 20;
/// The cap, in chunks.
const FITS: u64 = 64;
/// How far memory may stray from where it was.
const STRAY_KIB: i64 = 8 << 10;

#[test]
fn serve() {
    support::remote::serve();
}

/// One new chunk in, the one before out again, one that went long ago asked for; answers how many
/// bytes moved.
fn round(tier: &S3Tier, suite: &Fixture, n: u64) -> u64 {
    let ctx = suite.ctx();
    let saved =
        tier.save(&ctx, vec![suite.save_op(&suite.key(n), LEN)]).wait().remove(0).result.unwrap();
    assert!(matches!(saved, Saved::Stored | Saved::Shed(ShedReason::Full)), "{saved:?}");
    let load = |n: u64| tier.load(&ctx, vec![suite.load_op(&suite.key(n), LEN)]).wait().remove(0);
    let hit = load(n.saturating_sub(1));
    assert!(matches!(hit.result, Ok(Loaded::Hit { .. } | Loaded::Miss(_))));
    assert!(load(n.saturating_sub(3 * FITS)).result.is_ok());
    if n.is_multiple_of(8) {
        let gone: Arc<[Key]> = Arc::from([suite.key(n.saturating_sub(2))]);
        tier.remove(&ctx, gone).wait().unwrap();
    }
    2 * LEN as u64
}

#[test]
fn memory_stays_where_it_was_over_gigabytes() {
    let bytes =
        if std::env::var_os("KVTIER_NIGHTLY").is_some() { 20_000_000_000 } else { 1_000_000_000 };
    let remote = Remote::start(&[1]);
    let mut config =
        TierConfig::new(remote.config(false)).with_capacity(FITS * LEN as u64).with_prefix("kv");
    config.sync.journal_every = Duration::from_secs(1);
    config.sync.snapshot_every = Duration::from_secs(1);
    config.sync.sweep_every = Duration::from_secs(1);
    let tier = S3Tier::open(config).unwrap();
    let suite = Fixture::new(kvtier_testkit::ModelTier::open(Default::default()).unwrap());
    suite.eventually("the first listing", || tier.status().counter("sweeps") > 0);
    let mut n = 0;
    let mut moved = 0;
    // What is needed once is there after the first rounds.
    while n < 6 * FITS {
        round(&tier, &suite, n);
        n += 1;
    }
    let base = rss_kib();
    let mut stray = 0;
    while moved < bytes {
        moved += round(&tier, &suite, n);
        n += 1;
        stray = stray.max((rss_kib() - base).abs());
    }
    writeln!(std::io::stderr(), "{moved} bytes, {n} keys, {stray} KiB from {base} KiB").unwrap();
    assert!(stray <= STRAY_KIB, "{stray} KiB after {moved} bytes");
    assert!(tier.status().counter("evicted") > 0 && tier.status().counter("hits") > n / 2);
}
