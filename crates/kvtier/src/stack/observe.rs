use std::sync::Arc;

use kvtier_core::{Cursor, KeyPage, Listener, Observe, Status, Tier, Usage};

use super::pace::Pace;
use super::plan;
use super::{Stack, Write};

impl Stack {
    /// What waits to be written to lower tiers, where anything may.
    fn waiting(&self) -> Option<String> {
        let (dirty, bytes) = (&self.inner.dirty, crate::bytes::format);
        let may_wait = self.inner.rules.iter().any(|rule| rule.write != Write::Through);
        may_wait.then(|| {
            format!("{} of at most {} wait to be written", bytes(dirty.used()), bytes(dirty.max()))
        })
    }

    /// How fast the tiers load, and from how much on that beats computing.
    fn speeds(&self) -> Vec<String> {
        let inner = &self.inner;
        let one = |(tier, pace): (&Arc<dyn Tier>, &Pace)| {
            let (name, speed) = (&tier.caps().name, pace.speed()?);
            Some(match inner.computed_per_s.map(|rate| speed.break_even_bytes(rate)) {
                None => format!("{name}: a load takes {speed}"),
                Some(Some(bytes)) => {
                    format!(
                        "{name}: a load takes {speed}; it beats computing from {} on",
                        crate::bytes::format(bytes)
                    )
                }
                Some(None) => format!("{name}: a load takes {speed}; computing is quicker"),
            })
        };
        inner.tiers.iter().zip(&inner.paces).filter_map(one).collect()
    }
}

impl Observe for Stack {
    /// That of the slowest tier, through which everything passes; where that gets only what is
    /// spilled, together with those that spill.
    fn usage(&self) -> Usage {
        let below = plan::floor(&self.inner.rules);
        self.inner.tiers[below..]
            .iter()
            .map(|tier| tier.usage())
            .reduce(Usage::combine)
            .unwrap_or_default()
    }

    /// Those of the slowest tier: where that gets only what is spilled, what lies above alone is
    /// not among them.
    fn keys(&self, from: Cursor, max: usize) -> KeyPage {
        self.inner.tiers.last().map(|t| t.keys(from, max)).unwrap_or_default()
    }

    /// To the slowest tier: what is gone there is gone.
    fn listen(&self, listener: Arc<dyn Listener>) {
        if let Some(tier) = self.inner.tiers.last() {
            tier.listen(listener);
        }
    }

    /// Healthy while it is open and some tier is; the reasons are those of all tiers.
    fn status(&self) -> Status {
        let all: Vec<_> =
            self.inner.tiers.iter().map(|t| (t.caps().name.clone(), t.status())).collect();
        let mut reasons: Vec<String> = all
            .iter()
            .flat_map(|(name, s)| s.reasons.iter().map(move |r| format!("{name}: {r}")))
            .collect();
        reasons.extend(self.speeds());
        reasons.extend(self.waiting());
        if self.gate.is_closed() {
            reasons.insert(0, "it was closed".into());
        }
        let healthy = !self.gate.is_closed() && all.iter().any(|(_, s)| s.healthy);
        Status::new(healthy, reasons, self.inner.counters.all())
    }
}
