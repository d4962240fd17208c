//! What a simulation gives a client in place of its machine: connections in memory and a wall clock.
//!
//! Only with the feature `simulate`. A client whose [`Config::machine`](crate::Config::machine) is
//! set opens no socket, resolves no name and starts no thread. On a runtime with a paused clock and
//! one thread, and with a seeded `fastrand`, all it does follows from what it is sent.

use std::fmt::Debug;
use std::io;
use std::pin::Pin;
use std::time::SystemTime;

pub use tokio::io::DuplexStream;

/// A connection on its way.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<DuplexStream>> + Send>>;

/// A simulated machine.
pub trait SimulatedMachine: Debug + Send + Sync + 'static {
    /// The host name.
    fn name(&self) -> &str;

    /// The time of day by its clock, which may be wrong and may jump.
    fn wall(&self) -> SystemTime;

    /// A connection with the store.
    fn connect(&self) -> Connecting;
}
