use std::sync::Arc;

use kvtier_core::{Error, ErrorKind, Event, Key, Load, Loaded, MissReason, Slot};
use kvtier_key::{BlockSums, KeyId};
use kvtier_mem::Lease;

use super::counters::add;
use super::shared::Shared;
use super::told::{Told, told};
use super::{Layout, Verify};
use crate::{Get, Object};

/// A load: one GET into the leases, then the proof of every byte.
pub async fn load(shared: Arc<Shared>, mut op: Load, slot: Slot<Load, Loaded>) {
    op.into.iter_mut().for_each(|lease| lease.assume_filled(0));
    if let Some(over) = slot.is_over() {
        return slot.finish(op, Err(Error::new(over, "ended before it began").with_op("load")));
    }
    let result = fill(&shared, &mut op, slot.deadline()).await;
    if !matches!(result, Ok(Loaded::Hit { .. })) {
        op.into.iter_mut().for_each(|lease| lease.assume_filled(0));
    }
    let counters = &shared.counters;
    match &result {
        Ok(Loaded::Hit { len }) => {
            add(&counters.hits, 1);
            add(&counters.loaded_bytes, *len);
            shared.tell(&[Event::Touched { key: *op.key.digest() }]);
        }
        Ok(Loaded::Miss(MissReason::Corrupt)) => add(&counters.misses_corrupt, 1),
        Ok(Loaded::Miss(MissReason::Length)) => add(&counters.misses_length, 1),
        Ok(Loaded::Miss(_)) => add(&counters.misses_absent, 1),
        _ => {}
    }
    slot.finish(op, result);
}

async fn fill(shared: &Shared, op: &mut Load, deadline: std::time::Instant) -> Result<Loaded, Error> {
    let room = op.into.iter().map(|l| l.len() as u64).sum::<u64>();
    let known = shared.books().index.get(op.key.digest()).map(|e| e.chunk.len);
    if known.is_some_and(|len| len > room) || room == 0 {
        return Ok(Loaded::Miss(MissReason::Length));
    }
    let name = shared.names.of(&op.key)?;
    let client = shared.client.until(deadline);
    let mut bounce = match op.into.len() {
        1 => None,
        _ => match shared.bounce.lease(known.unwrap_or(room) as usize) {
            Ok(lease) => Some(lease),
            Err(_) => return Ok(Loaded::Throttled),
        },
    };
    let into = bounce.as_mut().unwrap_or(&mut op.into[0]);
    match client.get(&name, into, &Get::at_most()).await {
        Ok(None) => {
            shared.vanished(op.key.digest());
            Ok(Loaded::Miss(MissReason::Absent))
        }
        // The object is longer than the memory: nothing is wrong with it.
        Err(e) if e.kind() == crate::ErrorKind::Corrupt && !e.is_retryable() => Ok(Loaded::Miss(MissReason::Length)),
        Err(e) if e.kind() == crate::ErrorKind::Corrupt => Ok(condemned(shared, &op.key)),
        Err(e) => Err(shared.error("load", Some(&op.key), e)),
        Ok(Some(object)) if !proven(shared, &op.key, &object, (into, room)) => Ok(condemned(shared, &op.key)),
        Ok(Some(object)) => {
            if let Some(bytes) = bounce.as_ref().and_then(Lease::as_host) {
                scatter(&mut op.into, bytes)?;
            }
            shared.found(&op.key, object.len(), true);
            Ok(Loaded::Hit { len: object.len() })
        }
    }
}

fn condemned(shared: &Shared, key: &Key) -> Loaded {
    shared.condemn(key.digest());
    Loaded::Miss(MissReason::Corrupt)
}

/// Whether the bytes that landed are the chunk.
fn proven(shared: &Shared, key: &Key, object: &Object, (into, room): (&Lease, u64)) -> bool {
    let Some(bytes) = into.as_host() else { return false };
    match told(object, key) {
        Told::Facts(facts) => bytes.len() as u64 == facts.raw_len && BlockSums::of(bytes) == facts.sums,
        Told::Wrong => false,
        Told::Nothing => {
            let fits = may_be_foreign(shared, key, object.len(), Some(room));
            add(&shared.counters.unverified, fits.into());
            fits
        }
    }
}

/// Whether an object without facts may be served: in LMCache's layouts, with exactly the right length.
pub fn may_be_foreign(shared: &Shared, key: &Key, len: u64, room: Option<u64>) -> bool {
    let wanted = match key.id() {
        KeyId::Object(id) => key.namespace().chunk_bytes(id.group),
        _ => None,
    };
    shared.layout != Layout::Kvtier
        && shared.verify != Verify::Strict
        && wanted.or(room).is_none_or(|wanted| wanted == len)
}

fn scatter(into: &mut [Lease], mut bytes: &[u8]) -> Result<(), Error> {
    for lease in into {
        let (head, rest) = bytes.split_at(bytes.len().min(lease.len()));
        let wrong = |e| Error::new(ErrorKind::Invalid, "memory that the CPU cannot write").with_source(e);
        lease.write_at(0, head).map_err(wrong)?;
        lease.assume_filled(head.len());
        bytes = rest;
    }
    Ok(())
}

/// Why a load can never succeed here.
pub fn refusal(op: &Load) -> Option<Error> {
    let far = op.into.iter().find(|lease| !lease.place().is_host())?;
    let what = format!("memory at {:?} cannot be written by the CPU; use a tier that can", far.place());
    Some(Error::new(ErrorKind::Invalid, what).with_op("load").with_key(*op.key.digest()))
}
