//! `kvtier verify`: reads every chunk of a directory or bucket and checks every byte.

mod bucket;
mod report;

use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use kvtier::file::inspect::{ChunkName, Damage, Verified};

use crate::dir::listed;
use crate::encoding_args::KeyArgs;
use crate::location_args::Where;
use crate::name_filter::FilterArgs;
use crate::parallel::ThroughputArgs;
use report::{Damaged, VerifyResults};

/// `kvtier verify`.
#[derive(clap::Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    pace: ThroughputArgs,
    #[command(flatten)]
    keys: KeyArgs,
    /// Move damaged files into quarantine, as a load that meets them does.
    #[arg(long = "set-aside")]
    quarantine: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Reads chunks whole and checks every byte. Answers whether all are right.
pub fn verify(args: &VerifyArgs) -> Result<bool> {
    let filter = args.filter.filter()?;
    if let Some(bucket) = args.at.bucket()? {
        if args.quarantine {
            let what = "--set-aside is for directories; in a bucket the next save writes over what is damaged";
            return Err(crate::BadInput(what.into()).into());
        }
        return bucket::verify(&bucket, &filter, args);
    }
    crate::interrupt::watch()?;
    // One worker by default: a verification should not slow down the engines on this disk.
    let pace = args.pace.checked(1)?;
    let encoding = args.keys.decoding()?;
    let dir = args.at.directory()?;
    let mut chunks = listed(&dir, &args.at.path)?;
    chunks.retain(|chunk| filter.takes(&chunk.label()));
    // By name, so that a progress or an interrupt at one place means the same in every run.
    chunks.sort_unstable();
    let found = Mutex::new(VerifyResults { chunks: chunks.len(), ..VerifyResults::default() });
    let to_move = Mutex::new(Vec::new());
    let check = |chunk: &ChunkName| {
        let one = dir.verify_by(chunk, &encoding);
        // After the chunk was read: workers read at the same time and only count one by one.
        let mut found = VerifyResults::lock(&found);
        match one {
            Ok(Ok(Verified::Raw)) => {}
            Ok(Ok(Verified::Stored(why))) => found.not_checked(why),
            Ok(Ok(_)) => {}
            Ok(Err(Damage::Unverified)) => found.unverified += 1,
            Ok(Err(damage)) => {
                let damage = format!("{damage:?}").to_lowercase();
                found.damaged.push(Damaged { label: chunk.label(), bytes: chunk.len, damage });
                to_move.lock().unwrap_or_else(PoisonError::into_inner).push(chunk.clone());
            }
            // A tier that has the directory open took it away meanwhile.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => found.gone += 1,
            Err(e) => {
                return Err(e)
                    .with_context(|| format!("cannot read the file of {}", chunk.label()));
            }
        }
        Ok(())
    };
    pace.each(&chunks, |chunk| chunk.len, check)?;
    if args.quarantine {
        let damaged = to_move.into_inner().unwrap_or_else(PoisonError::into_inner);
        let moved = damaged.iter().try_for_each(|chunk| {
            // What is not there any more needs no space in quarantine.
            let moved = dir.quarantine_by(chunk, &encoding).map(drop);
            moved.with_context(|| format!("cannot quarantine the file of {}", chunk.label()))
        });
        // Also after an error: what was moved must be noted in the ledger.
        let finished = dir.finish();
        moved?;
        finished.context(
            "the damaged are in quarantine; open tiers find them missing when they load them",
        )?;
    }
    let next = match args.quarantine {
        true => "; the damaged are in quarantine",
        false => "; loads of the damaged are misses; --set-aside moves them into quarantine",
    };
    VerifyResults::finished(found).print(args.json, Some(args.quarantine), next)
}
