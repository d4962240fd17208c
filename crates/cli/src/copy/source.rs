//! Where chunks come from.

use std::sync::Arc;

use anyhow::Result;
use kvtier::codec::TierEncoding;
use kvtier::file::inspect::Directory;

use super::archive::ArchiveReader;
use super::chunk::{ChunkRead, Location, SourceChunk};
use super::report::Tally;
use super::unverified::UnverifiedChoice;
use super::{CopyArgs, CopyMode, from_bucket, from_directory};
use crate::BadInput;
use crate::bucket::Bucket;

/// What is copied from.
pub enum CopySource {
    Directory(Directory, Arc<TierEncoding>),
    Bucket(Bucket, Arc<TierEncoding>),
    Archive(ArchiveReader),
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
            return Ok(CopySource::Bucket(bucket, args.how.keys.decoding()?));
        }
        // Compared after links are resolved. A directory that is copied to itself would evict while
        // it reads.
        if matches!((args.from.canonicalize(), args.to.canonicalize()), (Ok(from), Ok(to)) if from == to)
        {
            return Err(BadInput("FROM and TO are the same directory".into()).into());
        }
        let dir = crate::dir::open_as(&args.from, layout)?;
        Ok(CopySource::Directory(dir, args.how.keys.decoding()?))
    }

    /// Its layout.
    pub fn layout(&self) -> String {
        match self {
            CopySource::Directory(dir, _) => dir.layout().to_string(),
            CopySource::Bucket(bucket, _) => bucket.layout_name(),
            CopySource::Archive(_) => "archive".into(),
        }
    }

    pub fn is_remote(&self) -> bool {
        matches!(self, CopySource::Bucket(..))
    }

    /// The chunks that can be identified.
    pub fn wanted(&self, args: &CopyArgs, tally: &mut Tally) -> Result<Vec<SourceChunk>> {
        let trust = UnverifiedChoice::of(args)?;
        match self {
            CopySource::Directory(dir, _) => {
                from_directory::chunks(crate::dir::listed(dir, &args.from)?, dir, &trust, tally)
            }
            CopySource::Bucket(bucket, _) => from_bucket::chunks(bucket, &trust, tally),
            CopySource::Archive(archive) => archive.wanted(),
        }
    }

    /// Reads a chunk whole and checks every byte by its facts.
    pub fn read(&self, one: &SourceChunk) -> Result<ChunkRead> {
        match (self, &one.at) {
            (CopySource::Directory(dir, encoding), Location::File(named)) => {
                from_directory::read(dir, encoding, named)
            }
            (CopySource::Bucket(bucket, encoding), Location::Object(name, bytes)) => {
                from_bucket::read(bucket, encoding, name, *bytes)
            }
            (CopySource::Archive(archive), Location::Record(at)) => archive.read(*at, one),
            _ => unreachable!("a source returns locations of its own kind"),
        }
    }
}
