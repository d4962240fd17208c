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
