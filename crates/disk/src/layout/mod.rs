//! Layouts: the files of kvtier, or those of a program that shares the directory without knowledge of
//! kvtier.
//!
//! In a foreign layout a chunk's file is byte for byte what that program writes, under the name
//! that it gives. The length of the file is data there: no padding, no footer. The facts, by which
//! loads verify the bytes, are in an extended attribute; see [`facts`].

pub mod facts;
mod find;
mod foreign;
pub mod headers;
mod load;
mod shapes;
mod sweep;

use std::fmt;
use std::str::FromStr;

use kvtier_core::{Error, ErrorKind};
use kvtier_key::names::{Loss, NameForm, Parsed};
use kvtier_key::{GDS_HEADER_BYTES, InvalidKey, KeyId};

pub use facts::{Verify, finish_file, probe_facts};
pub use foreign::Foreign;
pub use load::{begin as begin_load, behind};
pub use shapes::Unshaped;
pub use sweep::Sweeper;

/// The layout of a directory's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Layout {
    /// That of kvtier: payload, padding, footer, in 256 directories.
    #[default]
    Kvtier,
    /// Those of the file adapters of LMCache's multi-process mode, `fs` and `fs_native`.
    LmcacheMp,
    /// Those of the FSConnector of LMCache's in-process mode.
    Lmcache,
    /// Those of the GdsBackend of LMCache's in-process mode: a header before the payload, and the
    /// same header in a file beside it.
    LmcacheGds,
    /// The same with the names that LMCache uses on Weka's file system.
    LmcacheGdsWeka,
}

impl Layout {
    /// All of them.
    pub const ALL: [Layout; 5] = [
        Layout::Kvtier,
        Layout::LmcacheMp,
        Layout::Lmcache,
        Layout::LmcacheGds,
        Layout::LmcacheGdsWeka,
    ];

    /// Its name in configurations and manifests.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Kvtier => "kvtier",
            Layout::LmcacheMp => "lmcache-mp",
            Layout::Lmcache => "lmcache",
            Layout::LmcacheGds => "lmcache-gds",
            Layout::LmcacheGdsWeka => "lmcache-gds-weka",
        }
    }

    /// Whether another program defines the files.
    pub fn is_foreign(self) -> bool {
        self != Layout::Kvtier
    }

    /// Whether a header stands before the payload, and again in a file beside it.
    pub fn has_headers(self) -> bool {
        matches!(self, Layout::LmcacheGds | Layout::LmcacheGdsWeka)
    }

    /// Bytes of a foreign layout's file before the payload.
    pub(crate) fn head_bytes(self) -> u64 {
        if self.has_headers() { GDS_HEADER_BYTES as u64 } else { 0 }
    }

    /// Bytes beside the payload that a chunk of a foreign layout takes, in all its files.
    pub(crate) fn extra_bytes(self) -> u64 {
        2 * self.head_bytes()
    }

    /// How many directories deep a foreign layout's files are, at most.
    pub(crate) fn depth(self) -> usize {
        if self.has_headers() { 2 } else { 0 }
    }

    /// The name of the sidecar of this file; `None` in a layout without.
    pub(crate) fn sidecar(self, file_name: &str) -> Option<String> {
        self.has_headers().then(|| format!("{file_name}.metadata"))
    }

    /// The file name, with its directories, that a foreign layout gives a key.
    ///
    /// # Errors
    /// The layout has no name for the key, or the name would parse as another key.
    pub fn file_name(self, id: &KeyId) -> Result<String, InvalidKey> {
        self.form().format(id)
    }

    /// The key whose file has this name in a foreign layout. `None` for any other file, also for
    /// another spelling of a key: the program that reads these files would not find it.
    pub fn key_of(self, file_name: &str) -> Option<KeyId> {
        if !self.is_foreign() {
            return None;
        }
        match self.form().parse(file_name).ok()? {
            Parsed::Lossless(id) | Parsed::Lossy { key: id, loss: Loss::SlashAsSep } => Some(id),
            Parsed::Lossy { .. } => None,
        }
    }

    fn form(self) -> NameForm {
        match self {
            Layout::Lmcache => NameForm::FsConnector,
            Layout::LmcacheGds => NameForm::Gds { weka: false, sidecar: false },
            Layout::LmcacheGdsWeka => NameForm::Gds { weka: true, sidecar: false },
            _ => NameForm::Fs,
        }
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
            let what = format!(
                "no layout is called {text:?}; choose kvtier, lmcache-mp, lmcache, lmcache-gds or lmcache-gds-weka"
            );
            Error::new(ErrorKind::Invalid, what)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_names_and_recognise_their_files() {
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
        for other in [
            "org-SEP-m@0x02010201@0@00010203.tmp",
            ".kvtier",
            "x.data",
            "org-SEP-m@0x2010201@0@00010203.data",
        ] {
            assert_eq!(Layout::LmcacheMp.key_of(other), None, "{other}");
            assert_eq!(Layout::Lmcache.key_of(other), None, "{other}");
        }
        assert_eq!(Layout::Kvtier.key_of(mp), None);
    }

    #[test]
    fn files_with_headers_are_stored_by_their_hash() {
        let name = "18/85/org%2Fm%401%400%401a2b3c4d5e6f7788%40bfloat16.kvcache.safetensors";
        let id = Layout::LmcacheGds.key_of(name).unwrap();
        assert_eq!(Layout::LmcacheGds.file_name(&id).unwrap(), name);
        let weka = Layout::LmcacheGdsWeka.file_name(&id).unwrap();
        assert!(weka.ends_with(".weka1") && Layout::LmcacheGdsWeka.key_of(&weka) == Some(id));
        let bare = name.rsplit('/').next().unwrap();
        for other in [
            bare.into(),
            format!("x/{name}"),
            name.replace("18/", "19/"),
            format!("{name}.metadata"),
            weka,
        ] {
            assert_eq!(Layout::LmcacheGds.key_of(&other), None, "{other}");
        }
    }
}
