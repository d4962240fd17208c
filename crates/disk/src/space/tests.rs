//! What a reservation does at each of its steps, and what it leaves behind.

use std::fs::{self, File};
use std::io::ErrorKind as Io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvtier_core::ManualClock;
use kvtier_index::{ChainPlace, Chunk};
use kvtier_key::Digest;

use super::*;
use crate::disk::Disk;
use crate::disk::tests::{
    FOREIGN, Idle, LEN, foreign, key, open, open_foreign, shared_of, until_swept, write,
};
use crate::ledger::Ledger;

const CAP_BYTES: u64 = 1 << 20;
const BYTES: u64 = 12_288;
const SIZE: FileSize = FileSize { claimed: BYTES, published: BYTES, allocated: BYTES };

/// An empty tier whose clock stands still.
struct Tier {
    disk: Disk<Idle>,
    dir: tempfile::TempDir,
}

impl Tier {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Tier { disk: open(dir.path()), dir }
    }

    fn shared(&self) -> &Arc<Shared<Idle>> {
        shared_of(&self.disk)
    }

    fn own(&self) -> PathBuf {
        self.dir.path().join(".kvtier")
    }

    fn save(&self) -> SpaceReservation<Idle> {
        self.save_of(SIZE)
    }

    fn save_of(&self, size: FileSize) -> SpaceReservation<Idle> {
        let deadline = self.shared().clock.now() + Duration::from_secs(300);
        SpaceReservation::new(self.shared(), ReserveRequest::new(size.claimed), size, deadline)
    }

    /// A chunk that another process wrote.
    fn write(&self) {
        write(self.dir.path(), &key(1));
        self.shared().follow_changes();
    }

    fn has_chunk(&self) -> bool {
        self.shared().index().get(key(1).digest()).is_some()
    }

    /// A chunk without a file, in the index alone.
    fn insert(&self, bytes: u64) {
        let _ = self.shared().index().insert(Chunk::new(*key(1).digest(), LEN as u64, bytes));
    }

    /// The ledger's total, with what waits.
    fn total(&self) -> u64 {
        self.shared().share_ledger().unwrap();
        Ledger::peek(&self.own()).unwrap().unwrap()
    }

    /// Another process keeps the ledger's lock until this is dropped.
    fn keep_ledger(&self) -> File {
        let file = File::open(self.own().join("ledger")).unwrap();
        file.lock().unwrap();
        self.shared().space.ledger.note_kept();
        file
    }

    fn is_suspect(&self) -> bool {
        self.shared().space.ledger_validity.is_suspect()
    }
}

fn is_shed<T>(answer: &Result<T, ReserveError>, reason: ShedReason) -> bool {
    matches!(answer, Err(ReserveError::Shed(why)) if *why == reason)
}

#[test]
fn where_nothing_may_be_evicted_a_save_gets_what_fits_and_waits_for_more() {
    let tier = Tier::new();
    let shared = tier.shared();
    tier.insert(CAP_BYTES - BYTES);
    shared.data_dir.set_read_only(true);
    let mut fits = tier.save();
    assert_eq!(fits.reserve().unwrap(), ReserveOutcome::Reserved, "it is just at the cap");
    let mut waits = tier.save();
    assert_eq!(waits.reserve().unwrap(), ReserveOutcome::Wait);
    waits.wait_until = shared.clock.now();
    assert!(is_shed(&waits.reserve(), ShedReason::Full), "it has waited");
    assert!(tier.has_chunk());
    shared.data_dir.set_read_only(false);
    assert_eq!(waits.reserve().unwrap(), ReserveOutcome::Reserved);
    assert!(!tier.has_chunk());
}

#[test]
fn a_save_that_no_wait_helps_is_shed_at_once_with_its_reason() {
    let tier = Tier::new();
    let shared = tier.shared();
    let mut save = tier.save();
    let tenant = shared.tenants.id("t");
    save.request = save.request.with_tenant(tenant);
    shared.index().set_quota(tenant, Some(BYTES - 1));
    shared.data_dir.set_read_only(true);
    assert_eq!(save.reserve().unwrap(), ReserveOutcome::Wait, "fits below the cap alone");
    shared.data_dir.set_read_only(false);
    assert!(is_shed(&save.reserve(), ShedReason::Quota));
    shared.index().set_quota(tenant, None);
    // Its predecessor is missing.
    tier.insert(CAP_BYTES);
    save.request = ReserveRequest::new(BYTES)
        .with_place(ChainPlace::after(Some(&Digest::derive("test", b"missing")), 1));
    assert!(is_shed(&save.reserve(), ShedReason::NotWorth));
    assert!(tier.has_chunk());
    // All is being written.
    let _ = shared.index().forget(key(1).digest());
    let all = shared.index().force_reserve(&ReserveRequest::new(CAP_BYTES));
    assert!(is_shed(&tier.save().reserve(), ShedReason::Full));
    shared.index().cancel(all);
    let too_large = FileSize { claimed: CAP_BYTES + 1, ..SIZE };
    assert!(is_shed(&tier.save_of(too_large).reserve(), ShedReason::TooLarge));
}

