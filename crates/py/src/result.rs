//! The result of a batch.

use kvtier::core::{Error, ErrorKind, Mode};

use crate::catch_panic::PANIC_TEXT;

/// The answer for a key without one: a miss or a failure.
pub const NO_ANSWER: i64 = -1;

/// The result of a batch: one answer per key, and the first error.
#[derive(Debug)]
pub struct BatchResult {
    /// [`NO_ANSWER`], or: for a load or lookup the chunk's length in bytes; for a save 1 if bytes
    /// were written and 0 if the chunk existed already; for a remove 1.
    pub answers: Vec<i64>,
    /// The first error. A miss is no error.
    pub error: Option<BatchError>,
}

/// The first error of a batch.
#[derive(Debug)]
pub struct BatchError {
    /// Which remedy the caller has.
    pub kind: ErrorKind,
    /// What failed, with the chain of causes.
    pub text: String,
}

/// The valid keys of a batch, each with its index in the batch.
#[derive(Debug)]
pub struct ValidKeys<K, T> {
    /// The index of each valid key.
    pub at: Vec<usize>,
    /// Each valid key with its value.
    pub keys: Vec<(K, T)>,
}

impl BatchResult {
    /// A result without answers and without an error.
    pub fn new(len: usize) -> Self {
        BatchResult { answers: vec![NO_ANSWER; len], error: None }
    }

    /// A batch that could not be started.
    pub fn failed(len: usize, text: String) -> Self {
        let error = BatchError { kind: ErrorKind::Invalid, text };
        BatchResult { answers: vec![NO_ANSWER; len], error: Some(error) }
    }

    /// A batch whose code panicked.
    pub fn panicked(len: usize) -> Self {
        let error = BatchError { kind: ErrorKind::Io, text: PANIC_TEXT.into() };
        BatchResult { answers: vec![NO_ANSWER; len], error: Some(error) }
    }

    /// Whether every key has an answer.
    pub fn is_complete(&self) -> bool {
        self.answers.iter().all(|answer| *answer != NO_ANSWER)
    }

    /// For each key whether it has an answer.
    pub fn successes(&self) -> Vec<bool> {
        self.answers.iter().map(|answer| *answer != NO_ANSWER).collect()
    }

    /// The text of the error; empty if there is none.
    pub fn error_text(self) -> String {
        self.error.map(|error| error.text).unwrap_or_default()
    }

    /// Keeps the error if it is the first.
    pub fn record(&mut self, kind: ErrorKind, text: String) {
        self.error.get_or_insert(BatchError { kind, text });
    }

    /// Keeps the error of a tier if it is the first.
    pub fn record_error(&mut self, e: &Error) {
        self.record(e.kind(), error_chain(e));
    }

    /// Separates the valid keys; an invalid one is recorded as an error.
    pub fn valid_keys<K, T>(
        &mut self,
        keys: impl IntoIterator<Item = (Result<K, String>, T)>,
    ) -> ValidKeys<K, T> {
        let mut valid = ValidKeys { at: Vec::new(), keys: Vec::new() };
        for (at, (key, value)) in keys.into_iter().enumerate() {
            match key {
                Ok(key) => {
                    valid.at.push(at);
                    valid.keys.push((key, value));
                }
                Err(text) => self.record(ErrorKind::Invalid, text),
            }
        }
        valid
    }
}

/// The text of an error with the chain of its causes.
pub fn error_chain(e: &Error) -> String {
    let mut text = e.to_string();
    let mut source = std::error::Error::source(e);
    while let Some(e) = source {
        text = format!("{text}: {e}");
        source = e.source();
    }
    text
}

/// A [`BatchResult`] for Python: kind and text of the first error, and one answer per key.
pub type PyBatchResult = (Option<(String, String)>, Vec<i64>);
/// The mode of a lookup.
pub fn lookup_mode(prefix: bool) -> Mode {
    if prefix { Mode::Prefix } else { Mode::Each }
}

/// The result for Python.
pub fn to_python(result: BatchResult) -> PyBatchResult {
    (result.error.map(|error| (format!("{:?}", error.kind), error.text)), result.answers)
}
