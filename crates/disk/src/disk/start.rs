//! The start of a tier: which chunks are stored, in which order they were used, and how many bytes
//! they have.

use kvtier_core::{Clock, Error, ErrorKind};
use kvtier_index::{Chunk, Index, InsertOutcome};

use crate::DiskConfig;
use crate::change_log::ChangeLog;
use crate::data_dir::{self, DataDir, Listed};
use crate::geometry_agreement::{AgreedGeometry, agree_on_namespace};
use crate::layout::{self, Foreign, Verify};
use crate::ledger::validity::LedgerValidity;
use crate::ledger::{self, Ledger, LedgerState, damage, is_damage};
use crate::mover::Mover;
use crate::shared::{DirState, Shared};
use crate::space_state::SpaceState;
use crate::tenant_key::Tenants;
use crate::use_order::{self, Journal, Reader};

/// Enters the listed chunks into the index, in the journaled order of use, and opens the directory's
/// other files.
pub fn open_dir_state(
    data_dir: DataDir,
    config: &DiskConfig,
    mut index: Index,
) -> Result<(DirState, Reader), Error> {
    // Before the listing, which may lack what peers publish while it runs.
    let began = config.clock.now();
    let what = format!("cannot read {}", data_dir.root().display());
    let failed = move |e: std::io::Error| {
        Error::new(crate::kind_of(&e), what.clone())
            .with_cause(e, "check its permissions and free space")
    };
    let own = data_dir.own();
    // Caps are compared before anything is listed or changed.
    data_dir.join(config.capacity_bytes, config.shrink)?;
    let is_local = data_dir::is_local(data_dir.root()).map_err(&failed)?;
    // Before the listing: a chunk published meanwhile is in the log or in the listing.
    let changes = open_changes(&data_dir, is_local, &config.clock).map_err(&failed)?;
    begin_to_encode(&data_dir, config, &changes)?;
    let listing = Listing::begin(&data_dir).map_err(&failed)?;
    let duplicate_bytes = list_into(&data_dir, &mut index).map_err(&failed)?;
    let tenants = Tenants::open(&data_dir)?;
    // The bytes in a foreign layout are not counted yet; its scan checks the cap.
    let manifest = match data_dir.foreign() {
        None => data_dir.agree_on_cap(config.capacity_bytes, index.usage().used, config.shrink)?,
        Some(_) => data_dir.edit_manifest(data_dir::OPEN_WAIT_MAX, |_| Ok(()))?,
    };
    // A namespace that stands for many tenants is not noted: each tenant is, with its first save.
    let one = config.namespace.iter().find(|ns| !ns.has_salts_as_tenants());
    one.map_or(Ok(()), |ns| agree_on_namespace(&data_dir, &tenants, ns))?;
    let mut open = || {
        let may_write = !data_dir.is_read_only();
        let quarantine_bytes =
            data_dir::quarantine::list(&own)?.iter().map(|kept| kept.bytes).sum::<u64>();
        let (reader, damage) = use_order::restore(&own, &mut index)?;
        damage.into_iter().for_each(|found| data_dir.note_damage(found));
        note_damaged_ledger(&data_dir);
        let ledger =
            if may_write { Ledger::open(&own, is_local)? } else { Ledger::detached(is_local) };
        let used = index.usage().used;
        let ledger_validity = match may_write {
            true => {
                let listing = listing.ended(used + quarantine_bytes, duplicate_bytes > 0);
                count_at_start(&data_dir, &ledger, &listing)?
            }
            false => LedgerValidity::default(),
        };
        Ok((ledger, ledger_validity, reader, quarantine_bytes))
    };
    let (ledger, ledger_validity, reader, quarantine_bytes) = open().map_err(failed)?;
    // Without a staging directory the journal is not written.
    let staging = data_dir.staging();
    let name = staging.as_ref().map_or("", |staging| staging.name());
    let journal = Journal::new(&own, name, &config.clock);
    let geometry = AgreedGeometry::new(&manifest);
    Ok((
        DirState {
            began,
            index,
            data_dir,
            space: SpaceState::new(ledger, ledger_validity, quarantine_bytes),
            journal,
            changes,
            tenants,
            geometry,
        },
        reader,
    ))
}

