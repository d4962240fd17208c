//! What `kvtier verify` finds and prints, of a directory or a bucket.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;

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
}

impl VerifyResults {
    /// For several threads.
    pub fn lock(found: &Mutex<VerifyResults>) -> MutexGuard<'_, VerifyResults> {
        found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In order of names, when all threads have ended.
    pub fn finished(found: Mutex<VerifyResults>) -> Self {
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Workers find them in any order; the report is the same in every run.
        found.damaged.sort_unstable();
        found
    }

    /// Prints it. `quarantined`: whether the damaged were moved; `None` where there is no such
    /// choice. `next` says what becomes of them. Answers whether none is damaged.
    pub fn print(&self, as_json: bool, quarantined: Option<bool>, next: &str) -> Result<bool> {
        let VerifyResults { chunks, damaged, gone, unverified } = self;
        if as_json {
            let object = |one: &Damaged| json!({ "key": one.label, "bytes": one.bytes, "damage": one.damage });
            let list: Vec<_> = damaged.iter().map(object).collect();
            let mut all = json!({ "chunks": chunks, "gone": gone, "unverified": unverified, "damaged": list });
            if let (Some(quarantined), Some(fields)) = (quarantined, all.as_object_mut()) {
                fields.insert("set_aside".to_owned(), quarantined.into());
            }
            crate::stdout::line(&all.to_string())?;
            return Ok(damaged.is_empty());
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
        let text = format!("{chunks} chunks, {} damaged{unproven}{next}", damaged.len());
        crate::table::wrapped(&text, 2).iter().try_for_each(|line| crate::stdout::line(line))?;
        Ok(damaged.is_empty())
    }
}
