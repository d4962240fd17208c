//! Saves: one PUT each, or one upload in parts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvtier_core::{Error, ErrorKind, Hint, Key, Op, Save, Saved, ShedReason, Slot};
use kvtier_index::ReserveRequest;
use kvtier_key::{BlockSums, Digest, Facts};
use kvtier_mem::View;
use kvtier_s3::{Checksum, Client, Conditional, FeatureSupport, Provider, Stored};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::TierConfig;
use crate::background::tenant_names::wait as wait_for_tenant_key;
use crate::ops::batch::{Announced, Place, Together};
use crate::ops::evict::{Room, claim};
use crate::ops::load::{Got, Verdict, judge};
use crate::ops::lookup::head;
use crate::ops::metadata::{meta, told};
use crate::state::counters::add;
use crate::state::scheduler::Lane;
use crate::state::shared::{Shared, enter};

/// How long a save whose outcome is unknown is looked for.
const SETTLE_MAX: Duration = Duration::from_secs(5);
/// How many are looked for at a time; a listing finds the others.
const SETTLES_MAX: usize = 64;

/// How chunks move.
#[derive(Debug)]
pub struct Manner {
    /// Whether a PUT asks the store to keep what is there already.
    pub if_absent: AtomicBool,
    /// Whether that is still to be found out.
    pub if_absent_unknown: bool,
    /// Whether the store takes such PUTs.
    pub conditions: FeatureSupport,
    pub multipart_above_bytes: u64,
    pub ranges_above_bytes: u64,
    pub part_bytes: usize,
    pub parts_max: usize,
    pub space_wait_max: Duration,
    storage_class: Option<String>,
    provider: Provider,
    settles: Semaphore,
}

impl Manner {
    pub fn of(config: &TierConfig, client: &Client) -> Self {
        let provider = client.endpoint().provider();
        let conditional = provider.conditional();
        Manner {
            if_absent: AtomicBool::new(config.if_absent && conditional == Conditional::Honoured),
            conditions: FeatureSupport::conditional_puts(),
            if_absent_unknown: config.if_absent && conditional == Conditional::Unknown,
            multipart_above_bytes: config.multipart_above_bytes,
            ranges_above_bytes: config.ranges_above_bytes,
            part_bytes: config.part_bytes,
            parts_max: config.parts_max,
            space_wait_max: config.space_wait_max,
            storage_class: config.storage_class.clone(),
            provider,
            settles: Semaphore::new(SETTLES_MAX),
        }
    }
}

/// A save that was let in.
#[derive(Debug)]
pub struct Asked {
    pub op: Save,
    pub slot: Slot<Save, Saved>,
    /// Where its chunk stands in its chain.
    pub announced: Announced,
    /// The batch that it came in.
    pub together: Arc<Together>,
    /// And where in it.
    pub place: Place,
    /// When that was.
    pub begun: Instant,
}

/// A save: room first, then the key for itself, then one PUT.
pub async fn save(shared: Arc<Shared>, asked: Asked) {
    let Asked { op, slot, announced, together, mut place, begun } = asked;
    let result = match slot.is_over() {
        Some(over) => Err(Error::new(over, "ended before it began").with_op("save")),
        None => {
            let deadline = Instant::from_std(slot.deadline());
            let late =
                || Err(Error::new(ErrorKind::Timeout, "the deadline passed").with_op("save"));
            let until = deadline.min(begun + shared.manner.space_wait_max);
            let work = async {
                let room = match room(
                    &shared,
                    &op,
                    (&announced, together.are_many()),
                    (&mut place, until),
                )
                .await?
                {
                    Ok(room) => room,
                    Err(without) => return Ok(without),
                };
                place.asked();
                put(&shared, (&op, &slot), (room, &announced), together.are_many()).await
            };
            tokio::time::timeout_at(deadline, work).await.unwrap_or_else(|_| late())
        }
    };
    match &result {
        Ok(Saved::Shed(_)) => add(&shared.counters.shed, 1),
        Ok(Saved::Present) => add(&shared.counters.present, 1),
        Ok(_) => add(&shared.counters.stored, 1),
        Err(_) => {}
    }
    // One whose outcome is unknown may have come to pass: it is looked for, so that what lies there
    // is counted.
    let unsettled =
        result.as_ref().is_err_and(|e| matches!(e.kind(), ErrorKind::Timeout | ErrorKind::Io));
    let key = unsettled.then(|| op.key.clone()).filter(|key| shared.known(key.digest()).is_none());
    // The index is told of the batch before its last answer is heard, and of what is missing before
    // the next asks for room.
    drop((announced, together));
    drop(place);
    slot.finish(op, result);
    if let Some(key) = key
        && let Ok(_one) = shared.manner.settles.try_acquire()
    {
        drop(head(&shared, &key, Instant::now() + SETTLE_MAX).await);
    }
}

