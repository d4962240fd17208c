//! LMCache's mode, which defines the keys that the tiers of a configuration have names for.

use kvtier_core::{Error, ErrorKind};

use super::{Config, TierSpec};

/// LMCache's mode, which defines the keys. A tier whose layout does not take all keys has names for
/// those of one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LmcacheMode {
    /// LMCache's multi-process mode: [`ObjectKey`](kvtier_key::ObjectKey).
    MultiProcess,
    /// LMCache's in-process mode: [`CacheEngineKey`](kvtier_key::CacheEngineKey) and
    /// [`LayerCacheEngineKey`](kvtier_key::LayerCacheEngineKey).
    InProcess,
}

impl LmcacheMode {
    /// The mode in words, for messages.
    pub fn name(self) -> &'static str {
        match self {
            LmcacheMode::MultiProcess => "multi-process",
            LmcacheMode::InProcess => "in-process",
        }
    }
}

impl Config {
    /// The mode whose keys all tiers have names for; `None` where they take every key.
    ///
    /// ```
    /// use kvtier::config::{Config, LmcacheMode};
    /// assert_eq!(Config::new().with_host(1 << 20).lmcache_mode()?, None);
    /// # #[cfg(feature = "file")] {
    /// let text = r#"{"tiers": [{"type": "file", "path": "/mnt/kv", "bytes": "1GiB", "layout": "lmcache"}]}"#;
    /// assert_eq!(Config::from_text(text, "kv.json")?.lmcache_mode()?, Some(LmcacheMode::InProcess));
    /// # }
    /// # Ok::<(), kvtier::core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Invalid` where two tiers have layouts of different modes: no key has a name in both.
    pub fn lmcache_mode(&self) -> Result<Option<LmcacheMode>, Error> {
        let modes =
            self.tiers.iter().enumerate().filter_map(|(at, tier)| Some((at, tier.lmcache_mode()?)));
        let mut found: Option<(usize, LmcacheMode)> = None;
        for (at, mode) in modes {
            match found {
                Some((first, other)) if other != mode => {
                    let other = other.name();
                    let mode = mode.name();
                    let what = format!(
                        "tiers[{first}] has names for keys of LMCache's {other} mode and tiers[{at}] for those of its {mode} mode, \
                         so that no key can be saved to both; give them layouts of one mode, or layout kvtier"
                    );
                    return Err(Error::new(ErrorKind::Invalid, what));
                }
                _ => found = found.or(Some((at, mode))),
            }
        }
        Ok(found.map(|(_, mode)| mode))
    }
}

impl TierSpec {
    /// The mode whose keys its layout has names for; `None` for all.
    fn lmcache_mode(&self) -> Option<LmcacheMode> {
        match self {
            TierSpec::Host { .. } => None,
            #[cfg(feature = "file")]
            TierSpec::File(spec) => of_files(spec),
            #[cfg(feature = "gds")]
            TierSpec::Gds(spec) => of_files(&spec.file),
            #[cfg(feature = "s3")]
            TierSpec::S3(spec) => match spec.layout {
                kvtier_s3_tier::Layout::LmcacheMp => Some(LmcacheMode::MultiProcess),
                kvtier_s3_tier::Layout::Lmcache => Some(LmcacheMode::InProcess),
                _ => None,
            },
        }
    }
}

#[cfg(feature = "file")]
fn of_files(spec: &super::FileSpec) -> Option<LmcacheMode> {
    use kvtier_file::Layout;
    match spec.layout? {
        Layout::LmcacheMp | Layout::VllmFs => Some(LmcacheMode::MultiProcess),
        Layout::Lmcache | Layout::LmcacheGds | Layout::LmcacheGdsWeka => {
            Some(LmcacheMode::InProcess)
        }
        _ => None,
    }
}

#[cfg(all(test, feature = "file"))]
mod tests {
    use super::*;

    fn mode_of(layouts: &[&str]) -> Result<Option<LmcacheMode>, String> {
        let tier = |layout: &&str| {
            format!(r#"{{"type":"file","path":"/{layout}","bytes":1,"layout":"{layout}"}}"#)
        };
        let tiers: Vec<_> = layouts.iter().map(tier).collect();
        let text = format!(r#"{{"tiers":[{{"type":"host","bytes":1}},{}]}}"#, tiers.join(","));
        Config::from_json(&text, "x.json").unwrap().lmcache_mode().map_err(|e| e.to_string())
    }

    #[test]
    fn the_layouts_of_files_decide_whose_keys_are_taken() {
        assert_eq!(mode_of(&["kvtier"]), Ok(None));
        assert_eq!(mode_of(&["kvtier", "lmcache-mp"]), Ok(Some(LmcacheMode::MultiProcess)));
        for layout in ["lmcache", "lmcache-gds", "lmcache-gds-weka"] {
            assert_eq!(mode_of(&[layout, "kvtier"]), Ok(Some(LmcacheMode::InProcess)), "{layout}");
        }
        let both = mode_of(&["lmcache-gds", "lmcache-mp"]).unwrap_err();
        assert!(
            both.contains("tiers[1]")
                && both.contains("tiers[2]")
                && both.contains("layout kvtier"),
            "{both}"
        );
    }

    #[cfg(feature = "s3")]
    #[test]
    fn a_bucket_of_lmcaches_own_configuration_takes_its_modes_keys() {
        use crate::config::{Adapter, lmcache};
        let yaml = "local_cpu: false\nremote_url: s3://b\nextra_config: {s3_region: us-east-1}\n";
        let inputs = lmcache::Inputs::new().with_file("x.yaml", yaml);
        let planned = lmcache::LmcacheConfig::read(&inputs).unwrap().stack(0).unwrap();
        assert_eq!(planned.config.lmcache_mode().unwrap(), Some(LmcacheMode::InProcess));
        let object = r#"{"type":"s3","s3_endpoint":"s3://b","s3_region":"us-east-1"}"#;
        let config = Adapter::params(object, "adapter").unwrap();
        assert_eq!(config.lmcache_mode().unwrap(), Some(LmcacheMode::MultiProcess));
    }
}
