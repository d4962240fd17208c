//! Headers, which LMCache's GDS backend writes before a chunk, and again into its sidecar.
//!
//! LMCache treats a chunk as present where its sidecar exists, and trusts the sidecar's contents. Here
//! a chunk with facts is verified by the facts alone. A chunk without facts is accepted only where
//! both headers are equal, and the file has the length that they state.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use kvtier_core::{Error, ErrorKind};
use kvtier_key::{ChunkShape, GDS_HEADER_BYTES, GdsHeader, Key, KeyId};

use super::Foreign;
use super::lengths::is_padded;

const UNKNOWN: &str = "the shape of its tensor is unknown, which LMCache needs to load it, and no file here states it: give the shape with the \
    save, or set `shape` to that of a full chunk, such as 2x32x256x1024 (keys and values, layers, tokens, elements)";

/// Memory for one header, as direct I/O wants it.
#[repr(align(4096))]
struct HeaderPage([u8; GDS_HEADER_BYTES]);

/// The parsed headers of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParsedHeader {
    /// The payload has this many bytes.
    Payload(u64),
    /// There is no sidecar: LMCache has not finished the chunk, or is about to delete it.
    NoSidecar,
    /// A version that LMCache 0.5.6 does not read either.
    UnknownVersion,
    /// The headers differ or cannot be parsed, or state another length than the file has.
    Invalid,
}

/// The path of the sidecar of `path`.
pub fn sidecar_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".metadata");
    name.into()
}

/// Reads the sidecar of the chunk at `path`; `None` where it is missing.
pub fn read_sidecar(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // Neither waits for a pipe of this name nor follows a link.
    let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOFOLLOW;
    let file = match File::options().read(true).custom_flags(flags).open(sidecar_of(path)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) if e.raw_os_error() == Some(nix::libc::ELOOP) => return Ok(Some(Vec::new())),
        other => other?,
    };
    let mut bytes = Vec::with_capacity(GDS_HEADER_BYTES + 1);
    if file.metadata()?.is_file() {
        // One byte more than a header: a longer file is no header.
        file.take(GDS_HEADER_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    }
    Ok(Some(bytes))
}

/// The payload's length, if a file of `file_bytes` agrees with its header. `None` for a header that
/// contradicts itself.
pub fn payload_of(header: &GdsHeader, file_bytes: u64) -> Option<u64> {
    if header.contradiction.is_some() {
        return None;
    }
    let bytes = file_bytes.checked_sub(GDS_HEADER_BYTES as u64)?;
    header.payload_bytes().filter(|len| *len > 0 && (bytes == *len || is_padded(bytes, *len)))
}

/// Parses the headers of the open file at `path`, of `file_bytes` bytes.
pub fn parse(file: &File, path: &Path, file_bytes: u64) -> io::Result<ParsedHeader> {
    let Some(beside) = read_sidecar(path)? else { return Ok(ParsedHeader::NoSidecar) };
    let mut page = HeaderPage([0; GDS_HEADER_BYTES]);
    let got = match kvtier_os::read_at_least(file, &mut page.0, 0, GDS_HEADER_BYTES) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => 0,
        other => other?,
    };
    // LMCache writes both from the same bytes. A difference means a torn write, or two writers.
    if got != GDS_HEADER_BYTES || beside != page.0 {
        return Ok(ParsedHeader::Invalid);
    }
    Ok(match GdsHeader::decode(&beside) {
        Err(_) => ParsedHeader::Invalid,
        Ok(header) if !header.is_current() => ParsedHeader::UnknownVersion,
        Ok(header) => {
            payload_of(&header, file_bytes).map_or(ParsedHeader::Invalid, ParsedHeader::Payload)
        }
    })
}

/// Why a chunk can have no header.
#[derive(Debug)]
pub enum Unshaped {
    /// The shape is unknown, and the scan may still find it.
    Yet,
    /// The shape cannot be found with this configuration.
    Never(Error),
}

impl Foreign {
    /// Learns the shape of a kind of chunks from a file's header, unless it is known. `read` reads the
    /// header.
    pub fn learn_shape(&self, id: &KeyId, read: impl FnOnce() -> Option<GdsHeader>) {
        if self.layout.has_headers() {
            self.shapes.learn(id, read);
        }
    }

