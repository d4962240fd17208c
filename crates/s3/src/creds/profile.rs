use super::Credentials;
use crate::error::{Error, ErrorKind, Result};

/// The static credentials of `profile` in the text of a shared credentials or configuration file
/// (`[name]` and `[profile name]` both count); `None` when there is no such section or it has no
/// key pair.
///
/// # Errors
/// `Unsupported` when the profile assumes a role, which needs the AWS SDKs' chain; `Invalid` for
/// half a key pair.
pub fn from_profile(text: &str, profile: &str) -> Result<Option<Credentials>> {
    let value = |wanted: &str| value(text, profile, wanted);
    if value("role_arn").is_some() {
        // Its own key pair is for assuming the role. Requests signed with it would act as another
        // identity.
        let what = format!("profile {profile} takes a role: build with the feature aws-config");
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    match (value("aws_access_key_id"), value("aws_secret_access_key")) {
        (Some(access), Some(secret)) => {
            let token = value("aws_session_token").map(str::to_owned);
            Ok(Some(Credentials::temporary(access, secret, token, None)))
        }
        (None, None) => Ok(None),
        _ => {
            let what = format!(
                "profile {profile} has half a key pair: set aws_access_key_id and aws_secret_access_key"
            );
            Err(Error::new(ErrorKind::Invalid, what))
        }
    }
}

/// Settings of a profile that make credentials without a key pair.
const BEYOND: [&str; 5] = [
    "credential_process",
    "sso_session",
    "sso_start_url",
    "web_identity_token_file",
    "credential_source",
];

/// What of `profile` gives credentials that only the AWS SDKs' chain can ask for.
pub(super) fn beyond_key_pair(text: &str, profile: &str) -> Option<String> {
    BEYOND
        .into_iter()
        .find(|name| value(text, profile, name).is_some())
        .map(|name| format!("a {name}"))
}

/// The last value of `wanted` in the sections of `profile`.
fn value<'a>(text: &'a str, profile: &str, wanted: &str) -> Option<&'a str> {
    let mut inside = false;
    let mut found = None;
    for line in text.lines() {
        // An indented line belongs to a nested setting.
        if line.starts_with([' ', '\t']) || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(section) = line.strip_prefix('[') {
            let name = section.split(']').next().unwrap_or_default().trim();
            inside = name.strip_prefix("profile ").map_or(name, str::trim) == profile;
        } else if let Some((name, value)) = line.split_once('=').filter(|_| inside)
            && name.trim().eq_ignore_ascii_case(wanted)
        {
            found = Some(value.trim()).filter(|value| !value.is_empty());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
# a comment
[default]
aws_access_key_id = AK1
aws_secret_access_key=sk=1/+
[profile dev]
s3 =
  aws_access_key_id = nested
aws_access_key_id = AK2
aws_secret_access_key = sk2
aws_session_token = tok
[half]
aws_access_key_id = AK3
[role]
role_arn = arn:aws:iam::1:role/r
source_profile = role
aws_access_key_id = AK4
aws_secret_access_key = sk4
";

    #[test]
    fn sections_are_distinguished() {
        let default = from_profile(TEXT, "default").unwrap().unwrap();
        assert_eq!(
            (default.access_key(), default.secret_key(), default.token()),
            ("AK1", "sk=1/+", None)
        );
        let dev = from_profile(TEXT, "dev").unwrap().unwrap();
        assert_eq!((dev.access_key(), dev.secret_key(), dev.token()), ("AK2", "sk2", Some("tok")));
        assert!(from_profile(TEXT, "absent").unwrap().is_none());
        assert_eq!(from_profile(TEXT, "half").unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(from_profile(TEXT, "role").unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
