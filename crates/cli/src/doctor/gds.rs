//! `kvtier doctor gds`: how bytes go between a directory and a GPU here, and why that way.

use std::path::PathBuf;

use anyhow::Result;
use kvtier::gds::{GdsConfig, diagnose};
use serde_json::Value;

use super::finding::{self, Finding};
use super::lossy::LossyArgs;
use super::stored;
use crate::json::{self, json};

/// `kvtier doctor gds`.
#[derive(clap::Args)]
pub struct DoctorGdsArgs {
    /// The directory, which must exist; what is written there for the probe is removed.
    path: PathBuf,
    /// Which GPU.
    #[arg(long, default_value_t = 0)]
    gpu: u32,
    /// The path of libcufile, if not where packages and wheels put it.
    #[arg(long, value_name = "FILE")]
    cufile_library: Option<PathBuf>,
    #[command(flatten)]
    lossy: LossyArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Looks at each thing that decides, and prints what it found.
pub fn run(args: &DoctorGdsArgs) -> Result<()> {
    super::exists(&args.path)?;
    let mut others = args.lossy.findings()?;
    let sum = stored::summary(&args.path);
    others.extend(stored::lossy(&sum));
    others.extend(stored::encoded(&sum));
    let mut config = GdsConfig::new(&args.path, 0);
    config.cufile_library = args.cufile_library.clone();
    let found = diagnose(&config, args.gpu);
    if args.json {
        let list = found
            .iter()
            .map(|step| json!({ "what": step.name, "found": step.detail, "good": step.passed }));
        let others = others.iter().map(
            |one| json!({ "what": one.what, "found": one.found, "good": one.advice.is_none() }),
        );
        let list: Vec<Value> = list.chain(others).collect();
        return crate::stdout::line(
            &json!({ "path": json::path(&args.path), "gpu": args.gpu, "findings": list })
                .to_string(),
        );
    }
    found.iter().try_for_each(|step| {
        let sign = if step.passed { "" } else { "! " };
        finding::print(step.name, &format!("{sign}{}", step.detail))
    })?;
    others.iter().try_for_each(Finding::print)
}
