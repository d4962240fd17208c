//! A dashboard of the metrics: `docs/grafana.json`.

use std::fmt::Write as _;

/// Title, unit and queries with their legends, one panel each.
const PANELS: &[(&str, &str, &[(&str, &str)])] = &[
    (
        "Hit ratio of lookups",
        "percentunit",
        &[(
            "sum by (tier) (rate(kvtier_lookup_hits_total[$__rate_interval])) / sum by (tier) (rate(kvtier_lookup_keys_total[$__rate_interval]))",
            "{{tier}}",
        )],
    ),
    (
        "Loads that were hits, of all loads",
        "percentunit",
        &[(
            "sum by (tier) (rate(kvtier_hits_total[$__rate_interval])) / (sum by (tier) (rate(kvtier_hits_total[$__rate_interval])) + sum by (tier) (rate(kvtier_misses_total[$__rate_interval])))",
            "{{tier}}",
        )],
    ),
    (
        "Misses by reason",
        "ops",
        &[(
            "sum by (tier, reason) (rate(kvtier_misses_total[$__rate_interval]))",
            "{{tier}} {{reason}}",
        )],
    ),
    ("Bytes loaded", "Bps", &[("rate(kvtier_loaded_bytes_total[$__rate_interval])", "{{tier}}")]),
    ("Bytes saved", "Bps", &[("rate(kvtier_saved_bytes_total[$__rate_interval])", "{{tier}}")]),
    (
        "Time of a batch, p50 and p99",
        "s",
        &[
            (
                "histogram_quantile(0.5, sum by (le, tier, op) (rate(kvtier_op_seconds_bucket[$__rate_interval])))",
                "{{tier}} {{op}} p50",
            ),
            (
                "histogram_quantile(0.99, sum by (le, tier, op) (rate(kvtier_op_seconds_bucket[$__rate_interval])))",
                "{{tier}} {{op}} p99",
            ),
        ],
    ),
    ("Time in queues", "s", &[("rate(kvtier_queue_seconds_total[$__rate_interval])", "{{tier}}")]),
    ("How full", "percentunit", &[("kvtier_used_bytes / kvtier_capacity_bytes", "{{tier}}")]),
    ("Used by tenant", "bytes", &[("kvtier_tenant_used_bytes", "{{tier}} {{tenant}}")]),
    ("Evictions", "ops", &[("rate(kvtier_evicted_total[$__rate_interval])", "{{tier}}")]),
    (
        "Wrong bytes caught",
        "ops",
        &[("rate(kvtier_misses_total{reason=\"corrupt\"}[$__rate_interval])", "{{tier}}")],
    ),
    (
        "Faults: errors, sent again, throttled, stranded",
        "ops",
        &[
            ("rate(kvtier_io_errors_total[$__rate_interval])", "{{tier}} errors"),
            ("rate(kvtier_errors_total[$__rate_interval])", "{{tier}} errors of the store"),
            ("rate(kvtier_tier_errors_total[$__rate_interval])", "{{tier}} errors of tiers"),
            ("rate(kvtier_retries_total[$__rate_interval])", "{{tier}} requests sent again"),
            ("rate(kvtier_throttled_total[$__rate_interval])", "{{tier}} throttled"),
            ("rate(kvtier_stranded_total[$__rate_interval])", "{{tier}} stranded"),
        ],
    ),
    (
        "Cost an hour",
        "currencyUSD",
        &[("3600 * rate(kvtier_cost_dollars_total[$__rate_interval])", "{{tier}}")],
    ),
];

/// The dashboard as JSON, for Grafana to import.
pub fn dashboard() -> String {
    let mut out = String::from(HEAD);
    for (at, (title, unit, queries)) in PANELS.iter().enumerate() {
        let (x, y) = (12 * (at % 2), 8 * (at / 2));
        let targets: Vec<String> = queries
            .iter()
            .zip("ABCDEFGH".chars())
            .map(|((query, legend), id)| {
                format!(
                    "        {{\"refId\": \"{id}\", \"expr\": {}, \"legendFormat\": {}}}",
                    text(query),
                    text(legend)
                )
            })
            .collect();
        let comma = if at + 1 < PANELS.len() { "," } else { "" };
        let _ = write!(
            out,
            "    {{\n      \"id\": {}, \"type\": \"timeseries\", \"title\": {}, \"datasource\": {{\"type\": \"prometheus\", \"uid\": \"${{source}}\"}},\n      \"gridPos\": {{\"x\": {x}, \"y\": {y}, \"w\": 12, \"h\": 8}}, \"fieldConfig\": {{\"defaults\": {{\"unit\": \"{unit}\", \"min\": 0}}, \"overrides\": []}},\n      \"targets\": [\n{}\n      ]\n    }}{comma}\n",
            at + 1,
            text(title),
            targets.join(",\n"),
        );
    }
    out + "  ]\n}\n"
}

const HEAD: &str = r#"{
  "title": "kvtier", "uid": "kvtier", "schemaVersion": 39, "version": 1, "refresh": "30s", "tags": ["kvtier"],
  "time": {"from": "now-1h", "to": "now"},
  "templating": {"list": [{"name": "source", "type": "datasource", "query": "prometheus", "label": "Source"}]},
  "panels": [
"#;

/// A text in JSON.
fn text(words: &str) -> String {
    format!("\"{}\"", words.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::metrics::expose::OTHER;
    use crate::metrics::{all, prometheus_name};

    #[test]
    fn every_query_is_about_a_metric_that_there_is() {
        let mut known: BTreeSet<String> =
            all().map(|metric| prometheus_name(metric.name).0).collect();
        known.extend(OTHER.iter().map(|(name, ..)| name.to_string()));
        let queries =
            PANELS.iter().flat_map(|(.., queries)| queries.iter().map(|(query, _)| *query));
        let mut seen = 0;
        for word in
            queries.flat_map(|query| query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        {
            if word.starts_with("kvtier_") {
                assert!(known.contains(word.trim_end_matches("_bucket")), "{word}");
                seen += 1;
            }
        }
        assert!(seen > 15);
    }

    #[cfg(feature = "config")]
    #[test]
    fn it_is_json() {
        let json: serde_json::Value = serde_json::from_str(&dashboard()).unwrap();
        assert_eq!(json["panels"].as_array().unwrap().len(), PANELS.len());
    }
}
