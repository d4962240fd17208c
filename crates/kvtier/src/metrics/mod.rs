//! Metrics: the [table of all](all), from which `docs/METRICS.md` is written, and their export as
//! Prometheus text, through a small HTTP server, and through the `metrics` facade.

mod document;
mod metered;
mod monitored_tier;
mod prices;
mod prometheus;
#[cfg(feature = "metrics")]
mod recorder;
mod server;
mod table;

pub use document::markdown;
pub use metered::{LatencyHistogram, Meter, Metered};
pub use monitored_tier::MonitoredTier;
pub use prices::Prices;
pub use prometheus::{Sample, prometheus, prometheus_name, samples, tenant_label};
#[cfg(feature = "metrics")]
pub use recorder::record;
pub use server::MetricsServer;
pub(crate) use table::{HostCounters, StackCounters};
pub use table::{Metric, Stability, Unit, all};
