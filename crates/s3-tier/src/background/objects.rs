//! Small objects of our own, and where they go.

use kvtier_mem::{Lease, View};
use kvtier_s3::{Client, Entry, Get, List, Put, Result, Stored};

/// A listing of our own objects has no more pages.
pub const PAGES_MAX: usize = 64;

/// An object's bytes, at most so many; `None` when it is not there. One that is longer is
/// `Corrupt`.
pub async fn get(client: &Client, name: &str, bytes_max: usize) -> Result<Option<Vec<u8>>> {
    let mut lease = Lease::from_owner(vec![0u8; bytes_max]);
    let Some(object) = client.get(name, &mut lease, &Get::at_most()).await? else {
        return Ok(None);
    };
    let len = usize::try_from(object.len()).unwrap_or(bytes_max).min(bytes_max);
    Ok(lease.as_host().map(|bytes| bytes[..len.min(bytes.len())].to_vec()))
}

/// Stores an object.
pub async fn put(client: &Client, name: &str, bytes: Vec<u8>, how: &Put) -> Result<Stored> {
    client.put(name, &View::from_owner(bytes), how).await
}

/// The objects of our own in one directory, and when the store said so.
pub async fn list(client: &Client, directory: &str) -> Result<(Vec<Entry>, Option<i64>)> {
    let (what, mut all, mut next, mut date) = (List::under(directory), Vec::new(), None, None);
    for _ in 0..PAGES_MAX {
        let page = client.list(&what, next.as_deref()).await?;
        all.extend(page.entries);
        (next, date) = (page.next, page.date.or(date));
        if next.is_none() {
            break;
        }
    }
    Ok((all, date))
}