#[test]
fn a_chunk_or_a_save_may_free_bytes_later() {
    let tier = Tier::new();
    let shared = tier.shared();
    assert!(!shared.may_free_bytes());
    tier.insert(BYTES);
    assert!(shared.may_free_bytes());
    let _ = shared.index().forget(key(1).digest());
    let mut save = tier.save();
    save.reserve().unwrap();
    assert!(shared.may_free_bytes());
    drop(save);
    assert!(!shared.may_free_bytes());
}

/// It is not written over, since another process may count the length that it has.
#[test]
fn a_victims_file_of_another_length_is_deleted_and_released_as_it_is() {
    for (len, allocated, is_wrong) in [(4096, BYTES, true), (BYTES, 4096, false)] {
        let tier = Tier::new();
        let shared = tier.shared();
        tier.write();
        shared.space.ledger_validity.clear();
        let mut save = tier.save_of(FileSize { allocated, ..SIZE });
        let victims = shared.index().evict_bytes(shared.now_ms(), BYTES);
        assert!(save.evict_or_recycle(victims));
        let path = save.recycled.as_ref().unwrap().path();
        File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
        assert_eq!(save.reserve().unwrap(), ReserveOutcome::Reserved);
        assert!(!path.exists(), "{len}");
        assert_eq!((tier.total(), tier.is_suspect()), (BYTES - len + BYTES, is_wrong));
    }
}

#[test]
fn a_sidecar_is_written_anew_unless_the_earlier_one_stays() {
    let tier = Tier::new();
    let mut save = tier.save();
    let create = |save: &mut SpaceReservation<Idle>, text: &[u8]| {
        save.create_sidecar(text, false).map(|()| save.sidecar().unwrap().path())
    };
    let first = create(&mut save, b"first").unwrap();
    let second = create(&mut save, b"second").unwrap();
    assert_eq!((first.exists(), fs::read(&second).unwrap().as_slice()), (false, &b"second"[..]));
    fs::remove_file(&second).unwrap();
    let third = create(&mut save, b"third").unwrap();
    // What cannot be deleted is still its file.
    fs::remove_file(&third).unwrap();
    fs::create_dir(&third).unwrap();
    assert_eq!(create(&mut save, b"fourth").unwrap_err().kind(), Io::IsADirectory);
    assert_eq!(save.sidecar().unwrap().path(), third);
    fs::remove_dir(&third).unwrap();
    let published = create(&mut save, b"fourth").unwrap();
    save.sidecar_is_published();
    assert!(save.sidecar().is_none());
    drop(save);
    assert!(published.exists());
}

#[test]
fn of_a_published_file_only_what_it_was_cut_by_is_released() {
    for published in [BYTES, BYTES - 1000] {
        let tier = Tier::new();
        let ledger = &tier.shared().space.ledger;
        let mut save = tier.save_of(FileSize { published, ..SIZE });
        save.reserve().unwrap();
        assert_eq!(tier.total(), BYTES);
        let reservation = save.into_published(ledger.generation()).unwrap();
        assert_eq!(reservation.bytes(), BYTES);
        assert_eq!(tier.total(), published);
        tier.shared().index().cancel(reservation);
    }
    // One that was not cut has nothing to release, so nothing of it is lost to a recount.
    let tier = Tier::new();
    let ledger = &tier.shared().space.ledger;
    let mut save = tier.save();
    save.reserve().unwrap();
    let since = ledger.generation();
    tier.shared().recount(true).unwrap();
    ledger.release_later(1, ledger.generation());
    let reservation = save.into_published(since).unwrap();
    assert!(!ledger.may_be_high());
    tier.shared().index().cancel(reservation);
}

#[test]
fn a_published_file_that_was_deleted_again_releases_all_that_was_claimed() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, name) = FOREIGN[2];
    let (disk, ..) = foreign(layout, name, dir.path());
    let shared = shared_of(&disk);
    shared.space.ledger.add(50_000).unwrap();
    let total = || Ledger::peek(&dir.path().join(".kvtier")).unwrap();
    for has_sidecar in [false, true] {
        let deadline = shared.clock.now() + Duration::from_secs(300);
        let mut save = SpaceReservation::new(shared, ReserveRequest::new(BYTES), SIZE, deadline);
        save.reserve().unwrap();
        if has_sidecar {
            save.create_sidecar(b"header", false).unwrap();
        }
        assert_eq!(total(), Some(50_000 + BYTES));
        fs::remove_file(save.draft().unwrap().path()).unwrap();
        save.release_deleted(shared.space.ledger.generation());
        assert_eq!(total(), Some(50_000));
    }
}