/// Room for a save; or how it ends without.
async fn room<'a>(
    shared: &'a Shared,
    op: &Save,
    (announced, of_many): (&Announced, bool),
    (place, until): (&mut Place, Instant),
) -> Result<Result<Room<'a>, Saved>, Error> {
    let (digest, len) = (op.key.digest(), op.bytes());
    if let Some(refusal) = shared.geometry.refusal(&op.key, len) {
        return Err(refusal);
    }
    if is_present(shared, digest, len, of_many) {
        return Ok(Err(Saved::Present));
    }
    let tenant = op.key.namespace().tenant();
    wait_for_tenant_key(shared, tenant, until).await;
    let tenant = shared.books().tenant(tenant);
    let want = ReserveRequest::new(len)
        .with_place(announced.place())
        .with_tenant(tenant)
        .with_digest(digest);
    place.turn().await;
    let claimed = claim(shared, &want, until).await;
    Ok(claimed.map_err(Saved::Shed))
}

async fn put(
    shared: &Shared,
    (op, slot): (&Save, &Slot<Save, Saved>),
    (room, announced): (Room<'_>, &Announced),
    of_many: bool,
) -> Result<Saved, Error> {
    let (digest, len) = (op.key.digest(), op.bytes());
    let name = shared.names.of(&op.key)?;
    let _alone = shared.turns.change(digest).await;
    if is_present(shared, digest, len, of_many) {
        return Ok(Saved::Present);
    }
    let Some(body) = whole(shared, &op.from, len).await else {
        return Ok(Saved::Shed(ShedReason::Throttled));
    };
    let _go = shared.lanes.turn(Lane::Write).await;
    if let Some(over) = slot.is_over() {
        return Err(Error::new(over, "ended before it began").with_op("save"));
    }
    // From here on until the answer nobody knows what lies there.
    let doubt = Doubt(shared, digest);
    let sums = sums(shared, &op.from);
    let crc = sums.whole();
    let stored = store(shared, (&op.key, &name), &body, (slot.deadline().into(), sums)).await;
    let stored = stored.map_err(|e| shared.error("save", Some(&op.key), e))?;
    std::mem::forget(doubt);
    entered(shared, (&op.key, &name), (len, room, announced), (stored, crc))
}

fn entered(
    shared: &Shared,
    (key, name): (&Key, &str),
    (len, room, announced): (u64, Room<'_>, &Announced),
    (stored, crc): (Stored, u32),
) -> Result<Saved, Error> {
    shared.geometry.learn(key, len);
    if let Some(room) = room.spend()
        && !enter(shared, (key, name), len, (room, announced.place()))
    {
        return Ok(Saved::Shed(ShedReason::Full));
    }
    if let Stored::New { etag: Some(etag) } = &stored {
        shared.note_facts(key, etag, crc);
    }
    shared.outbox.ring();
    if stored == Stored::Present {
        return Ok(Saved::Present);
    }
    add(&shared.counters.saved_bytes, len);
    Ok(Saved::Stored)
}

/// Whether the chunk is there, which counts as a use: of one in a batch when that is over, but
/// noted for the next start now.
fn is_present(shared: &Shared, digest: &Digest, len: u64, of_many: bool) -> bool {
    let present = shared.known(digest) == Some(Some(len));
    match (present, of_many) {
        (true, true) => shared.truth.touched(&[*digest]),
        (true, false) => shared.used(&[*digest], &Hint::default()),
        (false, _) => {}
    }
    present
}

/// One PUT, or several of parts.
async fn store(
    shared: &Shared,
    (key, name): (&Key, &str),
    body: &View,
    (deadline, sums): (Instant, BlockSums),
) -> kvtier_s3::Result<Stored> {
    let (manner, began) = (&shared.manner, Instant::now());
    let client = shared.client.until(deadline);
    let crc = (client.checksum() == Checksum::Crc32c).then(|| sums.whole());
    let facts = Facts::plain(*key.digest(), key.namespace().digest(), sums);
    // Other names tell the key themselves.
    let canonical = shared.names.is_own().then(|| key.canonical());
    let mut how = meta(&facts, canonical.as_deref(), shared.manner.provider);
    how.crc32c = crc;
    how.storage_class.clone_from(&manner.storage_class);
    let is_possible = manner.if_absent.load(Ordering::Relaxed)
        && !manner.conditions.is_unsupported(Instant::now());
    how.if_absent = is_possible && !shared.books().index.is_suspect(key.digest());
    loop {
        add(&shared.counters.conditional_puts, how.if_absent.into());
        let parts = body.len() as u64 > manner.multipart_above_bytes;
        add(&shared.counters.saves_in_parts, parts.into());
        let stored = match parts {
            true => {
                client.put_multipart(name, body, &how, (manner.part_bytes, manner.parts_max)).await
            }
            false => client.put(name, body, &how).await,
        };
        // What is kept is looked at: unless it is the chunk, it is written over.
        let kept = how.if_absent && matches!(stored, Ok(Stored::Present));
        if kept && !is_the_chunk(shared, &client, (key, name), body.len() as u64).await? {
            how.if_absent = false;
            continue;
        }
        match stored {
            Err(e) if how.if_absent && e.kind() == kvtier_s3::ErrorKind::Unsupported => {
                manner.conditions.note_unsupported(began, Instant::now());
                how.if_absent = false;
            }
            stored => {
                if how.if_absent && stored.is_ok() {
                    manner.conditions.note_supported();
                }
                return stored;
            }
        }
    }
}

/// Whether the object that the store would not write over is the chunk, as far as its head tells.
async fn is_the_chunk(
    shared: &Shared,
    client: &Client,
    (key, name): (&Key, &str),
    len: u64,
) -> kvtier_s3::Result<bool> {
    add(&shared.counters.heads, 1);
    let Some(object) = client.head(name).await? else { return Ok(false) };
    let told = told(|name| object.header(name), Some(object.total()), key);
    let got = Got { told: Some(told), len: object.total(), sound: true, ..Got::default() };
    Ok(got.len == len
        && matches!(judge(shared, key, &got, Some(len)), Verdict::Proven | Verdict::Unverified))
}

/// A write whose answer did not come.
struct Doubt<'a>(&'a Shared, &'a Digest);

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        self.0.books().doubt(self.1);
    }
}

