//! Layouts: the files of kvtier, or those of a program that shares the directory without knowledge of
//! kvtier.
//!
//! In a foreign layout a chunk's file is byte for byte what that program writes, under the name
//! that it gives. The length of the file is data there: no padding, no footer. The facts, by which
//! loads verify the bytes, are in an extended attribute; see [`xattr_facts`].

mod find_chunk;
mod foreign;
mod foreign_load;
mod foreign_scan;
pub mod headers;
mod lengths;
mod lone_sidecars;
mod scan_requests;
mod tensor_shapes;
mod vllm_config_file;
pub mod xattr_facts;

use std::fmt;
use std::str::FromStr;

use kvtier_core::{Error, ErrorKind};
use kvtier_key::names::{Loss, NameForm, Parsed, is_vllm_fs_dir};
use kvtier_key::{GDS_HEADER_BYTES, InvalidKey, KeyId};

#[cfg(test)]
pub use find_chunk::FoundChunk;
pub use foreign::Foreign;
pub use foreign_load::{begin as begin_load, behind};
pub use foreign_scan::ForeignScanner;
pub use headers::Unshaped;
pub use vllm_config_file::{agree_on_run_config, find_run_config};
pub use xattr_facts::{Verify, probe_facts};

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
    /// Those of vLLM's `fs` tier.
    VllmFs,
}

impl Layout {
    /// All of them.
    pub const ALL: [Layout; 6] = [
        Layout::Kvtier,
        Layout::LmcacheMp,
        Layout::Lmcache,
        Layout::LmcacheGds,
        Layout::LmcacheGdsWeka,
        Layout::VllmFs,
    ];

    /// Its name in configurations and manifests.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Kvtier => "kvtier",
            Layout::LmcacheMp => "lmcache-mp",
            Layout::Lmcache => "lmcache",
            Layout::LmcacheGds => "lmcache-gds",
            Layout::LmcacheGdsWeka => "lmcache-gds-weka",
            Layout::VllmFs => "vllm-fs",
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

    /// What the ledger counts for a chunk's file of `file_bytes` in a foreign layout, sidecar included:
    /// nothing for an empty file, as a scan does.
    pub(crate) fn counted_bytes(self, file_bytes: u64) -> u64 {
        if file_bytes == 0 { 0 } else { file_bytes + self.head_bytes() }
    }

    /// Bytes beside the payload that a chunk of a foreign layout takes, in all its files.
    pub(crate) fn extra_bytes(self) -> u64 {
        2 * self.head_bytes()
    }

    /// Whether a directory may have files of a foreign layout, by its `name` in the directory `dir`,
    /// which is relative to the root.
    pub(crate) fn has_files_in(self, dir: &str, name: &str) -> bool {
        let depth = dir.split('/').filter(|part| !part.is_empty()).count();
        match self {
            Layout::LmcacheGds | Layout::LmcacheGdsWeka => depth < 2 && is_head_of_hash(name),
            Layout::VllmFs => is_vllm_fs_dir(depth, name),
            Layout::Kvtier | Layout::LmcacheMp | Layout::Lmcache => false,
        }
    }

    /// Whether this is the name of a directory with vLLM's `config.json`, in a layout with such.
    pub(crate) fn is_config_dir(self, name: &str) -> bool {
        self == Layout::VllmFs && self.has_files_in("", &format!("{name}_r0"))
    }

    /// The name of the sidecar of this file; `None` in a layout without.
    pub(crate) fn sidecar(self, file_name: &str) -> Option<String> {
        self.has_headers().then(|| format!("{file_name}.metadata"))
    }

    /// The name of the file whose sidecar has this name; `None` where it is no sidecar of a chunk.
    pub(crate) fn chunk_of_sidecar(self, name: &str) -> Option<&str> {
        let chunk = name.strip_suffix(".metadata").filter(|_| self.has_headers())?;
        self.key_of(chunk).map(|_| chunk)
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
            Layout::VllmFs => NameForm::VllmFs,
            _ => NameForm::Fs,
        }
    }
}

/// Whether a directory's name may be the first characters of a hash.
fn is_head_of_hash(name: &str) -> bool {
    (1..=2).contains(&name.chars().count()) && !name.starts_with('.')
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
                "no layout is called {text:?}; choose kvtier, lmcache-mp, lmcache, lmcache-gds, lmcache-gds-weka or vllm-fs"
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
    fn files_of_vllm_are_in_the_directories_of_their_rank_and_hash() {
        let name = "org_m_0123456789ab_r0/000/10_g0/0001020304.bin";
        let id = Layout::VllmFs.key_of(name).unwrap();
        assert_eq!(Layout::VllmFs.file_name(&id).unwrap(), name);
        for other in [format!("x/{name}"), name.replace("r0", "r00"), format!("{name}_7.tmp")] {
            assert_eq!(Layout::VllmFs.key_of(&other), None, "{other}");
        }
        let dirs = [("", "org_m_0123456789ab_r0"), ("x", "000"), ("x/y", "10_g0")];
        assert!(dirs.iter().all(|(dir, name)| Layout::VllmFs.has_files_in(dir, name)));
        assert!(
            !Layout::VllmFs.has_files_in("", "00") && !Layout::VllmFs.has_files_in("x/y/z", "00")
        );
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
