//! The AWS SDKs' chain of credentials, loaded by the first request: a configuration is read where no runtime is.

use std::sync::OnceLock;

use kvtier_s3::creds::{AwsChain, Provide, Provided};

/// The default chain.
#[derive(Debug, Default)]
pub(super) struct Chain(OnceLock<AwsChain>);

impl Provide for Chain {
    fn provide(&self) -> Provided<'_> {
        Box::pin(async move {
            if self.0.get().is_none() {
                let loaded = AwsChain::load(None).await?;
                // Whoever was first is as good.
                let _ = self.0.set(loaded);
            }
            let chain = self.0.get().expect("set above, and never taken out");
            chain.provide().await
        })
    }
}
