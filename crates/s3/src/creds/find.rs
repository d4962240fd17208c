use std::path::PathBuf;

use super::{Credentials, from_env, from_profile};
use crate::error::{Error, ErrorKind, Result};

/// The credentials of the environment, else those of the profile in the shared files (`AWS_PROFILE`, `AWS_SHARED_CREDENTIALS_FILE`,
/// `AWS_CONFIG_FILE`, or the usual places), asked of `lookup`; `None` when there are none. Profiles with roles or processes need
/// the feature `aws-config`.
pub fn find(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Credentials>> {
    if let Some(found) = from_env(&lookup)? {
        return Ok(Some(found));
    }
    let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
    let profile = set("AWS_PROFILE");
    let home = set("HOME").map(PathBuf::from);
    for (variable, usual) in [("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"), ("AWS_CONFIG_FILE", ".aws/config")] {
        let path = set(variable).map(PathBuf::from).or_else(|| Some(home.as_ref()?.join(usual)));
        let Some(text) = path.map(read).transpose()?.flatten() else { continue };
        if let Some(found) = from_profile(&text, profile.as_deref().unwrap_or("default"))? {
            return Ok(Some(found));
        }
    }
    match profile {
        // Who names a profile wants that one, not whatever comes next.
        Some(profile) => {
            let what = format!("profile {profile} has no key pair in the shared files: check AWS_PROFILE");
            Err(Error::new(ErrorKind::Invalid, what))
        }
        None => Ok(None),
    }
}

/// The text of a file; `None` when there is none.
fn read(path: PathBuf) -> Result<Option<String>> {
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
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
        find(|name| pairs.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned()))
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
        let key = |found: Result<Option<Credentials>>| found.unwrap().map(|found| found.access_key().to_owned());
        assert_eq!(key(of(&[home])).as_deref(), Some("F"));
        assert_eq!(key(of(&[home, ("AWS_PROFILE", "dev")])).as_deref(), Some("D"));
        assert_eq!(key(of(&[home, ("AWS_ACCESS_KEY_ID", "E"), ("AWS_SECRET_ACCESS_KEY", "s")])).as_deref(), Some("E"));
        assert_eq!(key(of(&[("HOME", "/nonexistent")])), None);
        assert!(of(&[home, ("AWS_PROFILE", "none")]).unwrap_err().to_string().contains("profile none"));
        assert!(of(&[("AWS_CONFIG_FILE", home.1)]).unwrap_err().to_string().contains("cannot be read"));
    }
}
