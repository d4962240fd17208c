//! Which length of a payload a file without facts can have.

use kvtier_key::{Key, Namespace};

use crate::direct_io::PAGE;

/// The payload's length in a file of `bytes` without facts. Writers of whole pages leave a padded
/// file; the namespace's chunk length shows that.
pub fn payload_len(key: &Key, bytes: u64) -> u64 {
    match key.full_bytes() {
        Some(full) if is_padded(bytes, full) => full,
        _ => bytes,
    }
}

/// Whether a file of `bytes` may be a payload of `len` bytes, filled up to a whole page.
pub fn is_padded(bytes: u64, len: u64) -> bool {
    bytes > len && bytes == len.next_multiple_of(PAGE)
}

/// Whether the namespace lets a chunk of this key have `len` bytes.
pub fn is_allowed(key: &Key, len: u64) -> bool {
    let ns: &Namespace = key.namespace();
    key.full_bytes().is_none_or(|full| len == full || (len < full && ns.allow_partial()))
}
