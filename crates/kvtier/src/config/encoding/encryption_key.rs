//! Keys of encryption: where each is read from, and the form that it has there.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use kvtier_codec::{MasterKey, SECRET_LEN_MIN};
use kvtier_core::{Error, ErrorKind};
use zeroize::Zeroizing;

use super::key_command::{self, KEY_TEXT_MAX};

/// Permissions that a key file must not have: any of other users, and writing by its group.
const MODE_REFUSED: u32 = 0o027;

/// A key by its id, and where it is read from.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EncryptionKey {
    /// Its id, from 1 on, which is stored with each chunk.
    pub id: u32,
    /// Where it is read from.
    pub source: KeySource,
}

/// Where a key is read from: 64 hexadecimal digits or more.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum KeySource {
    /// A file.
    File(PathBuf),
    /// The standard output of a program, which is run without a shell.
    Command(Vec<String>),
}

/// Without a program's arguments, which may be secrets.
impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeySource::File(path) => write!(f, "key_file {}", path.display()),
            KeySource::Command(words) => {
                write!(f, "key_command {}", words.first().map_or("", String::as_str))
            }
        }
    }
}

impl EncryptionKey {
    /// A key with this id.
    pub fn new(id: u32, source: KeySource) -> Self {
        EncryptionKey { id, source }
    }

    /// Reads the key.
    ///
    /// # Errors
    /// `Invalid`: it cannot be read, other users can read it, or it is no key.
    pub fn load(&self) -> Result<MasterKey, Error> {
        let text = match &self.source {
            KeySource::File(path) => read_file(path),
            KeySource::Command(words) => key_command::output(words, key_command::LIMIT),
        };
        let secret = text.and_then(|text| secret(&text)).map_err(|why| self.invalid(&why))?;
        MasterKey::new(self.id, &secret).map_err(|e| self.invalid(&e.to_string()))
    }

    /// Its source, and whether it can be read, for people. Runs no program.
    pub(super) fn state(&self) -> String {
        let state = match &self.source {
            KeySource::Command(_) => "run when the tier opens".to_owned(),
            KeySource::File(_) => match self.load() {
                Ok(_) => "readable".to_owned(),
                Err(e) => return e.to_string(),
            },
        };
        format!("{}: {}: {state}", self.id, self.source)
    }

    fn invalid(&self, why: &str) -> Error {
        Error::new(ErrorKind::Invalid, format!("{}: {}: {why}", self.id, self.source))
    }
}

/// The text of a key file that only its owner, or its owner and group, can read.
fn read_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    let unreadable = |e: std::io::Error| {
        let next = match e.kind() {
            std::io::ErrorKind::NotFound => {
                "make one with `kvtier gen-key PATH`, or check the path"
            }
            _ => "let this process read it",
        };
        format!("cannot be read: {e}; {next}")
    };
    // A pipe would wait for a writer.
    check_file(&path.metadata().map_err(unreadable)?)?;
    let file = File::open(path).map_err(unreadable)?;
    check_file(&file.metadata().map_err(unreadable)?)?;
    // Bytes that do not fit would be copied to a larger buffer, and stay behind in the first one.
    let mut text = Zeroizing::new(Vec::with_capacity(KEY_TEXT_MAX + 1));
    file.take(KEY_TEXT_MAX as u64 + 1).read_to_end(&mut text).map_err(unreadable)?;
    Ok(text)
}

fn check_file(file: &Metadata) -> Result<(), String> {
    if !file.is_file() {
        return Err("is no file; name a file, or use key_command".into());
    }
    let mode = file.permissions().mode() & 0o777;
    if mode & MODE_REFUSED != 0 {
        return Err(format!(
            "has mode {mode:03o}, so that other users can read or change it; set mode 600 (or 640 for a group of its own)"
        ));
    }
    Ok(())
}

/// The secret that hexadecimal digits mean.
fn secret(text: &[u8]) -> Result<Zeroizing<Vec<u8>>, String> {
    let digits = text.trim_ascii();
    if digits.len() > KEY_TEXT_MAX {
        return Err(format!("is longer than {KEY_TEXT_MAX} bytes, and so no key; {MAKE_ONE}"));
    }
    let mut secret = Zeroizing::new(Vec::with_capacity(digits.len() / 2));
    for pair in digits.chunks(2) {
        let digit = |at: usize| pair.get(at).and_then(|&digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            let has = digits.len();
            return Err(format!(
                "has {has} characters that are not pairs of hexadecimal digits; {MAKE_ONE}"
            ));
        };
        secret.push((high << 4 | low) as u8);
    }
    if secret.len() < SECRET_LEN_MIN {
        let (has, least) = (digits.len(), 2 * SECRET_LEN_MIN);
        return Err(format!(
            "has {has} hexadecimal digits, and a key has {least} or more; {MAKE_ONE}"
        ));
    }
    Ok(secret)
}

const MAKE_ONE: &str = "make one with `kvtier gen-key PATH`";