fn note_damaged_ledger(data_dir: &DataDir) {
    let own = data_dir.own();
    if ledger::is_damaged(&own) {
        data_dir.note_damage(format!("{}/ledger is damaged; it is recounted", own.display()));
    }
}

/// The listing of the directory at the start, and whether it is all that is stored.
///
/// A process that was killed may publish files until it is gone, and leaves unfinished ones whose
/// bytes are released when its staging directory is removed. Where there is one, or the ledger
/// changed, the listing is not the whole: a total set to it would be too low.
struct Listing {
    /// No other process had a staging directory when it began.
    was_alone: bool,
    /// The ledger when it began. Who saves changes it first.
    ledger: LedgerState,
    bytes: u64,
    /// Files were deleted that the ledger counts.
    has_changed_files: bool,
}

impl Listing {
    fn begin(data_dir: &DataDir) -> std::io::Result<Self> {
        let was_alone = !data_dir.is_read_only()
            && data_dir.with_registration_lock_at_open(|_| data_dir.has_only_own_staging())?;
        let ledger = LedgerState::read(&data_dir.own())?;
        Ok(Listing { was_alone, ledger, bytes: 0, has_changed_files: false })
    }

    fn ended(&self, bytes: u64, has_changed_files: bool) -> Self {
        Listing { bytes, has_changed_files, ..*self }
    }

    /// Whether it is all that is stored. The caller holds the registration lock.
    fn is_complete(&self, data_dir: &DataDir) -> std::io::Result<bool> {
        Ok(self.was_alone
            && data_dir.has_only_own_staging()?
            && LedgerState::read(&data_dir.own())? == self.ledger)
    }
}

/// Sets the ledger to the listed bytes, where no peer has the directory open; the directory is
/// counted again if something may have been published since the listing began. Where peers have it
/// open the total stands, unless files were changed that they did not count.
fn count_at_start(
    data_dir: &DataDir,
    ledger: &Ledger,
    listing: &Listing,
) -> std::io::Result<LedgerValidity> {
    let counted = data_dir.with_registration_lock_at_open(|alone| match alone {
        // The scan counts. Until it has, the total of the processes before is the better one: too
        // high at worst, unless the machine crashed.
        true if data_dir.foreign().is_some() => {
            // A total that was lost stays unknown where there are files: nothing is granted before a
            // save, the scan or the maintenance has counted them.
            let count = || match data_dir.has_foreign_files()? {
                true => Err(damage()),
                // Files in quarantine are counted.
                false => data_dir.count_once(),
            };
            match ledger.recount(false, count) {
                Err(e) if !is_damage(&e) => Err(e),
                _ => {
                    let ledger_validity = LedgerValidity::new(None, false);
                    ledger_validity.clear();
                    Ok(Some(ledger_validity))
                }
            }
        }
        true => {
            let is_complete = listing.is_complete(data_dir)?;
            let count = || match is_complete {
                true => Ok(listing.bytes),
                false => data_dir.count().map(|census| census.bytes),
            };
            ledger.recount(true, count).map(|done| Some(LedgerValidity::new(done, false)))
        }
        false => Ok(None),
    });
    // Others that open the directory do not wait for this.
    let counted = counted.and_then(|alone| match alone {
        Some(validity) => Ok(validity),
        None => {
            let changed = listing.has_changed_files || data_dir.has_removed_files();
            let count = || data_dir.count().map(|census| census.bytes);
            ledger.recount(changed, count).map(|_| LedgerValidity::new(None, true))
        }
    });
    let fold = || match ledger.fold() {
        Err(e) if is_damage(&e) && data_dir.foreign().is_some() => Ok(()),
        folded => folded,
    };
    match counted.and_then(|ledger_validity| fold().map(|()| ledger_validity)) {
        // A stopped process holds the lock: nothing is claimed before it is free.
        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Ok(LedgerValidity::new(None, true)),
        counted => counted,
    }
}

/// Opens the change log, to be read from its present end on.
fn open_changes(data_dir: &DataDir, is_local: bool, clock: &Clock) -> std::io::Result<ChangeLog> {
    let own = data_dir.own();
    if data_dir.foreign().is_none() && !data_dir.is_read_only() {
        data_dir.with_registration_lock_at_open(|_| ChangeLog::create(&own, clock))?;
    }
    let changes = ChangeLog::open(&own, is_local, clock);
    // A dead process may have published chunks without a record. The listing that follows finds
    // them.
    if data_dir.foreign().is_none() && data_dir.has_removed_files() {
        changes.append_lost();
        changes.settle(changes.missed());
    }
    Ok(changes)
}

