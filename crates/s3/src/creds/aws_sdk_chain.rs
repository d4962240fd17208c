use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use aws_config::environment::{
    EnvironmentVariableCredentialsProvider, EnvironmentVariableRegionProvider,
};
use aws_config::meta::credentials::CredentialsProviderChain;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::{ProfileFileCredentialsProvider, ProfileFileRegionProvider};
use aws_config::provider_config::ProviderConfig;
use aws_config::web_identity_token::WebIdentityTokenCredentialsProvider;
use aws_config::{BehaviorVersion, Region, ecs};
use aws_credential_types::credential_feature::AwsCredentialFeature as Feature;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use super::{Credentials, Provide, Provided, Source, locate};
use crate::error::{Error, ErrorKind, Result};

/// The chain asks the network: instance metadata, a container's agent, STS.
const FIRST_MAX: Duration = Duration::from_secs(10);

/// A source of credentials, those that it gives now, and what it is: the key pair that [`locate`]
/// finds, else the [`AwsChain`]. Errors when neither has any. The chain itself reads the
/// environment of the process; `lookup` only gives it the region for STS. `instance_metadata`:
/// whether the metadata service of the instance is asked too, which stores outside AWS have no use
/// for.
pub async fn discover(
    lookup: impl Fn(&str) -> Option<String>,
    instance_metadata: bool,
) -> Result<(Arc<dyn Provide>, Credentials, Source)> {
    // A key pair needs no network, so it goes before the chain, as in the AWS SDKs.
    match locate(&lookup) {
        Ok(Some((found, source))) => return Ok((Arc::new(found.clone()), found, source)),
        // Half a key pair is a mistake, whatever else there is.
        Err(e) if e.kind() != ErrorKind::Unsupported => return Err(e),
        _ => {}
    }
    let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
    let region = set("AWS_REGION").or_else(|| set("AWS_DEFAULT_REGION"));
    let first = async {
        let chain =
            AwsChain::load_with(&ChainConfig { profile: None, region, instance_metadata }).await?;
        let (first, source) = chain.ask().await?;
        Ok((
            Arc::new(Primed { first: Mutex::new(Some(first.clone())), chain }) as Arc<dyn Provide>,
            first,
            source,
        ))
    };
    let slow =
        || Error::new(ErrorKind::Timeout, "the source of credentials did not answer in time");
    // Instance metadata that is not there does not refuse: it is silent.
    let found = tokio::time::timeout(FIRST_MAX, first).await.unwrap_or_else(|_| Err(slow()));
    // Where a profile was named, that is what to look at.
    found.map_err(|e| match set("AWS_PROFILE") {
        Some(profile) => Error::new(
            e.kind(),
            format!("profile {profile} gives no credentials: check it and AWS_PROFILE"),
        )
        .with_source(e),
        None => e,
    })
}

/// A chain that was asked already: the first to use it gets what it gave then.
#[derive(Debug)]
struct Primed {
    first: Mutex<Option<Credentials>>,
    chain: AwsChain,
}

impl Provide for Primed {
    fn provide(&self) -> Provided<'_> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        match first {
            Some(first) => Box::pin(async { Ok(first) }),
            None => self.chain.provide(),
        }
    }
}

/// Credentials as the AWS SDKs find them: environment, profiles with role chains and
/// `credential_process`, web identity (the token file is read at each refresh), containers (ECS,
/// EKS Pod Identity) and instance metadata. When to ask again is for the client to say: early, one
/// call at a time, keeping what is valid when it fails.
#[derive(Clone, Debug)]
pub struct AwsChain {
    provider: SharedCredentialsProvider,
    instance_metadata: bool,
}

/// Which sources the AWS SDKs' chain has. By default all of them, as the environment says.
#[derive(Clone, Debug)]
pub struct ChainConfig {
    /// The profile; `None`: that of the environment.
    pub profile: Option<String>,
    /// The region of the STS through which roles are taken; `None`: that of the environment or the
    /// profile.
    pub region: Option<String>,
    /// Whether the metadata service of the instance is asked, where no other source has
    /// credentials.
    pub instance_metadata: bool,
}

impl Default for ChainConfig {
    fn default() -> Self {
        ChainConfig { profile: None, region: None, instance_metadata: true }
    }
}

