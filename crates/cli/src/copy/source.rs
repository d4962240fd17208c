//! Where chunks come from.

use std::io::ErrorKind as Io;
use std::sync::Arc;

use anyhow::{Context, Result};
use kvtier::core::{Digest, Key, Namespace};
use kvtier::file::inspect::{ChunkName, Directory, Source as KeySource};
use kvtier::key::{Facts, KeyId};

use super::archive::ArchiveReader;
use super::report::Tally;
use super::{CopyArgs, CopyMode};
use crate::BadInput;
use crate::bucket::Bucket;

/// What is copied from.
pub enum CopySource {
    Directory(Directory),
    Bucket(Bucket),
    Archive(ArchiveReader),
}

/// A chunk to be copied.
pub struct SourceChunk {
    pub label: String,
    pub at: Location,
    pub identity: ChunkIdentity,
    /// Length of the payload in bytes; the file of a chunk without facts may be longer, by zeros.
    pub len: u64,
    /// Whether it carries facts.
    pub proven: bool,
}

/// The identity of a chunk.
pub struct ChunkIdentity {
    /// The key's digest.
    pub digest: Digest,
    /// The namespace's digest.
    pub namespace: Digest,
    /// The key, if the medium has it; else why not.
    pub key: Result<Key, String>,
    /// The key's canonical form, which has a salt as a digest only; `None` where the medium
    /// does not have it.
    pub canonical: Option<Vec<u8>>,
}

impl ChunkIdentity {
    /// The identity of a chunk with facts, from at most the canonical form of its key; `reason` says
    /// why the medium does not have that.
    pub fn of(facts: &Facts, canonical: Option<Vec<u8>>, reason: &str) -> Self {
        let digest = facts.key;
        let namespace = facts.namespace;
        // A key that does not have the digest of the facts is not the chunk's. Bytes without a key
        // are better than bytes under a wrong one.
        let canonical = canonical.filter(|bytes| Key::digest_of(&namespace, bytes) == digest);
        let key = canonical.as_ref().ok_or_else(|| reason.to_owned()).and_then(|bytes| {
            let id = KeyId::from_canonical(bytes).map_err(|e| e.to_string())?;
            Ok(Key::new(Arc::new(Namespace::known_by(namespace)), id))
        });
        ChunkIdentity { digest, namespace, key, canonical }
    }
}

impl From<Key> for ChunkIdentity {
    fn from(key: Key) -> Self {
        let digest = *key.digest();
        let namespace = key.namespace().digest();
        let canonical = Some(key.canonical());
        ChunkIdentity { digest, namespace, key: Ok(key), canonical }
    }
}

/// Where a chunk is stored.
pub enum Location {
    File(ChunkName),
    Object(String),
    /// Where in an archive its record begins.
    Record(u64),
}

/// What reading a chunk gave.
pub enum ChunkRead {
    /// Its bytes, and whether facts prove them.
    Payload(Vec<u8>, bool),
    Damaged,
    Gone,
}

/// Whether chunks without facts are copied, and their namespace.
pub struct UnverifiedChoice {
    any: bool,
    chunk_bytes: Option<u64>,
    partial: bool,
    pub namespace: Arc<Namespace>,
    pub models: Vec<String>,
}

impl UnverifiedChoice {
    fn of(args: &CopyArgs) -> Result<Self, BadInput> {
        let chunk_bytes = args
            .source
            .chunk_bytes
            .as_deref()
            .map(|text| crate::replay::size("--chunk-bytes", text))
            .transpose()?;
        if chunk_bytes == Some(0) {
            return Err(BadInput("--chunk-bytes must be more than 0".into()));
        }
        let digest = args.source.layout_id.as_deref().map(|text| {
            Digest::from_hex(text)
                .ok_or_else(|| BadInput(format!("--layout-id {text}: not 64 hexadecimal digits")))
        });
        let namespace = Arc::new(Namespace::new(
            args.source.tenant.as_deref().unwrap_or_default(),
            digest.transpose()?.unwrap_or_default(),
        ));
        Ok(UnverifiedChoice {
            any: args.source.unverified,
            chunk_bytes,
            partial: args.source.partial,
            namespace,
            models: args.source.model.clone(),
        })
    }

    /// The payload's length of a chunk whose file or object has `len` bytes; `None` for one that
    /// stays behind.
    pub fn payload(&self, len: u64) -> Option<u64> {
        match self.chunk_bytes {
            _ if !self.any => None,
            None => Some(len),
            // A file that is padded to a page: the payload is a full chunk.
            Some(whole) if len == whole.next_multiple_of(4096) => Some(whole),
            Some(whole) => (len == whole || (self.partial && len < whole)).then_some(len),
        }
    }
}

