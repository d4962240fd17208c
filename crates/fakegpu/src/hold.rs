//! Work on a GPU that takes as long as a test says.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use crate::report::REPORT;

/// Lies beside the report while streams set no memory.
const HOLD_FILE: &str = "hold";

/// While it lives no stream of this process sets memory, nor does what comes after: an event behind
/// a `cuMemsetD8Async` has not passed, however long the test takes for what it does meanwhile. For
/// a test's body.
#[derive(Debug)]
#[must_use]
pub struct Hold(PathBuf);

impl Hold {
    /// From now on.
    #[expect(clippy::new_without_default, reason = "it does something")]
    pub fn new() -> Self {
        let path = path().expect("called in a test's body");
        File::create(&path).expect("the scratch directory is ours");
        Hold(path)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn path() -> Option<PathBuf> {
    std::env::var_os(REPORT).map(|report| PathBuf::from(report).with_file_name(HOLD_FILE))
}

/// Waits until nobody holds the streams.
pub fn wait() {
    while path().is_some_and(|path| path.exists()) {
        std::thread::sleep(Duration::from_millis(1));
    }
}
