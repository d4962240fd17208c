//! Which settings make loaded chunks differ from those that the model computed.

use super::{Config, TierSpec};

impl Config {
    /// The tiers whose encoding is lossy, each in words.
    pub fn lossy_tiers(&self) -> Vec<String> {
        let say = |tier: &TierSpec| {
            let stages = lossy_stages(tier);
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

fn lossy_stages(tier: &TierSpec) -> Vec<String> {
    match tier {
        TierSpec::Host { .. } => Vec::new(),
        #[cfg(feature = "file")]
        TierSpec::File(spec) => spec.encoding.lossy_stages(),
        #[cfg(feature = "gds")]
        TierSpec::Gds(spec) => spec.file.encoding.lossy_stages(),
        #[cfg(feature = "s3")]
        TierSpec::S3(spec) => spec.encoding.lossy_stages(),
    }
}
