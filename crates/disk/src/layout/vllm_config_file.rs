//! The file `<base>/config.json` of layout `vllm-fs`, with the configuration of the engine whose
//! chunks have that base.
//!
//! The base has a digest of the configuration, so another configuration has other names, and vLLM
//! never reads the file. It writes it in place where it is missing. So a file that is whole and
//! differs was changed by hand or has the digest of another by chance, and its directory is
//! refused: its chunks may be those of another engine. One that is no JSON is torn: vLLM was killed
//! in the middle. It is kept for an operator to look at, and replaced in one step.

use std::io::ErrorKind as Io;
use std::path::Path;

use kvtier_core::{Error, ErrorKind};
use kvtier_key::VllmRunConfig;

use crate::data_dir::{DataDir, internal_files, repair};
use crate::kind_of;

/// The longest file that is read, in bytes.
const BYTES_MAX: u64 = 17 << 20;

/// The stored configuration, if it is not refused.
#[derive(Debug, PartialEq, Eq)]
pub enum StoredConfig {
    /// This one.
    Same,
    /// None.
    Missing,
    /// No configuration.
    Damaged,
}

/// Compares the stored configuration with the engine's. Changes nothing.
///
/// # Errors
/// `Invalid` for another configuration; those of the file system.
pub fn find_run_config(root: &Path, config: &VllmRunConfig) -> Result<StoredConfig, Error> {
    let path = root.join(config.path());
    let bytes = match internal_files::read(&path, BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == Io::NotFound => return Ok(StoredConfig::Missing),
        Err(e) if internal_files::is_not_a_file(&e) => return Ok(StoredConfig::Damaged),
        Err(e) => {
            return Err(Error::new(kind_of(&e), format!("cannot read {}", path.display()))
                .with_cause(e, "check its permissions"));
        }
    };
    let stored = str::from_utf8(&bytes).ok().map(VllmRunConfig::from_json);
    match stored {
        Some(Ok(stored)) if stored == *config => Ok(StoredConfig::Same),
        Some(Ok(_)) => {
            let what = format!(
                "{} has another configuration than vllm_run_config: the chunks beside it may be of another engine; use another directory, or \
                 the configuration that it has",
                path.display()
            );
            Err(Error::new(ErrorKind::Invalid, what))
        }
        _ => Ok(StoredConfig::Damaged),
    }
}

/// Writes the configuration where it is missing or damaged.
///
/// # Errors
/// Those of [`find_run_config`].
pub fn agree_on_run_config(data_dir: &DataDir, config: &VllmRunConfig) -> Result<(), Error> {
    let found = find_run_config(data_dir.root(), config)?;
    if found == StoredConfig::Same || data_dir.is_read_only() {
        return Ok(());
    }
    let path = data_dir.root().join(config.path());
    let own = data_dir.own();
    let written = data_dir.with_registration_lock_at_open(|_| {
        // A peer may have been faster.
        match find_run_config(data_dir.root(), config).map_err(std::io::Error::other)? {
            StoredConfig::Same => return Ok(()),
            StoredConfig::Missing => {}
            StoredConfig::Damaged => {
                let why = "was no configuration of vLLM";
                let said = repair::rename_damaged_because(&own, &path, why)?;
                data_dir.note_damage(said + ", and a new one was written");
            }
        }
        let draft = data_dir.create_small(config.text().as_bytes(), true)?;
        kvtier_os::create_dir_all(data_dir.root().join(config.base()))?;
        data_dir.publish_as(&draft, &config.path())
    });
    written.map_err(|e| {
        Error::new(kind_of(&e), format!("cannot write {}", path.display()))
            .with_cause(e, "check its permissions and free space")
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::DiskConfig;
    use crate::layout::{Foreign, Layout};

    fn config(tp_size: u32) -> VllmRunConfig {
        let text = format!(r#"{{"tp_size": {tp_size}, "model_name": "org/m"}}"#);
        VllmRunConfig::from_json(&text).unwrap()
    }

    fn open(root: &Path) -> DataDir {
        let config = DiskConfig { layout: Layout::VllmFs, ..DiskConfig::new(root, 1 << 20) };
        DataDir::open(root, Some(Foreign::new(&config))).unwrap()
    }

    #[test]
    fn the_configuration_is_written_once_and_another_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = open(dir.path());
        let (one, two) = (config(1), config(2));
        for config in [&one, &two, &one] {
            agree_on_run_config(&data_dir, config).unwrap();
            assert_eq!(fs::read_to_string(dir.path().join(config.path())).unwrap(), config.text());
            assert_eq!(find_run_config(dir.path(), config).unwrap(), StoredConfig::Same);
        }
        // Another spelling of the same.
        fs::write(dir.path().join(one.path()), r#"{"model_name":"org/m","tp_size":1}"#).unwrap();
        assert_eq!(find_run_config(dir.path(), &one).unwrap(), StoredConfig::Same);
        fs::write(dir.path().join(one.path()), two.text()).unwrap();
        let e = agree_on_run_config(&data_dir, &one).unwrap_err();
        let names_it = e.to_string().contains("config.json has another configuration");
        assert!(e.kind() == ErrorKind::Invalid && names_it, "{e}");
        assert_eq!(fs::read_to_string(dir.path().join(one.path())).unwrap(), two.text());
    }

    #[test]
    fn a_torn_configuration_is_renamed_and_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let (data_dir, one) = (open(dir.path()), config(1));
        let path = dir.path().join(one.path());
        for torn in [&b""[..], &one.text().as_bytes()[..20], &[0; 60]] {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, torn).unwrap();
            agree_on_run_config(&data_dir, &one).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), one.text());
            assert_eq!(fs::read(dir.path().join(".kvtier/config.json.damaged")).unwrap(), torn);
        }
        assert_eq!(data_dir.damage().len(), 3);
        data_dir.set_read_only(true);
        fs::remove_file(&path).unwrap();
        agree_on_run_config(&data_dir, &one).unwrap();
        assert!(!path.exists(), "nothing is written where nothing can be");
    }
}
