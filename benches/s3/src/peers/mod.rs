//! The clients, each behind the same three operations. All work without checksums and body signatures, and load into the caller's memory.

#[cfg(feature = "peers")]
pub mod aws;
pub mod blocking;
pub mod delete;
pub mod kvtier;
#[cfg(feature = "mountpoint")]
pub mod mountpoint;
#[cfg(feature = "peers")]
pub mod object_store;
#[cfg(feature = "peers")]
pub mod opendal;
pub mod raw;
#[cfg(feature = "peers")]
pub mod rusty;
pub mod tier;
pub mod uring;

#[cfg(feature = "peers")]
use anyhow::ensure;
use anyhow::{Context, Result};
use kvtier_mem::{Lease, View};

/// The clients in this build. Those with the prefix `raw-` are the lower bound.
pub const NAMES: &[&str] = &[
    "raw-tokio",
    "raw-blocking",
    "raw-uring",
    "kvtier",
    "kvtier-direct",
    "kvtier-tier",
    #[cfg(feature = "peers")]
    "object_store",
    #[cfg(feature = "peers")]
    "rusty-s3",
    #[cfg(feature = "peers")]
    "aws-sdk-s3",
    #[cfg(feature = "peers")]
    "opendal",
    #[cfg(feature = "mountpoint")]
    "mountpoint-s3-client",
];

/// Bucket and credentials, which the server ignores.
pub const BUCKET: &str = "bench";
#[cfg(feature = "peers")]
pub const REGION: &str = "us-east-1";
pub const KEY: &str = "AKIDBENCH";
pub const SECRET: &str = "bench-secret";

/// A client on a runtime of one thread.
pub trait Peer {
    /// Fills the lease with the object.
    async fn get(&self, key: &str, into: &mut Lease) -> Result<()>;
    /// Stores the view.
    async fn put(&self, key: &str, from: &View) -> Result<()>;
    /// Checks that the object has `len` bytes.
    async fn head(&self, key: &str, len: u64) -> Result<()>;
}

/// The whole memory of a lease.
pub fn memory(lease: &mut Lease) -> Result<&mut [u8]> {
    let len = lease.len();
    lease.assume_filled(len);
    lease.as_host_mut().context("host memory")
}

/// Writes pieces into a lease, in order.
#[cfg(feature = "peers")]
pub struct LeaseWriter<'a> {
    memory: &'a mut [u8],
    filled: usize,
}

#[cfg(feature = "peers")]
impl<'a> LeaseWriter<'a> {
    pub fn new(lease: &'a mut Lease) -> Result<Self> {
        Ok(LeaseWriter { memory: memory(lease)?, filled: 0 })
    }

    pub fn push(&mut self, piece: &[u8]) -> Result<()> {
        let end = self.filled + piece.len();
        self.memory
            .get_mut(self.filled..end)
            .context("more bytes than memory")?
            .copy_from_slice(piece);
        self.filled = end;
        Ok(())
    }

    pub fn finish(self) -> Result<()> {
        ensure!(self.filled == self.memory.len(), "fewer bytes than memory");
        Ok(())
    }
}
