//! The arguments of `kvtier migrate`, `export` and `import`: each has only those that do something
//! there.

use std::path::PathBuf;

use anyhow::Result;

use super::CopyMode;
use crate::BadInput;
use crate::bucket_args::{BucketArgs, S3_OPTIONS};
use crate::encoding_args::{EncodeArgs, KeyArgs};
use crate::location::is_bucket;
use crate::name_filter::FilterArgs;
use crate::parallel::ThroughputArgs;

/// What is said of the chunks that are read.
#[derive(clap::Args, Default, PartialEq, Eq)]
pub struct FromArgs {
    /// The layout of FROM, where a directory's manifest does not say; of a bucket only chunks
    /// of this layout are taken.
    #[arg(long)]
    pub from_layout: Option<String>,
    /// The tenant of chunks that carry no facts, because another program wrote them.
    #[arg(long, requires = "unverified")]
    pub tenant: Option<String>,
    /// The layout digest of their namespace, 64 hexadecimal digits; zeros if nothing is said.
    #[arg(long, requires = "unverified")]
    pub layout_id: Option<String>,
    /// Copy chunks without facts too, whose bytes nothing proves; without this they stay behind.
    #[arg(long)]
    pub unverified: bool,
    /// The length of a whole chunk, such as 4MiB: of the chunks without facts only those of that
    /// length are copied. One that its writer filled with zeros to the next 4096 bytes is cut
    /// to it.
    #[arg(long, requires = "unverified")]
    pub chunk_bytes: Option<String>,
    /// Of the chunks without facts, copy those shorter than --chunk-bytes too.
    #[arg(long, requires = "chunk_bytes")]
    pub partial: bool,
    /// How the model is spelled whose `/` is a `_` in the names of a bucket of layout lmcache,
    /// such as org/model; needed for chunks without facts.
    #[arg(long, requires = "unverified")]
    pub model: Vec<String>,
}

/// What is said of the place that chunks are written to.
#[derive(clap::Args, Default, PartialEq, Eq)]
pub struct ToArgs {
    /// The layout of TO: kvtier, lmcache-mp, lmcache, lmcache-gds, lmcache-gds-weka or vllm-fs.
    /// As a directory's manifest says, else kvtier.
    #[arg(long)]
    pub to_layout: Option<String>,
    /// With lmcache-gds, whose files say it: the tensor that a full chunk is, such as
    /// 2x32x256x1024 (keys and values, layers, tokens, elements).
    #[arg(long)]
    pub shape: Option<String>,
    /// The cap of a directory TO, such as 100GiB; as its manifest says, else all of its file
    /// system. Buckets are not capped here.
    #[arg(long)]
    pub bytes: Option<String>,
    #[command(flatten)]
    pub encodings: EncodeArgs,
}

/// Where TO is, if FROM is elsewhere.
#[derive(clap::Args, Default, PartialEq, Eq)]
pub struct ElsewhereArgs {
    /// The endpoint of TO, where it is not --endpoint.
    #[arg(long, help_heading = S3_OPTIONS)]
    pub to_endpoint: Option<String>,
    /// The region of TO, where it is not --region.
    #[arg(long, help_heading = S3_OPTIONS)]
    pub to_region: Option<String>,
}

