use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Clock, Error, ErrorKind, Tier};

use super::plan::{LEVELS_MAX, Rule, Write};

/// How to build a stack: its tiers, the fastest first, and what is asked of each.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StackConfig {
    /// The stack's name in errors and reports.
    pub name: String,
    /// The tiers and their rules, the fastest first.
    pub levels: Vec<(Arc<dyn Tier>, Rule)>,
    /// The most bytes that wait to be written to lower tiers. What would be more is waited for; of
    /// what a tier gives up, it is lost.
    pub dirty_bytes_max: u64,
    /// How long a chunk on its way to a lower tier may take before it is given up.
    pub behind_max: Duration,
    /// How many bytes of KV cache the engine computes in a second (its prefill rate in tokens,
    /// times the bytes of a token). Given, a demand load that would take longer than computing
    /// is a miss.
    pub computed_bytes_per_s: Option<f64>,
    /// The clock that deadlines and holds go by.
    pub clock: Clock,
}

impl StackConfig {
    /// A stack without tiers yet, of at most 256 MiB dirty bytes.
    pub fn new(name: &str) -> Self {
        let (dirty_bytes_max, behind_max) = (256 << 20, Duration::from_secs(10));
        StackConfig {
            name: name.into(),
            levels: Vec::new(),
            dirty_bytes_max,
            behind_max,
            computed_bytes_per_s: None,
            clock: Clock::real(),
        }
    }

    /// Adds a tier below what is there: written through, and offered every chunk that is found
    /// below it.
    pub fn with(self, tier: Arc<dyn Tier>) -> Self {
        self.with_rule(tier, Rule::new())
    }

    /// Adds a tier with its rules.
    pub fn with_rule(mut self, tier: Arc<dyn Tier>, rule: Rule) -> Self {
        self.levels.push((tier, rule));
        self
    }

    /// Sets the most bytes that wait to be written to lower tiers.
    pub fn with_dirty_bytes_max(mut self, bytes: u64) -> Self {
        self.dirty_bytes_max = bytes;
        self
    }

    /// Sets how long a chunk on its way to a lower tier may take (10 s): a tier that stalls holds
    /// so long what waits for it.
    pub fn with_behind_max(mut self, longest: Duration) -> Self {
        self.behind_max = longest;
        self
    }

    /// Sets how many bytes of KV cache the engine computes in a second.
    pub fn with_computed_bytes_per_s(mut self, bytes: f64) -> Self {
        self.computed_bytes_per_s = Some(bytes);
        self
    }

    /// Sets the clock that deadlines and holds go by, for tests. Those of the tiers are their own.
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
                "{}: a deadline of 0 lets nothing through; leave it out",
                tier.caps().name
            ));
        }
        match self.computed_bytes_per_s {
            Some(rate) if !(rate.is_finite() && rate > 0.0) => invalid(format!(
                "{rate} bytes computed in a second cannot be; give a number above 0, or none"
            )),
            _ => Ok(()),
        }
    }
}
