use std::time::UNIX_EPOCH;

use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};

use super::{Credentials, Provide, Provided};
use crate::error::{Error, ErrorKind, Result};

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
    use std::time::Duration;

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
