//! Checks of a load: checksums while the bytes arrive, then key, lengths and padding by the footer;
//! and the copies of what did not arrive in the caller's memory by itself.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use kvtier_key::{BlockSums, Key, PieceSums};
use kvtier_mem::Lease;

use crate::counters::add;
use crate::direct_io::PAGE;
use crate::footer;
use crate::load_buffers::scatter;
use crate::mover::{Mover, Part};
use crate::shared::Shared;

/// Takes the checksums that a transfer computed.
pub fn take_sums(sums: &Mutex<PieceSums>) -> PieceSums {
    let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::replace(&mut *sums, PieceSums::new(0))
}

/// Computes checksums of the payload's whole pages as they arrive. Where the CPU cannot see the
/// bytes, the mover may report their checksums. Parts beyond `payload` are left out.
pub fn watch(
    sums: &Arc<Mutex<PieceSums>>,
    payload: &[Part],
) -> (crate::Watch, Option<crate::Sums>) {
    // The mover reports bytes by part and offset; checksums are computed by the offset in the
    // payload.
    let starts = payload
        .iter()
        .map(|part| if let Part::Read { at, .. } = part { *at } else { 0 })
        .collect::<Arc<[u64]>>();
    let is_far = |part: &Part| matches!(part, Part::Read { into, .. } if !into.place().is_host());
    let reported = payload.iter().any(is_far).then(|| (Arc::clone(&starts), Arc::clone(sums)));
    let reported = reported.map(|(starts, sums)| -> crate::Sums {
        Box::new(move |part, offset, unit, crcs| {
            if let Some(start) = starts.get(part) {
                sums.lock().unwrap_or_else(PoisonError::into_inner).units(
                    start + offset,
                    unit,
                    crcs,
                );
            }
        })
    });
    let sums = Arc::clone(sums);
    let watch = move |part: usize, offset, bytes: &[u8]| {
        if let Some(start) = starts.get(part) {
            sums.lock().unwrap_or_else(PoisonError::into_inner).piece(start + offset, bytes);
        }
    };
    (Box::new(watch), reported)
}

/// Copies what did not arrive in the caller's leases by itself: bounce memory, and `end`, the
/// payload's last partial page. A failure says nothing about the file.
pub fn copy_remaining<M: Mover>(
    shared: &Shared<M>,
    into: &mut [Lease],
    bounce: Option<&Lease>,
    len: u64,
    end: &[u8],
) -> io::Result<()> {
    // Both copies are counted: tests compare them with what the docs promise.
    let bounce = bounce.and_then(Lease::as_host).unwrap_or_default();
    add(&shared.counters.copied_bounce_bytes, bounce.len() as u64);
    add(&shared.counters.copied_tail_bytes, end.len() as u64);
    let write = |lease: &mut Lease, at: usize, bytes: &[u8]| {
        if lease.place().is_host() {
            lease.write_at(at, bytes).map_err(io::Error::other)
        } else {
            shared.mover.put(lease, at, bytes)
        }
    };
    scatter(into, 0, bounce, write)
        .and_then(|()| scatter(into, len as usize - end.len(), end, write))
        .map_err(not_copied)
}

/// The error of a load whose file is good.
pub fn not_copied(e: io::Error) -> io::Error {
    io::Error::other(format!(
        "the bytes are right, and cannot be copied into the caller's memory: {e}"
    ))
}

/// Compares key, namespace, lengths and every byte's checksum with the footer; without `sums`, all
/// but the checksums. Returns the payload's last partial page.
pub fn verify<'a>(
    key: &Key,
    len: u64,
    pair: &'a Lease,
    sums: Option<PieceSums>,
) -> Option<&'a [u8]> {
    let pair = pair.as_host()?;
    // The last partial page of the payload and the footer were read together, so one read serves
    // both.
    let (padded, page) = pair.split_at_checked(pair.len().checked_sub(PAGE as usize)?)?;
    let (facts, name) = footer::decode(page).ok()?;
    let (tail, padding) = padded.split_at_checked((len % PAGE) as usize)?;
    let found = |mut sums: PieceSums| -> Option<BlockSums> {
        sums.piece(len - tail.len() as u64, tail);
        sums.finish()
    };
    let is_right = sums.is_none_or(|sums| found(sums).is_some_and(|found| found == facts.sums));
    let is_same = facts.key == *key.digest()
        && facts.namespace == key.namespace().digest()
        && facts.raw_len == len
        && facts.codec.0 == 0
        && facts.key_id == 0
        // A writer that has only the key's digest leaves the key out: the digest covers all of it.
        && (name.is_empty() || name == key.canonical())
        && facts.sums.len() == len
        && is_right
        // The padding is not covered by the checksums of the payload, but a reader of the file must
        // find it as it was written.
        && padding.iter().all(|b| *b == 0);
    is_same.then_some(tail)
}

#[cfg(test)]
mod tests {
    use kvtier_key::{CodecId, Digest, Facts};
    use kvtier_mem::{Arena, ArenaConfig};

    use super::*;
    use crate::disk::tests::{LEN, key, open, shared_of};

    fn lease(bytes: &[u8]) -> Lease {
        let arena = Arena::new(ArenaConfig::heap(bytes.len().max(1))).unwrap();
        let mut lease = arena.lease(bytes.len()).unwrap();
        lease.write_at(0, bytes).unwrap();
        lease
    }

    const PAYLOAD: [u8; LEN] = [7; LEN];
    const TAIL: usize = LEN % PAGE as usize;

    fn with(change: impl FnOnce(&mut Facts)) -> Facts {
        let mut facts = facts();
        change(&mut facts);
        facts
    }

