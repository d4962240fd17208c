//! What `kvtier verify` finds and prints, of a directory or a bucket.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use kvtier::codec::{Undecoded, UndecodedCause};

use crate::encoding_args::next_step;
use crate::json::json;

/// A chunk that is damaged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Damaged {
    /// What the chunk is called.
    pub label: String,
    /// Bytes of its payload.
    pub bytes: u64,
    /// What is wrong with it.
    pub damage: String,
}

/// What reading the chunks has shown.
#[derive(Clone, Debug, Default)]
pub struct VerifyResults {
    /// Chunks that were to be read.
    pub chunks: usize,
    /// The damaged.
    pub damaged: Vec<Damaged>,
    /// Chunks that were deleted meanwhile.
    pub gone: u64,
    /// Chunks without facts.
    pub unverified: u64,
    /// Encoded chunks whose stored bytes match their checksums and which were not decoded: how
    /// many, by cause and key, and what to do.
    pub not_checked: BTreeMap<(UndecodedCause, u32), NotChecked>,
}

/// Chunks that were not decoded for one reason.
#[derive(Clone, Debug)]
pub struct NotChecked {
    chunks: u64,
    next_step: String,
}

impl VerifyResults {
    /// For several threads.
    pub fn lock(found: &Mutex<VerifyResults>) -> MutexGuard<'_, VerifyResults> {
        found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an encoded chunk that was not decoded.
    pub fn not_checked(&mut self, why: Undecoded) {
        let first = || NotChecked { chunks: 0, next_step: next_step(&why) };
        self.not_checked.entry((why.cause, why.key_id)).or_insert_with(first).chunks += 1;
    }

    /// Whether nothing is damaged, and no key that was given is another one than encrypted a chunk.
    fn is_fine(&self) -> bool {
        let is_wrong = |(cause, _): &(UndecodedCause, u32)| *cause == UndecodedCause::WrongKey;
        self.damaged.is_empty() && !self.not_checked.keys().any(is_wrong)
    }

    /// In order of names, when all threads have ended.
    pub fn finished(found: Mutex<VerifyResults>) -> Self {
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Workers find them in any order; the report is the same in every run.
        found.damaged.sort_unstable();
        found
    }

    /// Prints it. `quarantined`: whether the damaged were moved; `None` where there is no such
    /// choice. `next` says what becomes of them. Answers whether none is damaged and no key is a
    /// wrong one.
    pub fn print(&self, as_json: bool, quarantined: Option<bool>, next: &str) -> Result<bool> {
        let VerifyResults { chunks, damaged, gone, unverified, not_checked } = self;
        for NotChecked { chunks, next_step } in not_checked.values() {
            eprintln!(
                "kvtier: {chunks} chunks match their checksums and were not decoded: {next_step}"
            );
        }
        if as_json {
            let object = |one: &Damaged| json!({ "key": one.label, "bytes": one.bytes, "damage": one.damage });
            let list: Vec<_> = damaged.iter().map(object).collect();
            let row = |((cause, id), some): (&(UndecodedCause, u32), &NotChecked)| json!({ "reason": cause.to_string(), "key_id": id, "chunks": some.chunks });
            let not_checked: Vec<_> = not_checked.iter().map(row).collect();
            let mut all = json!({ "chunks": chunks, "gone": gone, "unverified": unverified, "damaged": list, "not_checked": not_checked });
            if let (Some(quarantined), Some(fields)) = (quarantined, all.as_object_mut()) {
                fields.insert("set_aside".to_owned(), quarantined.into());
            }
            crate::stdout::line(&all.to_string())?;
            return Ok(self.is_fine());
        }
        for one in damaged {
            crate::stdout::line(&format!("damaged {} ({})", one.label, one.damage))?;
        }
        let next = if damaged.is_empty() { "" } else { next };
        let unproven = if *unverified > 0 {
            format!(", {unverified} without facts, which nothing proves")
        } else {
            String::new()
        };
        let mut not_decoded = BTreeMap::new();
        for ((cause, _), some) in not_checked {
            *not_decoded.entry(*cause).or_insert(0) += some.chunks;
        }
        let not_decoded: String = not_decoded
            .iter()
            .map(|(cause, chunks)| format!(", {chunks} not checked: {cause}"))
            .collect();
        let text =
            format!("{chunks} chunks, {} damaged{unproven}{not_decoded}{next}", damaged.len());
        crate::table::wrapped(&text, 2).iter().try_for_each(|line| crate::stdout::line(line))?;
        Ok(self.is_fine())
    }
}
