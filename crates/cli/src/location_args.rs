//! The arguments of `kvtier ls`, `stat`, `verify` and `rm` that name a directory or a bucket.

use std::path::PathBuf;

use anyhow::Result;
use kvtier::file::inspect::Directory;

use crate::bucket::Bucket;
use crate::bucket_args::BucketArgs;
use crate::{BadInput, dir};

/// A directory or a bucket, and its layout.
#[derive(clap::Args)]
pub struct Where {
    /// The directory, or `s3://bucket/prefix`.
    pub path: PathBuf,
    /// Its layout, where the manifest does not state it: lmcache-mp, lmcache,
    /// lmcache-gds or vllm-fs.
    /// In a bucket: only chunks of this layout.
    #[arg(long)]
    layout: Option<String>,
    #[command(flatten)]
    store: BucketArgs,
}

impl Where {
    /// The bucket, if it is one.
    pub fn bucket(&self) -> Result<Option<Bucket>> {
        let bucket = Bucket::open(
            self.path.to_str().unwrap_or_default(),
            self.layout.as_deref(),
            &self.store,
        )?;
        // An option without effect is an error: the user meant another place.
        if let Some(flag) = self.store.first_given().filter(|_| bucket.is_none()) {
            return Err(BadInput(format!(
                "{flag}: {} is no bucket; leave {flag} out",
                self.path.display()
            ))
            .into());
        }
        Ok(bucket)
    }

    /// The directory, in its layout.
    pub fn directory(&self) -> Result<Directory> {
        dir::open_as(&self.path, self.layout.as_deref())
    }
}
