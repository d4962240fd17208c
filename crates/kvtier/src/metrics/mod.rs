//! Metrics: the [table of all](all), from which `docs/METRICS.md` is written, and their export as
//! Prometheus text, through a small HTTP server, and through the `metrics` facade.

mod document;
mod exported_tier;
mod metered_tier;
#[cfg(feature = "metrics")]
mod metrics_facade;
mod prices;
mod prometheus;
mod server;
mod table;

pub use document::markdown;
pub use exported_tier::MonitoredTier;
pub use metered_tier::{LatencyHistogram, Meter, Metered};
#[cfg(feature = "metrics")]
pub use metrics_facade::record;
pub use prices::Prices;
pub use prometheus::{Sample, prometheus, prometheus_name, samples, tenant_label};
pub use server::MetricsServer;
pub(crate) use table::{HostCounters, StackCounters};
pub use table::{Metric, Stability, Unit, all};