/// Notes, for a tier that encodes, that the directory may have encoded chunks.
fn begin_to_encode(
    data_dir: &DataDir,
    config: &DiskConfig,
    changes: &ChangeLog,
) -> Result<(), Error> {
    if config.encoding.is_on() && data_dir.begin_to_encode(data_dir::OPEN_WAIT_MAX)? {
        // Peers list the directory, and find by that that names do not show lengths any more.
        changes.append_lost();
        changes.settle(changes.missed());
    }
    Ok(())
}

/// Enters all stored chunks into the index. Of a chunk with files of two lengths, the newer stays.
/// Returns the bytes of deleted files.
fn list_into(data_dir: &DataDir, index: &mut Index) -> std::io::Result<u64> {
    let mut duplicates = Vec::new();
    let mut bytes = 0;
    if data_dir.foreign().is_some() {
        return Ok(0);
    }
    data_dir.list(|Listed { digest, len, bytes, .. }| {
        match index.insert(Chunk::new(digest, len, bytes)) {
            InsertOutcome::Replaced { old } if old.len != len => duplicates.push((digest, old.len)),
            _ => {}
        }
    })?;
    for (digest, other) in duplicates {
        let Some(known) = index.get(&digest).map(|entry| entry.chunk.len) else { continue };
        let kept = data_dir.keep_newer(&digest, known, other)?;
        bytes += kept.gone_bytes;
        let _ = index.insert(Chunk::new(digest, kept.len, kept.bytes));
    }
    Ok(bytes)
}

/// The state of a foreign layout; `None` for layout `kvtier`.
pub fn foreign_of(config: &DiskConfig) -> Option<Foreign> {
    config.layout.is_foreign().then(|| Foreign::new(config))
}

/// Refuses a strict tier on a file system without attributes: it could not load its own saves.
pub fn refuse_without_facts(data_dir: &DataDir) -> Result<(), Error> {
    if data_dir.is_read_only()
        || data_dir.foreign().is_none_or(|foreign| foreign.verify != Verify::Strict)
    {
        return Ok(());
    }
    let at = |e: std::io::Error| {
        Error::new(crate::kind_of(&e), "cannot probe the file system").with_source(e)
    };
    if layout::probe_facts(&data_dir.own()).map_err(at)? {
        return Ok(());
    }
    let what = format!(
        "verify: strict needs a file system that keeps user attributes, for the facts; {} keeps none: choose another or verify: lenient",
        data_dir.root().display()
    );
    Err(Error::new(ErrorKind::Unsupported, what))
}

/// Lists the names of a foreign layout, if the namespace of its chunks is configured. Returns
/// whether they are listed.
pub fn list_known<M: Mover>(shared: &Shared<M>) -> Result<bool, Error> {
    let Some(foreign) = shared.data_dir.foreign().filter(|foreign| foreign.namespace().is_some())
    else {
        return Ok(false);
    };
    let what = || format!("cannot list {}", shared.data_dir.root().display());
    shared
        .list_foreign(foreign)
        .map_err(|e| Error::new(crate::kind_of(&e), what()).with_source(e))?;
    Ok(true)
}

/// Refuses a `free_min` that the empty file system does not have: it would evict every chunk.
pub fn refuse_reserve(config: &DiskConfig) -> Result<(), Error> {
    let Some(free_min) = config.free_min_bytes.filter(|bytes| *bytes > 0) else { return Ok(()) };
    let all = file_system_bytes(config)?;
    if free_min < all {
        return Ok(());
    }
    let what = format!(
        "free_min keeps {free_min} bytes free, the file system of {} has {all} in all: every chunk would be evicted; give a smaller free_min",
        config.path.display()
    );
    Err(Error::new(ErrorKind::Invalid, what))
}

/// Converts a cap that is a share of the file system into bytes.
pub fn measure_cap(config: &mut DiskConfig) -> Result<(), Error> {
    let Some(share) = config.capacity_share.take() else { return Ok(()) };
    config.capacity_bytes = (file_system_bytes(config)? as f64 * share) as u64;
    config.check()
}

