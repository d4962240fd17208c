use std::pin::pin;
use std::sync::{Mutex, PoisonError};

use kvtier_mem::Lease;

use super::concurrent;
use super::get::{Get, fetch, host, slot};
use super::head::Object;
use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::http::BodyBuffer;
use crate::local_clock::Instant;
use crate::retry::RequestKind;

impl Client {
    /// Gets an object that fills `lease` by several requests at once, each for `part_bytes`: lower
    /// latency for more requests. `None` when the object does not exist. If the store ignores
    /// ranges, one request gets the whole object. After three such objects in a row, all objects
    /// are read that way for a minute.
    ///
    /// ```
    /// # let server = kvtier_testkit::s3::Server::start(Default::default())?;
    /// # use kvtier_s3::{BucketAddress, Client, Config, Credentials};
    /// # let address = BucketAddress::new(server.url()).bucket("bucket").region("us-east-1");
    /// # let client = Client::new(Config::new(address.resolve()?, Credentials::new("AKIDTEST", "secret/test+key")));
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use kvtier_mem::Lease;
    /// use kvtier_s3::Put;
    ///
    /// client.put_bytes("large", vec![42; 3 << 20], &Put::default()).await?;
    /// let mut lease = Lease::from(vec![0; 3 << 20]);
    /// let object = client.get_parallel("large", &mut lease, 1 << 20, 3).await?.expect("a hit");
    /// assert_eq!(object.total(), 3 << 20);
    /// assert_eq!(lease.as_host().unwrap(), vec![42; 3 << 20]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Conflict` when the object was replaced during the read, so that versions are never mixed;
    /// others as [`Client::get`].
    pub async fn get_parallel(
        &self,
        key: &str,
        lease: &mut Lease,
        part_bytes: usize,
        width: usize,
    ) -> Result<Option<Object>> {
        let began = Instant::now();
        // The parts arrive in any order; until all are there nothing counts.
        lease.assume_filled(0);
        let len = lease.len();
        let memory = host(lease)?;
        if part_bytes == 0 || len <= part_bytes || self.ignores_ranges() {
            return self.get(key, lease, &Get::default()).await;
        }
        let work = async {
            match self.in_parts(key, memory, part_bytes, width).await {
                Ok(first) => {
                    self.inner.ranges.note_supported();
                    Ok(first.map(|object| Object { len: len as u64, ..object }))
                }
                // All parts have ended or were dropped, so the memory is free for one read of the
                // whole.
                Err(e) if e.is_ignored_range() => {
                    self.inner.ranges.note_unsupported(began, Instant::now());
                    fetch(&self.inner, key, &mut BodyBuffer::new(memory), &Get::default()).await
                }
                // Of a part: the object is gone. With a status it is the bucket.
                Err(e) if e.kind() == ErrorKind::NotFound && e.status().is_none() => Ok(None),
                Err(e) => Err(e),
            }
        };
        let got = self.run(RequestKind::Read, "get", pin!(work)).await?;
        if got.is_some() {
            lease.assume_filled(len);
        }
        Ok(got)
    }

    /// Gets an object by ranges that fill `memory`: the first part that came, with what its answer
    /// says of the object.
    async fn in_parts(
        &self,
        key: &str,
        memory: &mut [u8],
        part_bytes: usize,
        width: usize,
    ) -> Result<Option<Object>> {
        let len = memory.len() as u64;
        let first = Mutex::new(None::<Object>);
        let parts = memory.chunks_mut(part_bytes).zip((0u64..).step_by(part_bytes)).map(
            |(memory, start)| {
                let first = &first;
                async move {
                    let end = start + memory.len() as u64;
                    let get = Get::range(start..end);
                    let part = fetch(&self.inner, key, &mut slot(memory, &get)?, &get)
                        .await?
                        .ok_or_else(missing)?;
                    let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
                    // Checked with the first part, before the others are awaited: the object does
                    // not fill the memory.
                    if part.total != len {
                        let what = format!("the object has {} bytes, the memory {len}", part.total);
                        return Err(Error::new(ErrorKind::Corrupt, what));
                    }
                    // Every part must be of the version of the first one that arrived. Without
                    // etags two versions could not be distinguished, so that is a conflict, too.
                    match &mut *first {
                        Some(other) if other.etag() != part.etag() || part.etag().is_none() => {
                            Err(Error::new(
                                ErrorKind::Conflict,
                                "the object was replaced while it was read",
                            ))
                        }
                        Some(_) => Ok(()),
                        none => {
                            *none = Some(part);
                            Ok(())
                        }
                    }
                }
            },
        );
        concurrent::try_for_each_concurrent(parts, width).await?;
        Ok(first.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

fn missing() -> Error {
    Error::new(ErrorKind::NotFound, "the object is not there")
}
