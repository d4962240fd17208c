//! Metrics in Prometheus' exposition format.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use kvtier_core::Digest;

use super::table::{OTHER, TIMES, all};
use super::{MonitoredTier, Prices};

/// One value of one tier.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Sample {
    /// The name, with its unit last.
    pub name: String,
    /// Labels and their values.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: f64,
    /// Whether it is a counter, which only grows.
    pub is_counter: bool,
}

/// A counter's name in Prometheus, and its label `reason`.
pub fn prometheus_name(counter: &str) -> (String, Option<&str>) {
    match counter.strip_prefix("misses_") {
        Some(reason) => ("kvtier_misses_total".into(), Some(reason)),
        None if counter.ends_with("_us") => {
            // Prometheus asks for base units: seconds, not microseconds.
            (format!("kvtier_{}_seconds_total", counter.trim_end_matches("_us")), None)
        }
        None => (format!("kvtier_{counter}_total"), None),
    }
}

/// All values of these tiers except histograms.
pub fn samples(tiers: &[MonitoredTier]) -> Vec<Sample> {
    tiers.iter().flat_map(of_tier).collect()
}

fn of_tier(shown: &MonitoredTier) -> Vec<Sample> {
    let status = shown.tier.status();
    let usage = shown.tier.usage();
    let name = shown.tier.caps().name.to_string();
    let sample = |metric: &str, labels: &[(&'static str, String)], value: f64, is_counter: bool| {
        let labels =
            std::iter::once(("tier", name.clone())).chain(labels.iter().cloned()).collect();
        Sample { name: metric.into(), labels, value, is_counter }
    };
    let gauge = |metric, value: u64| sample(metric, &[], value as f64, false);
    let mut all =
        vec![gauge("kvtier_healthy", status.healthy.into()), gauge("kvtier_chunks", usage.chunks)];
    all.extend(usage.used_bytes.map(|bytes| gauge("kvtier_used_bytes", bytes)));
    all.extend(usage.capacity_bytes.map(|bytes| gauge("kvtier_capacity_bytes", bytes)));
    let of_tenant = |tenant: &kvtier_core::TenantUsage| {
        sample(
            "kvtier_tenant_used_bytes",
            &[("tenant", tenant_label(&tenant.tenant))],
            tenant.used_bytes as f64,
            false,
        )
    };
    all.extend(usage.tenants.iter().map(of_tenant));
    for (counter, value) in &status.counters {
        let (metric, reason) = prometheus_name(counter);
        let value = if counter.ends_with("_us") { *value as f64 / 1e6 } else { *value as f64 };
        let labels: Vec<_> =
            reason.map(|reason| ("reason", reason.to_owned())).into_iter().collect();
        all.push(sample(&metric, &labels, value, true));
    }
    if shown.prices != Prices::default() {
        all.push(sample(
            "kvtier_cost_dollars_total",
            &[],
            shown.prices.dollars(&status.counters),
            true,
        ));
    }
    all
}

/// The label of a tenant: 32 hexadecimal digits of a digest of its name, which may be a cache salt
/// and must not appear. Empty for no tenant. A tenant whose name is unknown to this process (`~` and
/// 32 digits) keeps those digits.
pub fn tenant_label(name: &str) -> String {
    // A name of this form is already a digest. Hashing it again would give one tenant two labels,
    // before and after its name is learned.
    let is_digest =
        |digits: &&str| digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if let Some(digits) = name.strip_prefix('~').filter(is_digest) {
        return digits.to_owned();
    }
    let digits = if name.is_empty() { 0 } else { 32 };
    let digest = Digest::derive("kvtier tenant label", name.as_bytes()).to_string();
    digest.chars().take(digits).collect()
}

/// These tiers' metrics as text in Prometheus' exposition format, version 0.0.4.
///
/// ```
/// # #[cfg(feature = "config")] {
/// use kvtier::config::Config;
/// use kvtier::metrics::prometheus;
///
/// let stack = Config::new().with_host(16 << 20).open()?;
/// let text = prometheus(stack.monitored());
/// assert!(text.contains(r#"kvtier_hits_total{tier="host"} 0"#));
/// # }
/// # Ok::<(), kvtier::core::Error>(())
/// ```
pub fn prometheus(tiers: &[MonitoredTier]) -> String {
    // The text format wants all samples of one metric in one block, below its HELP and TYPE.
    let mut families: BTreeMap<String, Vec<Sample>> = BTreeMap::new();
    samples(tiers)
        .into_iter()
        .for_each(|sample| families.entry(sample.name.clone()).or_default().push(sample));
    let mut out = String::new();
    for (name, samples) in families {
        let kind = if samples[0].is_counter { "counter" } else { "gauge" };
        let _ = writeln!(out, "# HELP {name} {}\n# TYPE {name} {kind}", help(&name));
        for sample in samples {
            let _ = writeln!(out, "{name}{{{}}} {}", labels(&sample.labels), sample.value);
        }
    }
    if tiers.iter().any(|shown| shown.meter.is_some()) {
        let _ = writeln!(out, "# HELP {TIMES} {}\n# TYPE {TIMES} histogram", help(TIMES));
        for shown in tiers {
            let tier = labels(&[("tier", shown.tier.caps().name.to_string())]);
            shown.meter.iter().for_each(|meter| meter.expose(TIMES, &tier, &mut out));
        }
    }
    out
}

fn help(name: &str) -> String {
    if let Some((.., help)) = OTHER.iter().find(|(other, ..)| *other == name) {
        return (*help).into();
    }
    if name == "kvtier_misses_total" {
        return "loads that were not hits, by reason".into();
    }
    let metric = all().find(|metric| prometheus_name(metric.name).0 == name);
    metric.map_or_else(
        || "not described".into(),
        |metric| metric.help.replace('\\', "\\\\").replace('\n', " "),
    )
}

fn labels(labels: &[(&'static str, String)]) -> String {
    let escape =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let one = |(name, value): &(&str, String)| format!("{name}=\"{}\"", escape(value));
    labels.iter().map(one).collect::<Vec<_>>().join(",")
}