impl CopySource {
    pub fn of(args: &CopyArgs, way: CopyMode) -> Result<Self> {
        if way == CopyMode::Import {
            return Ok(CopySource::Archive(ArchiveReader::open(&args.from)?));
        }
        let layout = args.source.from_layout.as_deref();
        if let Some(bucket) =
            Bucket::open(args.from.to_str().unwrap_or_default(), layout, &args.store)?
        {
            // A path that is not UTF-8 is no URL, and so a directory.
            return Ok(CopySource::Bucket(bucket));
        }
        // Compared after links are resolved. A directory that is copied to itself would evict while
        // it reads.
        if matches!((args.from.canonicalize(), args.to.canonicalize()), (Ok(from), Ok(to)) if from == to)
        {
            return Err(BadInput("FROM and TO are the same directory".into()).into());
        }
        Ok(CopySource::Directory(crate::dir::open_as(&args.from, layout)?))
    }

    /// Its layout.
    pub fn layout(&self) -> String {
        match self {
            CopySource::Directory(dir) => dir.layout().to_string(),
            CopySource::Bucket(bucket) => bucket.layout_name(),
            CopySource::Archive(_) => "archive".into(),
        }
    }

    pub fn is_remote(&self) -> bool {
        matches!(self, CopySource::Bucket(_))
    }

    /// The chunks that can be identified.
    pub fn wanted(&self, args: &CopyArgs, tally: &mut Tally) -> Result<Vec<SourceChunk>> {
        let trust = UnverifiedChoice::of(args)?;
        match self {
            CopySource::Directory(dir) => {
                files(crate::dir::listed(dir, &args.from)?, dir, &trust, tally)
            }
            CopySource::Bucket(bucket) => super::bucket::objects(bucket, &trust, tally),
            CopySource::Archive(archive) => archive.wanted(),
        }
    }

    /// Reads a chunk whole and checks every byte by its facts.
    pub fn read(&self, one: &SourceChunk) -> Result<ChunkRead> {
        match (self, &one.at) {
            (CopySource::Directory(dir), Location::File(named)) => file(dir, named),
            (CopySource::Bucket(bucket), Location::Object(name)) => {
                super::bucket::read(bucket, name, one.len)
            }
            (CopySource::Archive(archive), Location::Record(at)) => archive.read(*at, one),
            _ => unreachable!("a source returns locations of its own kind"),
        }
    }
}

/// The chunks whose file contains their key.
fn files(
    mut chunks: Vec<ChunkName>,
    from: &Directory,
    trust: &UnverifiedChoice,
    tally: &mut Tally,
) -> Result<Vec<SourceChunk>> {
    // A copy that is repeated goes through the chunks in the same order.
    chunks.sort_unstable();
    let mut found = Vec::with_capacity(chunks.len());
    for chunk in chunks {
        let mut add = |identity: ChunkIdentity, len: u64, proven: bool| {
            found.push(SourceChunk {
                label: chunk.label(),
                at: Location::File(chunk.clone()),
                identity,
                len,
                proven,
            });
        };
        match from.key_of(&chunk, &trust.namespace) {
            Ok(KeySource::Key(key)) => add(key.into(), chunk.len, true),
            Ok(KeySource::Unverified(key)) => match trust.payload(chunk.len) {
                Some(len) => add(key.into(), len, false),
                None => tally.leave_behind(),
            },
            // The name does not give the key. The footer still proves the bytes, so an archive can
            // hold them.
            Ok(KeySource::UnknownKey(why)) => match from.footer(&chunk) {
                Ok(Ok((facts, canonical))) => {
                    add(
                        ChunkIdentity::of(&facts, Some(canonical), &why.to_string()),
                        chunk.len,
                        true,
                    );
                }
                _ => tally.unsupported(why),
            },
            Ok(_) => tally.damaged += 1,
            // Evicted since the listing, as happens in a directory that is in use.
            Err(e) if e.kind() == Io::NotFound => tally.gone += 1,
            Err(e) => {
                return Err(e)
                    .with_context(|| format!("cannot read the file of {}", chunk.label()));
            }
        }
    }
    Ok(found)
}

fn file(dir: &Directory, named: &ChunkName) -> Result<ChunkRead> {
    match dir.read(named) {
        Ok(Ok((payload, proven))) => Ok(ChunkRead::Payload(payload, proven)),
        Ok(Err(_)) => Ok(ChunkRead::Damaged),
        Err(e) if e.kind() == Io::NotFound => Ok(ChunkRead::Gone),
        Err(e) => Err(e).with_context(|| format!("cannot read the file of {}", named.label())),
    }
}
