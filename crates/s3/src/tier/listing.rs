use std::sync::Arc;
use std::time::Duration;

use super::counters::add;
use super::shared::Shared;
use crate::List;

/// How long to wait after a listing that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Lists what is in the bucket under our prefix into the index, in the background; then it is brought under the cap. Without a cap one
/// page is read, to see whether there are names of the older form.
pub async fn list(shared: Arc<Shared>) {
    let what = List::under(shared.names.root());
    let mut next: Option<String> = None;
    while !shared.gate.is_closed() {
        match shared.client.list(&what, next.as_deref()).await {
            Ok(page) => {
                let found = page.entries.iter().filter_map(|entry| {
                    let name = (!shared.names.is_own()).then(|| entry.key.as_str().into());
                    Some((shared.names.digest(&entry.key)?, entry.bytes, name))
                });
                shared.books().list(found, shared.now_ms());
                add(&shared.counters.listed, page.entries.len() as u64);
                next = page.next;
                if next.is_none() || shared.capacity_bytes.is_none() {
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
    shared.outbox.ring();
}
