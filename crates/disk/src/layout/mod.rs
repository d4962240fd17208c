//! Whose files a directory holds: ours, or those of a program that shares the directory with us and knows nothing of us.
//!
//! In a foreign layout a chunk's file is byte for byte what that program writes, under the name that it gives. The length of the file is
//! data there: no padding, no footer. What proves the bytes, the facts, lies in an extended attribute; see [`facts`].

pub mod facts;
mod find;
mod load;
mod names;
mod sweep;

use std::fmt;
use std::str::FromStr;

use kvtier_core::{Error, ErrorKind};
use kvtier_key::names::{Form, Loss, Parsed};
use kvtier_key::{InvalidKey, KeyId};

pub use facts::{Verify, finish_file, probe_facts};
pub use load::begin as begin_load;
pub use names::Foreign;
pub use sweep::Sweeper;

/// Whose files a directory holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Layout {
    /// Ours: payload, padding, footer, in 256 directories.
    #[default]
    Kvtier,
    /// Those of the file adapters of LMCache's multi-process mode, `fs` and `fs_native`.
    LmcacheMp,
    /// Those of the FSConnector of LMCache's in-process mode.
    Lmcache,
}

impl Layout {
    /// All of them.
    pub const ALL: [Layout; 3] = [Layout::Kvtier, Layout::LmcacheMp, Layout::Lmcache];

    /// Its name in configurations and manifests.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Kvtier => "kvtier",
            Layout::LmcacheMp => "lmcache-mp",
            Layout::Lmcache => "lmcache",
        }
    }

    /// Whether another program's rules hold for the files.
    pub fn is_foreign(self) -> bool {
        self != Layout::Kvtier
    }

    /// The file name that a foreign layout gives a key. Errors: a key that it has no name for, or that would not read back as itself.
    pub fn file_name(self, id: &KeyId) -> Result<String, InvalidKey> {
        self.form().format(id)
    }

    /// The key whose file has this name in a foreign layout; `None` for any other file, also one whose key is spelled in another way: the
    /// program that reads these files would not find it.
    pub fn key_of(self, file_name: &str) -> Option<KeyId> {
        if !self.is_foreign() {
            return None;
        }
        match self.form().parse(file_name).ok()? {
            Parsed::Lossless(id) | Parsed::Lossy { key: id, loss: Loss::SlashAsSep } => Some(id),
            Parsed::Lossy { .. } => None,
        }
    }

    fn form(self) -> Form {
        if self == Layout::Lmcache { Form::FsConnector } else { Form::Fs }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Layout {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Layout::ALL.into_iter().find(|layout| layout.name() == text).ok_or_else(|| {
            let what = format!("no layout is called {text:?}; choose kvtier, lmcache-mp or lmcache");
            Error::new(ErrorKind::Invalid, what)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_names_and_know_their_files() {
        for layout in Layout::ALL {
            assert_eq!(layout.to_string().parse::<Layout>().unwrap(), layout);
        }
        assert!("gds".parse::<Layout>().unwrap_err().to_string().contains("lmcache-mp"));
        let mp = "org-SEP-m@0x02010201@0@00010203.data";
        let id = Layout::LmcacheMp.key_of(mp).unwrap();
        assert_eq!(Layout::LmcacheMp.file_name(&id).unwrap(), mp);
        assert!(Layout::Lmcache.file_name(&id).is_err(), "a key of the other mode");
        let own = "org-SEP-m@2@1@-1234@half.data";
        let id = Layout::Lmcache.key_of(own).unwrap();
        assert_eq!(Layout::Lmcache.file_name(&id).unwrap(), own);
        for stranger in
            ["org-SEP-m@0x02010201@0@00010203.tmp", ".kvtier", "x.data", "org-SEP-m@0x2010201@0@00010203.data"]
        {
            assert_eq!(Layout::LmcacheMp.key_of(stranger), None, "{stranger}");
            assert_eq!(Layout::Lmcache.key_of(stranger), None, "{stranger}");
        }
        assert_eq!(Layout::Kvtier.key_of(mp), None);
    }
}
