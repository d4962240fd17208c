//! Chunks into a directory, through a tier.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind as Io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use kvtier::byte_size::format;
use kvtier::codec::TierEncoding;
use kvtier::core::{Ctx, ErrorKind, Hold, Key, Mode, Presence, Save, Saved, Tier};
use kvtier::file::inspect::{ChunkName, Directory, NewChunk, Writer};
use kvtier::file::{ChunkShape, FileConfig, FileTier, Layout};
use kvtier::mem::{Arena, ArenaConfig};

use super::chunk::{ChunkIdentity, SourceChunk};
use super::encode::encode;
use super::report::Tally;
use super::{CopyArgs, CopyOutcome, Sink};
use crate::BadInput;

/// How long one chunk may take.
const CHUNK_TIME: Duration = Duration::from_secs(120);
/// How many chunks are looked up at a time.
const SOME: usize = 1024;

/// The directory that chunks go to.
pub struct Files {
    path: PathBuf,
    layout: Layout,
    shape: Option<ChunkShape>,
    capacity_bytes: u64,
    exists: bool,
    encoding: Arc<TierEncoding>,
}

impl Files {
    pub fn of(args: &CopyArgs) -> Result<Self> {
        // Asked before anything is opened, since opening creates it.
        let exists = args.to.join(".kvtier/manifest").exists();
        let asked = args
            .target
            .to_layout
            .as_deref()
            .map(str::parse::<Layout>)
            .transpose()
            .map_err(crate::cannot_open)?;
        let there = if exists {
            Some(Directory::open(&args.to).map_err(crate::cannot_open)?)
        } else {
            None
        };
        let noted = there.as_ref().map(Directory::layout);
        if let (Some(asked), Some(noted)) = (asked, noted)
            && asked != noted
        {
            return Err(
                BadInput(format!("{} has layout {noted}, not {asked}", args.to.display())).into()
            );
        }
        let given = args.target.bytes.as_deref().map(|text| {
            kvtier::byte_size::parse(text)
                .ok_or_else(|| BadInput(format!("--bytes {text}: no size; write 100GiB, say")))
        });
        let capacity = match (given.transpose()?, there.and_then(|there| there.capacity_bytes())) {
            (Some(given), _) => given,
            // The cap that the directory has is kept, so that a copy never evicts what is there.
            (None, Some(noted)) => noted,
            (None, None) => crate::disk_space::of(&args.to)?.all,
        };
        let layout = asked.or(noted).unwrap_or_default();
        let encoding = args.how.keys.encoding(&args.target.encodings)?;
        if encoding.is_on() && layout.is_foreign() {
            let what = format!(
                "--encode: files of layout {layout} hold chunks as they are; leave --encode out"
            );
            return Err(BadInput(what).into());
        }
        if args.target.shape.is_some() && !layout.has_headers() {
            let what = format!(
                "--shape is for a directory of layout lmcache-gds or lmcache-gds-weka, and {} has layout {layout}; leave --shape out",
                args.to.display()
            );
            return Err(BadInput(what).into());
        }
        let shape = args.target.shape.as_deref().map(str::parse::<ChunkShape>).transpose();
        let shape = shape.map_err(|e| BadInput(format!("--shape: {e}")))?;
        Ok(Files {
            path: args.to.clone(),
            layout,
            shape,
            capacity_bytes: capacity,
            exists,
            encoding,
        })
    }

