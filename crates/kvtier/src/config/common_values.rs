//! Reads the values that several kinds of tiers have: sizes, policies, quotas and `compat`.

use std::collections::BTreeMap;

use kvtier_evict::PolicyKind;
use kvtier_index::{LmcacheEviction, Quotas};
use serde::{Deserialize, Deserializer};

use super::value::Value;

pub(super) fn policy<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PolicyKind>, D::Error> {
    let word: Option<String> = Option::deserialize(from)?;
    word.map(|word| word.parse().map_err(serde::de::Error::custom)).transpose()
}

/// A mapping of tenants to sizes; `*` is every other.
pub(super) fn quotas<'de, D: Deserializer<'de>>(from: D) -> Result<Quotas, D::Error> {
    let map: BTreeMap<String, serde_json::Value> = BTreeMap::deserialize(from)?;
    let mut quotas = Quotas::new();
    for (tenant, size) in map {
        let size = bytes(size)
            .map_err(|e| serde::de::Error::custom(format!("quotas: {tenant:?}: {e}")))?;
        quotas = if tenant == "*" { quotas.with_others(size) } else { quotas.with(&tenant, size) };
    }
    Ok(quotas)
}

#[derive(Deserialize)]
#[serde(untagged)]
enum CompatMarks {
    Usual(bool),
    Given(EvictionShares),
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct EvictionShares {
    watermark: f64,
    ratio: f64,
}

impl Default for EvictionShares {
    fn default() -> Self {
        let LmcacheEviction { watermark, ratio, .. } = LmcacheEviction::new();
        EvictionShares { watermark, ratio }
    }
}

/// Whether to evict as LMCache does, and at which marks.
pub(super) fn compat<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<LmcacheEviction>, D::Error> {
    let wrong =
        || serde::de::Error::custom("compat is true, or {watermark, ratio}, shares from 0 to 1");
    let EvictionShares { watermark, ratio } =
        // serde's own error for an untagged enum names no field, so it is replaced.
        match CompatMarks::deserialize(from).map_err(|_| wrong())? {
            CompatMarks::Usual(false) => return Ok(None),
            CompatMarks::Usual(true) => EvictionShares::default(),
            CompatMarks::Given(shares) => shares,
        };
    let fits = |share: f64| (0.0..=1.0).contains(&share);
    (fits(watermark) && fits(ratio))
        .then_some(Some(LmcacheEviction::new().with(watermark, ratio)))
        .ok_or_else(wrong)
}

/// A number of bytes, or a text that says one.
pub(super) fn size(given: &Value) -> Option<u64> {
    match given {
        Value::Int(n) => u64::try_from(*n).ok(),
        Value::Text(text) => crate::byte_size::parse(text),
        _ => None,
    }
}

pub(super) fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let given = Value::from(serde_json::Value::deserialize(from)?);
    let wrong = || {
        serde::de::Error::custom(format!(
            "{given} is no size; write a number of bytes or a text like \"512MiB\""
        ))
    };
    size(&given).ok_or_else(wrong)
}
