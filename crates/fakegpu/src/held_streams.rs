//! Holds streams, so that a test decides how long the GPU's work takes.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use crate::report_path::REPORT;

/// Exists beside the report while streams are held.
const HOLD_FILE: &str = "hold";

/// While it exists, streams of this process stop before they set memory. An event after a
/// `cuMemsetD8Async` does not pass, however long the test takes. For the body of a test.
#[derive(Debug)]
#[must_use]
pub struct HeldStreams(PathBuf);

impl HeldStreams {
    /// Holds the streams from now on.
    #[expect(clippy::new_without_default, reason = "it has a side effect")]
    pub fn new() -> Self {
        let path = path().expect("called in a test's body");
        File::create(&path).expect("the scratch directory is writable");
        HeldStreams(path)
    }
}

impl Drop for HeldStreams {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn path() -> Option<PathBuf> {
    std::env::var_os(REPORT).map(|report| PathBuf::from(report).with_file_name(HOLD_FILE))
}

/// Waits while the streams are held.
pub fn wait_while_held() {
    while path().is_some_and(|path| path.exists()) {
        std::thread::sleep(Duration::from_millis(1));
    }
}
