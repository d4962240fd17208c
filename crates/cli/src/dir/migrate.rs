//! `kvtier migrate`: chunks from one directory into another, whatever their layouts.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use kvtier::bytes::format;
use kvtier::core::{Ctx, Digest, ErrorKind, Hold, Key, Mode, Namespace, Presence, Save, Saved, Tier};
use kvtier::file::inspect::{Directory, Named, Source};
use kvtier::file::{FileConfig, FileTier, Layout};
use kvtier::mem::{Arena, ArenaConfig};
use serde_json::json;

use crate::BadInput;

/// How long one chunk may take.
const CHUNK_TIME: Duration = Duration::from_secs(120);
/// How many chunks are looked up at a time.
const SOME: usize = 1024;

/// `kvtier migrate`.
#[derive(clap::Args)]
pub struct MigrateArgs {
    /// The directory with the chunks; nothing in it is changed.
    from: PathBuf,
    /// The directory they go to; made if it is not there.
    to: PathBuf,
    /// Whose files FROM holds, where its manifest does not say.
    #[arg(long)]
    from_layout: Option<String>,
    /// Whose files TO is to hold: kvtier, lmcache-mp or lmcache. As its manifest says, else kvtier.
    #[arg(long)]
    to_layout: Option<String>,
    /// The cap of TO, such as 100GiB; as its manifest says, else all of its file system.
    #[arg(long)]
    bytes: Option<String>,
    /// The tenant of chunks that carry no facts, because another program wrote them.
    #[arg(long, default_value = "")]
    tenant: String,
    /// The layout digest of their namespace, 64 hexadecimal digits; zeros if nothing is said.
    #[arg(long)]
    layout_id: Option<String>,
    /// Copy chunks without facts too, whose bytes nothing proves; without this they stay behind.
    #[arg(long)]
    unverified: bool,
    /// The length of a whole chunk, such as 4MiB: of the chunks without facts only those of that length are copied. One that its writer filled
    /// with zeros to the next 4096 bytes is cut to it.
    #[arg(long, requires = "unverified")]
    chunk_bytes: Option<String>,
    /// Of the chunks without facts, copy those shorter than --chunk-bytes too.
    #[arg(long, requires = "chunk_bytes")]
    partial: bool,
    /// Only say what would be copied; nothing is written.
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What became of the chunks.
#[derive(Default)]
struct Tally {
    copied: u64,
    copied_bytes: u64,
    present: u64,
    /// Without facts, so that nothing proves them: copied or left behind.
    unverified: u64,
    /// Of those, the ones that stay behind.
    left_behind: u64,
    unsupported: u64,
    /// Why the first one was.
    why: Option<String>,
    damaged: u64,
    gone: u64,
}

impl Tally {
    fn unsupported(&mut self, why: impl ToString) {
        self.unsupported += 1;
        self.why.get_or_insert_with(|| why.to_string());
    }

    fn leave_behind(&mut self) {
        self.unverified += 1;
        self.left_behind += 1;
    }
}

/// A chunk to be copied.
struct Wanted {
    chunk: Named,
    key: Key,
    /// Length of the payload in bytes; the file of a chunk without facts may be longer, by zeros.
    len: u64,
    /// Whether its file carries facts.
    proven: bool,
}

/// Which chunks without facts are copied.
struct Trust {
    any: bool,
    chunk_bytes: Option<u64>,
    partial: bool,
}

impl Trust {
    fn of(args: &MigrateArgs) -> Result<Self, BadInput> {
        let chunk_bytes =
            args.chunk_bytes.as_deref().map(|text| crate::replay::size("--chunk-bytes", text)).transpose()?;
        if chunk_bytes == Some(0) {
            return Err(BadInput("--chunk-bytes must be more than 0".into()));
        }
        Ok(Trust { any: args.unverified, chunk_bytes, partial: args.partial })
    }

