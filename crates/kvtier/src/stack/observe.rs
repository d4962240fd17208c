use std::sync::Arc;

use kvtier_core::{Cursor, KeyPage, Listener, Observe, Status, Usage};

use super::Stack;

impl Observe for Stack {
    /// That of the slowest tier, through which everything passes.
    fn usage(&self) -> Usage {
        self.inner.tiers.last().map(|t| t.usage()).unwrap_or_default()
    }

    /// Those of the slowest tier.
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
        let all: Vec<_> = self.inner.tiers.iter().map(|t| (t.caps().name.clone(), t.status())).collect();
        let mut reasons: Vec<String> =
            all.iter().flat_map(|(name, s)| s.reasons.iter().map(move |r| format!("{name}: {r}"))).collect();
        if self.gate.is_closed() {
            reasons.insert(0, "it was closed".into());
        }
        let healthy = !self.gate.is_closed() && all.iter().any(|(_, s)| s.healthy);
        Status::new(healthy, reasons, self.inner.counters.all())
    }
}
