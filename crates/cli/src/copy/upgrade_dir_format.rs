//! `kvtier migrate DIR`: upgrades a directory of an earlier format in place.

use anyhow::Result;
use kvtier::file::inspect::Upgrade;

use super::args::UpgradeArgs;
use crate::json::json;
use crate::{BadInput, location};

/// Upgrades the directory, or prints what an upgrade would do.
pub fn run(args: &UpgradeArgs) -> Result<()> {
    let path = args.path.display();
    if location::is_bucket(&args.path) {
        let what = format!("{path}: a bucket needs no upgrade; name TO to copy its chunks");
        return Err(BadInput(what).into());
    }
    let done = if args.dry_run { Upgrade::plan(&args.path) } else { Upgrade::run(&args.path) }?;
    if args.json {
        let all = json!({
            "layout": done.layout.name(), "dry_run": args.dry_run, "from_format": done.from, "to_format": done.to,
        });
        return crate::stdout::line(&all.to_string());
    }
    // Not an error: a script may run it on every directory.
    if done.from == done.to {
        return crate::stdout::line(&format!("{path} has format {}: nothing to do", done.to));
    }
    let verb = if args.dry_run { "would be upgraded" } else { "was upgraded" };
    crate::stdout::line(&format!("{path} {verb} from format {} to {}", done.from, done.to))
}
