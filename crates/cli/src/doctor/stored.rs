//! What the chunks that a directory holds say of their loads.

use std::path::Path;

use kvtier::file::inspect::{Directory, Summary};

use super::finding::Finding;
use super::lossy::ADVICE;

/// What a directory holds; nothing where it cannot be read.
pub fn summary(path: &Path) -> Summary {
    let guessed = || {
        Directory::detect_layout(path)
            .ok()
            .flatten()
            .and_then(|layout| Directory::open_as(path, layout).ok())
    };
    // A directory without a manifest may still have chunks of LMCache's, which count as ours.
    let dir = Directory::open(path).ok().or_else(guessed);
    dir.as_ref().and_then(|dir| dir.summary().ok()).unwrap_or_default()
}

/// Chunks that went through a lossy stage.
pub fn lossy(sum: &Summary) -> Option<Finding> {
    (sum.lossy > 0).then(|| {
        Finding::new("lossy chunks", format!("{} of {}", sum.lossy, sum.chunks))
            .advising(true, ADVICE)
    })
}

/// Encoded chunks, which go another way to a GPU than the others.
pub fn encoded(sum: &Summary) -> Option<Finding> {
    let encoded: u64 = sum.codecs.values().map(|totals| totals.chunks).sum();
    (encoded > 0).then(|| {
        let found = format!(
            "{encoded} of {}: they are decoded in host memory and copied to the GPU from there; cuFile loads only the others",
            sum.chunks
        );
        Finding::new("encoded chunks", found)
    })
}
