//! Selects std's primitives, or those of the model checker under `--cfg shuttle`.

#[cfg(not(shuttle))]
pub use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(shuttle))]
pub use std::thread;

#[cfg(shuttle)]
pub use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(shuttle)]
pub use shuttle::thread;
