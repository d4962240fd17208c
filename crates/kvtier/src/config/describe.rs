//! Describes a tier, for people and programs.

use kvtier_index::{LmcacheEviction, Quotas};

use super::{Config, TierSpec, native};
use crate::byte_size::format;

impl Config {
    /// What tier `at` is, fact by fact, and what is asked of it as a part of the stack.
    pub fn facts(&self, at: usize) -> Vec<(&'static str, String)> {
        let mut facts = self.named().get(at).map(TierSpec::facts).unwrap_or_default();
        facts.extend(native::stack_settings::describe(&self.rule(at)));
        facts
    }
}

impl TierSpec {
    /// Facts about the tier: `type`, `name`, `cap`, and those of its type. Secrets are left out.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        match self {
            TierSpec::Host { bytes, name, policy, quotas, fair, compat } => {
                let mut facts = vec![
                    ("type", "host".into()),
                    ("name", name.clone().unwrap_or_else(|| "host".into())),
                    ("cap", format(*bytes)),
                    ("policy", policy.unwrap_or_default().to_string()),
                ];
                facts.extend(limits(quotas, *fair));
                facts.extend(compat.map(letter));
                facts
            }
            #[cfg(feature = "file")]
            TierSpec::File(spec) => file(spec),
            #[cfg(feature = "gds")]
            TierSpec::Gds(spec) => gds(spec),
            #[cfg(feature = "s3")]
            TierSpec::S3(spec) => s3(spec),
        }
    }
}

/// What tenants may have, if they have limits, and whether they are sure of it.
fn limits(quotas: &Quotas, fair: bool) -> impl Iterator<Item = (&'static str, String)> {
    let of = quotas.by_tenant.iter().map(|(tenant, bytes)| format!("{tenant} {}", format(*bytes)));
    let others = quotas.others.map(|bytes| format!("each other {}", format(bytes)));
    let limits = (!quotas.is_empty())
        .then(|| ("quotas", of.chain(others).collect::<Vec<_>>().join(" and ")));
    limits
        .into_iter()
        .chain(fair.then(|| ("fair", "tenants above their quota are evicted first".into())))
}

/// When chunks go where that is as LMCache does it.
fn letter(LmcacheEviction { watermark, ratio, .. }: LmcacheEviction) -> (&'static str, String) {
    ("eviction", format!("once a second, from {watermark} of the cap on, {ratio} of all chunks"))
}

#[cfg(feature = "file")]
fn file(spec: &super::FileSpec) -> Vec<(&'static str, String)> {
    use super::Capacity;
    let cap = match spec.bytes {
        Capacity::Bytes(bytes) => format(bytes),
        Capacity::Share(share) => format!("{} % of the file system", share * 100.0),
    };
    let mut facts = vec![
        ("type", "file".into()),
        ("name", spec.name.clone().unwrap_or_else(|| "file".into())),
        ("cap", cap),
        ("policy", spec.policy.unwrap_or_default().to_string()),
        ("path", spec.path.display().to_string()),
        ("layout", spec.layout.unwrap_or_default().to_string()),
        ("verify", format!("{:?}", spec.verify.unwrap_or_default()).to_lowercase()),
    ];
    facts.extend(spec.shape_state().map(|state| ("shape", state.to_string())));
    let run_config = spec.vllm_run_config.as_deref();
    facts.extend(run_config.map(|config| ("base", config.base().to_owned())));
    facts.extend(limits(&spec.quotas, spec.fair));
    facts.extend(spec.compat.map(letter));
    facts.extend(spec.encoding.facts());
    facts
}

#[cfg(feature = "gds")]
fn gds(spec: &super::GdsSpec) -> Vec<(&'static str, String)> {
    let mut facts = file(&spec.file);
    // The first two facts are the type and the name; the rest is that of a file tier.
    (facts[0].1, facts[1].1) = ("gds".into(), spec.name().into());
    facts.extend([
        ("cufile", format!("{:?}", spec.gpu.cufile.unwrap_or_default()).to_lowercase()),
        ("proof", format!("{:?}", spec.gpu.proof.unwrap_or_default()).to_lowercase()),
    ]);
    facts
}

#[cfg(feature = "s3")]
fn s3(spec: &super::S3Spec) -> Vec<(&'static str, String)> {
    let endpoint = spec.resolve();
    let (at, provider, region) = match &endpoint {
        Ok(endpoint) => (
            endpoint.to_string(),
            endpoint.provider().name().to_owned(),
            endpoint.region().to_owned(),
        ),
        // `config explain` shows what it can: an endpoint that does not resolve is one line, not
        // the end.
        Err(e) => (format!("unresolved: {e}"), String::new(), String::new()),
    };
    let signs = if spec.credentials.is_some() {
        "the configuration"
    } else {
        "the environment, profiles or roles"
    };
    let eviction = spec.capacity_bytes.map(|_| match spec.compat {
        Some(compat) => letter(LmcacheEviction::new().with(compat.watermark, compat.ratio)).1,
        None => {
            format!("down to {} of the cap, at most {} at once", spec.high_mark, spec.batch_max)
        }
    });
    let mut facts = vec![
        ("type", "s3".into()),
        ("name", spec.name.clone()),
        ("cap", spec.capacity_bytes.map_or_else(|| "none".into(), format)),
        ("eviction", eviction.unwrap_or_else(|| "none".into())),
        ("policy", spec.policy.to_string()),
        ("endpoint", at),
        ("provider", provider),
        ("region", region),
        ("prefix", spec.prefix.clone()),
        ("layout", spec.layout.to_string()),
        ("verify", format!("{:?}", spec.verify).to_lowercase()),
        ("evictor", spec.evictor.name().into()),
        ("requests at once", spec.requests_max.to_string()),
        ("deadline", format!("{} s", spec.deadline.as_secs())),
        ("http2", http2(spec.http2).into()),
        ("signed by", signs.into()),
    ];
    facts.extend(spec.storage_class.clone().map(|class| ("storage class", class)));
    facts.extend(spec.chunk_bytes.map(|bytes| ("chunk", format(bytes))));
    facts.extend(limits(&spec.quotas, spec.quotas.fair));
    facts.extend(spec.encoding.facts());
    facts
}

#[cfg(feature = "s3")]
fn http2(http2: kvtier_s3::Http2) -> &'static str {
    match http2 {
        kvtier_s3::Http2::Auto => "where the server chooses it",
        kvtier_s3::Http2::PriorKnowledge => {
            "by prior knowledge over plain HTTP, where the server chooses it over TLS"
        }
        _ => "off",
    }
}
