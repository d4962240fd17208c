//! How a batch ended.

use kvtier::core::{Error, ErrorKind};

/// The answer to a key that has none: a miss, or a failure.
pub const NONE: i64 = -1;

/// How a batch ended: one answer a key, and the first thing that went wrong.
#[derive(Debug)]
pub struct End {
    /// [`NONE`], or for loads and lookups the chunk's length in bytes, for saves 1 where bytes
    /// were written and 0 where they were there already, for removes 1.
    pub answers: Vec<i64>,
    /// What went wrong first, if anything did. Misses are nothing wrong.
    pub fault: Option<Fault>,
}

/// Something that went wrong.
#[derive(Debug)]
pub struct Fault {
    /// What the caller may do about it.
    pub kind: ErrorKind,
    /// What happened, with all that caused it.
    pub text: String,
}

impl End {
    /// Nothing is answered yet.
    pub fn of(len: usize) -> Self {
        End { answers: vec![NONE; len], fault: None }
    }

    /// Nothing could be done.
    pub fn failed(len: usize, text: String) -> Self {
        End { answers: vec![NONE; len], fault: Some(Fault { kind: ErrorKind::Invalid, text }) }
    }

    /// Whether every key has an answer.
    pub fn is_whole(&self) -> bool {
        self.answers.iter().all(|answer| *answer != NONE)
    }

    /// One bool a key.
    pub fn each(&self) -> Vec<bool> {
        self.answers.iter().map(|answer| *answer != NONE).collect()
    }

    /// What went wrong; empty if nothing did.
    pub fn text(self) -> String {
        self.fault.map(|fault| fault.text).unwrap_or_default()
    }

    /// Notes what went wrong. The first is the one that is told.
    pub fn bad(&mut self, kind: ErrorKind, text: String) {
        self.fault.get_or_insert(Fault { kind, text });
    }

    /// Notes an error.
    pub fn error(&mut self, e: &Error) {
        self.bad(e.kind(), whole(e));
    }

    /// The good ones of `named` with their places; what is wrong with the others is noted.
    pub fn keys<K, T>(
        &mut self,
        named: impl IntoIterator<Item = (Result<K, String>, T)>,
    ) -> (Vec<usize>, Vec<(K, T)>) {
        let mut kept = (Vec::new(), Vec::new());
        for (at, (key, with)) in named.into_iter().enumerate() {
            match key {
                Ok(key) => {
                    kept.0.push(at);
                    kept.1.push((key, with));
                }
                Err(text) => self.bad(ErrorKind::Invalid, text),
            }
        }
        kept
    }
}

/// An error with all that caused it.
pub fn whole(e: &Error) -> String {
    let mut text = e.to_string();
    let mut source = std::error::Error::source(e);
    while let Some(e) = source {
        text = format!("{text}: {e}");
        source = e.source();
    }
    text
}
