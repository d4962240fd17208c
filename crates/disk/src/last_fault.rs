use std::sync::{Mutex, PoisonError};

/// The text of the last fault.
#[derive(Debug, Default)]
pub struct LastFault(Mutex<Option<String>>);

impl LastFault {
    /// Replaces the last fault.
    pub fn set(&self, what: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
    }

    /// The last fault since the tier was opened.
    pub fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
