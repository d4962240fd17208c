use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use kvtier_index::TenantId;
use kvtier_key::Digest;

use crate::home::bookkeeping;

/// The most names that are remembered. Later ones are counted and limited like all others, and reported without a name.
const NAMES_MAX: usize = 65_536;

/// The most bytes of the file that are read.
const BYTES_MAX: u64 = 64 << 20;

/// The names behind the index's numbers for tenants: a number is made of the name, so that it is the same in every process, and the file
/// `.kvtier/tenants` remembers which name it was.
#[derive(Debug)]
pub struct Tenants {
    path: PathBuf,
    names: RwLock<BTreeMap<TenantId, String>>,
    most: usize,
}

impl Tenants {
    /// Reads the names that were met before.
    pub fn open(own: &Path) -> io::Result<Self> {
        Tenants::open_some(own, NAMES_MAX)
    }

    fn open_some(own: &Path, most: usize) -> io::Result<Self> {
        let path = own.join("tenants");
        let bytes = match bookkeeping::read(&path, BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(e) => {
                if e.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(
                        "{} cannot be read: {e}; tenants that were met before are reported without a name",
                        path.display()
                    );
                }
                Vec::new()
            }
        };
        // A line that was cut off or damaged is of no tenant or left out: the name is written again when the tenant is met.
        let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
        let lines = lines.map(|line| line.trim_end_matches('\r')).filter(|line| !line.is_empty());
        let names = lines.take(most).map(unescape).map(|name| (number(&name), name)).collect();
        Ok(Tenants { path, names: RwLock::new(names), most })
    }

    /// The number of a tenant.
    pub fn id(&self, tenant: &str) -> TenantId {
        let id = number(tenant);
        if self.names.read().unwrap_or_else(PoisonError::into_inner).contains_key(&id) {
            return id;
        }
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= self.most {
            return id;
        }
        if names.insert(id, tenant.to_owned()).is_none() && !tenant.is_empty() {
            // Only reports lose by it: the number stays right.
            let _ = append(&self.path, &escape(tenant));
        }
        id
    }

    /// The name of a tenant; empty for one that nobody told of.
    pub fn name(&self, id: TenantId) -> String {
        self.names.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned().unwrap_or_default()
    }
}

/// 0 for nobody, else made of the name.
fn number(tenant: &str) -> TenantId {
    let digest = Digest::of("kvtier tenant", tenant.as_bytes());
    let [a, b, c, d, ..] = *digest.as_bytes();
    TenantId(if tenant.is_empty() { 0 } else { u32::from_le_bytes([a, b, c, d]).max(1) })
}

fn append(path: &Path, line: &str) -> io::Result<()> {
    let mut file = bookkeeping::open(path, OpenOptions::new().append(true).create(true))?;
    file.write_all(format!("{line}\n").as_bytes())
}

fn escape(name: &str) -> String {
    name.replace('%', "%25").replace('\n', "%0A").replace('\r', "%0D")
}

fn unescape(line: &str) -> String {
    line.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn names_are_known_to_the_next_process() {
        let dir = tempfile::tempdir().unwrap();
        let odd = ["a", "50%0A", "two\nlines\r", "%"];
        let first = Tenants::open(dir.path()).unwrap();
        let ids: Vec<_> = odd.iter().map(|name| first.id(name)).collect();
        assert_eq!(first.id("a"), ids[0]);
        assert_eq!(first.id(""), TenantId(0));
        let second = Tenants::open(dir.path()).unwrap();
        let names: Vec<_> = ids.iter().map(|id| second.name(*id)).collect();
        assert_eq!(names, odd);
    }

    #[test]
    fn not_more_names_are_remembered_than_there_is_room_for_and_every_number_is_right() {
        let dir = tempfile::tempdir().unwrap();
        let some = Tenants::open_some(dir.path(), 3).unwrap();
        let ids: Vec<_> = (0..6).map(|n| some.id(&n.to_string())).collect();
        assert_eq!((0..6).map(|n| number(&n.to_string())).collect::<Vec<_>>(), ids);
        assert_eq!((some.name(ids[2]), some.name(ids[3])), ("2".to_owned(), String::new()));
        assert_eq!(fs::read_to_string(dir.path().join("tenants")).unwrap().lines().count(), 3);
        assert_eq!(Tenants::open_some(dir.path(), 2).unwrap().names.read().unwrap().len(), 2);
    }
}
