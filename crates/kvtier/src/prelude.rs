//! The types that a caller of any tier needs: `use kvtier::prelude::*;`.

pub use kvtier_core::{
    Class, Ctx, Digest, Done, ErrorKind, Hold, HoldId, Key, Load, Loaded, LookedUp, MissReason,
    Mode, Namespace, Observe, Presence, Save, Saved, ShedReason, Ticket, Tier, TierExt,
};
pub use kvtier_key::{ChunkHash, KeyId, KvRank, ObjectKey};
pub use kvtier_mem::{Arena, ArenaConfig, Lease, View};

pub use crate::{Blocking, HostConfig, HostTier, Stack};
