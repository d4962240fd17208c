use std::sync::Arc;
use std::time::Duration;

use super::counters::add;
use super::save::evict_ahead;
use super::shared::Shared;
use crate::List;

/// How long to wait after a listing that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Lists what is in the bucket under our prefix into the index, in the background; then brings it under the cap.
/// Names of LMCache's layouts do not tell the namespace: those chunks are discovered when they are asked for.
pub async fn list(shared: Arc<Shared>) {
    let what = List::under(shared.names.root());
    let mut next: Option<String> = None;
    while shared.names.is_own() && !shared.gate.is_closed() {
        match shared.client.list(&what, next.as_deref()).await {
            Ok(page) => {
                let found = page.entries.iter().filter_map(|e| Some((shared.names.digest(&e.key)?, e.bytes)));
                shared.books().list(found, shared.now_ms());
                add(&shared.counters.listed, page.entries.len() as u64);
                next = page.next;
                if next.is_none() {
                    break;
                }
            }
            Err(e) => {
                drop(shared.error("list", None, e));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    shared.books().listed();
    evict_ahead(&shared).await;
}
