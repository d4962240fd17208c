//! Facts of files without a footer: the facts record in the extended attribute `user.kvtier`.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use kvtier_core::{Error, ErrorKind};
use kvtier_key::{FACTS_BYTES_MAX, Facts, Key};
use nix::errno::Errno;

/// The attribute's name.
pub const XATTR: &str = "user.kvtier";

/// How a load treats a chunk without facts: another program wrote it, or the file system keeps no
/// attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verify {
    /// Loads it where its length is exactly the one wanted, and counts it.
    #[default]
    Lenient,
    /// Refuses it, as a miss of its own kind.
    Strict,
}

impl std::str::FromStr for Verify {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "lenient" => Ok(Verify::Lenient),
            "strict" => Ok(Verify::Strict),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!("no verify is called {text:?}; choose lenient or strict"),
            )),
        }
    }
}

/// The facts of a file.
#[derive(Debug)]
pub enum Known {
    /// There are no facts.
    Unverified,
    /// Valid facts.
    Facts(Box<Facts>),
    /// The attribute holds no valid facts.
    Junk,
}

impl Known {
    /// Reads the facts of an open file.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        // One byte more than the longest record: a longer attribute is no record.
        let mut record = [0; FACTS_BYTES_MAX + 1];
        Known::read(kvtier_os::attribute(file, XATTR, &mut record), &record)
    }

    /// Reads the facts of a file by its path; a symbolic link is not followed.
    pub fn at(path: &Path) -> io::Result<Self> {
        let mut record = [0; FACTS_BYTES_MAX + 1];
        Known::read(kvtier_os::attribute_at(path, XATTR, &mut record), &record)
    }

    fn read(got: Result<usize, Errno>, record: &[u8]) -> io::Result<Self> {
        match got {
            Ok(len) => {
                let facts = record.get(..len).map(Facts::decode);
                Ok(facts
                    .and_then(Result::ok)
                    .map_or(Known::Junk, |facts| Known::Facts(Box::new(facts))))
            }
            Err(Errno::ENODATA | Errno::ENOTSUP) => Ok(Known::Unverified),
            Err(Errno::ERANGE) => Ok(Known::Junk),
            Err(e) => Err(e.into()),
        }
    }
}

/// Whether facts belong to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactsOwner {
    /// They are the key's.
    Ours,
    /// They are those of the same file name in another namespace: a valid chunk, but not the key's.
    AnotherNamespace,
    /// They belong to no key with this file name.
    Wrong,
}

/// Compares the `facts` of the file of `key` with the key.
pub fn owner_of(facts: &Facts, key: &Key) -> FactsOwner {
    if facts.namespace != key.namespace().digest() {
        FactsOwner::AnotherNamespace
    } else if facts.key == *key.digest() && facts.codec.0 == 0 && facts.key_id == 0 {
        FactsOwner::Ours
    } else {
        FactsOwner::Wrong
    }
}

/// Writes facts to an open file's attribute. `false` where the file system keeps none.
pub fn put(file: impl AsFd, facts: &Facts) -> io::Result<bool> {
    match kvtier_os::set_attribute(file, XATTR, &facts.encode()) {
        Ok(()) => Ok(true),
        Err(Errno::ENOTSUP) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Whether facts can be kept in files below `own`.
pub fn probe_facts(own: &Path) -> io::Result<bool> {
    let path = own.join("facts.probe");
    let probe = kvtier_os::open(OpenOptions::new().write(true).create(true).truncate(true), &path)?;
    // Another process may probe at this moment, under the same name.
    let _ = kvtier_os::remove_file(&path);
    match kvtier_os::set_attribute(&probe, XATTR, b"probe") {
        Ok(()) => Ok(true),
        Err(Errno::ENOTSUP) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verify_has_two_names() {
        assert_eq!("lenient".parse::<Verify>().unwrap(), Verify::Lenient);
        assert_eq!("strict".parse::<Verify>().unwrap(), Verify::Strict);
        let error = "Strict".parse::<Verify>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("\"Strict\""), "{error}");
    }

    #[test]
    fn an_attribute_is_absent_or_junk_or_the_error_is_the_callers() {
        let known = |got| Known::read(got, &[0; FACTS_BYTES_MAX + 1]);
        for absent in [Errno::ENODATA, Errno::ENOTSUP] {
            assert!(matches!(known(Err(absent)), Ok(Known::Unverified)));
        }
        assert!(matches!(known(Err(Errno::ERANGE)), Ok(Known::Junk)));
        assert_eq!(known(Err(Errno::EIO)).unwrap_err().raw_os_error(), Some(Errno::EIO as i32));
        for bytes in [0, 10, FACTS_BYTES_MAX + 1, FACTS_BYTES_MAX + 2] {
            assert!(matches!(known(Ok(bytes)), Ok(Known::Junk)), "{bytes} zeros");
        }
    }

    #[test]
    fn facts_are_of_the_key_of_its_name_elsewhere_or_of_none() {
        let [ours, other] = [1, 2].map(crate::disk::tests::key);
        let facts = || {
            let sums = kvtier_key::BlockSums::from_bytes(b"x");
            Facts::plain(*ours.digest(), ours.namespace().digest(), sums)
        };
        assert_eq!(owner_of(&facts(), &ours), FactsOwner::Ours);
        assert_eq!(owner_of(&facts(), &other), FactsOwner::Wrong);
        let changed = |change: fn(&mut Facts)| {
            let mut facts = facts();
            change(&mut facts);
            owner_of(&facts, &ours)
        };
        assert_eq!(changed(|facts| facts.codec.0 = 2), FactsOwner::Wrong);
        assert_eq!(changed(|facts| facts.key_id = 3), FactsOwner::Wrong);
        let elsewhere = changed(|facts| facts.namespace.0 = [9; 32]);
        assert_eq!(elsewhere, FactsOwner::AnotherNamespace);
    }
}