    /// The payload's length of a chunk whose file has `len` bytes; `None` for one that stays behind.
    fn payload(&self, len: u64) -> Option<u64> {
        match self.chunk_bytes {
            _ if !self.any => None,
            None => Some(len),
            Some(whole) if len == whole.next_multiple_of(4096) => Some(whole),
            Some(whole) => (len == whole || (self.partial && len < whole)).then_some(len),
        }
    }
}

/// Copies. Answers whether every chunk is now in TO.
pub fn migrate(args: &MigrateArgs) -> Result<bool> {
    crate::interrupt::watch()?;
    let from = super::open_as(&args.from, args.from_layout.as_deref())?;
    if same(args) {
        return Err(BadInput("FROM and TO are the same directory".into()).into());
    }
    let mut tally = Tally::default();
    let target = Target::of(args)?;
    let found = find_keys(&from, args, &mut tally)?;
    let wanted = target.select(found, &mut tally);
    let (wanted, tier) = target.without_present(wanted, args, &mut tally)?;
    match tier {
        Some(tier) if !args.dry_run => copy(&from, &tier, &wanted, &mut tally)?,
        _ => {
            tally.copied = wanted.len() as u64;
            tally.copied_bytes = wanted.iter().map(|one| one.len).sum();
        }
    }
    report(args, (from.layout(), target.layout), &tally)?;
    Ok(tally.unsupported + tally.damaged + tally.left_behind == 0)
}

fn same(args: &MigrateArgs) -> bool {
    matches!((args.from.canonicalize(), args.to.canonicalize()), (Ok(from), Ok(to)) if from == to)
}

/// The chunks whose key their file tells.
fn find_keys(from: &Directory, args: &MigrateArgs, tally: &mut Tally) -> Result<Vec<Wanted>> {
    let trust = Trust::of(args)?;
    let digest = args.layout_id.as_deref().map(|text| {
        Digest::from_hex(text).ok_or_else(|| BadInput(format!("--layout-id {text}: not 64 hexadecimal digits")))
    });
    let unverified = Arc::new(Namespace::new(args.tenant.as_str(), digest.transpose()?.unwrap_or_default()));
    let mut chunks = from.chunks().context("cannot list the directory")?;
    chunks.sort_unstable();
    let mut found = Vec::with_capacity(chunks.len());
    for chunk in chunks {
        match from.key_of(&chunk, &unverified) {
            Ok(Source::Key(key)) => found.push(Wanted { len: chunk.len, chunk, key, proven: true }),
            Ok(Source::Unproven(key)) => match trust.payload(chunk.len) {
                Some(len) => found.push(Wanted { chunk, key, len, proven: false }),
                None => tally.leave_behind(),
            },
            Ok(Source::Untold(why)) => tally.unsupported(why),
            Ok(_) => tally.damaged += 1,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => tally.gone += 1,
            Err(e) => return Err(e).with_context(|| format!("cannot read the file of {}", chunk.label())),
        }
    }
    Ok(found)
}

/// The directory that chunks go to.
struct Target {
    path: PathBuf,
    layout: Layout,
    capacity_bytes: u64,
    exists: bool,
}

impl Target {
    fn of(args: &MigrateArgs) -> Result<Self> {
        let exists = args.to.join(".kvtier/manifest").exists();
        let asked = args.to_layout.as_deref().map(str::parse::<Layout>).transpose().map_err(crate::cannot_open)?;
        let there = if exists { Some(Directory::open(&args.to).map_err(crate::cannot_open)?) } else { None };
        let noted = there.as_ref().map(Directory::layout);
        if let (Some(asked), Some(noted)) = (asked, noted)
            && asked != noted
        {
            return Err(BadInput(format!("{} has layout {noted}, not {asked}", args.to.display())).into());
        }
        let told = args.bytes.as_deref().map(|text| {
            kvtier::bytes::parse(text).ok_or_else(|| BadInput(format!("--bytes {text}: no size; write 100GiB, say")))
        });
        let capacity = match (told.transpose()?, there.and_then(|there| there.capacity_bytes())) {
            (Some(told), _) => told,
            (None, Some(noted)) => noted,
            (None, None) => crate::space::of(&args.to)?.all,
        };
        let layout = asked.or(noted).unwrap_or_default();
        Ok(Target { path: args.to.clone(), layout, capacity_bytes: capacity, exists })
    }

