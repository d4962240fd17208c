//! Uploads: copies bytes that lie in host memory, such as decoded ones, to the GPU.

use std::io;
use std::sync::Arc;

use kvtier_mem::Lease;

use super::MoverInner;
use super::completion_guards::UploadCompletion;
use super::counters::add;
use super::executor::GpuExecutor;

/// Copies the bytes into the leases, in their order.
pub async fn upload(
    inner: Arc<MoverInner>,
    executor: Arc<GpuExecutor>,
    mut completion: UploadCompletion,
) {
    let result = copy_to_gpu(&inner, &executor, &mut completion).await;
    completion.finish(result);
}

async fn copy_to_gpu(
    inner: &MoverInner,
    executor: &GpuExecutor,
    completion: &mut UploadCompletion,
) -> io::Result<()> {
    let (bytes, into) = completion.memory();
    // The caller's stream may still use this memory. Writing before its event has passed would
    // change bytes that the GPU reads.
    for event in into.iter().filter_map(Lease::after) {
        add(&inner.counters.event_waits, usize::from(!event.has_passed().unwrap_or(false)));
        executor.wait_for(event).await?;
    }
    let mut rest = bytes;
    for lease in into.iter_mut() {
        let (own, after) = rest.split_at(lease.len().min(rest.len()));
        rest = after;
        if !own.is_empty() {
            executor.with_stream(|stream| stream.upload(own, lease, 0, || ()))?;
            add(&inner.counters.uploaded_bytes, own.len());
        }
    }
    if !rest.is_empty() {
        return Err(io::Error::other("more bytes than memory on the GPU"));
    }
    // Only now: a lease that counts as filled before an error would show bytes of a chunk that is
    // not there.
    let mut left = bytes.len();
    for lease in into {
        let filled = lease.len().min(left);
        lease.assume_filled(filled);
        left -= filled;
    }
    Ok(())
}
