//! Makes a key in a file of its own.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use kvtier_codec::MasterKey;
use kvtier_core::{Error, ErrorKind};
use zeroize::Zeroizing;

/// Writes a new random key to `path`, which must not exist, with mode 600, for `key_file`. It is on
/// the device when this returns.
///
/// # Errors
/// `Invalid`: the file exists, or cannot be written; then nothing is left of it.
pub fn write_new_key_file(path: &Path) -> Result<(), Error> {
    let shown = path.display();
    let secret = MasterKey::random_secret();
    let secret = secret.map_err(|e| Error::new(ErrorKind::Invalid, e.to_string()))?;
    let mut text = Zeroizing::new(String::with_capacity(2 * secret.len() + 1));
    for byte in secret.iter() {
        for digit in [byte >> 4, byte & 15] {
            text.extend(char::from_digit(digit.into(), 16));
        }
    }
    text.push('\n');
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = opened.map_err(|e| {
        let next = match e.kind() {
            // Without the old key its chunks can never be read again.
            std::io::ErrorKind::AlreadyExists => "a key is never overwritten; choose another path",
            _ => "check the directory and its mode",
        };
        Error::new(ErrorKind::Invalid, format!("cannot make the key file {shown}"))
            .with_cause(e, next)
    })?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.and_then(|()| sync_directory(path)).map_err(|e| {
        // A part of a key must not be taken for one. Where it cannot be removed, it is too short.
        let _ = std::fs::remove_file(path);
        let next = "check the space of the file system";
        Error::new(ErrorKind::Invalid, format!("cannot write the key file {shown}"))
            .with_cause(e, next)
    })
}

/// Makes the name last.
fn sync_directory(path: &Path) -> std::io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}