    /// The chunks whose keys TO has names for, of one namespace where it can have but one.
    fn select(&self, found: Vec<Wanted>, tally: &mut Tally) -> Vec<Wanted> {
        if !self.layout.is_foreign() {
            return found;
        }
        let mut namespace = None;
        let mut fits = |key: &Key| -> Result<(), String> {
            self.layout.file_name(key.id()).map_err(|e| e.to_string())?;
            let ours = *namespace.get_or_insert(key.namespace().digest());
            if ours == key.namespace().digest() { Ok(()) } else { Err("of another namespace than the rest".into()) }
        };
        let mut kept = Vec::with_capacity(found.len());
        for one in found {
            match fits(&one.key) {
                Ok(()) => kept.push(one),
                Err(why) => tally.unsupported(why),
            }
        }
        kept
    }

    /// Leaves out what TO has, and refuses what would not fit. A dry run opens TO only to look, and without anything to write TO is not made.
    fn without_present(
        &self,
        wanted: Vec<Wanted>,
        args: &MigrateArgs,
        tally: &mut Tally,
    ) -> Result<(Vec<Wanted>, Option<FileTier>)> {
        if wanted.is_empty() || (args.dry_run && !self.exists) {
            return Ok((wanted, None));
        }
        let tier = if args.dry_run { None } else { Some(self.open()?) };
        let there = Directory::open(&self.path).map_err(crate::cannot_open)?;
        let present = tier.as_ref().map_or_else(|| self.listed(&there, &wanted), |tier| looked_up(tier, &wanted))?;
        let mut missing = Vec::new();
        for (one, present) in wanted.into_iter().zip(present) {
            if present { tally.present += 1 } else { missing.push(one) }
        }
        let held = there.summary()?.bytes;
        // A footer and the padding before it, where there are some.
        let each = if self.layout.is_foreign() { 0 } else { 8191 };
        let needed: u64 = missing.iter().map(|one| one.len + each).sum();
        if held.saturating_add(needed) > self.capacity_bytes {
            let what = format!(
                "{} more do not fit into {}: it holds {} of {}; raise --bytes",
                format(needed),
                self.path.display(),
                format(held),
                format(self.capacity_bytes)
            );
            return Err(BadInput(what).into());
        }
        Ok((missing, tier))
    }

    /// Which of the chunks TO has, by its names: what a tier would find, without opening one.
    fn listed(&self, there: &Directory, wanted: &[Wanted]) -> Result<Vec<bool>> {
        let chunks = there.chunks().context("cannot list the directory")?;
        let names: HashSet<(String, u64)> = chunks.iter().map(|chunk| (chunk.label(), chunk.len)).collect();
        let name = |key: &Key| {
            if self.layout.is_foreign() { self.layout.file_name(key.id()).ok() } else { Some(key.digest().to_hex()) }
        };
        Ok(wanted.iter().map(|one| name(&one.key).is_some_and(|name| names.contains(&(name, one.len)))).collect())
    }

