use std::sync::Arc;

use kvtier_core::{Cursor, KeyPage, Listener, Observe, Status, Tier, Usage};

use super::latency_model::LatencyModel;
use super::placement;
use super::{Stack, Write};

impl Stack {
    /// The bytes that wait to be written to lower tiers; `None` if every tier is written through.
    fn waiting(&self) -> Option<String> {
        let dirty = &self.inner.dirty;
        let bytes = crate::byte_size::format;
        let may_wait = self.inner.rules.iter().any(|rule| rule.write != Write::Through);
        may_wait.then(|| {
            format!("{} of at most {} wait to be written", bytes(dirty.used()), bytes(dirty.max()))
        })
    }

    /// How fast the tiers load, and from which size loading is faster than computing.
    fn speeds(&self) -> Vec<String> {
        let inner = &self.inner;
        let one = |(tier, model): (&Arc<dyn Tier>, &LatencyModel)| {
            let name = &tier.caps().name;
            let speed = model.speed()?;
            Some(match inner.computed_per_s.map(|rate| speed.break_even_bytes(rate)) {
                None => format!("{name}: a load takes {speed}"),
                Some(Some(bytes)) => {
                    format!(
                        "{name}: a load takes {speed}; faster than computing from {}",
                        crate::byte_size::format(bytes)
                    )
                }
                Some(None) => format!("{name}: a load takes {speed}; computing is faster"),
            })
        };
        inner.tiers.iter().zip(&inner.latencies).filter_map(one).collect()
    }
}

impl Observe for Stack {
    /// The usage of the slowest tier, which gets every chunk. If it gets only evicted chunks, its
    /// usage plus that of the tiers that spill to it.
    fn usage(&self) -> Usage {
        let below = placement::floor(&self.inner.rules);
        // Tiers above this one hold copies. Adding them up would count chunks twice.
        self.inner.tiers[below..]
            .iter()
            .map(|tier| tier.usage())
            .reduce(Usage::combine)
            .unwrap_or_default()
    }

    /// The keys of the slowest tier. If it gets only evicted chunks, keys that only a faster tier
    /// has are missing.
    fn keys(&self, from: Cursor, max: usize) -> KeyPage {
        // The slowest tier has the most, and its listing is in one order, which pages need.
        self.inner.tiers.last().map(|t| t.keys(from, max)).unwrap_or_default()
    }

    /// Listens to the slowest tier: a chunk gone from it is gone from the stack.
    fn listen(&self, listener: Arc<dyn Listener>) {
        if let Some(tier) = self.inner.tiers.last() {
            tier.listen(listener);
        }
    }

    /// Healthy while the stack is open and a tier is healthy. The reasons are those of all tiers.
    fn status(&self) -> Status {
        let all: Vec<_> =
            self.inner.tiers.iter().map(|t| (t.caps().name.clone(), t.status())).collect();
        let mut reasons: Vec<String> = all
            .iter()
            .flat_map(|(name, s)| s.reasons.iter().map(move |r| format!("{name}: {r}")))
            .collect();
        reasons.extend(self.speeds());
        reasons.extend(self.waiting());
        let is_closed = self.admission.gate().is_closed();
        if is_closed {
            reasons.insert(0, "it was closed".into());
        }
        // One healthy tier is enough to serve; the reasons name the others.
        let healthy = !is_closed && all.iter().any(|(_, s)| s.healthy);
        Status::new(healthy, reasons, self.inner.counters.all())
    }
}
