//! The settings of the stack: those beside `tiers`, and the rules of each tier.

use std::time::Duration;

use kvtier_core::{Error, ErrorKind};

use crate::config::value::Value;
use crate::config::{Config, TierSpec, suggest};
use crate::metrics::Prices;
use crate::{Admit, TierRule, Write, byte_size};

/// The settings of a tier that are rules of the stack.
const NAMES: [&str; 3] = ["write", "admit", "answer_within_ms"];

/// Splits a tier's settings: the stack's rule, and the tier without it.
pub(in crate::config) fn take(tier: &Value, place: &str) -> Result<(TierRule, Value), Error> {
    let Some(map) = tier.as_map() else { return Ok((TierRule::new(), tier.clone())) };
    let mut rule = TierRule::new();
    for (name, value) in
        map.iter().filter(|(name, value)| NAMES.contains(&name.as_str()) && !value.is_null())
    {
        let wrong = |takes: String| invalid(format!("{place}: {name} takes {takes}, not {value}"));
        match name.as_str() {
            "write" => {
                rule.write =
                    write(value).map_err(|hint| wrong(format!("through, back or spill{hint}")))?
            }
            "admit" => {
                rule.admit = admit(value)
                    .ok_or_else(|| wrong("policy, never or hits from 1 to 255".into()))?
            }
            _ => {
                let ms = value.as_int().and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms > 0);
                let ms =
                    ms.ok_or_else(|| wrong("a whole number of milliseconds above 0".into()))?;
                rule.deadline = Some(Duration::from_millis(ms));
            }
        }
    }
    let rest = map.iter().filter(|(name, _)| !NAMES.contains(&name.as_str())).cloned().collect();
    Ok((rule, Value::Map(rest)))
}

fn write(value: &Value) -> Result<Write, String> {
    let word = value.as_text().unwrap_or_default();
    match word {
        "through" => Ok(Write::Through),
        "back" => Ok(Write::Back),
        "spill" => Ok(Write::Spill),
        _ => Err(suggest::hint(word, ["through", "back", "spill"])),
    }
}

fn admit(value: &Value) -> Option<Admit> {
    match (value.as_text(), value.as_int()) {
        (Some("policy"), _) => Some(Admit::Policy),
        (Some("never"), _) => Some(Admit::Never),
        (_, Some(hits)) => u8::try_from(hits).ok().filter(|hits| *hits > 0).map(Admit::AfterHits),
        _ => None,
    }
}

/// A size beside the tiers; `None` where it is not set.
pub(in crate::config) fn size(
    stack: &Value,
    field: &str,
    name: &str,
) -> Result<Option<u64>, Error> {
    let Some(value) = stack.field(field).filter(|value| !value.is_null()) else { return Ok(None) };
    let whole = value.as_int().and_then(|n| u64::try_from(n).ok());
    let bytes = whole.or_else(|| value.as_text().and_then(byte_size::parse));
    let wrong = || {
        invalid(format!(
            "{name}: {field} takes a number of bytes or a text such as \"512MiB\", not {value}"
        ))
    };
    bytes.ok_or_else(wrong).map(Some)
}

/// Checks what no stack allows, so that a file that was checked can be opened.
///
/// # Errors
/// `Invalid`, naming the place.
pub(in crate::config) fn check(config: &Config, name: &str) -> Result<(), Error> {
    let Config { tiers, rules, computed_bytes_per_s, .. } = config;
    // Nothing is above the first tier from which it could be written later.
    if rules.first().is_some_and(|rule| rule.write != Write::Through) {
        return Err(invalid(format!(
            "{name}: tiers[0]: the first tier is written through; leave `write` out there"
        )));
    }
    let spills = |at: &usize| {
        rules[*at].write == Write::Spill && !matches!(tiers[*at - 1], TierSpec::Host { .. })
    };
    // Only host memory still has a chunk's bytes when it evicts it.
    if let Some(at) = (1..rules.len()).find(spills) {
        let what = "`write: spill` needs a tier of type `host` above it";
        return Err(invalid(format!("{name}: tiers[{at}]: {what}; set `through` or `back`")));
    }
    if *computed_bytes_per_s == Some(0.0) {
        return Err(invalid(format!(
            "{name}: computed_per_s takes bytes above 0; leave it out if the rate is unknown"
        )));
    }
    Ok(())
}

