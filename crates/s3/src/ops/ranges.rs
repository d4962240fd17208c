use std::sync::Mutex;

use kvtier_mem::Lease;

use super::get::{Get, fetch, host, slot};
use super::head::Object;
use super::join;
use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::retry::Class;

impl Client {
    /// Gets an object that fills `lease` by several requests at once, each for `part_bytes`: lower latency for more requests. `None`
    /// when it is not there; `Conflict` when it was replaced meanwhile, so that no mixture of versions is ever returned. Where the store
    /// ignores ranges, the first answer that shows it is `Unsupported`, and for a minute one request gets the whole object.
    pub async fn get_parallel(
        &self,
        key: &str,
        lease: &mut Lease,
        part_bytes: usize,
        width: usize,
    ) -> Result<Option<Object>> {
        lease.assume_filled(0);
        let (len, memory) = (lease.len(), host(lease)?);
        if part_bytes == 0 || len <= part_bytes || self.ignores_ranges() {
            return self.get(key, lease, &Get::default()).await;
        }
        let first: Mutex<Option<Object>> = Mutex::new(None);
        let parts = memory.chunks_mut(part_bytes).zip((0u64..).step_by(part_bytes)).map(|(memory, start)| {
            let first = &first;
            async move {
                let end = start + memory.len() as u64;
                let get = Get::range(start..end);
                let part = fetch(&self.inner, key, &mut slot(memory, &get)?, &get).await?.ok_or_else(missing)?;
                let mut first = first.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if part.total != len as u64 {
                    let what = format!("the object has {} bytes, the memory {len}", part.total);
                    return Err(Error::new(ErrorKind::Corrupt, what));
                }
                match &mut *first {
                    Some(other) if other.etag() != part.etag() || part.etag().is_none() => {
                        Err(Error::new(ErrorKind::Conflict, "the object was replaced while it was read"))
                    }
                    Some(_) => Ok(()),
                    none => {
                        *none = Some(part);
                        Ok(())
                    }
                }
            }
        });
        match self.run((Class::Read, "get"), join::all(parts, width)).await {
            Ok(()) => {
                lease.assume_filled(len);
                let first = first.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
                Ok(first.map(|object| Object { len: len as u64, ..object }))
            }
            Err(e) if e.kind() == ErrorKind::NotFound && e.status().is_none() => Ok(None),
            Err(e) => Err(e),
        }
    }
}

fn missing() -> Error {
    Error::new(ErrorKind::NotFound, "the object is not there")
}