    fn facts() -> Facts {
        let key = key(1);
        let sums = BlockSums::from_bytes(&PAYLOAD);
        Facts::plain(*key.digest(), key.namespace().digest(), sums)
    }

    /// The last partial page of the payload, and the footer.
    fn pair(facts: &Facts, name: &[u8]) -> Vec<u8> {
        let mut pair = PAYLOAD[..TAIL].to_vec();
        pair.resize(PAGE as usize, 0);
        pair.extend(footer::encode_parts(facts, name).unwrap());
        pair
    }

    /// The checksums of the whole pages, as they arrived.
    fn arrived(payload: &[u8]) -> Option<PieceSums> {
        let mut sums = PieceSums::new(LEN as u64);
        sums.piece(0, &payload[..LEN - TAIL]);
        Some(sums)
    }

    fn is_verified(pair: &[u8], sums: Option<PieceSums>) -> bool {
        let end = verify(&key(1), LEN as u64, &lease(pair), sums).map(<[u8]>::to_vec);
        assert!(end.as_ref().is_none_or(|end| *end == PAYLOAD[..TAIL]));
        end.is_some()
    }

    #[test]
    fn a_chunk_is_verified_by_its_footer() {
        let name = key(1).canonical();
        for sums in [None, arrived(&PAYLOAD)] {
            assert!(is_verified(&pair(&facts(), &name), sums));
        }
        assert!(is_verified(&pair(&facts(), b""), None), "its writer had the digest alone");
    }

    #[test]
    fn one_thing_that_differs_is_enough_to_refuse_it() {
        let own = key(1);
        let name = own.canonical();
        let others = BlockSums::from_bytes(&[7; LEN - 1]);
        let wrong = [
            with(|facts| facts.key = *key(2).digest()),
            with(|facts| facts.namespace = Digest([1; 32])),
            with(|facts| facts.raw_len = LEN as u64 + 1),
            with(|facts| facts.codec = CodecId(2)),
            with(|facts| facts.key_id = 3),
            with(|facts| facts.sums = others),
        ];
        for facts in wrong {
            // Without the key's own name, so that nothing else differs.
            assert!(!is_verified(&pair(&facts, b""), None), "{facts:?}");
        }
        assert!(!is_verified(&pair(&facts(), &key(2).canonical()), None));
        let good = pair(&facts(), &name);
        let page = PAGE as usize;
        for at in [TAIL, page - 1, page, page + 40] {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            assert!(!is_verified(&bytes, None), "byte {at}");
        }
        assert!(!is_verified(&good[page..], None), "no space for the tail");
        assert!(!is_verified(&good[page + 1..], None));
        let mut flipped = good.clone();
        flipped[0] ^= 1;
        assert!(!is_verified_any(&flipped, arrived(&PAYLOAD)), "in the tail");
        assert!(!is_verified(&good, arrived(&[6; LEN])), "before it");
        assert!(!is_verified(&good, Some(PieceSums::new(LEN as u64))), "it never arrived");
    }

    fn is_verified_any(pair: &[u8], sums: Option<PieceSums>) -> bool {
        verify(&key(1), LEN as u64, &lease(pair), sums).is_some()
    }

    #[test]
    fn parts_are_watched_by_their_offset_in_the_payload() {
        let into = |len: usize| lease(&vec![0; len]);
        let half = 2 * PAGE as usize;
        let payload: Vec<u8> = (0..2 * half).map(|n| (n / 100) as u8).collect();
        let parts = [
            Part::Read { at: 0, len: half, into: into(half) },
            Part::Read { at: half as u64, len: half, into: into(half) },
        ];
        let sums = Arc::new(Mutex::new(PieceSums::new(payload.len() as u64)));
        let (mut watch, reported) = watch(&sums, &parts);
        assert!(reported.is_none(), "the CPU sees these bytes");
        watch(0, 0, &payload[..half]);
        watch(1, 0, &payload[half..half + 500]);
        watch(1, 500, &payload[half + 500..]);
        watch(2, 0, &[1; 100]);
        assert_eq!(take_sums(&sums).finish(), Some(BlockSums::from_bytes(&payload)));
    }

    #[test]
    fn what_did_not_arrive_by_itself_is_copied_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let disk = open(dir.path());
        let shared = shared_of(&disk);
        let counters = &shared.counters;
        let copied = || {
            let load = |counter: &std::sync::atomic::AtomicU64| {
                counter.load(std::sync::atomic::Ordering::Relaxed)
            };
            (load(&counters.copied_bounce_bytes), load(&counters.copied_tail_bytes))
        };
        let mut into = [lease(&[0; 6]), lease(&[0; 6])];
        copy_remaining(shared, &mut into, None, 10, &[1, 2, 3]).unwrap();
        let bytes = |into: &[Lease; 2]| -> Vec<u8> {
            into.iter().flat_map(|lease| lease.as_host().unwrap().to_vec()).collect()
        };
        assert_eq!(bytes(&into)[..10], [0, 0, 0, 0, 0, 0, 0, 1, 2, 3]);
        assert_eq!(copied(), (0, 3));
        let bounce = lease(&[9; 7]);
        copy_remaining(shared, &mut into, Some(&bounce), 9, &[4, 5]).unwrap();
        assert_eq!(bytes(&into)[..9], [9, 9, 9, 9, 9, 9, 9, 4, 5]);
        assert_eq!(copied(), (7, 5));
        // What is before it never arrived.
        let mut empty = [Arena::new(ArenaConfig::heap(6)).unwrap().lease(6).unwrap()];
        let error = copy_remaining(shared, &mut empty, None, 6, &[4, 5]).unwrap_err();
        assert!(error.to_string().contains("the bytes are right"), "{error}");
    }
}
