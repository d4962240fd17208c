//! A tier whose metrics are exported, with its latencies and prices.

use std::sync::Arc;

use kvtier_core::Tier;

use super::{Meter, Prices};

/// A tier whose metrics are exported.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MonitoredTier {
    /// The tier.
    pub tier: Arc<dyn Tier>,
    /// The latency of its batches, if it is measured.
    pub meter: Option<Arc<Meter>>,
    /// Its prices.
    pub prices: Prices,
}

impl MonitoredTier {
    /// A tier without latencies and prices.
    pub fn new(tier: Arc<dyn Tier>) -> Self {
        MonitoredTier { tier, meter: None, prices: Prices::default() }
    }

    /// Adds the latency of its batches.
    pub fn with_meter(mut self, meter: Arc<Meter>) -> Self {
        self.meter = Some(meter);
        self
    }

    /// Adds its prices.
    pub fn with_prices(mut self, prices: Prices) -> Self {
        self.prices = prices;
        self
    }
}
