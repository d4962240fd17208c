use std::ops::Range;
use std::sync::Arc;

use crate::{ChunkHash, InvalidKey, KvRank, ObjectKey};

/// The largest world a request without a worker may be expanded over.
pub const IPC_WORLD_MAX: i32 = 4096;

/// What an engine asks LMCache's server for: chunks of one model, for one worker or for all.
///
/// ```
/// use kvtier_key::{ChunkHash, IpcKey};
///
/// let request = IpcKey {
///     model: "llama".into(),
///     world_size: 2,
///     worker_id: None, // both workers
///     hashes: vec![ChunkHash::new(&[1; 32]), ChunkHash::new(&[2; 32])],
///     groups: vec![0],
///     salt: "".into(),
/// };
/// let keys = request.expand()?;
/// assert_eq!((keys.len(), keys[0].len()), (1, 4));
/// # Ok::<(), kvtier_key::InvalidKey>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpcKey {
    /// The model's name.
    pub model: Arc<str>,
    /// Number of workers.
    pub world_size: i32,
    /// One worker, or `None` for every rank of the world.
    pub worker_id: Option<i32>,
    /// The chunks, in prefix order.
    pub hashes: Vec<ChunkHash>,
    /// The object groups.
    pub groups: Vec<u32>,
    /// The cache salt; empty for none.
    pub salt: Arc<str>,
}

impl IpcKey {
    /// The object keys it stands for: one list per object group, in each chunk after chunk, in each
    /// chunk rank after rank. As LMCache does in lookups, the local world and rank equal the
    /// global ones. Errors: a part [`ObjectKey::new`] refuses, or every rank of a world above
    /// [`IPC_WORLD_MAX`].
    pub fn expand(&self) -> Result<Vec<Vec<ObjectKey>>, InvalidKey> {
        let ranks = self.ranks()?;
        self.groups.iter().map(|group| self.expand_group(*group, &ranks)).collect()
    }

    fn ranks(&self) -> Result<Range<i32>, InvalidKey> {
        match self.worker_id {
            // Saturating, so that the largest number gives no rank instead of a panic.
            Some(worker) => Ok(worker..worker.saturating_add(1)),
            // The world size comes from a request. Each rank multiplies the keys, so a wrong one
            // could exhaust the memory.
            None if self.world_size <= IPC_WORLD_MAX => Ok(0..self.world_size),
            None => Err(InvalidKey::new(format!(
                "a world of {} is larger than {IPC_WORLD_MAX}",
                self.world_size
            ))),
        }
    }

    fn expand_group(&self, group: u32, ranks: &Range<i32>) -> Result<Vec<ObjectKey>, InvalidKey> {
        let key = |hash: &ChunkHash, rank: i32| {
            // A lookup does not say on which machine a worker runs. LMCache uses the global numbers
            // for the local ones, so keys match.
            let rank = KvRank::pack(self.world_size, rank, self.world_size, rank);
            ObjectKey::new(self.model.clone(), rank, group, hash.clone(), self.salt.clone())
        };
        self.hashes.iter().flat_map(|hash| ranks.clone().map(move |rank| key(hash, rank))).collect()
    }
}
