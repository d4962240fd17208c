//! The one place that chooses between std's primitives and the model checker's.

#[cfg(not(shuttle))]
pub use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(shuttle))]
pub use std::thread;

#[cfg(shuttle)]
pub use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(shuttle)]
pub use shuttle::thread;