    fn open(&self) -> Result<FileTier> {
        let config = FileConfig::new(&self.path, self.capacity_bytes).with_layout(self.layout).with_free_min(0);
        Ok(FileTier::open(config).map_err(crate::cannot_open)?)
    }
}

/// Which of the chunks a tier has.
fn looked_up(tier: &FileTier, wanted: &[Wanted]) -> Result<Vec<bool>> {
    let mut present = Vec::with_capacity(wanted.len());
    for some in wanted.chunks(SOME) {
        let keys: Arc<[Key]> = some.iter().map(|one| one.key.clone()).collect();
        let looked = tier.lookup(&Ctx::within(CHUNK_TIME), keys, Mode::Each, Hold::None).wait()?;
        let found = some.iter().zip(looked.found);
        present.extend(found.map(|(one, found)| matches!(found, Presence::Hit { len } if len == one.len)));
    }
    Ok(present)
}

fn copy(from: &Directory, tier: &FileTier, wanted: &[Wanted], tally: &mut Tally) -> Result<()> {
    let longest = wanted.iter().map(|one| one.len).max().unwrap_or(1) as usize;
    let arena =
        Arena::new(ArenaConfig::heap(longest.next_multiple_of(4096) + 4096)).context("no memory for a chunk")?;
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {binary_bytes_per_sec} (eta {eta})");
    let bar = ProgressBar::new(wanted.iter().map(|one| one.len).sum()).with_style(style.context("template")?);
    for one in wanted {
        if crate::interrupt::asked() {
            bar.finish_and_clear();
            return Err(crate::interrupt::Interrupted.into());
        }
        copy_one(from, tier, (&arena, one), tally)?;
        bar.inc(one.len);
    }
    bar.finish_and_clear();
    tier.close().wait().context("cannot close the directory")
}

fn copy_one(from: &Directory, tier: &FileTier, (arena, one): (&Arena, &Wanted), tally: &mut Tally) -> Result<()> {
    let Wanted { chunk, key, len, .. } = one;
    let (mut payload, proven) = match from.read(chunk) {
        Ok(Ok(read)) => read,
        Ok(Err(_)) => {
            tally.damaged += 1;
            return Ok(());
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            tally.gone += 1;
            return Ok(());
        }
        Err(e) => return Err(e).with_context(|| format!("cannot read the file of {}", chunk.label())),
    };
    // A file without facts that had some a moment ago is another one.
    if (one.proven && !proven) || payload.iter().skip(*len as usize).any(|byte| *byte != 0) {
        tally.leave_behind();
        return Ok(());
    }
    payload.truncate(*len as usize);
    let mut lease = arena.lease(payload.len()).context("no memory for a chunk")?;
    lease.write_at(0, &payload).context("no memory for a chunk")?;
    let op = Save { key: key.clone(), from: vec![lease.freeze()] };
    let done = tier.save(&Ctx::within(CHUNK_TIME), vec![op]).wait();
    match done.into_iter().next().map(|done| done.result) {
        Some(Ok(Saved::Stored | Saved::Present)) => {
            tally.copied += 1;
            tally.copied_bytes += payload.len() as u64;
            tally.unverified += u64::from(!proven);
        }
        Some(Err(e)) if matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::Invalid) => tally.unsupported(e),
        Some(Err(e)) => return Err(e).with_context(|| format!("cannot write {}", chunk.label())),
        Some(Ok(shed)) => bail!("{} was not taken: {shed:?}; what was copied stays, run it again", chunk.label()),
        None => bail!("no answer for {}", chunk.label()),
    }
    Ok(())
}

fn report(args: &MigrateArgs, (from, to): (Layout, Layout), tally: &Tally) -> Result<()> {
    if args.json {
        let all = json!({
            "from_layout": from.name(), "to_layout": to.name(), "dry_run": args.dry_run, "copied": tally.copied,
            "copied_bytes": tally.copied_bytes, "present": tally.present, "unverified": tally.unverified, "left_behind": tally.left_behind,
            "unsupported": tally.unsupported, "unsupported_why": tally.why, "damaged": tally.damaged, "gone": tally.gone,
        });
        return crate::out::line(&all.to_string());
    }
    let verb = if args.dry_run { "would copy" } else { "copied" };
    crate::out::line(&format!(
        "{from} to {to}: {verb} {} chunks ({}), {} were there, {} damaged stay behind",
        tally.copied,
        format(tally.copied_bytes),
        tally.present,
        tally.damaged
    ))?;
    if tally.unverified > tally.left_behind {
        let count = tally.unverified - tally.left_behind;
        crate::out::line(&format!("{count} of them had no facts: nothing proved their bytes"))?;
    }
    if tally.left_behind > 0 {
        let next = match (args.unverified, args.partial) {
            (false, _) => "--unverified copies them as they are, with --chunk-bytes N only those of that length",
            (true, false) => "they have not the length of --chunk-bytes; --partial copies the shorter ones",
            (true, true) => "they are longer than --chunk-bytes",
        };
        crate::out::line(&format!("{} without facts, which nothing proves, stay behind: {next}", tally.left_behind))?;
    }
    if let Some(why) = &tally.why {
        crate::out::line(&format!("{} have no place in layout {to}: {why}", tally.unsupported))?;
    }
    Ok(())
}
