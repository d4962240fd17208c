//! The AWS SDKs' chain of credentials, loaded by the first request: a configuration is read where
//! no runtime is.

use std::sync::OnceLock;

use kvtier_s3::creds::{AwsChain, ChainConfig, Provide, Provided};

/// The default chain, with or without the metadata service of the instance.
#[derive(Debug)]
pub(super) struct CredentialChain {
    loaded: OnceLock<AwsChain>,
    instance_metadata: bool,
}

impl CredentialChain {
    /// Not loaded yet.
    pub fn new(instance_metadata: bool) -> Self {
        CredentialChain { loaded: OnceLock::new(), instance_metadata }
    }
}

impl Provide for CredentialChain {
    fn provide(&self) -> Provided<'_> {
        Box::pin(async move {
            if self.loaded.get().is_none() {
                let instance_metadata = self.instance_metadata;
                let loaded = AwsChain::load_with(&ChainConfig {
                    instance_metadata,
                    ..ChainConfig::default()
                })
                .await?;
                // If another request was first, its chain is used.
                let _ = self.loaded.set(loaded);
            }
            let chain = self.loaded.get().expect("set above, and never taken out");
            chain.provide().await
        })
    }
}