impl AwsChain {
    /// The default chain, with a profile or that of the environment.
    ///
    /// # Errors
    /// `Invalid` when the AWS configuration names no source.
    pub async fn load(profile: Option<&str>) -> Result<Self> {
        let profile = profile.map(str::to_owned);
        Self::load_with(&ChainConfig { profile, ..ChainConfig::default() }).await
    }

    /// A chain of these sources.
    ///
    /// # Errors
    /// `Invalid` when the AWS configuration names no source.
    pub async fn load_with(config: &ChainConfig) -> Result<Self> {
        let missing = || {
            Error::new(ErrorKind::Invalid, "the AWS configuration names no source of credentials")
        };
        let provider = match config.instance_metadata {
            true => all_sources(config)
                .with_subscriber(NoSubscriber::default())
                .await
                .ok_or_else(missing)?,
            false => without_instance(config).with_subscriber(NoSubscriber::default()).await,
        };
        Ok(AwsChain { provider, instance_metadata: config.instance_metadata })
    }

    /// A chain over a custom provider.
    pub fn of(provider: impl ProvideCredentials + 'static) -> Self {
        AwsChain { provider: SharedCredentialsProvider::new(provider), instance_metadata: true }
    }

    /// The credentials of this moment, and where they are from.
    async fn ask(&self) -> Result<(Credentials, Source)> {
        // Unheard: at its finest level the SDK logs headers with tokens in them. What goes wrong is
        // in the error.
        let asked =
            self.provider.provide_credentials().with_subscriber(NoSubscriber::default()).await;
        let found = asked.map_err(|e| self.failed(&e))?;
        let expires = found.expiry().and_then(|end| end.duration_since(UNIX_EPOCH).ok());
        let expires = expires.and_then(|since| i64::try_from(since.as_secs()).ok());
        let token = found.session_token().map(str::to_owned);
        let source = source(found.get_property::<Vec<Feature>>().map_or(&[][..], Vec::as_slice));
        Ok((
            Credentials::temporary(
                found.access_key_id(),
                found.secret_access_key(),
                token,
                expires,
            ),
            source,
        ))
    }
}

impl AwsChain {
    /// What to do where there are no credentials, and at most one cause: the SDK nests many that
    /// say nothing.
    fn failed(&self, error: &CredentialsError) -> Error {
        let next = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile or a role";
        if !matches!(error, CredentialsError::CredentialsNotLoaded(_)) {
            let what = format!("the source of credentials failed: check it, or {next}");
            return Error::new(ErrorKind::Denied, what).with_source(essence(error));
        }
        let skipped = match self.instance_metadata {
            true => "",
            false => "; for a role of this instance set instance_metadata to true",
        };
        Error::new(ErrorKind::Denied, format!("no credentials were found: {next}{skipped}"))
    }
}

/// The innermost causes of an error that say something, in one text.
fn essence(error: &CredentialsError) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |e| e.source());
    let mut texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.dedup();
    let first = texts.len().saturating_sub(2);
    texts.split_off(first).join(": ")
}

/// Every source that the SDKs know.
async fn all_sources(config: &ChainConfig) -> Option<SharedCredentialsProvider> {
    let mut loader = aws_config::defaults(BehaviorVersion::latest());
    if let Some(profile) = &config.profile {
        loader = loader.profile_name(profile);
    }
    if let Some(region) = &config.region {
        loader = loader.region(Region::new(region.clone()));
    }
    loader.load().await.credentials_provider()
}

/// The sources of the SDKs' default chain but the last, the instance, which is not asked for the
/// region either.
async fn without_instance(config: &ChainConfig) -> SharedCredentialsProvider {
    let conf = ProviderConfig::default().with_behavior_version(Some(BehaviorVersion::latest()));
    let mut region = ProfileFileRegionProvider::builder().configure(&conf);
    let mut profile = ProfileFileCredentialsProvider::builder();
    if let Some(name) = &config.profile {
        (region, profile) = (region.profile_name(name), profile.profile_name(name));
    }
    let known = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new())
        .or_else(region.build());
    let known = known.region().await;
    let conf = conf.with_region(config.region.clone().map(Region::new).or(known));
    let web_identity = WebIdentityTokenCredentialsProvider::builder().configure(&conf).build();
    let chain = CredentialsProviderChain::first_try(
        "Environment",
        EnvironmentVariableCredentialsProvider::new(),
    )
    .or_else("Profile", profile.configure(&conf).build())
    .or_else("WebIdentityToken", web_identity)
    .or_else("EcsContainer", ecs::EcsCredentialsProvider::builder().configure(&conf).build());
    SharedCredentialsProvider::new(chain)
}

