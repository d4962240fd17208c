use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use kvtier_index::snapshot::{FRAME_CHUNKS_MAX, Writer};
use kvtier_index::{Chunk, Index};

/// Writes the index, in the order of use, as of `at_ms`. The index is locked for a piece at a time; only one process does this at a time.
pub fn write(own: &Path, index: &Mutex<Index>, at_ms: u64) -> io::Result<()> {
    let lock = || index.lock().unwrap_or_else(PoisonError::into_inner);
    let mut order = lock().order();
    order.reverse();
    let draft = own.join("snapshot.new");
    let mut file = File::create(&draft)?;
    let (mut writer, mut bytes) = (Writer::new(at_ms), Vec::new());
    for slots in order.chunks(FRAME_CHUNKS_MAX) {
        let chunks: Vec<Chunk> = lock().chunks_at(slots).collect();
        writer.write(&chunks, &mut bytes);
        file.write_all(&bytes)?;
        bytes.clear();
    }
    writer.finish(&mut bytes);
    file.write_all(&bytes)?;
    fs::rename(draft, own.join("snapshot"))
}
