//! How nodes that share a bucket keep in step.

use std::time::Duration;

use kvtier_core::{Error, ErrorKind};

/// A lease's age is told in whole seconds: a shorter term would be lost in them.
const TERM_MIN: Duration = Duration::from_secs(4);

/// Which of the nodes on one bucket deletes what has to go, and merges what they noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Evictor {
    /// The holder of a lease in the bucket, for which nodes compete. Needs a store that honours
    /// `If-None-Match: *`; on another nobody evicts, which the status says.
    #[default]
    Lease,
    /// This node, without asking: for stores that do not honour it. No other node on the bucket may
    /// be set so.
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

/// How a tier keeps up with what is in its bucket, whoever wrote it. Every field has a sensible
/// value in the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SyncConfig {
    /// Who evicts.
    pub evictor: Evictor,
    /// The term of the lease: a node that dies is followed within two. At least 4 s.
    pub lease_term: Duration,
    /// How often what was used and written is noted in the bucket: at most so much of it is lost
    /// when the process is killed.
    pub journal_every: Duration,
    /// How long after a listing of the whole bucket the next begins.
    pub sweep_every: Duration,
    /// The most requests a second that listings after the first send.
    pub listings_per_second_max: u32,
    /// How often the evictor writes the index to the bucket, if anything changed.
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
            SyncConfig { lease_term, .. } if *lease_term < TERM_MIN => {
                wrong("lease_term is too short: stores tell time in seconds; give it at least 4 s")
            }
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
