//! Headers: what LMCache's GDS backend writes before a chunk, and again into a file beside it.
//!
//! LMCache takes a chunk for present where the file beside it is, and believes what that says. Here
//! a chunk that our facts prove needs neither. One without facts is believed only where both say
//! the same, and the file is as long as they say.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use kvtier_key::{GDS_HEADER_BYTES, GdsHeader};

use super::find::is_padded;

/// Memory for one header, as direct I/O wants it.
#[repr(align(4096))]
struct Page([u8; GDS_HEADER_BYTES]);

/// What the headers of a chunk tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParsedHeader {
    /// There is a payload of so many bytes.
    Payload(u64),
    /// There is no file beside it: LMCache has not finished it, or is about to delete it.
    NoSidecar,
    /// A version that LMCache 0.5.6 does not read either.
    UnknownVersion,
    /// The two headers are not the same one, or none, or the file has another length than they say.
    Invalid,
}

/// Where the file beside `path` lies.
pub fn sidecar_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".metadata");
    name.into()
}

/// The file beside the chunk at `path`: its bytes; `None` where there is none.
pub fn read_sidecar(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // A pipe of this name must not be waited for, nor a link followed.
    let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOFOLLOW;
    let file = match File::options().read(true).custom_flags(flags).open(sidecar_of(path)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) if e.raw_os_error() == Some(nix::libc::ELOOP) => return Ok(Some(Vec::new())),
        other => other?,
    };
    let mut bytes = Vec::with_capacity(GDS_HEADER_BYTES + 1);
    if file.metadata()?.is_file() {
        // One byte more than a header: what fills it is none.
        file.take(GDS_HEADER_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    }
    Ok(Some(bytes))
}

/// Whether a file of `file_bytes` can be what a header says. The payload's bytes then; of a header
/// that contradicts itself nothing is believed.
pub fn payload_of(header: &GdsHeader, file_bytes: u64) -> Option<u64> {
    if header.contradiction.is_some() {
        return None;
    }
    let bytes = file_bytes.checked_sub(GDS_HEADER_BYTES as u64)?;
    header.payload_bytes().filter(|len| *len > 0 && (bytes == *len || is_padded(bytes, *len)))
}

/// What the headers of the open file at `path` tell, of `file_bytes` bytes.
pub fn parse(file: &File, path: &Path, file_bytes: u64) -> io::Result<ParsedHeader> {
    let Some(beside) = read_sidecar(path)? else { return Ok(ParsedHeader::NoSidecar) };
    let mut page = Page([0; GDS_HEADER_BYTES]);
    let got = match file.read_at(&mut page.0, 0) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => 0,
        other => other?,
    };
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
