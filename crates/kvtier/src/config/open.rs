//! Opens the tiers of a configuration.

use std::sync::Arc;

use kvtier_core::{Error, ErrorKind, Tier};

use super::running_tiers::OpenTiers;
use super::{Config, TierSpec};
use crate::metrics::{Metered, MonitoredTier};
use crate::{HostConfig, HostTier, Stack, StackConfig, TierRule};

impl Config {
    /// Opens the tiers.
    pub fn open(&self) -> Result<OpenTiers, Error> {
        self.open_with(|tier| tier)
    }

    /// Opens the tiers; `wrap` may put a decorator around each.
    pub fn open_with(
        &self,
        wrap: impl Fn(Arc<dyn Tier>) -> Arc<dyn Tier>,
    ) -> Result<OpenTiers, Error> {
        // Before anything is opened: two tiers over one directory would already have changed it.
        self.check()?;
        let mut started = TierHandles::default();
        let mut shown = Vec::with_capacity(self.tiers.len() + 1);
        let named = self.named();
        let mut open = |spec| {
            // The meter is inside the caller's own wrapper, so it measures the medium and not the
            // wrapper.
            let (tier, meter) = Metered::wrap(started.open(spec)?);
            shown.push(
                MonitoredTier::new(Arc::clone(&tier)).with_meter(meter).with_prices(self.prices),
            );
            Ok(wrap(tier))
        };
        let tiers = named.iter().map(&mut open).collect::<Result<Vec<_>, Error>>()?;
        let top: Arc<dyn Tier> = match tiers.as_slice() {
            [] => {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    "a configuration without a tier; add one",
                ));
            }
            // A stack of one tier without rules adds a thread and nothing else.
            [one] if self.rule(0) == TierRule::new() && self.computed_bytes_per_s.is_none() => {
                Arc::clone(one)
            }
            many => {
                let (stack, meter) = Metered::wrap(Arc::new(Stack::open(self.stack(many))?));
                shown.push(MonitoredTier::new(Arc::clone(&stack)).with_meter(meter));
                stack
            }
        };
        Ok(OpenTiers {
            top,
            tiers,
            shown,
            #[cfg(feature = "file")]
            files: started.files,
            #[cfg(feature = "gds")]
            gds: started.gds,
            #[cfg(feature = "s3")]
            s3: started.s3,
            config: self.clone(),
        })
    }

    pub(super) fn rule(&self, at: usize) -> TierRule {
        self.rules.get(at).copied().unwrap_or_default()
    }

    fn stack(&self, tiers: &[Arc<dyn Tier>]) -> StackConfig {
        let mut stack = StackConfig::new(self.name.as_deref().unwrap_or("stack"));
        for (at, tier) in tiers.iter().enumerate() {
            stack = stack.with_rule(Arc::clone(tier), self.rule(at));
        }
        stack.dirty_bytes_max = self.dirty_bytes_max.unwrap_or(stack.dirty_bytes_max);
        stack.computed_bytes_per_s = self.computed_bytes_per_s;
        stack
    }
}

/// The typed handles of opened tiers.
#[derive(Default)]
struct TierHandles {
    #[cfg(feature = "file")]
    files: Vec<Arc<kvtier_file::FileTier>>,
    #[cfg(feature = "gds")]
    gds: Vec<Arc<kvtier_gds::GdsTier>>,
    #[cfg(feature = "s3")]
    s3: Vec<Arc<kvtier_s3_tier::S3Tier>>,
}

impl TierHandles {
    fn open(&mut self, spec: &TierSpec) -> Result<Arc<dyn Tier>, Error> {
        match spec {
            TierSpec::Host { bytes, name, policy, quotas, fair, compat } => {
                let config = HostConfig::new(*bytes).with_policy(policy.unwrap_or_default());
                let mut config = config.with_quotas(quotas.clone().with_fair(*fair));
                if let Some(compat) = compat {
                    config = config.with_compat(*compat);
                }
                config.name = name.clone().unwrap_or(config.name);
                Ok(Arc::new(HostTier::open(config)?))
            }
            #[cfg(feature = "file")]
            TierSpec::File(spec) => {
                let file = Arc::new(spec.open()?);
                self.files.push(Arc::clone(&file));
                Ok(file)
            }
            #[cfg(feature = "gds")]
            TierSpec::Gds(spec) => {
                let gds = Arc::new(spec.open()?);
                self.gds.push(Arc::clone(&gds));
                Ok(gds)
            }
            #[cfg(feature = "s3")]
            TierSpec::S3(spec) => {
                let s3 = Arc::new(spec.open()?);
                self.s3.push(Arc::clone(&s3));
                Ok(s3)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_of_the_same_name_are_renamed() {
        let text = r#"{"tiers":[{"type":"host","bytes":1},{"type":"host","bytes":1,"name":"host-2"},{"type":"host","bytes":1}]}"#;
        let config = Config::from_json(text, "x.json").unwrap();
        let opened = config.open().unwrap();
        let names: Vec<_> = opened.tiers.iter().map(|tier| tier.caps().name.to_string()).collect();
        assert_eq!(names, ["host", "host-2", "host-3"]);
        assert_eq!(config.facts(2)[1], ("name", "host-3".to_owned()));
    }
}
