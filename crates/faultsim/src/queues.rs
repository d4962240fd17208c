//! Whether each queue keeps to its bound.

use std::time::Duration;

use kvtier::{Stack, byte_size};
use kvtier_core::Observe;
use kvtier_disk::{Disk, Mover};
use kvtier_s3_tier::S3Tier;

use crate::world::World;

/// How often the queues are looked at.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How many looks there are for one at the status of a stack, whose sentences take long to make.
pub const LOOKS_A_STATUS: u64 = 5;

/// The queues of a bucket's tier.
pub fn look_at_bucket(world: &World, name: &str, tier: &S3Tier) {
    for queue in tier.queues() {
        look(world, name, queue.name, queue.len, queue.max);
    }
}

/// The queues of a directory's tier.
pub fn look_at_directory<M: Mover>(world: &World, name: &str, tier: &Disk<M>) {
    for queue in tier.queues() {
        look(world, name, queue.name, queue.len, queue.max);
    }
}

/// The memory tier of a stack, which may have `memory_max` bytes.
pub fn look_at_memory(world: &World, name: &str, stack: &Stack, memory_max: u64) {
    if let Some(memory) = stack.tiers().first() {
        let used = memory.usage().used_bytes;
        look(world, name, "bytes in memory", used.unwrap_or(u64::MAX), memory_max);
    }
}

/// What waits to be written to lower tiers, as the status of a stack has it.
pub fn look_at_waiting(world: &World, name: &str, stack: &Stack) {
    if let Some(waiting) = Waiting::of_stack(stack) {
        look(world, name, "bytes to be written", waiting.bytes, waiting.max);
    }
}

/// How many bytes wait to be written to lower tiers; `None` where none may.
pub fn bytes_to_be_written(stack: &Stack) -> Option<u64> {
    Waiting::of_stack(stack).map(|waiting| waiting.bytes)
}

fn look(world: &World, name: &str, queue: &str, len: u64, max: u64) {
    if len > max {
        world.finding("queue", format!("{len} {queue} on {name}; {max} are allowed"));
    }
}

/// The bytes that wait to be written to lower tiers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waiting {
    bytes: u64,
    max: u64,
}

impl Waiting {
    fn of_stack(stack: &Stack) -> Option<Self> {
        stack.status().reasons.iter().find_map(|reason| Waiting::of(reason))
    }

    /// From the sentence of a status.
    fn of(reason: &str) -> Option<Self> {
        let (bytes, max) =
            reason.strip_suffix(" wait to be written")?.split_once(" of at most ")?;
        Some(Waiting { bytes: byte_size::parse(bytes)?, max: byte_size::parse(max)? })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvtier::{HostConfig, HostTier, StackConfig, TierRule, Write};
    use kvtier_core::Tier;

    use super::*;

    /// The sentence is the one that a stack makes.
    #[test]
    fn what_waits_is_read_from_the_status() {
        let tier = || Arc::new(HostTier::open(HostConfig::new(1 << 20)).unwrap()) as Arc<dyn Tier>;
        let config = StackConfig::new("stack")
            .with(tier())
            .with_rule(tier(), TierRule::new().with_write(Write::Back))
            .with_dirty_bytes_max(64 << 10);
        let stack = Stack::open(config).unwrap();
        assert_eq!(Waiting::of_stack(&stack), Some(Waiting { bytes: 0, max: 64 << 10 }));
        stack.close().wait().unwrap();
    }
}
