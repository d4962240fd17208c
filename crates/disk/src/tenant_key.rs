//! Tenants of a directory. On the medium a tenant is only a keyed digest of its name (its cache
//! salt). The process that opens the directory first creates the key, in `.kvtier/tenant-key`. A key
//! that is lost or damaged is replaced: the chunks' tenants are unknown then until the chunks are
//! used again, and nothing else is lost.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind as Io};
use std::path::Path;
use std::sync::{PoisonError, RwLock};

use kvtier_core::{Error, Key, random_bytes};
use kvtier_index::{TenantId, TenantKey, TenantNames};

use crate::data_dir::manifest::{Manifest, unescape};
use crate::data_dir::{DataDir, OPEN_WAIT_MAX, internal_files};

/// The key's file name in `.kvtier`.
const KEY: &str = "tenant-key";
/// The file in which earlier builds kept the names of all tenants.
const NAMES_BEFORE: &str = "tenants";

/// The tenants of this process's operations, and the directory's key.
#[derive(Debug)]
pub struct Tenants(RwLock<TenantNames>);

impl Tenants {
    /// Reads or creates the directory's key. Replaces names in plain text that an earlier build left.
    ///
    /// # Errors
    /// The manifest cannot be read or written. A damaged key is no error.
    pub fn open(data_dir: &DataDir) -> Result<Self, Error> {
        let own = data_dir.own();
        if data_dir.is_read_only() {
            return Ok(Tenants::new(read(&own).unwrap_or_else(|_| TenantKey::new(random_bytes()))));
        }
        let key = data_dir
            .with_registration_lock_at_open(|_| {
                Ok(load_or_create_key(data_dir, TenantKey::new(random_bytes())))
            })
            .unwrap_or_else(|e| {
                tracing::warn!("cannot lock {} to read its tenant key: {e}", own.display());
                read(&own).unwrap_or_else(|_| TenantKey::new(random_bytes()))
            });
        let tenants = Tenants::new(key);
        data_dir.edit_manifest(OPEN_WAIT_MAX, |manifest| {
            hide_tenants(manifest, &tenants);
            Ok(())
        })?;
        match kvtier_os::remove_file(own.join(NAMES_BEFORE)) {
            Err(e) if e.kind() != Io::NotFound => {
                tracing::warn!(
                    "cannot remove {}, which has tenants' names: {e}",
                    own.join(NAMES_BEFORE).display()
                );
            }
            _ => {}
        }
        internal_files::make_private(&own);
        Ok(tenants)
    }

    fn new(key: TenantKey) -> Self {
        Tenants(RwLock::new(TenantNames::new(key)))
    }

    /// The identity of a tenant. Its name is remembered for reports.
    pub fn id(&self, name: &str) -> TenantId {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let id = known.id(name);
        if !known.is_noted(id) {
            drop(known);
            self.0.write().unwrap_or_else(PoisonError::into_inner).note(id, name);
        }
        id
    }

    /// Remembers the tenants' names of these keys. Consecutive keys of one tenant cost one lookup.
    pub fn note_all(&self, keys: &[Key]) {
        let same = |a: &Key, b: &Key| a.namespace().tenant() == b.namespace().tenant();
        keys.chunk_by(same).for_each(|run| _ = self.id(run[0].namespace().tenant()));
    }

    /// The tenant's name in reports of this process.
    pub fn name(&self, id: TenantId) -> String {
        self.0.read().unwrap_or_else(PoisonError::into_inner).name(id)
    }

    /// The tenant in the manifest and in errors: `~` and 32 hexadecimal digits; empty for none.
    pub fn word(&self, name: &str) -> String {
        let id = self.0.read().unwrap_or_else(PoisonError::into_inner).id(name);
        if id == TenantId::NONE { String::new() } else { format!("~{id}") }
    }

