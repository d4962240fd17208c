//! What an operation has tried: how many requests, and how the last one that failed did so. It
//! outlives the operation's future, which the deadline drops.

use std::cell::RefCell;

use crate::error::{Error, ErrorKind};
use crate::retry::RetryAction;
use crate::time::Instant;

tokio::task_local! {
    /// That of the operation that this task is at; tasks that it spawns have none.
    pub static EFFORT: RefCell<Effort>;
}

/// One operation's attempts.
#[derive(Debug, Default)]
pub struct Effort {
    /// When the operation began.
    began: Option<Instant>,
    pub attempts: u32,
    /// When the last of them began.
    pub sent_at: Option<Instant>,
    pub last: Option<Error>,
    /// Whether it signs hashes of bodies, since one was refused without.
    signed: bool,
    /// Whether it had an answer against its credentials, and one against its clock.
    remedied: [bool; 2],
}

impl Effort {
    /// None yet, of an operation that begins now.
    pub fn starting(now: Instant) -> Self {
        Effort { began: Some(now), ..Effort::default() }
    }
}

/// When the operation began; now outside of one.
pub fn op_began() -> Instant {
    EFFORT.try_with(|effort| effort.borrow().began).ok().flatten().unwrap_or_else(Instant::now)
}

/// From now on the operation signs the hashes of its bodies.
pub fn sign() {
    let _ = EFFORT.try_with(|effort| effort.borrow_mut().signed = true);
}

/// Whether it does.
pub fn is_signed() -> bool {
    EFFORT.try_with(|effort| effort.borrow().signed).unwrap_or(false)
}

/// Whether the operation tried this remedy before; from now on it did.
pub fn is_remedied(remedy: &RetryAction) -> bool {
    let place = usize::from(*remedy == RetryAction::CorrectClock);
    EFFORT
        .try_with(|effort| std::mem::replace(&mut effort.borrow_mut().remedied[place], true))
        .unwrap_or(false)
}

/// A request is sent.
pub fn begun() {
    let _ = EFFORT.try_with(|effort| {
        let mut effort = effort.borrow_mut();
        (effort.attempts, effort.sent_at) = (effort.attempts + 1, Some(Instant::now()));
    });
}

/// A request failed. One that was not sent is none.
pub fn failed(error: &Error) {
    if error.kind() != ErrorKind::Unavailable {
        let _ = EFFORT.try_with(|effort| effort.borrow_mut().last = Some(error.clone()));
    }
}