fn file_system_bytes(config: &DiskConfig) -> Result<u64, Error> {
    let sizes = data_dir::sizes(&config.path).map_err(|e| {
        let what = format!("cannot read the size of the file system of {}", config.path.display());
        Error::new(crate::kind_of(&e), what).with_cause(e, "give the cap in bytes, and no free_min")
    })?;
    Ok(sizes.0)
}

pub fn free_min(path: &std::path::Path) -> std::io::Result<u64> {
    Ok((data_dir::sizes(path)?.0 / 100).min(1 << 30))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::chunk_file_name;
    use crate::ledger::Claimed;

    const BYTES: u64 = 12_288;

    /// What a process leaves that was killed while it saved.
    fn leave_unfinished(root: &Path) {
        let staging = root.join(".kvtier/tmp/other.1.2.3");
        fs::create_dir(&staging).unwrap();
        fs::write(staging.join("alive"), "").unwrap();
        fs::write(staging.join(format!("0-{BYTES:x}")), vec![0; BYTES as usize]).unwrap();
    }

    /// The total after a start during which `during` happens while the directory is listed.
    fn total_after_start(dies: impl Fn(&Path), during: impl Fn(&Path)) -> u64 {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path(), None).unwrap();
        dies(dir.path());
        let listing = Listing::begin(&data_dir).unwrap();
        during(dir.path());
        let ledger = Ledger::open(&data_dir.own(), true).unwrap();
        count_at_start(&data_dir, &ledger, &listing.ended(0, false)).unwrap();
        // The maintenance deletes the unfinished file, and releases what the ledger counts for it.
        let since = ledger.generation();
        let removed = data_dir.remove_stale(|| ()).unwrap();
        assert!(Ledger::peek(&data_dir.own()).unwrap().unwrap() >= removed.bytes);
        ledger.release(removed.bytes, since).unwrap();
        Ledger::peek(&data_dir.own()).unwrap().unwrap()
    }

    /// A crash of the machine brought back an old total. Both processes find another when they have listed.
    #[test]
    fn of_processes_that_start_together_one_counts_before_anything_is_granted() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join(".kvtier");
        drop(DataDir::open(dir.path(), None).unwrap());
        let name = chunk_file_name::path(dir.path(), &kvtier_key::Digest::default(), 5000);
        fs::write(name, vec![0; BYTES as usize]).unwrap();
        Ledger::open(&own, true).unwrap().recount(true, || Ok(0)).unwrap();
        // A tool that lives has not counted.
        let _tool = data_dir::register(&own).unwrap();
        let data_dirs = [(); 2].map(|()| DataDir::open(dir.path(), None).unwrap());
        assert_eq!(Ledger::peek(&own).unwrap(), None);
        for data_dir in data_dirs {
            let ledger = Ledger::open(&own, true).unwrap();
            let listing = Listing::begin(&data_dir).unwrap();
            count_at_start(&data_dir, &ledger, &listing.ended(BYTES, false)).unwrap();
            assert_eq!(Ledger::peek(&own).unwrap(), Some(BYTES));
            assert!(!data_dir.damage().iter().any(|said| said.contains("ledger")));
        }
        // Beside a tier that lives the total stands.
        let first = DataDir::open(dir.path(), None).unwrap();
        first.join(1 << 20, false).unwrap();
        let ledger = Ledger::open(&own, true).unwrap();
        ledger.recount(true, || Ok(BYTES)).unwrap();
        let _second = DataDir::open(dir.path(), None).unwrap();
        assert_eq!(Ledger::peek(&own).unwrap(), Some(BYTES));
        drop(first);
    }

    /// A total of 0 would let saves fill the cap beside the files that are there.
    #[test]
    fn a_lost_total_of_a_foreign_layout_is_counted_before_anything_is_granted() {
        let name = "org-SEP-m@0x02010201@0@00010203.data";
        for damage in [None, Some(&[7; 32][..]), Some(&[])] {
            let dir = tempfile::tempdir().unwrap();
            let mut config = DiskConfig::new(dir.path(), 20_000);
            config.layout = crate::Layout::LmcacheMp;
            let data_dir = DataDir::open(dir.path(), foreign_of(&config)).unwrap();
            fs::write(dir.path().join(name), vec![7; 15_000]).unwrap();
            let own = data_dir.own();
            damage.into_iter().for_each(|bytes| fs::write(own.join("ledger"), bytes).unwrap());
            let ledger = Ledger::open(&own, true).unwrap();
            let listing = Listing::begin(&data_dir).unwrap();
            count_at_start(&data_dir, &ledger, &listing.ended(0, false)).unwrap();
            assert_eq!(Ledger::peek(&own).unwrap(), None);
            let claim = |bytes| ledger.claim(bytes, 20_000, &mut || true).unwrap();
            assert_eq!(claim(6000), Claimed::Damaged);
            ledger.recount(false, || data_dir.count().map(|count| count.bytes)).unwrap().unwrap();
            assert_eq!((claim(6000), claim(5000)), (Claimed::Full, Claimed::Granted));
        }
    }

    /// What a crash of the machine may leave of a directory: no total, and a sidecar without a chunk.
    #[test]
    fn a_lost_total_stays_unknown_where_only_a_sidecar_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = DiskConfig::new(dir.path(), 1 << 20);
        config.layout = crate::Layout::LmcacheGds;
        let data_dir = DataDir::open(dir.path(), foreign_of(&config)).unwrap();
        let folder = dir.path().join("18/85");
        fs::create_dir_all(&folder).unwrap();
        let name = "m%401%400%401a2b000000000001%40half.kvcache.safetensors.metadata";
        fs::write(folder.join(name), [0; 4096]).unwrap();
        let ledger = Ledger::open(&data_dir.own(), true).unwrap();
        let listing = Listing::begin(&data_dir).unwrap();
        count_at_start(&data_dir, &ledger, &listing.ended(0, false)).unwrap();
        assert_eq!(Ledger::peek(&data_dir.own()).unwrap(), None);
    }

    #[test]
    fn a_lost_total_of_a_directory_without_chunks_counts_the_quarantine() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = DiskConfig::new(dir.path(), 1 << 20);
        config.layout = crate::Layout::LmcacheGds;
        let data_dir = DataDir::open(dir.path(), foreign_of(&config)).unwrap();
        fs::write(data_dir.own().join("quarantine/a file"), [0; 4096]).unwrap();
        let ledger = Ledger::open(&data_dir.own(), true).unwrap();
        let listing = Listing::begin(&data_dir).unwrap();
        count_at_start(&data_dir, &ledger, &listing.ended(0, false)).unwrap();
        assert_eq!(Ledger::peek(&data_dir.own()).unwrap(), Some(4096));
    }

    /// The files are counted by the first scan, and saves come before it.
    #[test]
    fn a_start_keeps_the_total_of_a_foreign_layout() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = DiskConfig::new(dir.path(), 1 << 20);
        config.layout = crate::Layout::LmcacheMp;
        for total in [0, 5000] {
            let data_dir = DataDir::open(dir.path(), foreign_of(&config)).unwrap();
            let ledger = Ledger::open(&data_dir.own(), true).unwrap();
            let listing = Listing::begin(&data_dir).unwrap();
            let validity = count_at_start(&data_dir, &ledger, &listing.ended(0, false)).unwrap();
            assert!(!validity.is_suspect());
            assert_eq!(Ledger::peek(&data_dir.own()).unwrap(), Some(total));
            ledger.recount(true, || Ok(5000)).unwrap();
        }
    }

    #[test]
    fn a_process_that_dies_beside_a_start_leaves_no_total_that_is_too_low() {
        assert_eq!(total_after_start(leave_unfinished, |_| ()), 0, "before the listing");
        assert_eq!(total_after_start(|_| (), leave_unfinished), 0, "during it");
        // A peer that saved and left: its file is not in the listing.
        let save = |root: &Path| {
            let ledger = Ledger::open(&root.join(".kvtier"), true).unwrap();
            ledger.recount(true, || Ok(0)).unwrap();
            let name = chunk_file_name::path(root, &kvtier_key::Digest::default(), 5000);
            fs::write(name, vec![0; BYTES as usize]).unwrap();
        };
        assert_eq!(total_after_start(|_| (), save), BYTES);
    }
}