    /// Writes the key again after `.kvtier` was deleted. Where a peer was faster, its key is used
    /// from the next start on.
    pub fn restore(&self, data_dir: &DataDir) -> io::Result<()> {
        let ours = self.0.read().unwrap_or_else(PoisonError::into_inner).key().clone();
        data_dir
            .with_registration_lock_at_open(|_| Ok(load_or_create_key(data_dir, ours)))
            .map(|_| ())
    }
}

/// Replaces tenants' names in the manifest of an earlier build with their identities.
fn hide_tenants(manifest: &mut Manifest, tenants: &Tenants) {
    let named = |name: &String| name.split(' ').nth(1).is_some_and(|tenant| !is_word(tenant));
    let old: Vec<String> = manifest.agreed.keys().filter(|name| named(name)).cloned().collect();
    for name in old {
        // A line that cannot be parsed is dropped: it must not keep a tenant's name on the medium.
        let value = manifest.agreed.remove(&name);
        let mut words = name.splitn(3, ' ');
        if let (Some(value), Some(kind), Some(tenant), Some(rest)) =
            (value, words.next(), words.next(), words.next())
        {
            let name = format!("{kind} {} {rest}", tenants.word(&unescape(tenant)));
            manifest.agreed.entry(name).or_insert(value);
        }
    }
}

/// Whether a word of a manifest has the form of [`Tenants::word`].
fn is_word(word: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    word.is_empty()
        || word
            .strip_prefix('~')
            .is_some_and(|digits| digits.len() == 32 && digits.bytes().all(is_digit))
}

/// The stored key. Where it is missing or damaged, `new`, which is written if that is possible.
fn load_or_create_key(data_dir: &DataDir, new: TenantKey) -> TenantKey {
    let own = data_dir.own();
    let why = match read(&own) {
        Ok(key) => return key,
        Err(e) if e.kind() == Io::NotFound => None,
        Err(e) if internal_files::is_not_a_file(&e) || internal_files::is_unreadable(&e) => Some(e),
        // The key may be intact: it is not replaced.
        Err(e) => {
            let path = own.join(KEY);
            tracing::warn!(
                "cannot read {} ({e}): tenants are counted for this process alone",
                path.display()
            );
            return new;
        }
    };
    if let Some(e) = &why {
        let path = own.join(KEY);
        data_dir.note_damage(format!(
            "{} cannot be used and is replaced ({e}): the chunks' tenants are unknown until the chunks are used again",
            path.display()
        ));
    }
    match write(data_dir, &new, why.is_none()) {
        Ok(()) => new,
        // On a file system without locks, a peer may have been faster.
        Err(e) => read(&own).unwrap_or_else(|_| {
            let path = own.join(KEY);
            tracing::warn!(
                "cannot write {} ({e}): tenants are counted for this process alone",
                path.display()
            );
            new
        }),
    }
}

fn read(own: &Path) -> io::Result<TenantKey> {
    let read = || internal_files::read(&own.join(KEY), TenantKey::BYTES_MAX as u64 + 1);
    let bytes =
        read().or_else(|e| if internal_files::is_unreadable(&e) { read() } else { Err(e) })?;
    TenantKey::decode(&bytes).ok_or_else(|| io::Error::new(Io::InvalidData, "it is damaged"))
}

/// Writes the key so that a crash leaves the old file or the new one, whole. A `first` key does not
/// replace that of a peer.
fn write(data_dir: &DataDir, key: &TenantKey, first: bool) -> io::Result<()> {
    let own = data_dir.own();
    // The ledger counts nothing for it, as its name says.
    let draft = data_dir.small_draft()?;
    let named = write_and_name(&draft.path(), &own.join(KEY), key, first);
    // A recount would count it for as long as it stays.
    data_dir.discard(draft, 0);
    named.and_then(|()| internal_files::sync_dir(&own))
}

