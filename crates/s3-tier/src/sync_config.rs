//! How nodes that share a bucket synchronise.

use std::time::Duration;

use kvtier_core::{Error, ErrorKind};

/// A lease's age is measured in whole seconds, which are too coarse for a shorter term.
const TERM_MIN: Duration = Duration::from_secs(4);

/// Which of the nodes on one bucket evicts, and merges the journals.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Evictor {
    /// The holder of a lease in the bucket, for which nodes compete. Needs a store that honours
    /// `If-None-Match: *`; on others no node evicts, and the status reports it.
    #[default]
    Lease,
    /// This node, without a lease: for stores that do not honour it. Only one node of a bucket may
    /// have this setting.
    Single,
    /// Other nodes.
    Never,
}

impl Evictor {
    /// All of them.
    pub const ALL: [Evictor; 3] = [Evictor::Lease, Evictor::Single, Evictor::Never];

    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Evictor::Lease => "lease",
            Evictor::Single => "single",
            Evictor::Never => "never",
        }
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Self> {
        Evictor::ALL.into_iter().find(|evictor| evictor.name() == name)
    }
}

/// How a tier follows changes of its bucket by other nodes and programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SyncConfig {
    /// Which node evicts.
    pub evictor: Evictor,
    /// The term of the lease: a node that dies is replaced within two. At least 4 s.
    pub lease_term: Duration,
    /// How often uses and writes are recorded in the bucket: a killed process loses at most this
    /// much of them.
    pub journal_every: Duration,
    /// The time from one listing of the whole bucket to the next.
    pub sweep_every: Duration,
    /// The most requests a second of listings after the first.
    pub listings_per_second_max: u32,
    /// How often the evictor writes a snapshot of the index, if anything changed.
    pub snapshot_every: Duration,
}

impl Default for SyncConfig {
    fn default() -> Self {
        SyncConfig {
            evictor: Evictor::Lease,
            lease_term: Duration::from_secs(30),
            journal_every: Duration::from_secs(30),
            sweep_every: Duration::from_secs(600),
            listings_per_second_max: 20,
            snapshot_every: Duration::from_secs(300),
        }
    }
}

impl SyncConfig {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |what: &'static str| Err(Error::new(ErrorKind::Invalid, what));
        match self {
            SyncConfig { lease_term, .. } if *lease_term < TERM_MIN => wrong(
                "lease_term is too short: stores have times in whole seconds; give it at least 4 s",
            ),
            SyncConfig { journal_every: Duration::ZERO, .. } => {
                wrong("journal_every is 0: every use would be a PUT; give it some seconds")
            }
            SyncConfig { listings_per_second_max: 0, .. } => wrong(
                "listings_per_second_max is 0: the bucket would never be listed again; give it at least 1",
            ),
            _ => Ok(()),
        }
    }
}
