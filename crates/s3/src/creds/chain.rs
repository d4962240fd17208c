use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};

use super::{Credentials, Provide, Provided, Source, locate};
use crate::error::{Error, ErrorKind, Result};

/// The chain asks the network: instance metadata, a container's agent, STS.
const FIRST_MAX: Duration = Duration::from_secs(10);

/// A source of credentials, those that it gives now, and what it is: the key pair that [`locate`] finds, else the [`AwsChain`]. Errors
/// when neither has any.
pub async fn discover(lookup: impl Fn(&str) -> Option<String>) -> Result<(Arc<dyn Provide>, Credentials, Source)> {
    let located = match locate(lookup) {
        Ok(Some((found, source))) => return Ok((Arc::new(found.clone()), found, source)),
        // Half a key pair is a mistake, whatever else there is.
        Err(e) if e.kind() != ErrorKind::Unsupported => return Err(e),
        other => other,
    };
    let slow = || Error::new(ErrorKind::Timeout, "the source of credentials did not answer in time");
    let first = async {
        let chain = AwsChain::load(None).await?;
        let first = tokio::time::timeout(FIRST_MAX, chain.provide()).await.unwrap_or_else(|_| Err(slow()))?;
        Ok((Arc::new(chain) as Arc<dyn Provide>, first, Source::Chain))
    };
    // Where a profile was named, that is what to look at.
    first.await.map_err(|e| located.err().unwrap_or(e))
}

/// Credentials as the AWS SDKs find them: environment, profiles with role chains and `credential_process`, web identity (the token
/// file is read at each refresh), containers (ECS, EKS Pod Identity) and instance metadata. When to ask again is for the
/// client to say: early, one call at a time, keeping what is valid when it fails.
#[derive(Clone, Debug)]
pub struct AwsChain(SharedCredentialsProvider);

impl AwsChain {
    /// The default chain, with a profile or that of the environment. Errors with `Invalid` when there is none to ask.
    pub async fn load(profile: Option<&str>) -> Result<Self> {
        let mut loader = aws_config::defaults(aws_config::BehaviorVersion::latest());
        if let Some(profile) = profile {
            loader = loader.profile_name(profile);
        }
        let missing = || Error::new(ErrorKind::Invalid, "the AWS configuration names no source of credentials");
        loader.load().await.credentials_provider().map(AwsChain).ok_or_else(missing)
    }

    /// A provider of one's own making.
    pub fn of(provider: impl ProvideCredentials + 'static) -> Self {
        AwsChain(SharedCredentialsProvider::new(provider))
    }
}

impl Provide for AwsChain {
    fn provide(&self) -> Provided<'_> {
        Box::pin(async move {
            let found = self.0.provide_credentials().await.map_err(|e| {
                let what = "no source of the AWS configuration gives credentials: set keys, a profile or a role";
                Error::new(ErrorKind::Denied, what).with_source(e)
            })?;
            let expires = found.expiry().and_then(|end| end.duration_since(UNIX_EPOCH).ok());
            let expires = expires.and_then(|since| i64::try_from(since.as_secs()).ok());
            let token = found.session_token().map(str::to_owned);
            Ok(Credentials::temporary(found.access_key_id(), found.secret_access_key(), token, expires))
        })
    }
}

#[cfg(test)]
mod tests {
    use aws_credential_types::provider::error::CredentialsError;
    use aws_credential_types::provider::future::ProvideCredentials as Answer;

    use super::*;

    #[tokio::test]
    async fn what_a_source_gives_arrives_whole() {
        let end = UNIX_EPOCH + Duration::from_secs(2_208_988_800);
        let source = aws_credential_types::Credentials::new("A", "S", Some("T".into()), Some(end), "test");
        let found = AwsChain::of(source).provide().await.unwrap();
        assert_eq!((found.access_key(), found.secret_key(), found.token()), ("A", "S", Some("T")));
        assert_eq!(found.expires(), Some(2_208_988_800));
    }

    #[tokio::test]
    async fn key_pairs_at_hand_come_first_and_mistakes_are_told_at_once() {
        let both = |name: &str| name.starts_with("AWS_").then(|| "x".to_owned()).filter(|_| name.contains("KEY"));
        let (_, found, source) = discover(both).await.unwrap();
        assert_eq!((found.access_key(), source), ("x", Source::Environment));
        let half = |name: &str| (name == "AWS_ACCESS_KEY_ID").then(|| "x".to_owned());
        assert_eq!(discover(half).await.unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[derive(Debug)]
    struct Broken;

    impl ProvideCredentials for Broken {
        fn provide_credentials<'a>(&'a self) -> Answer<'a>
        where
            Self: 'a,
        {
            Answer::ready(Err(CredentialsError::not_loaded("no metadata service")))
        }
    }

    #[tokio::test]
    async fn a_source_that_fails_says_what_to_do() {
        let error = AwsChain::of(Broken).provide().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("set keys") && std::error::Error::source(&error).is_some());
    }
}