    pub fn layout(&self) -> &'static str {
        self.layout.name()
    }

    /// Whether names there spell keys; why there is none for this chunk.
    pub fn names(&self, one: &SourceChunk) -> Result<bool, String> {
        if !self.layout.is_foreign() {
            return Ok(false);
        }
        let key = one.identity.key.as_ref().map_err(String::clone)?;
        self.layout.file_name(key.id()).map(|_| true).map_err(|e| e.to_string())
    }

    /// Leaves out what TO has, and refuses what would not fit. A dry run opens TO only to look, and
    /// without anything to write TO is not made.
    pub fn without_present(
        &self,
        wanted: Vec<SourceChunk>,
        args: &CopyArgs,
        tally: &mut Tally,
    ) -> Result<(Vec<SourceChunk>, Option<Box<dyn Sink + '_>>)> {
        // A dry run must not create the directory, so nothing can be present in it.
        if args.how.dry_run && !self.exists {
            return Ok((wanted, None));
        }
        let tier = if args.how.dry_run { None } else { Some(self.open()?) };
        let there = Directory::open(&self.path).map_err(crate::cannot_open)?;
        // A tier can be asked only for keys, which are not always known; names in our own layout
        // are digests.
        let target = match tier.as_ref().filter(|_| self.layout.is_foreign()) {
            Some(tier) => TargetChunks::without_clear(looked_up(tier, &wanted)?),
            None => self.listed(&there, &wanted)?,
        };
        let mut missing = Vec::new();
        for (one, present) in wanted.into_iter().zip(&target.present) {
            // A copy that was interrupted goes on where it ended, since what it wrote is present
            // now.
            if *present { tally.present += 1 } else { missing.push(one) }
        }
        let workers = args.how.pace.workers(super::WORKERS)?.max(super::WORKERS);
        self.check_space(&there, &missing, &target, workers)?;
        let longest = missing.iter().map(|one| one.len).max().unwrap_or(1) as usize;
        let Some(tier) = tier else { return Ok((missing, None)) };
        let padded = longest.next_multiple_of(4096) + 4096;
        // Twice as much as the longest chunks take: wherever shorter ones of the other workers lie,
        // there is a place for one more. What is not touched is no memory.
        let arena = Arena::new(ArenaConfig::heap(2 * workers * padded))
            .context("no memory for the chunks")?;
        Ok((
            missing,
            Some(Box::new(OpenDirectory {
                tier,
                arena,
                path: self.path.clone(),
                encoding: Arc::clone(&self.encoding),
                by_digest: OnceLock::new(),
            })),
        ))
    }

    /// Refuses what would not fit. Checked before the first chunk is written: a copy that evicts its
    /// own beginning would be a silent loss.
    fn check_space(
        &self,
        there: &Directory,
        missing: &[SourceChunk],
        target: &TargetChunks,
        workers: usize,
    ) -> Result<()> {
        let held =
            there.summary().with_context(|| format!("cannot read {}", self.path.display()))?.bytes;
        // A footer and the padding before it, or two headers, where there are some.
        let each = match self.layout {
            Layout::Kvtier => 8191,
            layout if layout.has_headers() => 8192,
            _ => 0,
        };
        // What a save claims beside them until its files have their names: a second file once more, and the
        // rest of the last page.
        let while_written = match self.layout {
            Layout::Kvtier => 0,
            layout if layout.has_headers() => 4096 + 4095,
            _ => 4095,
        };
        let written: u64 = missing.iter().map(|one| one.len + each).sum();
        let needed = written.saturating_sub(target.replaced_for_certain(workers))
            + missing.len().min(workers) as u64 * while_written;
        if held.saturating_add(needed) <= self.capacity_bytes {
            return Ok(());
        }
        let what = format!(
            "{} more do not fit into {}: it holds {} of {}; raise --bytes",
            format(needed),
            self.path.display(),
            format(held),
            format(self.capacity_bytes)
        );
        Err(BadInput(what).into())
    }

    /// Which of the chunks TO has, by its names: what a tier would find, without opening one.
    fn listed(&self, there: &Directory, wanted: &[SourceChunk]) -> Result<TargetChunks> {
        let mut chunks = crate::dir::listed(there, &self.path)?;
        let mut clear = HashMap::new();
        if self.encoding.encrypts() {
            // What is stored in clear is written again.
            chunks.retain(|chunk| match bytes_in_clear(there, chunk) {
                Some(bytes) => {
                    clear.insert((chunk.label(), chunk.len), bytes);
                    false
                }
                None => true,
            });
        }
        let names: HashSet<(String, u64)> =
            chunks.iter().map(|chunk| (chunk.label(), chunk.len)).collect();
        let name = |identity: &ChunkIdentity| match (self.layout.is_foreign(), &identity.key) {
            (true, Ok(key)) => self.layout.file_name(key.id()).ok(),
            (true, Err(_)) => None,
            (false, _) => Some(identity.digest.to_hex()),
        };
        let mut target = TargetChunks::without_clear(Vec::with_capacity(wanted.len()));
        for one in wanted {
            let named = name(&one.identity).map(|name| (name, one.len));
            target.present.push(named.as_ref().is_some_and(|named| names.contains(named)));
            // Taken out: a chunk that comes twice replaces one file.
            target.replaced.extend(named.and_then(|named| clear.remove(&named)));
        }
        Ok(target)
    }

    fn open(&self) -> Result<FileTier> {
        let config = FileConfig::new(&self.path, self.capacity_bytes)
            .with_layout(self.layout)
            // The user named the target and its size. Space that caches leave free for others is
            // not the point here.
            .with_free_min(0);
        let config = match self.encoding.is_on() {
            true => config.with_encoding(Arc::clone(&self.encoding)),
            false => config,
        };
        let config = self.shape.clone().into_iter().fold(config, FileConfig::with_chunk_shape);
        Ok(FileTier::open(config).map_err(crate::cannot_open)?)
    }
}

/// What TO has of the chunks that are copied.
struct TargetChunks {
    /// For each of them whether it is there and stays.
    present: Vec<bool>,
    /// The bytes of the files in clear that encrypted ones replace.
    replaced: Vec<u64>,
}

impl TargetChunks {
    fn without_clear(present: Vec<bool>) -> Self {
        TargetChunks { present, replaced: Vec::new() }
    }

