//! Stages saves from GPU memory: copies the chunk to pinned memory, from which the disk tier
//! computes the checksums and writes the file.

use std::io;
use std::sync::Arc;

use kvtier_mem::View;

use super::MoverInner;
use super::completion_guards::FetchCompletion;
use super::counters::add;
use super::executor::GpuExecutor;

/// The chunk to stage, as views in order.
pub struct StagedSave {
    pub from: Vec<View>,
    pub completion: FetchCompletion,
}

/// Copies the views into one view of pinned memory.
pub async fn stage(inner: Arc<MoverInner>, executor: Arc<GpuExecutor>, save: StagedSave) {
    let StagedSave { from, completion } = save;
    let result = copy_to_host(&inner, &executor, &from).await;
    // Before the completion: the caller expects its memory to be free once the chunk is staged.
    drop(from);
    completion.finish(result.map(|view| vec![view]));
}

async fn copy_to_host(
    inner: &MoverInner,
    executor: &GpuExecutor,
    from: &[View],
) -> io::Result<View> {
    // The kernel that fills the chunk may still run: copied before its event, the file would hold
    // old bytes with a valid checksum.
    for event in from.iter().filter_map(View::after) {
        add(&inner.counters.event_waits, usize::from(!event.has_passed().unwrap_or(false)));
        executor.wait_for(event).await?;
    }
    let len = from.iter().map(View::len).sum();
    let memory = inner.pinned(executor.gpu())?;
    // One lease for the whole chunk and no second one while it is held, so saves cannot wait for
    // each other in a circle.
    let mut staged = memory.staging.lease_waiting(len).await.map_err(io::Error::other)?;
    let mut rest =
        staged.as_host_mut().ok_or_else(|| io::Error::other("pinned memory is host memory"))?;
    for view in from {
        let (into, after) = rest.split_at_mut(view.len());
        match view.as_host() {
            // Chunks may be split between host and GPU; in the file they are one range.
            Some(bytes) => into.copy_from_slice(bytes),
            None => executor.with_stream(|stream| stream.download(view, 0, into))?,
        }
        rest = after;
    }
    add(&inner.counters.fetched_bytes, len);
    staged.assume_filled(len);
    Ok(staged.freeze())
}
