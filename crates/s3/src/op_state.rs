//! The context of one operation: its number of requests, and the last failure. It outlives the
//! operation's future, which the deadline drops.

use std::cell::RefCell;

use crate::error::{Error, ErrorKind};
use crate::local_clock::Instant;
use crate::retry::RetryAction;

tokio::task_local! {
    /// That of the operation that this task is at; tasks that it spawns have none.
    pub static OP_STATE: RefCell<OpState>;
}

/// One operation's attempts.
#[derive(Debug, Default)]
pub struct OpState {
    /// When the operation began.
    began: Option<Instant>,
    pub attempts: u32,
    /// When the last of them began.
    pub sent_at: Option<Instant>,
    pub last: Option<Error>,
    /// Whether it signs hashes of bodies, since one was refused without.
    signs_bodies: bool,
    /// Whether it had an answer against its credentials, and one against its clock.
    remedied: [bool; 2],
}

impl OpState {
    /// None yet, of an operation that begins now.
    pub fn starting(now: Instant) -> Self {
        OpState { began: Some(now), ..OpState::default() }
    }
}

/// When the operation began; now outside of one.
pub fn op_began() -> Instant {
    OP_STATE.try_with(|context| context.borrow().began).ok().flatten().unwrap_or_else(Instant::now)
}

/// From now on the operation signs the hashes of its bodies.
pub fn sign_bodies() {
    let _ = OP_STATE.try_with(|context| context.borrow_mut().signs_bodies = true);
}

/// Whether it does.
pub fn signs_bodies() -> bool {
    OP_STATE.try_with(|context| context.borrow().signs_bodies).unwrap_or(false)
}

/// Whether the operation tried this remedy before; from now on it did.
pub fn mark_remedied(remedy: &RetryAction) -> bool {
    let slot = usize::from(*remedy == RetryAction::CorrectClock);
    OP_STATE
        .try_with(|context| std::mem::replace(&mut context.borrow_mut().remedied[slot], true))
        .unwrap_or(false)
}

/// A request is sent.
pub fn request_sent(now: Instant) {
    let _ = OP_STATE.try_with(|context| {
        let mut context = context.borrow_mut();
        (context.attempts, context.sent_at) = (context.attempts + 1, Some(now));
    });
}

/// When the operation's last request was sent; `None` outside of an operation.
pub fn request_sent_at() -> Option<Instant> {
    OP_STATE.try_with(|context| context.borrow().sent_at).ok().flatten()
}

/// A request failed. One that was not sent is none.
pub fn request_failed(error: &Error) {
    if error.kind() != ErrorKind::Unavailable {
        let _ = OP_STATE.try_with(|context| context.borrow_mut().last = Some(error.clone()));
    }
}
