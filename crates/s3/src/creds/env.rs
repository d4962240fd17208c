use zeroize::Zeroizing;

use super::Credentials;
use crate::error::{Error, ErrorKind, Result};

/// The credentials of the usual variables (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
/// `AWS_SESSION_TOKEN`), asked of `lookup`; `None` when neither half is set.
///
/// # Errors
/// `Invalid` when only one half is set.
pub fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Credentials>> {
    let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
    match (set("AWS_ACCESS_KEY_ID"), set("AWS_SECRET_ACCESS_KEY")) {
        (Some(access), Some(secret)) => {
            Ok(Some(Credentials::temporary(access, secret, set("AWS_SESSION_TOKEN"), None)))
        }
        (None, None) => Ok(None),
        (access, secret) => {
            drop(secret.map(Zeroizing::new));
            let missing =
                if access.is_some() { "AWS_SECRET_ACCESS_KEY" } else { "AWS_ACCESS_KEY_ID" };
            Err(Error::new(
                ErrorKind::Invalid,
                format!("half of the credentials is in the environment: set {missing} too"),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<Option<Credentials>> {
        from_env(|name| {
            pairs.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn whole_half_and_none() {
        let whole = of(&[
            ("AWS_ACCESS_KEY_ID", "a"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("AWS_SESSION_TOKEN", "t"),
        ]);
        let whole = whole.unwrap().unwrap();
        assert_eq!((whole.access_key(), whole.secret_key(), whole.token()), ("a", "s", Some("t")));
        assert!(of(&[("AWS_ACCESS_KEY_ID", "")]).unwrap().is_none());
        let half = of(&[("AWS_ACCESS_KEY_ID", "a")]).unwrap_err();
        assert!(half.to_string().contains("AWS_SECRET_ACCESS_KEY"));
    }
}
