use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::sendfile::sendfile64;
use nix::sys::socket::{MsgFlags, send};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// The most objects whose length and metadata are stored.
const STORED_MAX: usize = 1 << 17;

/// The content of all objects: each is a prefix of it.
pub struct Objects {
    pub bytes: Bytes,
    file: File,
    /// Objects that were stored with metadata, by name.
    stored: RefCell<HashMap<String, StoredObject>>,
}

/// Length and metadata of an object.
#[derive(Clone)]
pub struct StoredObject {
    pub len: usize,
    pub meta: Vec<(String, String)>,
}

impl Objects {
    pub fn new() -> Result<Self> {
        let bytes = crate::bytes::stream(crate::bytes::BYTES_MAX);
        let mut file = File::from(
            memfd_create(c"objects", MFdFlags::empty()).context("cannot create a memory file")?,
        );
        file.write_all(&bytes)?;
        Ok(Objects { bytes: bytes.into(), file, stored: RefCell::default() })
    }

    pub fn store(&self, name: String, object: StoredObject) -> Result<()> {
        let mut stored = self.stored.borrow_mut();
        ensure!(
            stored.len() < STORED_MAX || stored.contains_key(&name),
            "too many objects with metadata"
        );
        stored.insert(name, object);
        Ok(())
    }

    pub fn stored(&self, name: &str) -> Option<StoredObject> {
        self.stored.borrow().get(name).cloned()
    }
}

/// A connection of a client.
pub enum Connection {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    pub async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Connection::Plain(tcp) => tcp.read(into).await,
            Connection::Tls(tls) => tls.read(into).await,
        }
    }

    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Connection::Plain(tcp) => tcp.write_all(bytes).await?,
            Connection::Tls(tls) => {
                tls.write_all(bytes).await?;
                tls.flush().await?;
            }
        }
        Ok(())
    }

    /// Sends a head and a range of the objects' bytes. Without TLS the bytes are not copied.
    pub async fn object(
        &mut self,
        head: &[u8],
        objects: &Objects,
        range: Range<usize>,
    ) -> Result<()> {
        let tcp = match self {
            Connection::Plain(tcp) => tcp,
            Connection::Tls(tls) => {
                tls.write_all(head).await?;
                tls.write_all(&objects.bytes[range]).await?;
                tls.flush().await?;
                return Ok(());
            }
        };
        // `MSG_MORE`: the body follows in the same packet.
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::from_bits_retain(nix::libc::MSG_MORE);
        let mut sent = 0;
        while sent < head.len() {
            let more = || Ok(send(tcp.as_raw_fd(), &head[sent..], flags)?);
            sent += tcp.async_io(Interest::WRITABLE, more).await?;
        }
        let mut at = i64::try_from(range.start)?;
        while at < i64::try_from(range.end)? {
            let left = range.end - usize::try_from(at)?;
            let piece = || match sendfile64(&*tcp, &objects.file, Some(&mut at), left) {
                Err(Errno::EAGAIN) => Err(io::ErrorKind::WouldBlock.into()),
                other => Ok(other?),
            };
            tcp.async_io(Interest::WRITABLE, piece).await?;
        }
        Ok(())
    }
}