/// The price table beside the tiers; all prices are 0 without one.
pub(in crate::config) fn prices(stack: &Value, name: &str) -> Result<Prices, Error> {
    let mut prices = Prices::new();
    let Some(table) = stack.field("prices").filter(|table| !table.is_null()) else {
        return Ok(prices);
    };
    let Some(map) = table.as_map() else {
        return Err(invalid(format!("{name}: prices takes a mapping, not {table}")));
    };
    for (key, value) in map {
        let price = match key.as_str() {
            "per_1000_writes" => &mut prices.per_1000_writes,
            "per_1000_reads" => &mut prices.per_1000_reads,
            "per_gb_read" => &mut prices.per_gb_read,
            "per_gb_written" => &mut prices.per_gb_written,
            _ => {
                let hint = suggest::hint(
                    key,
                    ["per_1000_writes", "per_1000_reads", "per_gb_read", "per_gb_written"],
                );
                return Err(invalid(format!(
                    "{name}: prices.{key}: no price is called that{hint}"
                )));
            }
        };
        let dollars = value.as_f64().filter(|dollars| dollars.is_finite() && *dollars >= 0.0);
        *price = dollars.ok_or_else(|| {
            invalid(format!("{name}: prices.{key} takes dollars, 0 or more, not {value}"))
        })?;
    }
    Ok(prices)
}

/// Describes a rule in words; empty for the default.
pub(in crate::config) fn describe(rule: &TierRule) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    match rule.write {
        Write::Through => {}
        Write::Back => facts.push(("write", "back: after the save is answered".into())),
        Write::Spill => facts.push(("write", "spill: chunks that the tier above evicts".into())),
    }
    match rule.admit {
        Admit::Policy => {}
        Admit::AfterHits(hits) => facts.push(("admit", format!("chunks found below {hits} times"))),
        Admit::Never => facts.push(("admit", "no chunks from below".into())),
    }
    facts.extend(rule.deadline.map(|own| ("answers within", format!("{} ms", own.as_millis()))));
    facts
}

fn invalid(what: String) -> Error {
    Error::new(ErrorKind::Invalid, what)
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn rules_are_read_and_wrong_ones_say_what_and_where() {
        let read = |tier: &str, beside: &str| {
            let host = r#"{"type":"host","bytes":"1MiB"}"#;
            let tiers = format!(
                r#"{{"tiers":[{host},{{"type":"host","name":"b","bytes":"2MiB"{tier}}}]{beside}}}"#
            );
            Config::from_json(&tiers, "x.json")
                .and_then(|config| config.open().map(|_| config))
                .map_err(|e| e.to_string())
        };
        let full = r#","write":"spill","admit":3,"answer_within_ms":50"#;
        let config = read(full, r#","dirty_max":"8MiB","computed_per_s":"1GiB""#).unwrap();
        assert_eq!(
            (config.dirty_bytes_max, config.computed_bytes_per_s),
            (Some(8 << 20), Some((1u64 << 30) as f64))
        );
        let facts: Vec<String> =
            config.facts(1).into_iter().map(|(name, value)| format!("{name} {value}")).collect();
        assert!(facts.contains(&"answers within 50 ms".into()), "{facts:?}");
        for (tier, beside, says) in [
            (r#","write":"bak""#, "", "did you mean \"back\"?"),
            (r#","admit":0"#, "", "hits from 1 to 255"),
            (r#","admit":"always""#, "", "policy, never"),
            (r#","answer_within_ms":-1"#, "", "tiers[1]: answer_within_ms"),
            ("", r#","dirty_max":"lots""#, "dirty_max"),
            ("", r#","computed_per_s":0"#, "computed"),
            ("", r#","prices":{"per_gb_reed":1}"#, "did you mean \"per_gb_read\"?"),
            ("", r#","prices":{"per_gb_read":-1}"#, "dollars, 0 or more"),
            ("", r#","dirty_mac":1"#, "did you mean \"dirty_max\"?"),
        ] {
            let error = read(tier, beside).unwrap_err();
            assert!(error.contains(says), "{tier}{beside}: {error}");
        }
        let first = r#"{"tiers":[{"type":"host","bytes":"1MiB","write":"back"},{"type":"host","bytes":"1MiB"}]}"#;
        let error = Config::from_json(first, "x.json").unwrap_err().to_string();
        assert!(error.contains("x.json: tiers[0]: the first tier is written through"), "{error}");
    }
}