    /// The header of a chunk of `bytes` bytes, of the `stated` shape if there is one; `None` in a layout
    /// without headers.
    pub fn header(
        &self,
        key: &Key,
        bytes: u64,
        stated: Option<&ChunkShape>,
    ) -> Result<Option<Vec<u8>>, Unshaped> {
        if !self.layout.has_headers() {
            return Ok(None);
        }
        let refused = |why: String| {
            let what = format!("layout {}: the chunk can have no header: {why}", self.layout);
            Unshaped::Never(Error::new(ErrorKind::Unsupported, what).with_key(*key.digest()))
        };
        let header = match stated {
            Some(shape) => self.shapes.stated(key.id(), bytes, shape).map(Some),
            None => self.shapes.header(key.id(), bytes),
        };
        match header {
            Ok(Some(header)) => header.encode().map(Some).map_err(|e| refused(e.to_string())),
            // The scan may still find a file that states the shape.
            Ok(None) if !self.is_scanned() => Err(Unshaped::Yet),
            // After the scan no file here states it: a file without a header would be invisible
            // for LMCache, so the save is refused.
            Ok(None) => Err(refused(UNKNOWN.into())),
            Err(why) => Err(refused(why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kvtier_key::{GdsElement, MemoryFormat};

    use super::*;

    /// A header of 60 bytes of payload whose text ends before zeros, as another program may write it.
    fn header() -> Vec<u8> {
        let element = GdsElement::from_name("U8").unwrap();
        let mut header =
            GdsHeader::new(element, vec![2, 1, 3, 10], MemoryFormat::Kv2Ltd).encode().unwrap();
        let blanks = header.iter().rev().take_while(|byte| **byte == b' ').count();
        let text_end = GDS_HEADER_BYTES - blanks;
        header[..8].copy_from_slice(&(text_end as u64 - 8).to_le_bytes());
        header[text_end..].fill(0);
        header
    }

    #[test]
    fn a_file_that_is_cut_off_in_its_header_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("chunk");
        let header = header();
        let parsed = |file: &[u8], beside: &[u8]| {
            fs::write(&path, file).unwrap();
            fs::write(sidecar_of(&path), beside).unwrap();
            // The length was read before the file was cut off.
            parse(&File::open(&path).unwrap(), &path, GDS_HEADER_BYTES as u64 + 60).unwrap()
        };
        assert_eq!(parsed(&header, &header), ParsedHeader::Payload(60));
        // The rest reads as zeros, which the sidecar has.
        for bytes in [GDS_HEADER_BYTES - 1, GDS_HEADER_BYTES / 2] {
            assert_eq!(parsed(&header[..bytes], &header), ParsedHeader::Invalid, "{bytes}");
        }
        assert_eq!(parsed(&[], &header), ParsedHeader::Invalid);
        assert_eq!(parsed(&header, &[header.as_slice(), b"0"].concat()), ParsedHeader::Invalid);
        assert_eq!(parsed(&header, &header[1..]), ParsedHeader::Invalid);
        fs::remove_file(sidecar_of(&path)).unwrap();
        assert_eq!(parse(&File::open(&path).unwrap(), &path, 1).unwrap(), ParsedHeader::NoSidecar);
    }

    #[test]
    fn a_sidecar_that_is_no_file_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("chunk");
        assert_eq!(read_sidecar(&path).unwrap(), None);
        fs::create_dir(sidecar_of(&path)).unwrap();
        assert_eq!(read_sidecar(&path).unwrap(), Some(Vec::new()));
        fs::remove_dir(sidecar_of(&path)).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", sidecar_of(&path)).unwrap();
        assert_eq!(read_sidecar(&path).unwrap(), Some(Vec::new()));
        assert!(read_sidecar(&dir.path().join("x".repeat(300))).is_err());
        let long = vec![1; GDS_HEADER_BYTES + 9];
        fs::remove_file(sidecar_of(&path)).unwrap();
        fs::write(sidecar_of(&path), &long).unwrap();
        assert_eq!(
            read_sidecar(&path).unwrap().map(|bytes| bytes.len()),
            Some(GDS_HEADER_BYTES + 1)
        );
    }

    #[test]
    fn a_header_of_a_tensor_without_elements_has_no_payload() {
        let element = GdsElement::from_name("U8").unwrap();
        let header = |tokens| GdsHeader::new(element, vec![2, 1, tokens, 10], MemoryFormat::Kv2Ltd);
        let bytes = GDS_HEADER_BYTES as u64;
        assert_eq!(payload_of(&header(0), bytes), None);
        assert_eq!(payload_of(&header(3), bytes + 60), Some(60));
        assert_eq!(payload_of(&header(3), bytes + 4096), Some(60), "padded to a page");
        assert_eq!(payload_of(&header(3), bytes + 61), None);
        assert_eq!(payload_of(&header(3), bytes - 1), None);
    }
}
