//! What is known of a chunk besides its name and length, as far as its medium says. Salts are never
//! shown, only digests of them.

use kvtier::core::{Digest, Key};
use kvtier::file::inspect::{LastUse, TenantId};
use kvtier::key::KeySummary;

use crate::stored_form::StoredForm;

/// How many digits of a salt's digest are shown: as many as a tenant has.
const TENANT_DIGITS: usize = 32;

/// What is known.
#[derive(Clone, Debug, Default)]
pub struct ChunkInfo {
    /// The model.
    pub model: Option<String>,
    /// The first digits of the digest of the cache salt; for a key without a salt the tenant's
    /// digits, which are made of its name.
    pub tenant: Option<String>,
    /// The namespace's digest.
    pub namespace: Option<Digest>,
    /// When it was written, in seconds since 1970.
    pub written_s: Option<i64>,
    /// When it was used last.
    pub used: Option<LastUse>,
    /// How it is stored.
    pub form: StoredForm,
}

impl ChunkInfo {
    /// What is known by the key.
    pub fn of_key(key: &Key) -> Self {
        ChunkInfo {
            namespace: Some(key.namespace().digest()),
            ..ChunkInfo::of_canonical(&key.canonical())
        }
    }

    /// What is known by a key's canonical form, which has a salt only as a digest.
    pub fn of_canonical(canonical: &[u8]) -> Self {
        // A key of a later version: the chunk is listed all the same, without its fields.
        let Some(summary) = KeySummary::from_canonical(canonical) else {
            return ChunkInfo::default();
        };
        let digits = |digest: [u8; 32]| {
            digest[..TENANT_DIGITS / 2].iter().map(|byte| format!("{byte:02x}")).collect()
        };
        ChunkInfo {
            model: Some(summary.model.to_string()),
            tenant: summary.salt_digest.map(digits),
            ..ChunkInfo::default()
        }
    }

    /// Adds the last use, and the tenant's digits where no salt says whose the chunk is.
    pub fn with_use(mut self, used: Option<LastUse>) -> Self {
        // The order of use has the tenant's id, also where the key has no salt's digest.
        let number = used.map(|used| used.tenant).filter(|tenant| *tenant != TenantId::NONE);
        self.tenant = self.tenant.or_else(|| number.map(|tenant| tenant.to_string()));
        self.used = used;
        self
    }
}

/// What stands for a value that is not known.
pub fn dash() -> String {
    "-".to_owned()
}

/// A text, or a dash where there is none.
pub fn known(text: &Option<String>) -> String {
    text.clone().unwrap_or_else(dash)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvtier::core::Namespace;
    use kvtier::key::{ChunkHash, KvRank, ObjectKey};

    use super::*;

    fn info(salt: &str) -> ChunkInfo {
        let id = ObjectKey::new("org/m", KvRank(0), 0, ChunkHash::new(b"hash"), salt).unwrap();
        ChunkInfo::of_key(&Key::new(Arc::new(Namespace::new("t", Digest::default())), id.into()))
    }

    #[test]
    fn a_salt_is_shown_as_digits_and_what_is_not_known_as_a_dash() {
        let salted = info("pepper");
        let tenant = salted.tenant.clone().unwrap();
        assert!(
            tenant.len() == TENANT_DIGITS && tenant.bytes().all(|b| b.is_ascii_hexdigit()),
            "{tenant}"
        );
        assert!(!salted.json("k", 5).to_string().contains("pepper"));
        assert_eq!(info("").tenant, None);
        let line = ChunkInfo::default().line("key");
        assert_eq!(
            line.split_whitespace().collect::<Vec<_>>(),
            ["-"; 8].into_iter().chain(["key"]).collect::<Vec<_>>()
        );
        let json = ChunkInfo::default().json("key", 5);
        assert!(
            ["model", "tenant", "namespace", "written_s", "used_s", "codec", "stored_bytes"]
                .iter()
                .all(|name| json[name].is_null())
        );
    }
}
