//! What an entry costs in memory: index and policy together, at a million entries and where growing
//! is most wasteful.
#![allow(clippy::unwrap_used)]

use kvtier_evict::PolicyKind;
use kvtier_index::{Chunk, Index, IndexConfig, InsertOutcome};
use kvtier_key::Digest;

const BYTES_PER_ENTRY_MAX: f64 = 100.0;

fn key(n: u64) -> Digest {
    Digest::derive("kvtier index memory test", &n.to_le_bytes())
}

/// What the process has in memory, in bytes.
fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
}

#[test]
fn an_entry_costs_at_most_100_bytes() {
    let before = resident_bytes();
    for kind in PolicyKind::ALL {
        let mut index = Index::new(IndexConfig::new(u64::MAX), kind.build()).unwrap();
        // The table is 7/8 full before it doubles, so it wastes most just after that.
        let doubled = (1 << 20) * 7 / 8 + 1;
        let million = 1_000_000;
        let last = (1 << 20) + 1;
        for n in 0..last {
            assert!(matches!(
                index.insert(Chunk::new(key(n), 1 << 20, 1 << 20)),
                InsertOutcome::New(_)
            ));
            if [doubled, million, last].contains(&(n + 1)) {
                let counted = index.memory_bytes() as f64 / (n + 1) as f64;
                let resident = (resident_bytes() - before) / (n + 1) as f64;
                assert!(
                    counted <= BYTES_PER_ENTRY_MAX,
                    "{kind} at {n}: {counted:.1} bytes an entry"
                );
                // Memory that an earlier index freed cannot be distinguished from a later one's.
                let resident = if kind == PolicyKind::ALL[0] { resident } else { counted };
                assert!(
                    resident <= BYTES_PER_ENTRY_MAX + 5.0,
                    "{kind} at {n}: {resident:.1} resident bytes an entry"
                );
            }
        }
    }
}
