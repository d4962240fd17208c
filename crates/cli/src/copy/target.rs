//! Where chunks go.

use anyhow::Result;

use super::archive::ArchiveWriter;
use super::chunk::SourceChunk;
use super::report::Tally;
use super::to_bucket::Objects;
use super::to_directory::Files;
use super::{CopyArgs, CopyMode, Sink};
use crate::bucket::Bucket;

/// What is copied to.
pub enum CopyTarget {
    Directory(Files),
    Bucket(Objects),
    Archive,
}

impl CopyTarget {
    pub fn of(args: &CopyArgs, way: CopyMode) -> Result<Self> {
        if way == CopyMode::Export {
            return Ok(CopyTarget::Archive);
        }
        // The second bucket has the settings of the first, but for what `--to-endpoint` and
        // `--to-region` replace.
        let store = args
            .store
            .elsewhere(args.elsewhere.to_endpoint.as_deref(), args.elsewhere.to_region.as_deref());
        match Bucket::open(
            args.to.to_str().unwrap_or_default(),
            args.target.to_layout.as_deref(),
            &store,
        )? {
            Some(bucket) => Ok(CopyTarget::Bucket(Objects::of(bucket, args)?)),
            None => Ok(CopyTarget::Directory(Files::of(args)?)),
        }
    }

    pub fn is_remote(&self) -> bool {
        matches!(self, CopyTarget::Bucket(_))
    }

    /// Its layout.
    pub fn layout(&self) -> &'static str {
        match self {
            CopyTarget::Directory(files) => files.layout(),
            CopyTarget::Bucket(objects) => objects.layout(),
            CopyTarget::Archive => "archive",
        }
    }

    /// The chunks that have a name there.
    pub fn select(&self, found: Vec<SourceChunk>, tally: &mut Tally) -> Vec<SourceChunk> {
        // Decided chunk by chunk, before anything is written.
        let mut namespace = None;
        let mut fits = |one: &SourceChunk| -> Result<(), String> {
            let spells = match self {
                CopyTarget::Directory(files) => files.names(one)?,
                CopyTarget::Bucket(objects) => objects.names(one)?,
                CopyTarget::Archive => false,
            };
            // Names that encode keys have no namespace: such a target holds one namespace only.
            // The namespace of the first chunk that fits decides.
            let ours = *namespace.get_or_insert(one.identity.namespace);
            if !spells || ours == one.identity.namespace {
                Ok(())
            } else {
                Err("of another namespace than the rest".into())
            }
        };
        let mut kept = Vec::with_capacity(found.len());
        for one in found {
            match fits(&one) {
                Ok(()) => kept.push(one),
                Err(why) => tally.unsupported(why),
            }
        }
        kept
    }

    /// Leaves out what is there, and opens what takes the rest. A dry run only looks, and without
    /// anything to write nothing is made.
    pub fn without_present(
        &self,
        wanted: Vec<SourceChunk>,
        args: &CopyArgs,
        tally: &mut Tally,
    ) -> Result<(Vec<SourceChunk>, Option<Box<dyn Sink + '_>>)> {
        match self {
            _ if wanted.is_empty() => Ok((wanted, None)),
            CopyTarget::Directory(files) => files.without_present(wanted, args, tally),
            CopyTarget::Bucket(objects) => objects.without_present(wanted, tally),
            CopyTarget::Archive if args.how.dry_run => Ok((wanted, None)),
            CopyTarget::Archive => Ok((wanted, Some(Box::new(ArchiveWriter::create(&args.to)?)))),
        }
    }
}