    /// The bytes that are free again however many of `workers` still write: each keeps the file in
    /// clear until its encrypted one is whole.
    fn replaced_for_certain(&self, workers: usize) -> u64 {
        let all: u64 = self.replaced.iter().sum();
        let longest = self.replaced.iter().max().copied().unwrap_or(0);
        all.saturating_sub(longest.saturating_mul(workers as u64))
    }
}

/// The bytes of the file of a chunk that is not encrypted, as far as it can be read.
fn bytes_in_clear(dir: &Directory, chunk: &ChunkName) -> Option<u64> {
    let form = dir.stored_form(chunk).ok()?.ok()?;
    (form.key_id == 0).then(|| dir.file_len(chunk))
}

/// Which of the chunks a tier has.
fn looked_up(tier: &FileTier, wanted: &[SourceChunk]) -> Result<Vec<bool>> {
    let mut present = Vec::with_capacity(wanted.len());
    for some in wanted.chunks(SOME) {
        let keys: Option<Arc<[Key]>> =
            some.iter().map(|one| one.identity.key.clone().ok()).collect();
        // `select` has left such chunks out.
        let keys = keys.context("a chunk whose key is not known has no name there")?;
        let looked = tier.lookup(&Ctx::within(CHUNK_TIME), keys, Mode::Each, Hold::None).wait()?;
        let found = some.iter().zip(looked.found);
        present.extend(
            found.map(|(one, found)| matches!(found, Presence::Hit { len } if len == one.len)),
        );
    }
    Ok(present)
}

/// The tier that takes chunks.
struct OpenDirectory {
    tier: FileTier,
    arena: Arena,
    path: PathBuf,
    encoding: Arc<TierEncoding>,
    /// For chunks whose key is not known. Made with the first.
    by_digest: OnceLock<Result<Writer, String>>,
}

impl OpenDirectory {
    /// Writes a chunk of which the digest of its key is known, and perhaps the canonical form.
    fn put_by_digest(&self, one: &SourceChunk, payload: Vec<u8>) -> Result<CopyOutcome> {
        let open = || {
            Directory::open(&self.path)
                .map_err(|e| e.to_string())?
                .writer()
                .map_err(|e| e.to_string())
        };
        // A chunk without a key cannot be saved through the tier. The writer puts its file in place
        // by digest. It is opened at the first such chunk.
        let writer = self.by_digest.get_or_init(open).as_ref();
        let writer = writer.map_err(|e| anyhow!("cannot write to {}: {e}", self.path.display()))?;
        let (facts, payload) = encode(&self.encoding, &one.identity, payload)?;
        let canonical = one.identity.canonical.as_deref().unwrap_or_default();
        match writer.write(&NewChunk { facts: &facts, canonical, payload: &payload }) {
            Ok(true) => Ok(CopyOutcome::Stored),
            // An open tier may have saved the chunk meanwhile.
            Ok(false) => Ok(CopyOutcome::Present),
            Err(e) if e.kind() == Io::InvalidInput => Ok(CopyOutcome::Unsupported(e.to_string())),
            Err(e) => Err(e).with_context(|| format!("cannot write {}", one.label)),
        }
    }
}

impl Sink for OpenDirectory {
    fn put(&self, one: &SourceChunk, payload: Vec<u8>) -> Result<CopyOutcome> {
        let Ok(key) = &one.identity.key else { return self.put_by_digest(one, payload) };
        let mut lease = self.arena.lease(payload.len()).context("no memory for a chunk")?;
        lease.write_at(0, &payload).context("no memory for a chunk")?;
        let op = Save { key: key.clone(), from: vec![lease.freeze()] };
        let done = self.tier.save(&Ctx::within(CHUNK_TIME), vec![op]).wait();
        match done.into_iter().next().map(|done| done.result) {
            Some(Ok(Saved::Stored)) => Ok(CopyOutcome::Stored),
            Some(Ok(Saved::Present)) => Ok(CopyOutcome::Present),
            Some(Err(e)) if matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::Invalid) => {
                Ok(CopyOutcome::Unsupported(e.to_string()))
            }
            Some(Err(e)) => Err(e).with_context(|| format!("cannot write {}", one.label)),
            // A tier may refuse what a cache need not keep. A copy must not.
            Some(Ok(shed)) => {
                bail!("{} was not taken: {shed:?}; what was copied stays, run it again", one.label)
            }
            None => bail!("no answer for {}", one.label),
        }
    }

    fn finish(&self) -> Result<()> {
        // Open tiers learn of the files from the change log.
        if let Some(Ok(writer)) = self.by_digest.get() {
            writer.finish().context(
                "the chunks are copied; open tiers find them by a listing within seconds",
            )?;
        }
        self.tier.close().wait().context("cannot close the directory")
    }
}
