//! What tells which objects are a whole snapshot of the index: lines, closed by a checksum.
//!
//! ```text
//! kvtier bucket snapshot
//! format: 1
//! layout: kvtier
//! at: 1763726400000
//! part: 0000019aa5d3b400-0000 65536
//! tenant: 3735928559 acme%20corp
//! crc: 1a2b3c4d
//! ```

use kvtier_index::TenantId;
use kvtier_key::BlockSums;

const TITLE: &str = "kvtier bucket snapshot";
const FORMAT: u32 = 1;
/// A manifest that is longer is not read, by older builds neither.
pub const BYTES_MAX: usize = 4 << 20;
/// One with more parts is not written, nor one with more tenants.
pub const LINES_MAX: usize = 1 << 16;
/// Bytes of the line that closes it.
const CRC_BYTES: usize = "crc: 01234567\n".len();

/// A snapshot of the index: its parts, the most recent chunks first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Manifest {
    pub layout: String,
    /// When it was taken, Unix time in milliseconds by the store's clock.
    pub at_ms: u64,
    /// The names of the parts, and how many chunks each has.
    pub parts: Vec<(String, usize)>,
    /// The names of tenants, those that matter most first: as many are written as are read.
    pub tenants: Vec<(TenantId, String)>,
}

/// Why a manifest is not followed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unread {
    /// It is something else.
    Foreign,
    /// A newer build wrote it.
    Version(u32),
    /// It is cut or changed.
    Damaged,
}

impl std::fmt::Display for Unread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unread::Foreign => f.write_str("it is no snapshot of ours"),
            Unread::Version(version) => write!(f, "it has format {version}, and this build reads {FORMAT}"),
            Unread::Damaged => f.write_str("it is damaged"),
        }
    }
}

impl Manifest {
    pub fn encode(&self) -> Vec<u8> {
        let mut text = format!("{TITLE}\nformat: {FORMAT}\nlayout: {}\nat: {}\n", self.layout, self.at_ms);
        for (name, chunks) in &self.parts {
            text.push_str(&format!("part: {name} {chunks}\n"));
        }
        for (id, name) in &self.tenants {
            let line = format!("tenant: {} {}\n", id.0, quote(name));
            // Another that is shorter may still fit.
            if text.len() + line.len() + CRC_BYTES <= BYTES_MAX {
                text.push_str(&line);
            }
        }
        text.push_str(&format!("crc: {:08x}\n", crc(&text)));
        text.into_bytes()
    }

    /// Reads one. Any bytes may be given.
    pub fn decode(bytes: &[u8]) -> Result<Self, Unread> {
        let text = std::str::from_utf8(bytes).map_err(|_| Unread::Foreign)?;
        let rest = text.strip_prefix(TITLE).and_then(|rest| rest.strip_prefix('\n')).ok_or(Unread::Foreign)?;
        let version = rest.lines().next().and_then(|line| line.strip_prefix("format: "));
        match version.and_then(|version| version.parse().ok()) {
            Some(FORMAT) => {}
            Some(version) => return Err(Unread::Version(version)),
            None => return Err(Unread::Damaged),
        }
        let (body, end) = text.rsplit_once("crc: ").ok_or(Unread::Damaged)?;
        if end != format!("{:08x}\n", crc(body)) {
            return Err(Unread::Damaged);
        }
        // What the checksum covers was written by us: a line that means nothing is from a build that knew more.
        Ok(body.lines().skip(2).fold(Manifest::default(), |manifest, line| manifest.with(line)))
    }

    fn with(mut self, line: &str) -> Self {
        let (name, value) = line.split_once(": ").unwrap_or((line, ""));
        let pair = value.split_once(' ');
        match (name, pair) {
            ("layout", _) => value.clone_into(&mut self.layout),
            ("at", _) => self.at_ms = value.parse().unwrap_or(0),
            ("part", Some((part, chunks))) => self.parts.extend(chunks.parse().ok().map(|n| (part.to_owned(), n))),
            ("tenant", Some((id, name))) => {
                self.tenants.extend(id.parse().ok().zip(unquote(name)).map(|(id, name)| (TenantId(id), name)));
            }
            _ => {}
        }
        self
    }
}

fn crc(text: &str) -> u32 {
    BlockSums::of(text.as_bytes()).whole()
}

/// Spells what would end a line or a word.
fn quote(text: &str) -> String {
    let odd = |char: char| char == '%' || char.is_whitespace() || char.is_control();
    text.chars().map(|char| if odd(char) { escaped(char) } else { char.to_string() }).collect()
}

fn escaped(char: char) -> String {
    char.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn unquote(text: &str) -> Option<String> {
    let (mut out, mut bytes) = (Vec::with_capacity(text.len()), text.bytes());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            other => other,
        });
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        Manifest {
            layout: "kvtier".into(),
            at_ms: 1_763_726_400_000,
            parts: vec![("0000019aa5d3b400-0000".into(), 65_536), ("0000019aa5d3b400-0001".into(), 12)],
            tenants: vec![(TenantId(3_735_928_559), "acme corp\n%".into()), (TenantId(7), "b".into())],
        }
    }

    #[test]
    fn version_one_is_this() {
        let golden = include_bytes!("golden/snapshot-manifest-v1.txt");
        assert_eq!(String::from_utf8_lossy(&sample().encode()), String::from_utf8_lossy(golden));
        assert_eq!(Manifest::decode(golden), Ok(sample()));
    }

    #[test]
    fn one_with_the_most_parts_and_tenants_is_as_long_as_is_read_at_most() {
        let part = |n: usize| (format!("{:016x}-{n:04x}", u64::MAX), 65_536);
        let tenant = |n: usize| (TenantId(u32::MAX - n as u32), format!("{n} {}", "long".repeat(10)));
        let parts = (0..LINES_MAX).map(part).collect();
        let tenants = (0..LINES_MAX).map(tenant).collect();
        let full = Manifest { parts, tenants, ..sample() };
        let bytes = full.encode();
        assert!((BYTES_MAX - 100..=BYTES_MAX).contains(&bytes.len()), "{} bytes", bytes.len());
        let read = Manifest::decode(&bytes).unwrap();
        assert_eq!(read.parts, full.parts, "no part is left out");
        assert!(read.tenants.len() > 10_000 && full.tenants.starts_with(&read.tenants), "the first tenants");
    }

    #[test]
    fn what_is_cut_changed_newer_or_foreign_is_told_apart() {
        let good = sample().encode();
        for len in 0..good.len() {
            assert!(Manifest::decode(&good[..len]).is_err(), "cut to {len}");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x20;
            assert!(Manifest::decode(&bad).is_err(), "byte {at}");
        }
        let newer = String::from_utf8(good).unwrap().replace("format: 1", "format: 2");
        assert_eq!(Manifest::decode(newer.as_bytes()), Err(Unread::Version(2)));
        for foreign in [&b""[..], b"hello", b"\xff\xfe", b"kvtier bucket snapshotx"] {
            assert_eq!(Manifest::decode(foreign), Err(Unread::Foreign));
        }
    }
}