/// Both are counted until the sidecar can be deleted, or the ledger is compared.
#[test]
fn a_sidecar_that_was_not_published_stays_counted_while_it_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, name) = FOREIGN[2];
    let (disk, ..) = foreign(layout, name, dir.path());
    let shared = shared_of(&disk);
    let since = shared.space.ledger.generation();
    shared.space.ledger.add(50_000).unwrap();
    let total = || {
        shared.share_ledger().unwrap();
        Ledger::peek(&dir.path().join(".kvtier")).unwrap().unwrap() - 50_000
    };
    let size = FileSize { published: BYTES - 4096, ..SIZE };
    let reserved = || {
        let deadline = shared.clock.now() + Duration::from_secs(300);
        let mut save = SpaceReservation::new(shared, ReserveRequest::new(BYTES), size, deadline);
        save.reserve().unwrap();
        save.create_sidecar(b"header", false).unwrap();
        save
    };
    let counted = |left: Option<Reservation>, released: u64| {
        shared.index().cancel(left.unwrap());
        let counted = total();
        shared.uncount(released, since);
        counted
    };
    assert_eq!(counted(reserved().into_published(since), size.published), size.published);
    assert_eq!(counted(reserved().into_uncertain(), BYTES), BYTES);
    let save = reserved();
    let stuck = save.sidecar().unwrap().path();
    fs::remove_file(&stuck).unwrap();
    fs::create_dir(&stuck).unwrap();
    let kept = fs::metadata(&stuck).unwrap().len().min(4096);
    assert_eq!(counted(save.into_published(since), 0), size.published + kept);
}

/// The recount may not have seen the file.
#[test]
fn a_published_file_that_was_deleted_before_a_recount_is_not_released_after_it() {
    let tier = Tier::new();
    let ledger = &tier.shared().space.ledger;
    let mut save = tier.save();
    save.reserve().unwrap();
    let since = ledger.generation();
    tier.shared().recount(true).unwrap();
    save.release_deleted(since);
    assert_eq!(tier.total(), BYTES);
    assert!(ledger.may_be_high());
}

#[test]
fn a_dropped_reservation_releases_what_it_has_files_or_bytes() {
    type Place = for<'a> fn(&'a mut SpaceReservation<Idle>) -> &'a mut Option<Draft>;
    let places: [Place; 3] =
        [|save| &mut save.draft, |save| &mut save.recycled, |save| &mut save.sidecar];
    let tier = Tier::new();
    for place in places {
        let mut save = tier.save();
        let (draft, _) = tier.shared().data_dir.create(BYTES).unwrap();
        let path = draft.path();
        *place(&mut save) = Some(draft);
        assert!(path.exists());
        drop(save);
        assert!(!path.exists(), "no bytes are counted for it");
    }
    let mut save = tier.save();
    save.reserve().unwrap();
    let draft = save.draft.take().unwrap();
    assert_eq!(tier.total(), BYTES);
    drop(save);
    assert_eq!((tier.total(), draft.path().exists()), (0, true));
}

/// A stopped process may keep the lock for hours.
#[test]
fn while_the_ledger_is_kept_a_save_takes_only_what_this_process_frees() {
    let tier = Tier::new();
    let shared = tier.shared();
    shared.space.ledger_validity.clear();
    // Its record is not read yet.
    write(tier.dir.path(), &key(1));
    let kept = tier.keep_ledger();
    let mut save = tier.save();
    assert!(is_shed(&save.reserve(), ShedReason::Full), "there is nothing to free");
    assert!(!tier.is_suspect() && !tier.has_chunk(), "it is no full ledger");
    shared.follow_changes();
    assert_eq!(save.reserve().unwrap(), ReserveOutcome::Reserved);
    assert_eq!(shared.counters.recycled.load(Ordering::Relaxed), 1);
    drop(kept);
    assert_eq!(tier.total(), BYTES);
}

