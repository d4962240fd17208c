//! Saves from GPU memory: the chunk goes to pinned memory first, where its checksums are taken and
//! it is written from.

use std::io;
use std::sync::Arc;

use kvtier_mem::View;

use super::Inner;
use super::counts::add;
use super::duty::FetchDuty;
use super::lane::Lane;

/// Fetches views as one.
pub async fn fetch(inner: Arc<Inner>, lane: Arc<Lane>, (from, duty): (Vec<View>, FetchDuty)) {
    let result = run(&inner, &lane, &from).await;
    // Before the answer: who is told that a chunk is safe may expect its memory to be free.
    drop(from);
    duty.finish(result.map(|view| vec![view]));
}

async fn run(inner: &Inner, lane: &Lane, from: &[View]) -> io::Result<View> {
    for event in from.iter().filter_map(View::after) {
        add(&inner.counts.event_waits, usize::from(!event.has_passed().unwrap_or(false)));
        lane.passed(event).await?;
    }
    let len = from.iter().map(View::len).sum();
    let mut staged =
        inner.pinned(lane.gpu())?.staging.lease_waiting(len).await.map_err(io::Error::other)?;
    let mut rest =
        staged.as_host_mut().ok_or_else(|| io::Error::other("pinned memory is host memory"))?;
    for view in from {
        let (into, after) = rest.split_at_mut(view.len());
        match view.as_host() {
            Some(bytes) => into.copy_from_slice(bytes),
            None => lane.with_stream(|stream| stream.download(view, 0, into))?,
        }
        rest = after;
    }
    add(&inner.counts.fetched_bytes, len);
    staged.assume_filled(len);
    Ok(staged.freeze())
}
