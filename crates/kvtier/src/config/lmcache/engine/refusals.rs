//! Settings of LMCache that kvtier refuses. Which ones, and what the error says of each, is in the
//! table `config/settings/lmcache_engine.rs`.

use kvtier_core::{Error, ErrorKind};

use super::effective_settings::{EffectiveSetting, LmcacheConfig};
use super::{plugins, unknown};
use crate::config::Config;
#[cfg(feature = "s3")]
use crate::config::TierSpec;
use crate::config::settings::{self, Role};
use crate::config::value::Value;

impl LmcacheConfig {
    /// Settings that would be ignored at the cost of what the operator wanted.
    pub(super) fn refuse(&self, setting: &EffectiveSetting) -> Result<(), Error> {
        let name = setting.definition.name;
        let set = match &setting.value {
            // Only a value that switches something on is refused. Files often write out defaults.
            Value::Bool(on) => *on,
            Value::Null => false,
            other => other.is_truthy(),
        };
        let what = match setting.definition.role {
            Role::Refused if set => setting.definition.what.to_owned(),
            Role::Gds if name == "gds_path" && set && !cfg!(feature = "gds") => {
                "this build has no GPU tier; build with the feature `gds`, or use local_disk".into()
            }
            // Under names that other nodes read as encoded, chunks that are stored as they are
            // would be wrong bytes.
            _ if name == "remote_serde"
                && !self.is_ported()
                && !plugins::gets_encoded_chunks(self)
                && self.unsupported_serde().is_some() =>
            {
                "LMCache encodes cachegen (lossy) itself, in front of kvtier's connector: name the store by remote_storage_plugin.NAME.url or \
                 .tiers with KvtierRemoteConnector; or write naive, or leave it out"
                    .into()
            }
            _ => return Ok(()),
        };
        Err(self.unsupported(name, &what))
    }

    /// The same for settings below `extra_config`.
    pub(super) fn refuse_extras(&self) -> Result<(), Error> {
        let refused = settings::all()
            .filter(|key| key.section == settings::Section::Extra && key.role == Role::Refused);
        for key in refused {
            if self.extra(key.name).is_some_and(Value::is_truthy) {
                return Err(
                    self.unsupported("extra_config", &format!("{}: {}", key.name, key.what))
                );
            }
        }
        let map = self.value("extra_config").as_map().unwrap_or_default();
        match unknown::own_refusal(map) {
            Some(what) => Err(self.wrong("extra_config", &what)),
            None => Ok(()),
        }
    }

    pub(super) fn unsupported(&self, name: &str, what: &str) -> Error {
        Error::new(ErrorKind::Unsupported, self.about(name, what))
    }

    pub(super) fn wrong(&self, name: &str, what: &str) -> Error {
        Error::new(ErrorKind::Invalid, self.about(name, what))
    }

    fn about(&self, name: &str, what: &str) -> String {
        match self.setting(name) {
            Some(s) if s.definition.kind == settings::ValueKind::Dict => {
                format!("{}: {name}: {what}", s.source)
            }
            Some(s) => format!("{}: {name} = {}: {what}", s.source, s.value),
            None => format!("{name}: {what}"),
        }
    }

    /// LMCache reads every object of a bucket at the length of a full chunk, so that a shorter one
    /// under its names is of no use to it.
    #[cfg(feature = "s3")]
    pub(super) fn refuse_short_objects(&self, config: &Config) -> Result<(), Error> {
        use kvtier_s3_tier::Layout;
        let is_theirs =
            |tier: &TierSpec| matches!(tier, TierSpec::S3(spec) if spec.layout != Layout::Kvtier);
        if self.value("save_unfull_chunk").as_bool() != Some(true)
            || !config.tiers.iter().any(is_theirs)
        {
            return Ok(());
        }
        // LMCache's connector asks for exactly the length of a full chunk. A shorter object would
        // never be read, and would use up the cap.
        let what = "objects of a bucket under LMCache's names are full chunks, and LMCache reads no others; write false, or \
                    `layout: kvtier` in extra_config";
        Err(self.wrong("save_unfull_chunk", what))
    }

    #[cfg(not(feature = "s3"))]
    pub(super) fn refuse_short_objects(&self, _: &Config) -> Result<(), Error> {
        Ok(())
    }
}