/// Gives a new file its name; a second one may stay.
fn write_and_name(draft: &Path, to: &Path, key: &TenantKey, first: bool) -> io::Result<()> {
    let mut file = internal_files::open(draft, OpenOptions::new().write(true).create_new(true))?;
    kvtier_os::write_all(&mut file, key.encode().as_bytes())?;
    kvtier_os::sync_all(&file)?;
    let linked = if first { kvtier_os::hard_link(draft, to) } else { Err(Io::Unsupported.into()) };
    match linked {
        Err(e) if e.kind() != Io::AlreadyExists => kvtier_os::rename(draft, to),
        linked => linked,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn open(dir: &Path) -> (DataDir, Tenants) {
        let data_dir = DataDir::open(dir, None).unwrap();
        let tenants = Tenants::open(&data_dir).unwrap();
        (data_dir, tenants)
    }

    #[test]
    fn every_process_has_the_same_identities_and_another_directory_has_others() {
        let dir = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let first = open(dir.path());
        let second = open(dir.path());
        assert_eq!(first.1.id("alice"), second.1.id("alice"));
        assert_ne!(first.1.id("alice"), open(other.path()).1.id("alice"));
        let key = dir.path().join(".kvtier").join(KEY);
        assert_eq!(fs::metadata(key).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(
            (first.1.name(first.1.id("alice")), first.1.word("")),
            ("alice".to_owned(), String::new())
        );
        assert!(is_word(&first.1.word("alice")) && is_word("") && !is_word("~alice"));
    }

    /// A recount would count it for as long as the process lives.
    #[test]
    fn a_key_that_cannot_be_written_leaves_no_file_behind() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path(), None).unwrap();
        fs::create_dir(data_dir.own().join(KEY)).unwrap();
        let key = TenantKey::new([7; 32]);
        for first in [true, false] {
            write(&data_dir, &key, first).unwrap_err();
            let left = fs::read_dir(data_dir.staging().unwrap().path()).unwrap();
            assert_eq!(left.map(|left| left.unwrap().file_name()).collect::<Vec<_>>(), ["alive"]);
        }
        fs::remove_dir(data_dir.own().join(KEY)).unwrap();
        write(&data_dir, &key, true).unwrap();
        assert_eq!(fs::read_dir(data_dir.staging().unwrap().path()).unwrap().count(), 1);
    }

    #[test]
    fn names_that_collided_in_32_bits_are_two_tenants() {
        // Found by a search: the first four bytes of the digests that made the numbers of earlier
        // builds are the same.
        let number = |name: &str| {
            kvtier_key::Digest::derive("kvtier tenant", name.as_bytes()).0[..4].to_vec()
        };
        let pair = ["tenant-48313", "tenant-124327"];
        assert_eq!(number(pair[0]), number(pair[1]));
        let dir = tempfile::tempdir().unwrap();
        let (_home, tenants) = open(dir.path());
        assert_ne!(tenants.id(pair[0]), tenants.id(pair[1]));
    }

    #[test]
    fn a_key_that_is_lost_or_damaged_is_replaced_and_never_a_reason_to_refuse() {
        let dir = tempfile::tempdir().unwrap();
        let before = open(dir.path()).1.id("alice");
        let key = dir.path().join(".kvtier").join(KEY);
        assert_eq!(open(dir.path()).1.id("alice"), before);
        let damages: [&dyn Fn(); 4] = [
            &|| fs::remove_file(&key).unwrap(),
            &|| fs::write(&key, "").unwrap(),
            &|| {
                fs::remove_file(&key).unwrap();
                std::os::unix::fs::symlink("/etc/hostname", &key).unwrap();
            },
            &|| {
                fs::remove_file(&key).unwrap();
                nix::unistd::mkfifo(&key, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
            },
        ];
        let mut last = before;
        for damage in damages {
            damage();
            let now = open(dir.path()).1.id("alice");
            assert_ne!(now, last);
            assert_eq!(open(dir.path()).1.id("alice"), now, "it was written");
            last = now;
        }
        fs::remove_file(&key).unwrap();
        fs::create_dir(&key).unwrap();
        fs::write(key.join("file"), "").unwrap();
        let _ = open(dir.path()).1.id("alice");
    }
}