#[test]
fn for_a_ledger_that_is_kept_a_save_evicts_a_few_times_and_then_waits() {
    let tier = Tier::new();
    let shared = tier.shared();
    let mut save = tier.save();
    assert!(is_shed(&save.on_ledger_unavailable(), ShedReason::Full), "nothing to wait for");
    assert_eq!(save.attempts.exchanges, 0);
    tier.write();
    let mut save = tier.save();
    let now = shared.clock.now();
    save.attempts.exchanges = 64;
    // To find the lock kept took all of the time.
    save.wait_until = now;
    assert!(!save.on_ledger_unavailable().unwrap());
    assert_eq!(save.wait_until, now + shared.limits.space_wait_max);
    save.wait_until = now;
    assert!(is_shed(&save.on_ledger_unavailable(), ShedReason::Full), "not extended again");
    assert!(tier.has_chunk());
    // What goes now would not count for this process.
    save.attempts.exchanges = 0;
    save.wait_until = now + Duration::from_secs(1);
    let peer = Ledger::open(&tier.own(), true).unwrap();
    peer.recount(true, || Ok(BYTES)).unwrap();
    assert!(!save.on_ledger_unavailable().unwrap() && tier.has_chunk());
    shared.share_ledger().unwrap();
    assert!(save.on_ledger_unavailable().unwrap() && !tier.has_chunk());
    assert_eq!(save.attempts.exchanges, 1);
}

#[test]
fn for_a_full_ledger_the_cheap_is_tried_before_the_expensive() {
    let tier = Tier::new();
    let shared = tier.shared();
    write(tier.dir.path(), &key(1));
    shared.space.ledger_validity.clear();
    let mut save = tier.save();
    let mut step = || {
        let answer = save.on_ledger_full();
        let refused = save.attempts.refused;
        shared.follow_changes();
        (answer.map_err(|_| ()), refused)
    };
    assert_eq!(step(), (Ok(true), 0), "a record was unread");
    assert!(tier.has_chunk() && !tier.is_suspect());
    assert_eq!(step(), (Ok(true), 0), "the directory was listed");
    assert!(tier.has_chunk());
    assert_eq!(step(), (Ok(true), 0), "it was listed a moment ago");
    assert!(!tier.has_chunk());
    let dead = tier.own().join("tmp/host.1.1.0");
    fs::create_dir(&dead).unwrap();
    fs::write(dead.join("alive"), "").unwrap();
    assert_eq!(step(), (Ok(true), 1));
    assert!(!dead.exists());
    assert_eq!(step(), (Ok(false), 2), "others may free space");
    save.wait_until = shared.clock.now();
    let answers = [save.on_ledger_full(), save.on_ledger_full()];
    assert!(matches!(answers, [Ok(true), Err(ReserveError::Shed(ShedReason::Full))]));
}

/// The index may have nothing left to evict.
#[test]
fn before_a_save_is_shed_a_foreign_directory_is_scanned_soon_after_a_scan_that_was_slow() {
    let (dir, time) = (tempfile::tempdir().unwrap(), ManualClock::new());
    let disk = open_foreign(&time, FOREIGN[0].0, dir.path());
    until_swept(&disk);
    let shared = shared_of(&disk);
    let slow_scan = || {
        time.advance(Duration::from_secs(7));
        true
    };
    assert!(shared.space.relist_throttle.run(&shared.clock, slow_scan));
    fs::write(dir.path().join(FOREIGN[0].1), [7; LEN]).unwrap();
    let full = |after_s| {
        time.advance(Duration::from_secs(after_s));
        let until = shared.clock.now();
        let mut save = SpaceReservation::new(shared, ReserveRequest::new(BYTES), SIZE, until);
        save.attempts.refused = 1;
        assert!(save.on_ledger_full().is_ok_and(|again| again));
        shared.index().usage().entries
    };
    assert_eq!([full(0), full(1)], [0, 1]);
}

#[test]
fn only_what_was_deleted_is_created_again_and_once() {
    let tier = Tier::new();
    let mut save = tier.save();
    let failed = save.on_create_failed(Io::PermissionDenied.into());
    assert!(matches!(failed, Err(ReserveError::Failed(e)) if e.kind() == Io::PermissionDenied));
    assert!(!save.attempts.is_restored && save.draft.is_none());
    let created = save.on_create_failed(Io::NotFound.into());
    assert!(matches!(created, Ok(FileOutcome::Created)) && save.draft.is_some());
    let failed = save.on_create_failed(Io::NotFound.into());
    assert!(matches!(failed, Err(ReserveError::Failed(_))));
    // A count that fails for another reason shows nothing of that kind.
    let mut save = tier.save();
    let _kept = tier.keep_ledger();
    let refused = save.on_claim_refused(Claimed::Damaged);
    assert!(matches!(refused, Ok(FileOutcome::LedgerUnavailable)) && !save.attempts.is_restored);
    let fault = tier.shared().last_fault.get().unwrap();
    assert!(fault.contains("cannot recount the ledger"), "{fault}");
    for (claimed, is_full) in [(Claimed::Full, true), (Claimed::Unavailable, false)] {
        let outcome = save.on_claim_refused(claimed);
        assert_eq!(matches!(outcome, Ok(FileOutcome::LedgerFull)), is_full);
        assert_eq!(matches!(outcome, Ok(FileOutcome::LedgerUnavailable)), !is_full);
    }
}
