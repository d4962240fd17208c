//! Which keys the tiers of a configuration have names for.

use kvtier_core::{Error, ErrorKind};

use super::{Config, TierSpec};

/// Whose keys a tier has names for, where its layout does not take all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyMode {
    /// LMCache's multi-process mode: [`ObjectKey`](kvtier_key::ObjectKey).
    MultiProcess,
    /// LMCache's in-process mode: [`CacheEngineKey`](kvtier_key::CacheEngineKey) and
    /// [`LayerCacheEngineKey`](kvtier_key::LayerCacheEngineKey).
    InProcess,
}

impl KeyMode {
    /// The mode in words, for messages.
    pub fn name(self) -> &'static str {
        match self {
            KeyMode::MultiProcess => "multi-process",
            KeyMode::InProcess => "in-process",
        }
    }
}

impl Config {
    /// Whose keys all tiers have names for; `None` where they take every key.
    ///
    /// ```
    /// use kvtier::config::{Config, KeyMode};
    /// assert_eq!(Config::new().with_host(1 << 20).key_mode()?, None);
    /// # #[cfg(feature = "file")] {
    /// let text = r#"{"tiers": [{"type": "file", "path": "/mnt/kv", "bytes": "1GiB", "layout": "lmcache"}]}"#;
    /// assert_eq!(Config::from_text(text, "kv.json")?.key_mode()?, Some(KeyMode::InProcess));
    /// # }
    /// # Ok::<(), kvtier::core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Invalid` where two tiers have layouts of different modes: no key has a name in both.
    pub fn key_mode(&self) -> Result<Option<KeyMode>, Error> {
        let modes =
            self.tiers.iter().enumerate().filter_map(|(at, tier)| Some((at, tier.key_mode()?)));
        let mut found: Option<(usize, KeyMode)> = None;
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
    /// The kind of keys that its layout has names for; `None` for all.
    fn key_mode(&self) -> Option<KeyMode> {
        match self {
            TierSpec::Host { .. } => None,
            #[cfg(feature = "file")]
            TierSpec::File(spec) => of_files(spec),
            #[cfg(feature = "gds")]
            TierSpec::Gds(spec) => of_files(&spec.file),
            #[cfg(feature = "s3")]
            TierSpec::S3(spec) => match spec.layout {
                kvtier_s3_tier::Layout::LmcacheMp => Some(KeyMode::MultiProcess),
                kvtier_s3_tier::Layout::Lmcache => Some(KeyMode::InProcess),
                _ => None,
            },
        }
    }
}

#[cfg(feature = "file")]
fn of_files(spec: &super::FileSpec) -> Option<KeyMode> {
    use kvtier_file::Layout;
    match spec.layout? {
        Layout::LmcacheMp | Layout::VllmFs => Some(KeyMode::MultiProcess),
        Layout::Lmcache | Layout::LmcacheGds | Layout::LmcacheGdsWeka => Some(KeyMode::InProcess),
        _ => None,
    }
}

#[cfg(all(test, feature = "file"))]
mod tests {
    use super::*;

    fn mode_of(layouts: &[&str]) -> Result<Option<KeyMode>, String> {
        let tier = |layout: &&str| {
            format!(r#"{{"type":"file","path":"/{layout}","bytes":1,"layout":"{layout}"}}"#)
        };
        let tiers: Vec<_> = layouts.iter().map(tier).collect();
        let text = format!(r#"{{"tiers":[{{"type":"host","bytes":1}},{}]}}"#, tiers.join(","));
        Config::from_json(&text, "x.json").unwrap().key_mode().map_err(|e| e.to_string())
    }

    #[test]
    fn the_layouts_of_files_decide_whose_keys_are_taken() {
        assert_eq!(mode_of(&["kvtier"]), Ok(None));
        assert_eq!(mode_of(&["kvtier", "lmcache-mp"]), Ok(Some(KeyMode::MultiProcess)));
        for layout in ["lmcache", "lmcache-gds", "lmcache-gds-weka"] {
            assert_eq!(mode_of(&[layout, "kvtier"]), Ok(Some(KeyMode::InProcess)), "{layout}");
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
        assert_eq!(planned.config.key_mode().unwrap(), Some(KeyMode::InProcess));
        let object = r#"{"type":"s3","s3_endpoint":"s3://b","s3_region":"us-east-1"}"#;
        let config = Adapter::params(object, "adapter").unwrap();
        assert_eq!(config.key_mode().unwrap(), Some(KeyMode::MultiProcess));
    }
}
