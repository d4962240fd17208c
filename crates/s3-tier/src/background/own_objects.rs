//! Reads, writes and lists the tier's own small objects.

use kvtier_mem::{Lease, View};
use kvtier_s3::{Client, Entry, ErrorKind, Get, List, Put, Result, Stored};
use tokio::time::Instant;

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

/// As [`get`], of an object that a listing shows. Memory is made for the listed length only: zeroing
/// `bytes_max` bytes costs more than a small object.
pub async fn get_listed(
    client: &Client,
    entry: &Entry,
    bytes_max: usize,
) -> Result<Option<Vec<u8>>> {
    let listed = usize::try_from(entry.bytes).unwrap_or(usize::MAX).min(bytes_max);
    match get(client, &entry.key, listed).await {
        // It was replaced by a longer one since.
        Err(e) if e.kind() == ErrorKind::Corrupt && !e.is_retryable() && listed < bytes_max => {
            get(client, &entry.key, bytes_max).await
        }
        other => other,
    }
}

/// Stores an object.
pub async fn put(client: &Client, name: &str, bytes: Vec<u8>, how: &Put) -> Result<Stored> {
    client.put(name, &View::from_owner(bytes), how).await
}

/// A listing of own objects.
#[derive(Debug, Default)]
pub struct OwnListing {
    pub entries: Vec<Entry>,
    /// The date of the answer.
    pub date: Option<i64>,
    /// When it came.
    pub at: Option<Instant>,
    /// There are more than are listed.
    pub is_cut: bool,
}

/// The own objects in one directory.
pub async fn list(client: &Client, directory: &str) -> Result<OwnListing> {
    let what = List::under(directory);
    let mut listing = OwnListing::default();
    let mut next = None;
    for _ in 0..PAGES_MAX {
        let page = client.list(&what, next.as_deref()).await?;
        listing.entries.extend(page.entries);
        (next, listing.date) = (page.next, page.date.or(listing.date));
        listing.at = Some(Instant::now());
        if next.is_none() {
            break;
        }
    }
    listing.is_cut = next.is_some();
    Ok(listing)
}

#[cfg(test)]
mod tests {
    use kvtier_s3::{BucketAddress, Config, Credentials};

    use super::*;

    /// A listing may be older than the object.
    #[tokio::test]
    async fn an_object_is_read_whole_whatever_length_the_listing_has() {
        let server = kvtier_testkit::s3::Server::start(Default::default()).unwrap();
        let address = BucketAddress::new(server.url()).bucket("bucket").region("us-east-1");
        let credentials = Credentials::new("AKIDTEST", "secret/test+key");
        let client = Client::new(Config::new(address.resolve().unwrap(), credentials));
        put(&client, "journal", vec![7; 100], &Put::default()).await.unwrap();
        let entries = list(&client, "").await.unwrap().entries;
        for bytes in [0, 99, 100, 101, u64::MAX] {
            let mut entry = entries[0].clone();
            entry.bytes = bytes;
            let read = get_listed(&client, &entry, 100).await.unwrap();
            assert_eq!(read, Some(vec![7; 100]), "listed with {bytes} bytes");
            let refused = get_listed(&client, &entry, 99).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "listed with {bytes} bytes");
        }
    }
}