/// How to copy and what to print.
#[derive(clap::Args)]
pub struct HowArgs {
    #[command(flatten)]
    pub filter: FilterArgs,
    #[command(flatten)]
    pub pace: ThroughputArgs,
    #[command(flatten)]
    pub keys: KeyArgs,
    /// Only say what would be copied; nothing is written.
    #[arg(long)]
    pub dry_run: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Options of `migrate` and `import` for the place that they write to.
#[derive(clap::Args)]
struct TargetArgs {
    #[command(flatten)]
    target: ToArgs,
    #[command(flatten)]
    how: HowArgs,
    #[command(flatten)]
    store: BucketArgs,
    #[command(flatten)]
    elsewhere: ElsewhereArgs,
}

impl TargetArgs {
    fn with(self, from: PathBuf, to: PathBuf, source: FromArgs) -> CopyArgs {
        let TargetArgs { target, how, store, elsewhere } = self;
        CopyArgs { from, to, source, target, how, store, elsewhere }
    }
}

/// `kvtier migrate`.
#[derive(clap::Args)]
pub struct MigrateArgs {
    /// Where the chunks are: a directory or `s3://bucket/prefix`. Nothing there is changed where TO is
    /// given.
    from: PathBuf,
    /// Where they go: a directory, which is made if it is not there, or `s3://bucket/prefix`. Without
    /// it, the directory FROM is upgraded in place from the format of an earlier build; no process
    /// may have it open then.
    to: Option<PathBuf>,
    #[command(flatten)]
    source: FromArgs,
    #[command(flatten)]
    target: TargetArgs,
}

/// `kvtier export`.
#[derive(clap::Args)]
pub struct ExportArgs {
    /// Where the chunks are: a directory or `s3://bucket/prefix`. Nothing there is changed.
    from: PathBuf,
    /// The file to write, which must not be there yet.
    file: PathBuf,
    #[command(flatten)]
    source: FromArgs,
    #[command(flatten)]
    how: HowArgs,
    #[command(flatten)]
    store: BucketArgs,
}

/// `kvtier import`.
#[derive(clap::Args)]
pub struct ImportArgs {
    /// The file that `kvtier export` wrote.
    file: PathBuf,
    /// Where the chunks go: a directory, which is made if it is not there, or
    /// `s3://bucket/prefix`.
    to: PathBuf,
    #[command(flatten)]
    target: TargetArgs,
}

/// What any of the three is to do.
pub struct CopyArgs {
    pub from: PathBuf,
    pub to: PathBuf,
    pub source: FromArgs,
    pub target: ToArgs,
    pub how: HowArgs,
    pub store: BucketArgs,
    pub elsewhere: ElsewhereArgs,
}

/// What `kvtier migrate` does.
pub enum Migration {
    /// Copies the chunks elsewhere.
    Copy(Box<CopyArgs>),
    /// Upgrades a directory in place.
    Upgrade(UpgradeArgs),
}

/// `kvtier migrate` without TO.
pub struct UpgradeArgs {
    pub path: PathBuf,
    pub dry_run: bool,
    pub json: bool,
}

impl MigrateArgs {
    /// Which of the two is meant.
    ///
    /// # Errors
    /// Options of a copy without TO.
    pub fn migration(self) -> Result<Migration, BadInput> {
        let MigrateArgs { from, to, source, target } = self;
        let Some(to) = to else {
            let TargetArgs { target, how, store, elsewhere } = target;
            // An upgrade in place copies nothing. An option without effect would suggest that it
            // does.
            let has_copy_options = source != FromArgs::default()
                || target != ToArgs::default()
                || elsewhere != ElsewhereArgs::default()
                || how.filter != FilterArgs::default()
                || how.pace != ThroughputArgs::default()
                || how.keys != KeyArgs::default()
                || store.first_given().is_some();
            if has_copy_options {
                let what = "migrate: no TO: only --dry-run and --json have an effect on an upgrade in place; name TO, or leave the other \
                            options out";
                return Err(BadInput(what.into()));
            }
            return Ok(Migration::Upgrade(UpgradeArgs {
                path: from,
                dry_run: how.dry_run,
                json: how.json,
            }));
        };
        Ok(Migration::Copy(Box::new(target.with(from, to, source))))
    }
}

impl From<ExportArgs> for CopyArgs {
    fn from(args: ExportArgs) -> Self {
        let ExportArgs { from, file: to, source, how, store } = args;
        CopyArgs {
            from,
            to,
            source,
            target: ToArgs::default(),
            how,
            store,
            elsewhere: ElsewhereArgs::default(),
        }
    }
}

impl From<ImportArgs> for CopyArgs {
    fn from(args: ImportArgs) -> Self {
        let ImportArgs { file: from, to, target } = args;
        target.with(from, to, FromArgs::default())
    }
}

impl CopyArgs {
    /// Refuses what would have no effect.
    pub fn check(&self, way: CopyMode) -> Result<(), BadInput> {
        if let Some(flow) = [&self.from, &self.to].into_iter().find(|path| path.as_os_str() == "-")
        {
            let what = "standard input and output cannot be used here; name a directory, a bucket or a file";
            return Err(BadInput(format!("{}: {what}", flow.display())));
        }
        // An archive is always a file, also if its name begins with `s3://`.
        let from = is_bucket(&self.from) && way != CopyMode::Import;
        let to = is_bucket(&self.to) && way != CopyMode::Export;
        let ElsewhereArgs { to_endpoint, to_region } = &self.elsewhere;
        let second = [("--to-endpoint", to_endpoint), ("--to-region", to_region)];
        if let Some((flag, _)) = second.into_iter().find(|(_, said)| said.is_some()).filter(|_| !to)
        {
            return Err(BadInput(format!(
                "{flag}: {} is no bucket; leave {flag} out",
                self.to.display()
            )));
        }
        // As for every option here: one that has no effect is an error.
        if let Some(flag) = self.store.first_given().filter(|_| !from && !to) {
            return Err(BadInput(format!(
                "{flag}: no bucket is read or written; leave {flag} out"
            )));
        }
        if self.target.shape.is_some()
            && (to || !self.target.to_layout.as_deref().is_none_or(is_gds))
        {
            let what = "--shape is for a directory of layout lmcache-gds or lmcache-gds-weka; leave --shape out";
            return Err(BadInput(what.into()));
        }
        Ok(())
    }
}

fn is_gds(layout: &str) -> bool {
    layout.starts_with("lmcache-gds")
}
