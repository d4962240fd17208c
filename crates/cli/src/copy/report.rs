use anyhow::Result;
use kvtier::byte_size::format;

use super::CopyArgs;
use crate::json::json;

/// What became of the chunks.
#[derive(Default)]
pub struct Tally {
    pub copied: u64,
    pub copied_bytes: u64,
    pub present: u64,
    /// Without facts, so that nothing proves them: copied or left behind.
    pub unverified: u64,
    /// Of those, the ones that stay behind.
    pub left_behind: u64,
    unsupported: u64,
    /// Why the first one was.
    why: Option<String>,
    /// Exported without a key to give them another name by.
    without_key: u64,
    why_without_key: Option<String>,
    pub damaged: u64,
    pub gone: u64,
}

impl Tally {
    pub fn unsupported(&mut self, why: impl ToString) {
        self.unsupported += 1;
        // The first reason stands for all; there may be millions.
        self.why.get_or_insert_with(|| why.to_string());
    }

    pub fn without_key(&mut self, why: &str) {
        self.without_key += 1;
        self.why_without_key.get_or_insert_with(|| why.to_owned());
    }

    pub fn leave_behind(&mut self) {
        self.unverified += 1;
        self.left_behind += 1;
    }

    /// Whether nothing stays behind.
    pub fn is_whole(&self) -> bool {
        self.unsupported + self.damaged + self.left_behind == 0
    }

    /// Says it.
    pub fn report(&self, args: &CopyArgs, from: &str, to: &str) -> Result<()> {
        if args.how.json {
            let all = json!({
                "from_layout": from, "to_layout": to, "dry_run": args.how.dry_run, "copied": self.copied, "copied_bytes": self.copied_bytes,
                "present": self.present, "unverified": self.unverified, "left_behind": self.left_behind, "unsupported": self.unsupported,
                "unsupported_why": self.why, "without_key": self.without_key, "without_key_why": self.why_without_key,
                "damaged": self.damaged, "gone": self.gone,
            });
            return crate::stdout::line(&all.to_string());
        }
        let said = |text: &str| {
            crate::table::wrapped(text, 2).iter().try_for_each(|line| crate::stdout::line(line))
        };
        let verb = if args.how.dry_run { "would copy" } else { "copied" };
        said(&format!(
            "{from} to {to}: {verb} {} chunks ({}), {} were there, {} damaged stay behind",
            self.copied,
            format(self.copied_bytes),
            self.present,
            self.damaged
        ))?;
        if self.unverified > self.left_behind {
            let count = self.unverified - self.left_behind;
            said(&format!("{count} of them had no facts: nothing proved their bytes"))?;
        }
        if self.left_behind > 0 {
            let next = match (args.source.unverified, args.source.partial) {
                (false, _) => {
                    "--unverified copies them as they are, with --chunk-bytes N only those of that length"
                }
                (true, false) => {
                    "they have not the length of --chunk-bytes; --partial copies the shorter ones"
                }
                (true, true) => "they are longer than --chunk-bytes",
            };
            said(&format!(
                "{} without facts, which nothing proves, stay behind: {next}",
                self.left_behind
            ))?;
        }
        if let Some(why) = &self.why_without_key {
            let count = self.without_key;
            said(&format!(
                "{count} of them can be imported into buckets and directories of layout kvtier only: {why}"
            ))?;
        }
        if let Some(why) = &self.why {
            said(&format!("{} have no place in layout {to}: {why}", self.unsupported))?;
        }
        Ok(())
    }
}
