//! Answers that reached a machine without the metadata of their object, or with other bytes.

use std::collections::BTreeMap;

/// How many such answers each machine got, by object.
#[derive(Debug, Default)]
pub struct StrippedAnswers(BTreeMap<(String, String), Stripped>);

/// How many there were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stripped {
    pub all: u64,
    /// Those with other bytes.
    pub changed: u64,
}

impl StrippedAnswers {
    pub fn note(&mut self, host: &str, object: String, is_changed: bool) {
        let of = self.0.entry((host.to_owned(), object)).or_default();
        of.all += 1;
        of.changed += u64::from(is_changed);
    }

    pub fn of(&self, host: &str, object: impl FnOnce() -> String) -> Stripped {
        // Most runs have none.
        if self.0.is_empty() {
            return Stripped::default();
        }
        self.0.get(&(host.to_owned(), object())).copied().unwrap_or_default()
    }
}
