//! Which settings make loaded chunks differ from those that the model computed.

use super::{Config, EncodingSpec, TierSpec};

impl Config {
    /// The tiers whose encoding is lossy, each in words.
    pub fn lossy_tiers(&self) -> Vec<String> {
        let say = |tier: &TierSpec| {
            let stages = encoding(tier).map(EncodingSpec::lossy_stages).unwrap_or_default();
            (!stages.is_empty()).then(|| {
                format!(
                    "tier {}: encode: {} is lossy: loaded chunks differ from what the model computed; \
                     leave it out for exact bytes",
                    tier.name(),
                    stages.join(" and ")
                )
            })
        };
        self.named().iter().filter_map(say).collect()
    }
}

fn encoding(tier: &TierSpec) -> Option<&EncodingSpec> {
    match tier {
        TierSpec::Host { .. } => None,
        #[cfg(feature = "file")]
        TierSpec::File(spec) => Some(&spec.encoding),
        #[cfg(feature = "gds")]
        TierSpec::Gds(spec) => Some(&spec.file.encoding),
        #[cfg(feature = "s3")]
        TierSpec::S3(spec) => Some(&spec.encoding),
    }
}
