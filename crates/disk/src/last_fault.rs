use std::sync::{Mutex, PoisonError};

/// The text of the last fault.
#[derive(Debug, Default)]
pub struct LastFault {
    last: Mutex<Option<String>>,
    /// All of them, in their order: one may be replaced before a simulation looks.
    #[cfg(feature = "simulate")]
    all: Mutex<Vec<String>>,
}

impl LastFault {
    /// Replaces the last fault.
    pub fn set(&self, what: String) {
        #[cfg(feature = "simulate")]
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push(what.clone());
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
    }

    /// The last fault since the tier was opened.
    pub fn get(&self) -> Option<String> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Each fault since the tier was opened.
    #[cfg(feature = "simulate")]
    pub fn all(&self) -> Vec<String> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
