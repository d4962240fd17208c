//! Copies that compute checksums on the way.

use kvtier_key::{BlockSums, PieceSums};
use kvtier_mem::{Lease, View};

/// Bytes copied before they are summed: few enough to still be in the CPU cache.
const PIECE: usize = 64 << 10;

/// The checksums of a chunk in several views: those that a single view remembers, or one pass.
pub fn sums_of(from: &[View]) -> BlockSums {
    match from {
        [one] => one
            // The sums of one view are kept with its memory: a save to several tiers computes them
            // once.
            .memo(|| BlockSums::from_bytes(one.as_ref()))
            .cloned()
            .unwrap_or_else(|| BlockSums::from_bytes(one.as_ref())),
        many => BlockSums::from_pieces(many.iter().map(View::as_ref)),
    }
}

/// Copies `all` to the leases and verifies the copy with `sums`. Returns `false` if it is not what
/// was saved; the leases are empty then. They must be host memory and long enough.
pub fn copy_checked(all: &[u8], sums: &BlockSums, into: &mut [Lease]) -> bool {
    let mut arrived = PieceSums::new(sums.len());
    let mut at = 0;
    for lease in into.iter_mut() {
        let n = lease.len().min(all.len() - at);
        let host = lease.as_host_mut().unwrap_or_default();
        // The sum reads each piece while it is still in the CPU's cache. What is summed is the
        // copy, so a wrong byte that arises in the copy is found too.
        for (to, from) in host[..n].chunks_mut(PIECE).zip(all[at..at + n].chunks(PIECE)) {
            to.copy_from_slice(from);
            arrived.piece(at as u64, to);
            at += to.len();
        }
        // The lease counts what was written to it, not what fits.
        lease.assume_filled(n);
    }
    // Memory of the tier can change under it: a flipped bit, or a save whose caller wrote to the
    // buffer afterwards. Only bytes that match the sums are handed out.
    let whole = at == all.len() && arrived.finish().as_ref() == Some(sums);
    if !whole {
        // A miss leaves no bytes that a caller could take for a chunk.
        into.iter_mut().for_each(|lease| lease.assume_filled(0));
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtier_mem::{Arena, ArenaConfig};

    #[test]
    fn scattered_bytes_are_verified_and_a_flip_is_detected() {
        let arena = Arena::new(ArenaConfig::heap(4 << 20)).unwrap();
        let bytes: Vec<u8> = (0..300_001u32).map(|i| (i * 31) as u8).collect();
        let sums = BlockSums::from_bytes(&bytes);
        let mut into: Vec<_> = [1, 70_000, 229_000, 5000].map(|n| arena.lease(n).unwrap()).into();
        assert!(copy_checked(&bytes, &sums, &mut into));
        assert_eq!(into.iter().filter_map(Lease::as_host).collect::<Vec<_>>().concat(), bytes);
        for at in [0, 70_000, 300_000] {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert!(!copy_checked(&wrong, &sums, &mut into));
            assert!(into.iter().all(|lease| lease.init_len() == 0));
        }
    }
}