/// The last step to credentials, by what the SDK notes on the way.
fn source(features: &[Feature]) -> Source {
    let of = |feature: &Feature| match feature {
        Feature::CredentialsStsAssumeRole => Some(Source::Role),
        Feature::CredentialsStsAssumeRoleWebId
        | Feature::CredentialsEnvVarsStsWebIdToken
        | Feature::CredentialsProfileStsWebIdToken => Some(Source::WebIdentity),
        Feature::CredentialsProcess | Feature::CredentialsProfileProcess => Some(Source::Process),
        Feature::CredentialsHttp => Some(Source::Container),
        Feature::CredentialsImds => Some(Source::Instance),
        Feature::CredentialsEnvVars => Some(Source::Environment),
        _ => None,
    };
    // A profile that has a key pair was found before; of the others it is noted last, and alone
    // only where a role was taken.
    let in_profile = features.contains(&Feature::CredentialsProfile);
    features.iter().find_map(of).unwrap_or(if in_profile { Source::Role } else { Source::Chain })
}

impl Provide for AwsChain {
    fn provide(&self) -> Provided<'_> {
        Box::pin(async { Ok(self.ask().await?.0) })
    }
}

#[cfg(test)]
mod tests {
    use aws_credential_types::provider::future::ProvideCredentials as Answer;

    use super::*;

    #[tokio::test]
    async fn what_a_source_gives_arrives_whole() {
        let end = UNIX_EPOCH + Duration::from_secs(2_208_988_800);
        let source =
            aws_credential_types::Credentials::new("A", "S", Some("T".into()), Some(end), "test");
        let found = AwsChain::of(source).provide().await.unwrap();
        assert_eq!((found.access_key(), found.secret_key(), found.token()), ("A", "S", Some("T")));
        assert_eq!(found.expires(), Some(2_208_988_800));
    }

    #[tokio::test]
    async fn key_pairs_in_the_environment_come_first_and_mistakes_are_errors_at_once() {
        let both = |name: &str| {
            name.starts_with("AWS_").then(|| "x".to_owned()).filter(|_| name.contains("KEY"))
        };
        let (_, found, source) = discover(both, true).await.unwrap();
        assert_eq!((found.access_key(), source), ("x", Source::Environment));
        let half = |name: &str| (name == "AWS_ACCESS_KEY_ID").then(|| "x".to_owned());
        assert_eq!(discover(half, true).await.unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[derive(Debug)]
    struct Broken;

    impl ProvideCredentials for Broken {
        fn provide_credentials<'a>(&'a self) -> Answer<'a>
        where
            Self: 'a,
        {
            Answer::ready(Err(CredentialsError::provider_error("no metadata service")))
        }
    }

    #[tokio::test]
    async fn a_source_that_fails_says_what_to_do() {
        let error = AwsChain::of(Broken).provide().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("set AWS_ACCESS_KEY_ID"), "{error}");
        let source = std::error::Error::source(&error).expect("what failed");
        assert!(
            source.to_string().contains("no metadata service") && source.source().is_none(),
            "{source}"
        );
    }

    #[derive(Debug)]
    struct Nothing;

    impl ProvideCredentials for Nothing {
        fn provide_credentials<'a>(&'a self) -> Answer<'a>
        where
            Self: 'a,
        {
            Answer::ready(Err(CredentialsError::not_loaded(
                "no providers in chain provided credentials",
            )))
        }
    }

    #[tokio::test]
    async fn where_there_is_nothing_the_next_step_is_said_and_the_instance_named_if_it_was_not_asked()
     {
        for instance_metadata in [true, false] {
            let chain = AwsChain { instance_metadata, ..AwsChain::of(Nothing) };
            let error = chain.provide().await.unwrap_err();
            assert!(
                error.to_string().contains("set AWS_ACCESS_KEY_ID")
                    && std::error::Error::source(&error).is_none()
            );
            assert_eq!(
                error.to_string().contains("instance_metadata"),
                !instance_metadata,
                "{error}"
            );
        }
    }
}
