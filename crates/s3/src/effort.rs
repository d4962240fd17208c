//! What an operation has tried: how many requests, and how the last one that failed did so. It outlives the operation's future, which the
//! deadline drops.

use std::cell::RefCell;

use crate::error::{Error, ErrorKind};

tokio::task_local! {
    /// That of the operation that this task is at; tasks that it spawns have none.
    pub static EFFORT: RefCell<Effort>;
}

/// One operation's attempts.
#[derive(Debug, Default)]
pub struct Effort {
    pub attempts: u32,
    pub last: Option<Error>,
}

/// A request is sent.
pub fn begun() {
    let _ = EFFORT.try_with(|effort| effort.borrow_mut().attempts += 1);
}

/// A request failed. One that was not sent is none.
pub fn failed(error: &Error) {
    if error.kind() != ErrorKind::Unavailable {
        let _ = EFFORT.try_with(|effort| effort.borrow_mut().last = Some(error.clone()));
    }
}
