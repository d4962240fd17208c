use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Clock, Error, ErrorKind, Tier};

use super::write_and_promote_rules::{TierRule, Write};

/// The most tiers of a stack: the bits of a [`TierSet`](super::placement::TierSet).
pub const LEVELS_MAX: usize = 16;
/// The most ops of a stack in flight.
pub const OPS_MAX: u32 = 1024;
/// The most bytes of a stack in flight.
pub const BYTES_MAX: u64 = 4 << 30;

/// The settings of a stack: its tiers, fastest first, and their rules.
///
/// ```
/// use std::sync::Arc;
/// use kvtier::{Blocking, HostConfig, HostTier, Key, Namespace, Stack, StackConfig, TierRule, Write};
///
/// let memory = Arc::new(HostTier::open(HostConfig::new(1 << 20))?);
/// let below = Arc::new(HostTier::open(HostConfig::new(16 << 20).with_name("below"))?);
/// // Chunks reach the lower tier only when memory evicts them.
/// let spill = TierRule::new().with_write(Write::Spill);
/// let stack = Stack::open(StackConfig::new("stack").with(memory).with_rule(below, spill))?;
///
/// let ns = Namespace::from_name("model");
/// for n in 0..8u8 {
///     stack.save_bytes(&Key::from_name(&ns, [n]), vec![n; 256 << 10])?;
/// }
/// assert_eq!(stack.load_bytes(&Key::from_name(&ns, [0]))?, Some(vec![0; 256 << 10]));
/// # Ok::<(), kvtier::core::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StackConfig {
    /// The stack's name in errors and reports.
    pub name: String,
    /// The tiers and their rules, the fastest first.
    pub levels: Vec<(Arc<dyn Tier>, TierRule)>,
    /// The most bytes that wait to be written to lower tiers. A save that would exceed it waits for
    /// the tier; an evicted chunk that would exceed it is dropped.
    pub dirty_bytes_max: u64,
    /// The deadline of a write to a lower tier in the background.
    pub write_back_timeout: Duration,
    /// The bytes of KV cache that the engine computes in a second: its prefill rate in tokens times
    /// the bytes of a token. If set, a demand load that would take longer than computing is a
    /// miss.
    pub computed_bytes_per_s: Option<f64>,
    /// The clock for deadlines and holds.
    pub clock: Clock,
}

impl StackConfig {
    /// A stack without tiers, with at most 256 MiB waiting to be written.
    pub fn new(name: &str) -> Self {
        let dirty_bytes_max = 256 << 20;
        let write_back_timeout = Duration::from_secs(10);
        StackConfig {
            name: name.into(),
            levels: Vec::new(),
            dirty_bytes_max,
            write_back_timeout,
            computed_bytes_per_s: None,
            clock: Clock::real(),
        }
    }

    /// Adds a tier below the others, with the default [`TierRule`].
    pub fn with(self, tier: Arc<dyn Tier>) -> Self {
        self.with_rule(tier, TierRule::new())
    }

    /// Adds a tier below the others, with this rule.
    pub fn with_rule(mut self, tier: Arc<dyn Tier>, rule: TierRule) -> Self {
        self.levels.push((tier, rule));
        self
    }

    /// Sets the most bytes that wait to be written to lower tiers.
    pub fn with_dirty_bytes_max(mut self, bytes: u64) -> Self {
        self.dirty_bytes_max = bytes;
        self
    }

    /// Sets the deadline of a write to a lower tier in the background (10 s).
    pub fn with_write_back_timeout(mut self, longest: Duration) -> Self {
        self.write_back_timeout = longest;
        self
    }

    /// Sets how many bytes of KV cache the engine computes in a second.
    pub fn with_computed_bytes_per_s(mut self, bytes: f64) -> Self {
        self.computed_bytes_per_s = Some(bytes);
        self
    }

    /// Sets the clock for deadlines and holds, for tests. The tiers have clocks of their own.
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let invalid = |what: String| Err(Error::new(ErrorKind::Invalid, what));
        match self.levels.first() {
            None => return invalid("a stack needs at least one tier; give it some".into()),
            Some((tier, rule)) if rule.write != Write::Through => {
                let name = &tier.caps().name;
                return invalid(format!(
                    "{name}: the first tier of a stack is written through; set write: through"
                ));
            }
            _ => {}
        }
        if self.levels.len() > LEVELS_MAX {
            return invalid(format!(
                "{} tiers; a stack has at most {LEVELS_MAX}",
                self.levels.len()
            ));
        }
        if let Some((tier, _)) =
            self.levels.iter().find(|(_, rule)| rule.deadline.is_some_and(|own| own.is_zero()))
        {
            return invalid(format!(
                "{}: a deadline of 0 ends every op; leave it out",
                tier.caps().name
            ));
        }
        match self.computed_bytes_per_s {
            Some(rate) if !(rate.is_finite() && rate > 0.0) => invalid(format!(
                "{rate} bytes computed in a second is out of range; give a number above 0, or none"
            )),
            _ => Ok(()),
        }
    }
}
