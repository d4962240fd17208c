use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::{Error, ErrorKind, Event, Key, Save, Saved, ShedReason, Slot};
use kvtier_index::{Inserted, Refusal, Reservation, Reserve};
use kvtier_key::{BlockSums, Facts, KeyId};
use kvtier_mem::View;

use super::counters::add;
use super::shared::Shared;
use super::told::FACTS;
use crate::{Put, Stored};

/// Claimed room, given back unless it is spent.
struct Room<'a>(&'a Shared, Option<Reservation>);

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if let Some(room) = self.1.take() {
            self.0.books().index.cancel(room);
            self.0.room.notify_waiters();
        }
    }
}

/// A save: room first, then one PUT.
pub async fn save(shared: Arc<Shared>, op: Save, slot: Slot<Save, Saved>) {
    if let Some(over) = slot.is_over() {
        return slot.finish(op, Err(Error::new(over, "ended before it began").with_op("save")));
    }
    let result = put(&shared, &op, slot.deadline()).await;
    match &result {
        Ok(Saved::Shed(_)) => add(&shared.counters.shed, 1),
        Ok(Saved::Present) => add(&shared.counters.present, 1),
        _ => {}
    }
    slot.finish(op, result);
    evict_ahead(&shared).await;
}

async fn put(shared: &Shared, op: &Save, deadline: Instant) -> Result<Saved, Error> {
    let (digest, len) = (op.key.digest(), op.from.iter().map(|v| v.len() as u64).sum::<u64>());
    if shared.known(digest) == Some(Some(len)) {
        shared.books().index.touch_batch(&[*digest]);
        return Ok(Saved::Present);
    }
    let name = shared.names.of(&op.key)?;
    let mut room = match claim(shared, len, deadline).await {
        Ok(room) => room,
        Err(reason) => return Ok(Saved::Shed(reason)),
    };
    let Some(body) = whole(shared, &op.from, len) else { return Ok(Saved::Shed(ShedReason::Throttled)) };
    let facts = Facts::plain(*digest, op.key.namespace().digest(), sums(&op.from));
    let mut how = Put::default().meta(FACTS, {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(facts.encode())
    });
    how.if_absent = shared.if_absent && !shared.books().index.is_suspect(digest);
    let stored = shared.client.until(deadline).put(&name, &body, &how).await;
    let stored = stored.map_err(|e| shared.error("save", Some(&op.key), e))?;
    enter(shared, &op.key, len, &mut room);
    if stored == Stored::Present {
        return Ok(Saved::Present);
    }
    add(&shared.counters.stored, 1);
    add(&shared.counters.saved_bytes, len);
    Ok(Saved::Stored)
}

/// Enters what now lies in the bucket.
fn enter(shared: &Shared, key: &Key, len: u64, room: &mut Room<'_>) {
    let Some(reservation) = room.1.take() else { return };
    let mut books = shared.books();
    let chunk = books.chunk(key, len);
    let inserted = books.index.commit(reservation, chunk);
    shared.note_name(&mut books, key);
    books.confirm(key.digest(), shared.now_ms());
    drop(books);
    if !matches!(inserted, Inserted::Refused(_)) {
        shared.tell(&[Event::Stored { key: *key.digest(), len }]);
    }
}

/// Claims room for `len` bytes, deleting what has to go for it.
async fn claim(shared: &Shared, len: u64, deadline: Instant) -> Result<Room<'_>, ShedReason> {
    loop {
        let asked = shared.books().index.reserve(shared.now_ms(), len);
        match asked {
            Reserve::Granted(room) => return Ok(Room(shared, Some(room))),
            Reserve::Evict(victims) => evict(shared, victims).await.map_err(|_| ShedReason::Full)?,
            // Others delete: look again when they have, or soon.
            Reserve::Busy if Instant::now() < deadline => {
                let _ = tokio::time::timeout(Duration::from_millis(20), shared.room.notified()).await;
            }
            Reserve::Full(Refusal::TooLarge { .. }) => return Err(ShedReason::TooLarge),
            _ => return Err(ShedReason::Full),
        }
    }
}

/// Deletes down to the high mark, so that the next save finds room.
pub async fn evict_ahead(shared: &Shared) {
    loop {
        let victims = shared.books().index.victims(shared.now_ms(), 0);
        if victims.is_empty() || evict(shared, victims).await.is_err() {
            return;
        }
    }
}

async fn evict(shared: &Shared, victims: Vec<kvtier_index::Entry>) -> Result<(), Error> {
    let gone = shared.delete(&shared.client, victims).await?;
    add(&shared.counters.evicted, gone as u64);
    if gone == 0 { Err(Error::new(ErrorKind::Io, "the store deletes nothing")) } else { Ok(()) }
}

/// The chunk in one piece; copied where it comes in several.
fn whole(shared: &Shared, from: &[View], len: u64) -> Option<View> {
    if let [one] = from {
        return Some(one.clone());
    }
    let mut lease = shared.bounce.lease(len as usize).ok()?;
    let mut at = 0;
    for view in from {
        lease.write_at(at, view.as_host()?).ok()?;
        at += view.len();
    }
    Some(lease.freeze())
}

/// The payload's sums: remembered by a view that has been summed before, else one pass.
fn sums(from: &[View]) -> BlockSums {
    let sum = |view: &View| BlockSums::of(view.as_host().unwrap_or_default());
    match from {
        [one] => one.memo(|| sum(one)).cloned().unwrap_or_else(|| sum(one)),
        many => {
            let pieces: Vec<&[u8]> = many.iter().filter_map(View::as_host).collect();
            BlockSums::of_pieces(pieces.iter().copied())
        }
    }
}

/// Why a save can never succeed here.
pub fn refusal(key: &Key, from: &[View]) -> Option<Error> {
    let invalid = |what: String| Some(Error::new(ErrorKind::Invalid, what).with_op("save").with_key(*key.digest()));
    let len: u64 = from.iter().map(|v| v.len() as u64).sum();
    if len == 0 {
        return invalid("a chunk has at least one byte".into());
    }
    if let Some(view) = from.iter().find(|v| v.as_host().is_none()) {
        return invalid(format!("memory at {:?} cannot be read by the CPU; use a tier that can", view.place()));
    }
    let KeyId::Object(id) = key.id() else { return None };
    match key.namespace().chunk_bytes(id.group) {
        Some(full) if len > full || (len < full && !key.namespace().allow_partial()) => invalid(format!(
            "the namespace has chunks of {full} bytes, this one has {len}; fix the layout or allow partial chunks"
        )),
        _ => None,
    }
}
