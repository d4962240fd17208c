use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::profile::beyond_key_pair;
use super::{Credentials, from_env, from_profile};
use crate::error::{Error, ErrorKind, Result};

/// Where credentials were found.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Source {
    /// The variables `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`.
    Environment,
    /// A profile in a shared file.
    File {
        /// The file.
        path: PathBuf,
        /// The profile.
        profile: String,
    },
    /// A role, taken through STS by a profile or a chain of them.
    Role,
    /// A role, taken through STS with the token file of a web identity (EKS).
    WebIdentity,
    /// The `credential_process` of a profile.
    Process,
    /// The agent of a container (ECS, EKS Pod Identity).
    Container,
    /// The metadata service of the instance.
    Instance,
    /// Another one that the AWS SDKs know.
    Chain,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Environment => {
                f.write_str("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the environment")
            }
            Source::Role => f.write_str("a role, taken through STS"),
            Source::WebIdentity => f.write_str("a role, taken through STS with a web identity"),
            Source::Process => f.write_str("the credential_process of a profile"),
            Source::Container => f.write_str("the container's agent"),
            Source::Instance => f.write_str("the instance's metadata"),
            Source::Chain => f.write_str("the AWS configuration"),
            Source::File { path, profile } => write!(f, "profile {profile} of {}", path.display()),
        }
    }
}

/// The credentials of the environment, else those of the profile in the shared files
/// (`AWS_PROFILE`, `AWS_SHARED_CREDENTIALS_FILE`, `AWS_CONFIG_FILE`, or the usual places), asked of
/// `lookup`; `None` when there are none.
///
/// ```
/// use kvtier_s3::creds;
///
/// let vars = |name: &str| match name {
///     "AWS_ACCESS_KEY_ID" => Some("AKIAEXAMPLE".to_owned()),
///     "AWS_SECRET_ACCESS_KEY" => Some("secret".to_owned()),
///     _ => None, // std::env::var(name).ok()
/// };
/// let found = creds::find(vars)?.expect("two variables name a key pair");
/// assert_eq!(found.access_key(), "AKIAEXAMPLE");
/// # Ok::<(), kvtier_s3::Error>(())
/// ```
///
/// # Errors
/// `Unsupported` when the environment or the profile names a source that needs the feature
/// `aws-config` (a role, a process, single sign-on, a web identity, a container's agent), or when
/// the named profile has no key pair. `Invalid` for half a key pair or a file that cannot be read.
pub fn find(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Credentials>> {
    Ok(locate(lookup)?.map(|(found, _)| found))
}

/// As [`find`], with the source of the credentials.
///
/// # Errors
/// As [`find`].
pub fn locate(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<(Credentials, Source)>> {
    if let Some(found) = from_env(&lookup)? {
        return Ok(Some((found, Source::Environment)));
    }
    let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
    let profile = set("AWS_PROFILE");
    let home = set("HOME").map(PathBuf::from);
    for (variable, usual) in
        [("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"), ("AWS_CONFIG_FILE", ".aws/config")]
    {
        let path = set(variable).map(PathBuf::from).or_else(|| Some(home.as_ref()?.join(usual)));
        let Some(path) = path else { continue };
        let Some(text) = read(&path)? else { continue };
        let profile = profile.as_deref().unwrap_or("default");
        if let Some(found) = from_profile(&text, profile)? {
            return Ok(Some((found, Source::File { path, profile: profile.to_owned() })));
        }
        if let Some(source) = beyond_key_pair(&text, profile) {
            return Err(needs_chain(&format!("profile {profile} has {source}")));
        }
    }
    match profile {
        // Who names a profile wants that one, not whatever comes next.
        Some(profile) => {
            let what =
                format!("profile {profile} has no key pair in the shared files: check AWS_PROFILE");
            Err(Error::new(ErrorKind::Unsupported, what))
        }
        None => match CHAIN_VARIABLES.into_iter().find(|name| set(name).is_some()) {
            Some(name) => Err(needs_chain(&format!("{name} is set"))),
            None => Ok(None),
        },
    }
}

/// Variables that name what only the AWS SDKs' chain can ask: a web identity, and a container's
/// agent.
const CHAIN_VARIABLES: [&str; 3] = [
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

/// `Unsupported`: a source is named that is not asked here.
fn needs_chain(what: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("{what}: such credentials need the feature aws-config; build with it"),
    )
}

/// The text of a file; `None` when there is none.
fn read(path: &Path) -> Result<Option<Zeroizing<String>>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.into())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => {
            let what = format!("{} cannot be read: check its permissions", path.display());
            Err(Error::new(ErrorKind::Invalid, what).with_source(e))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<Option<Credentials>> {
        find(|name| {
            pairs.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_comes_before_the_files_and_a_named_profile_must_be_there() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        let text = "[default]\naws_access_key_id=F\naws_secret_access_key=s\n";
        std::fs::write(home.path().join(".aws/credentials"), text).unwrap();
        let text = "[profile dev]\naws_access_key_id=D\naws_secret_access_key=s\n";
        std::fs::write(home.path().join(".aws/config"), text).unwrap();
        let home = ("HOME", home.path().to_str().unwrap());
        let key = |found: Result<Option<Credentials>>| {
            found.unwrap().map(|found| found.access_key().to_owned())
        };
        assert_eq!(key(of(&[home])).as_deref(), Some("F"));
        assert_eq!(key(of(&[home, ("AWS_PROFILE", "dev")])).as_deref(), Some("D"));
        assert_eq!(
            key(of(&[home, ("AWS_ACCESS_KEY_ID", "E"), ("AWS_SECRET_ACCESS_KEY", "s")])).as_deref(),
            Some("E")
        );
        assert_eq!(key(of(&[("HOME", "/nonexistent")])), None);
        let env = |name: &str| (name == home.0).then(|| home.1.to_owned());
        let source = locate(env).unwrap().unwrap().1;
        assert_eq!(source.to_string(), format!("profile default of {}/.aws/credentials", home.1));
        assert!(
            of(&[home, ("AWS_PROFILE", "none")]).unwrap_err().to_string().contains("profile none")
        );
        assert!(
            of(&[("AWS_CONFIG_FILE", home.1)]).unwrap_err().to_string().contains("cannot be read")
        );
    }

    #[test]
    fn a_source_that_only_the_chain_can_ask_is_an_error_that_names_the_feature() {
        let home = tempfile::tempdir().unwrap();
        let config = home.path().join("config");
        let text =
            "[profile run]\ncredential_process = /bin/who\n[profile sso]\nsso_session = me\n";
        std::fs::write(&config, format!("{text}[default]\nregion = eu\n")).unwrap();
        let config = ("AWS_CONFIG_FILE", config.to_str().unwrap());
        let says = |pairs: &[(&str, &str)]| {
            let error = of(pairs).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            error.to_string()
        };
        for (pairs, source) in [
            (&[config, ("AWS_PROFILE", "run")][..], "profile run has a credential_process"),
            (&[config, ("AWS_PROFILE", "sso")], "profile sso has a sso_session"),
            (
                &[config, ("AWS_WEB_IDENTITY_TOKEN_FILE", "/t")],
                "AWS_WEB_IDENTITY_TOKEN_FILE is set",
            ),
            (
                &[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://[fd00:ec2::23]/v1")],
                "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            ),
        ] {
            let said = says(pairs);
            assert!(said.contains(source) && said.contains("feature aws-config"), "{said}");
        }
        assert!(of(&[config]).unwrap().is_none());
    }
}
