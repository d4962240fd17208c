//! How chunk files and their directories (shards) are named, and how long the files are.

use std::path::{Path, PathBuf};

use kvtier_key::Digest;

use crate::direct_io::PAGE;

/// The longest payload in bytes that a name can state. A name that states more is not a chunk's.
pub const LEN_MAX: u64 = 1 << 44;

/// The length in bytes of the file that holds a payload of `len` bytes: payload, padding, footer.
pub fn file_len(len: u64) -> u64 {
    len.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX - PAGE).saturating_add(PAGE)
}

/// The length in bytes of the file that holds `stored_len` bytes which encode a payload of
/// `raw_len` bytes. It is never the length of the file of the raw payload, so that a file's length
/// and its name together show whether it is encoded: where both were equal, a page of zeros more
/// precedes the footer.
pub fn encoded_file_len(raw_len: u64, stored_len: u64) -> u64 {
    let bytes = file_len(stored_len);
    if bytes == file_len(raw_len) { bytes + PAGE } else { bytes }
}

/// The path of a chunk under `root`: one of 256 directories by the digest's first byte, then digest
/// and payload length.
pub fn path(root: &Path, digest: &Digest, len: u64) -> PathBuf {
    root.join(relative(digest, len))
}

/// The same path from the root on.
pub fn relative(digest: &Digest, len: u64) -> String {
    let hex = digest.to_hex();
    format!("{}/{hex}-{len:x}", shard_name(digest.as_bytes()[0]))
}

/// The name of the directory of number `shard`: the first byte of its chunks' digests.
pub fn shard_name(shard: u8) -> String {
    format!("{shard:02x}")
}

/// The number of the directory of this name. `None` if no shard is spelled so.
pub fn parse_shard(name: &str) -> Option<u8> {
    u8::from_str_radix(name, 16).ok().filter(|shard| shard_name(*shard) == name)
}

/// The directory of number `shard`.
pub fn shard(root: &Path, shard: u8) -> PathBuf {
    root.join(shard_name(shard))
}

/// Parses a chunk's file name. `None` for any other name, also for another spelling of the same
/// chunk.
pub fn parse(name: &str) -> Option<(Digest, u64)> {
    let (hex, len) = name.split_once('-')?;
    let canonical = |s: &str| !s.bytes().any(|b| b.is_ascii_uppercase() || b == b'+');
    if len.starts_with('0') || !canonical(hex) || !canonical(len) {
        return None;
    }
    let len = u64::from_str_radix(len, 16).ok().filter(|len| *len <= LEN_MAX)?;
    Some((Digest::from_hex(hex)?, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_nothing_else_is_a_name() {
        let digest = Digest::derive("test", b"x");
        let path = path(Path::new("/r"), &digest, 262_144);
        let name = path.file_name().unwrap().to_str().unwrap();
        assert_eq!(parse(name), Some((digest, 262_144)));
        for bad in [
            "",
            "-",
            &name[1..],
            &name.to_uppercase(),
            &format!("{name}0x"),
            &format!("{}-0{:x}", digest, 5),
            &format!("{digest}-{:x}", u64::MAX),
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_file_has_whole_pages_and_a_footer_and_no_length_is_too_long_to_compare() {
        assert_eq!([1, 4096, 4097].map(file_len), [8192, 8192, 12_288]);
        assert_eq!(file_len(u64::MAX), u64::MAX);
    }
}
