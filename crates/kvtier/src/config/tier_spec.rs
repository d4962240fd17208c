//! The specification of one tier.

use std::sync::Arc;

use kvtier_core::Namespace;
use kvtier_evict::PolicyKind;
use kvtier_index::{LmcacheEviction, Quotas};
use serde::Deserialize;

#[cfg(feature = "file")]
use super::FileSpec;
#[cfg(feature = "gds")]
use super::GdsSpec;
use super::common_values::{bytes, compat, policy, quotas};
#[cfg(feature = "s3")]
use super::s3::S3Spec;

/// One tier of a configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
#[non_exhaustive]
pub enum TierSpec {
    /// Host memory.
    Host {
        /// The cap in bytes, as a number or a text such as `512MiB`.
        #[serde(deserialize_with = "bytes")]
        bytes: u64,
        /// The tier's name; the default is `host`.
        name: Option<String>,
        /// The eviction policy; without it the default policy.
        #[serde(default, deserialize_with = "policy")]
        policy: Option<PolicyKind>,
        /// The quota of each tenant (cache salt).
        #[serde(default, deserialize_with = "quotas")]
        quotas: Quotas,
        /// Whether a tenant's quota is also guaranteed to it.
        #[serde(default)]
        fair: bool,
        /// Emulates LMCache's eviction exactly: true, or its `watermark` and `ratio`.
        #[serde(default, deserialize_with = "compat")]
        compat: Option<LmcacheEviction>,
    },
    /// Files of a directory.
    #[cfg(feature = "file")]
    File(FileSpec),
    /// Files of a directory, for memory of GPUs too.
    #[cfg(feature = "gds")]
    #[serde(skip_deserializing)]
    Gds(Box<GdsSpec>),
    /// Objects of a bucket.
    #[cfg(feature = "s3")]
    #[serde(skip_deserializing)]
    S3(Box<S3Spec>),
}

impl TierSpec {
    pub(super) fn name(&self) -> String {
        match self {
            TierSpec::Host { name, .. } => name.clone().unwrap_or_else(|| "host".into()),
            #[cfg(feature = "file")]
            TierSpec::File(spec) => spec.name.clone().unwrap_or_else(|| "file".into()),
            #[cfg(feature = "gds")]
            TierSpec::Gds(spec) => spec.name().into(),
            #[cfg(feature = "s3")]
            TierSpec::S3(spec) => spec.name.clone(),
        }
    }

    pub(super) fn rename(&mut self, own: &str) {
        match self {
            TierSpec::Host { name, .. } => *name = Some(own.to_owned()),
            #[cfg(feature = "file")]
            TierSpec::File(spec) => spec.name = Some(own.to_owned()),
            #[cfg(feature = "gds")]
            TierSpec::Gds(spec) => spec.file.name = Some(own.to_owned()),
            #[cfg(feature = "s3")]
            TierSpec::S3(spec) => own.clone_into(&mut spec.name),
        }
    }

    /// Notes that the caller of saves states the shape of its chunks.
    pub(super) fn learn_shape_from_saves(&mut self) {
        #[cfg(feature = "gds")]
        if let TierSpec::Gds(spec) = self {
            spec.file.saves_state_shape = true;
        }
    }

    /// The namespace of the chunks on its medium.
    pub(super) fn namespace(&mut self) -> Option<&mut Option<Arc<Namespace>>> {
        match self {
            TierSpec::Host { .. } => None,
            #[cfg(feature = "file")]
            TierSpec::File(spec) => Some(&mut spec.namespace),
            #[cfg(feature = "gds")]
            TierSpec::Gds(spec) => Some(&mut spec.file.namespace),
            #[cfg(feature = "s3")]
            TierSpec::S3(spec) => Some(&mut spec.namespace),
        }
    }
}