/// The chunk in one piece; copied where it comes in several.
async fn whole(shared: &Shared, from: &[View], len: u64) -> Option<View> {
    if let [one] = from {
        return Some(one.clone());
    }
    let mut lease = loop {
        let freed = shared.freed.notified();
        match shared.bounce.lease(usize::try_from(len).ok()?) {
            Ok(lease) => break lease,
            // Others use it; they are done soon.
            Err(_) => drop(tokio::time::timeout(Duration::from_millis(10), freed).await),
        }
    };
    let mut at = 0;
    for view in from {
        lease.write_at(at, view.as_host()?).ok()?;
        at += view.len();
    }
    add(&shared.counters.copied_bounce_bytes, len);
    Some(lease.freeze())
}

/// The payload's sums: remembered by a view that has been summed before, else one pass.
fn sums(shared: &Shared, from: &[View]) -> BlockSums {
    let sum = |view: &View| {
        add(&shared.counters.summed_save_bytes, view.len() as u64);
        BlockSums::from_bytes(view.as_host().unwrap_or_default())
    };
    match from {
        [one] => one.memo(|| sum(one)).cloned().unwrap_or_else(|| sum(one)),
        many => {
            add(
                &shared.counters.summed_save_bytes,
                many.iter().map(|view| view.len() as u64).sum(),
            );
            let pieces: Vec<&[u8]> = many.iter().filter_map(View::as_host).collect();
            BlockSums::from_pieces(pieces.iter().copied())
        }
    }
}

/// Why a save can never succeed here.
pub fn refusal(op: &Save, bounce_bytes: u64) -> Option<Error> {
    let (key, from) = (&op.key, &op.from);
    let invalid = |what: String| {
        Some(Error::new(ErrorKind::Invalid, what).with_op("save").with_key(*key.digest()))
    };
    let len: u64 = from.iter().map(|v| v.len() as u64).sum();
    if len == 0 {
        return invalid("a chunk has at least one byte".into());
    }
    if let Some(view) = from.iter().find(|v| v.as_host().is_none()) {
        return invalid(format!(
            "memory at {:?} cannot be read by the CPU; use a tier that can",
            view.place()
        ));
    }
    if from.len() > 1 && len > bounce_bytes {
        return invalid(format!(
            "a chunk of {len} bytes in several pieces does not fit the {bounce_bytes} bytes that join them; give one piece, or raise \
             bounce_bytes"
        ));
    }
    None
}

/// Whether a checksum of the client's is one that facts carry already.
pub fn checksum_for_facts(checksum: Checksum) -> Checksum {
    if checksum == Checksum::Crc64Nvme { Checksum::Crc32c } else { checksum }
}
