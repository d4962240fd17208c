//! Reads, writes and lists the tier's own small objects.

use kvtier_mem::{Lease, View};
use kvtier_s3::{Client, Entry, Get, List, Put, Result, Stored};

/// The most pages of a listing of own objects.
pub const PAGES_MAX: usize = 64;

/// An object's bytes; `None` when there is none. An object of more than `bytes_max` bytes is
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

/// The own objects in one directory, and the date of the answer.
pub async fn list(client: &Client, directory: &str) -> Result<(Vec<Entry>, Option<i64>)> {
    let what = List::under(directory);
    let mut all = Vec::new();
    let mut next = None;
    let mut date = None;
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
