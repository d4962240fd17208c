//! The checksums that S3 supports by header. A client uses one of them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// What is sent with an object and checked when it comes back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Checksum {
    /// Nothing.
    #[default]
    None,
    /// CRC-32C.
    Crc32c,
    /// CRC-64/NVME.
    Crc64Nvme,
    /// SHA-256: three times the cost of a whole plain GET.
    Sha256,
}

impl Checksum {
    const ALL: [Checksum; 3] = [Checksum::Crc32c, Checksum::Crc64Nvme, Checksum::Sha256];

    /// The one of that name in configurations: `none`, `crc32c`, `crc64nvme` or `sha256`.
    pub fn named(name: &str) -> Option<Self> {
        let found = || {
            Checksum::ALL
                .into_iter()
                .find(|sum| sum.name().is_some_and(|own| own.to_lowercase() == name))
        };
        if name == "none" { Some(Checksum::None) } else { found() }
    }

    /// The header that carries it.
    pub fn header(self) -> Option<&'static str> {
        match self {
            Checksum::None => None,
            Checksum::Crc32c => Some("x-amz-checksum-crc32c"),
            Checksum::Crc64Nvme => Some("x-amz-checksum-crc64nvme"),
            Checksum::Sha256 => Some("x-amz-checksum-sha256"),
        }
    }

    /// S3's name for it.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Checksum::None => None,
            Checksum::Crc32c => Some("CRC32C"),
            Checksum::Crc64Nvme => Some("CRC64NVME"),
            Checksum::Sha256 => Some("SHA256"),
        }
    }

    /// The header's value for `bytes`.
    pub fn of(self, bytes: &[u8]) -> Option<String> {
        let mut running = Running::new(self)?;
        running.update(bytes);
        Some(running.value())
    }

    /// The header's value for a sum that is known.
    pub(crate) fn written(self, sum: u64) -> String {
        let width = if self == Checksum::Crc32c { 4 } else { 8 };
        STANDARD.encode(&sum.to_be_bytes()[8 - width..])
    }

    /// The first checksum of a whole object that `header` returns, and its value. Those of
    /// multipart uploads that cover the parts' checksums (`...-3`) say nothing about the bytes
    /// in one pass.
    pub(crate) fn returned<'h>(
        header: impl Fn(&str) -> Option<&'h str>,
    ) -> Option<(Checksum, &'h str)> {
        if header("x-amz-checksum-type").is_some_and(|kind| kind.eq_ignore_ascii_case("COMPOSITE"))
        {
            return None;
        }
        let found = Checksum::ALL.into_iter().find_map(|sum| Some((sum, header(sum.header()?)?)));
        found.filter(|(_, value)| !value.contains('-'))
    }
}

/// A checksum that grows with the bytes.
#[derive(Clone, Debug)]
pub struct Running(State);

#[derive(Clone)]
enum State {
    Crc(crc_fast::Digest, usize),
    Sha(Sha256),
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            State::Crc(..) => "Crc",
            State::Sha(_) => "Sha",
        })
    }
}

impl Running {
    /// Of no bytes yet; `None` for no checksum.
    pub fn new(sum: Checksum) -> Option<Self> {
        use crc_fast::CrcAlgorithm::{Crc32Iscsi, Crc64Nvme};
        Some(Running(match sum {
            Checksum::None => return None,
            Checksum::Crc32c => State::Crc(crc_fast::Digest::new(Crc32Iscsi), 4),
            Checksum::Crc64Nvme => State::Crc(crc_fast::Digest::new(Crc64Nvme), 8),
            Checksum::Sha256 => State::Sha(Sha256::new()),
        }))
    }

    /// Goes over the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Crc(digest, _) => digest.update(bytes),
            State::Sha(sha) => sha.update(bytes),
        }
    }

    /// As S3 writes it: base64 of the big-endian bytes.
    pub fn value(&self) -> String {
        match &self.0 {
            State::Crc(digest, width) => {
                STANDARD.encode(&digest.finalize().to_be_bytes()[8 - width..])
            }
            State::Sha(sha) => STANDARD.encode(sha.clone().finalize()),
        }
    }
}

/// The value of `content-md5`, for stores that take no other checksum with a list of keys to
/// delete.
pub fn md5(bytes: &[u8]) -> String {
    use md5::Digest;
    STANDARD.encode(md5::Md5::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_values_of_the_catalogues() {
        let of = |sum: Checksum| sum.of(b"123456789").unwrap();
        assert_eq!(of(Checksum::Crc32c), STANDARD.encode(0xE306_9283_u32.to_be_bytes()));
        assert_eq!(
            of(Checksum::Crc64Nvme),
            STANDARD.encode(0xAE8B_1486_0A79_9888_u64.to_be_bytes())
        );
        assert_eq!(of(Checksum::Sha256), "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=");
        assert_eq!(md5(b""), "1B2M2Y8AsgTpgAmY7PhCfg==");
        assert_eq!(Checksum::None.of(b"x"), None);
        for (name, sum) in
            [("none", Checksum::None), ("crc32c", Checksum::Crc32c), ("sha256", Checksum::Sha256)]
        {
            assert_eq!(Checksum::named(name), Some(sum));
        }
        assert_eq!(
            (Checksum::named("crc64nvme"), Checksum::named("md5")),
            (Some(Checksum::Crc64Nvme), None)
        );
    }

    #[test]
    fn sums_of_parts_are_not_taken_for_sums_of_bytes() {
        let returned = |value: &'static str| {
            Checksum::returned(move |name| (name == "x-amz-checksum-crc32c").then_some(value))
                .map(|(sum, _)| sum)
        };
        assert_eq!(returned("AAAAAA=="), Some(Checksum::Crc32c));
        assert_eq!(returned("AAAAAA==-3"), None);
        assert_eq!(Checksum::returned(|_| None), None);
    }
}
