//! The manifest of a snapshot of the index: the parts that belong together, and a checksum.
//!
//! ```text
//! kvtier bucket snapshot
//! format: 2
//! layout: kvtier
//! at: 1763726400000
//! part: 0000019aa5d3b400-0000 65536
//! crc: 1a2b3c4d
//! ```
//!
//! Format 1 also has lines with names of tenants, which are ignored.

use kvtier_key::BlockSums;

const TITLE: &str = "kvtier bucket snapshot";
const FORMAT: u32 = 2;
const FORMAT_1: u32 = 1;
/// A manifest that is longer is not read, by older builds neither.
pub const BYTES_MAX: usize = 4 << 20;
/// One with more parts is not written.
pub const LINES_MAX: usize = 1 << 16;

/// A snapshot of the index: its parts, the most recent chunks first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SnapshotManifest {
    pub layout: String,
    /// When it was taken, in Unix milliseconds by the store's clock.
    pub at_ms: u64,
    /// The names of the parts, each with its number of chunks.
    pub parts: Vec<(String, usize)>,
}

/// Why a manifest is ignored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ManifestError {
    /// It is something else.
    Foreign,
    /// A newer build wrote it.
    Version(u32),
    /// It is cut or changed.
    Damaged,
}

impl std::fmt::Display for ManifestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ManifestError::Foreign => f.write_str("it is no snapshot of kvtier"),
            ManifestError::Version(version) => {
                write!(f, "it has format {version}, and this build reads {FORMAT}")
            }
            ManifestError::Damaged => f.write_str("it is damaged"),
        }
    }
}

impl SnapshotManifest {
    pub fn encode(&self) -> Vec<u8> {
        let mut text =
            format!("{TITLE}\nformat: {FORMAT}\nlayout: {}\nat: {}\n", self.layout, self.at_ms);
        for (name, chunks) in &self.parts {
            text.push_str(&format!("part: {name} {chunks}\n"));
        }
        text.push_str(&format!("crc: {:08x}\n", crc(&text)));
        text.into_bytes()
    }

    /// Reads one. Any bytes may be given.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        let text = std::str::from_utf8(bytes).map_err(|_| ManifestError::Foreign)?;
        let rest = text
            .strip_prefix(TITLE)
            .and_then(|rest| rest.strip_prefix('\n'))
            .ok_or(ManifestError::Foreign)?;
        let version = rest.lines().next().and_then(|line| line.strip_prefix("format: "));
        match version.and_then(|version| version.parse().ok()) {
            Some(FORMAT | FORMAT_1) => {}
            Some(version) => return Err(ManifestError::Version(version)),
            None => return Err(ManifestError::Damaged),
        }
        let (body, end) = text.rsplit_once("crc: ").ok_or(ManifestError::Damaged)?;
        if end != format!("{:08x}\n", crc(body)) {
            return Err(ManifestError::Damaged);
        }
        // The checksum proves that kvtier wrote the lines. An unknown line is from a newer build.
        Ok(body
            .lines()
            .skip(2)
            .fold(SnapshotManifest::default(), |manifest, line| manifest.with(line)))
    }

    fn with(mut self, line: &str) -> Self {
        let (name, value) = line.split_once(": ").unwrap_or((line, ""));
        let pair = value.split_once(' ');
        match (name, pair) {
            ("layout", _) => value.clone_into(&mut self.layout),
            ("at", _) => self.at_ms = value.parse().unwrap_or(0),
            ("part", Some((part, chunks))) => {
                self.parts.extend(chunks.parse().ok().map(|n| (part.to_owned(), n)))
            }
            _ => {}
        }
        self
    }
}

fn crc(text: &str) -> u32 {
    BlockSums::from_bytes(text.as_bytes()).whole()
}

/// Whether an earlier build wrote the manifest, with names of tenants in it.
pub fn names_tenants(bytes: &[u8]) -> bool {
    bytes.strip_prefix(TITLE.as_bytes()).is_some_and(|rest| rest.starts_with(b"\nformat: 1\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> SnapshotManifest {
        SnapshotManifest {
            layout: "kvtier".into(),
            at_ms: 1_763_726_400_000,
            parts: vec![
                ("0000019aa5d3b400-0000".into(), 65_536),
                ("0000019aa5d3b400-0001".into(), 12),
            ],
        }
    }

    #[test]
    fn version_two_is_this_and_version_one_is_read_without_its_names() {
        let golden = include_bytes!("golden/snapshot-manifest-v2.txt");
        assert_eq!(String::from_utf8_lossy(&sample().encode()), String::from_utf8_lossy(golden));
        assert_eq!(SnapshotManifest::decode(golden), Ok(sample()));
        let before = include_bytes!("golden/snapshot-manifest-v1.txt");
        assert_eq!(SnapshotManifest::decode(before), Ok(sample()));
        assert!(names_tenants(before) && !names_tenants(golden));
    }

    #[test]
    fn one_with_the_most_parts_is_no_longer_than_is_read() {
        let part = |n: usize| (format!("{:016x}-{n:04x}", u64::MAX), 65_536);
        let parts = (0..LINES_MAX).map(part).collect();
        let full = SnapshotManifest { parts, ..sample() };
        let bytes = full.encode();
        assert!(bytes.len() <= BYTES_MAX, "{} bytes", bytes.len());
        let read = SnapshotManifest::decode(&bytes).unwrap();
        assert_eq!(read.parts, full.parts, "no part is left out");
    }

    #[test]
    fn cut_changed_newer_and_foreign_manifests_are_distinguished() {
        let good = sample().encode();
        for len in 0..good.len() {
            assert!(SnapshotManifest::decode(&good[..len]).is_err(), "cut to {len}");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x20;
            assert!(SnapshotManifest::decode(&bad).is_err(), "byte {at}");
        }
        let newer = String::from_utf8(good).unwrap().replace("format: 2", "format: 3");
        assert_eq!(SnapshotManifest::decode(newer.as_bytes()), Err(ManifestError::Version(3)));
        for foreign in [&b""[..], b"hello", b"\xff\xfe", b"kvtier bucket snapshotx"] {
            assert_eq!(SnapshotManifest::decode(foreign), Err(ManifestError::Foreign));
        }
    }
}
