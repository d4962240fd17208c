//! Which settings are secrets, and how values are masked before they are printed.

/// What names of secrets have in them. Other plugins' settings are printed too, so there are more
/// than ours.
const SECRETS: [&str; 12] = [
    "secret",
    "password",
    "passwd",
    "passphrase",
    "token",
    "access_key",
    "api_key",
    "apikey",
    "private_key",
    "credential",
    "auth",
    "key_command",
];

/// Settings of LMCache's that count tokens of a prompt.
const COUNTS: [&str; 2] = ["min_retrieve_tokens", "blend_min_tokens"];

/// Whether a setting of this name is not for everybody's eyes.
pub(crate) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRETS.iter().any(|part| name.contains(part)) && !COUNTS.contains(&name.as_str())
}

/// A URL, or `user:password@host` without a scheme, without the user and the password. Passwords
/// may hold `/`, `?`, `#` and `@`, so that all before the last `@` is hidden where a `:` stands in
/// it; else only what stands before the host.
pub(crate) fn mask_url(text: &str) -> String {
    let (scheme, rest) = match text.find("://") {
        // In `user:password@https://host` the password stands before the scheme.
        Some(at) if !text[..at].contains(':') => text.split_at(at + "://".len()),
        _ => ("", text),
    };
    // Passwords may contain `@` and `/`. The last `@` after a colon ends them; hiding too much is
    // the safe mistake.
    let user_ends = rest.rfind('@').filter(|at| rest[..*at].contains(':')).or_else(|| {
        let host_ends = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        rest[..host_ends].rfind('@').filter(|_| !scheme.is_empty())
    });
    user_ends.map_or_else(|| text.to_owned(), |at| format!("{scheme}***{}", &rest[at..]))
}

/// A text that can only be an address, for messages: all before the last `@` is hidden.
#[cfg(feature = "s3")]
pub(crate) fn mask_address(text: &str) -> String {
    text.rfind('@').map_or_else(|| text.to_owned(), |at| format!("***{}", &text[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_masked_and_secrets_are_known_by_their_names() {
        assert_eq!(mask_url("s3://bucket/a@b"), "s3://bucket/a@b");
        for (text, masked) in [
            ("AKID:SECRET@minio:9000/b", "***@minio:9000/b"),
            ("https://AKID:ab/cd@host/b", "https://***@host/b"),
            ("https://AKID:a@b?c#d@host/b", "https://***@host/b"),
            ("AKID:SECRET@https://host/b", "***@https://host/b"),
            ("https://token@host/a@b", "https://***@host/a@b"),
            ("name@domain", "name@domain"),
        ] {
            assert_eq!(mask_url(text), masked);
        }
        for hidden in [
            "AWS_SESSION_TOKEN",
            "key_command",
            "api_key",
            "ssl_passphrase",
            "tls.private_key",
            "authorization",
        ] {
            assert!(is_secret(hidden), "{hidden}");
        }
        for shown in ["min_retrieve_tokens", "blend_min_tokens", "chunk_size", "s3_region", "path"]
        {
            assert!(!is_secret(shown), "{shown}");
        }
    }
}
