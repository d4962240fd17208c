//! What the server keeps.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::calendar;

/// One object.
#[derive(Clone, Debug)]
pub struct StoredObject {
    pub bytes: Arc<Vec<u8>>,
    pub etag: String,
    pub modified: i64,
    /// `x-amz-meta-*` and `x-amz-checksum-*` headers as they came.
    pub headers: Vec<(String, String)>,
}

/// An unfinished upload.
#[derive(Clone, Debug, Default)]
pub struct Pending {
    pub key: String,
    pub begun: i64,
    pub headers: Vec<(String, String)>,
    pub parts: BTreeMap<u32, StoredObject>,
}

/// All of it.
#[derive(Debug, Default)]
pub struct ObjectStore {
    pub objects: BTreeMap<String, StoredObject>,
    pub uploads: HashMap<String, Pending>,
    pub bucket_exists: bool,
    pub counter: u64,
    /// How far the server's clock is ahead, in seconds.
    pub ahead_s: i64,
    /// Whether uploads have names that need no encoding in a URL.
    pub plain_uploads: bool,
}

impl ObjectStore {
    /// A new object; its version is no hash of its bytes.
    pub fn stored(&mut self, bytes: Vec<u8>, headers: Vec<(String, String)>) -> StoredObject {
        self.counter += 1;
        // Different for every write, also of equal bytes: a client that pairs parts of two versions
        // must fail.
        let etag = format!("\"{:032x}\"", self.counter.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        StoredObject { bytes: Arc::new(bytes), etag, modified: self.now(), headers }
    }

    /// Seconds since 1970 by the server's clock.
    pub fn now(&self) -> i64 {
        calendar::now() + self.ahead_s
    }

    /// A name for a new upload.
    pub fn upload_id(&mut self) -> String {
        self.counter += 1;
        if self.plain_uploads {
            format!("up{}", self.counter)
        } else {
            format!("up/{}+=", self.counter)
        }
    }
}
