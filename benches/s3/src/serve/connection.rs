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

/// The most objects whose length and metadata are remembered.
const KEPT_MAX: usize = 1 << 17;

/// All objects: each is the beginning of this.
pub struct Objects {
    pub bytes: Bytes,
    file: File,
    /// By name: what was stored with metadata.
    kept: RefCell<HashMap<String, Kept>>,
}

/// What is remembered of an object.
#[derive(Clone)]
pub struct Kept {
    pub len: usize,
    pub meta: Vec<(String, String)>,
}

impl Objects {
    pub fn new() -> Result<Self> {
        let bytes = crate::bytes::stream(crate::bytes::BYTES_MAX);
        let mut file = File::from(memfd_create(c"objects", MFdFlags::empty()).context("no memory file")?);
        file.write_all(&bytes)?;
        Ok(Objects { bytes: bytes.into(), file, kept: RefCell::default() })
    }

    pub fn keep(&self, name: String, what: Kept) -> Result<()> {
        let mut kept = self.kept.borrow_mut();
        ensure!(kept.len() < KEPT_MAX || kept.contains_key(&name), "too many objects with metadata");
        kept.insert(name, what);
        Ok(())
    }

    pub fn kept(&self, name: &str) -> Option<Kept> {
        self.kept.borrow().get(name).cloned()
    }
}

/// A connection of a client.
pub enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    pub async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(tcp) => tcp.read(into).await,
            Stream::Tls(tls) => tls.read(into).await,
        }
    }

    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Stream::Plain(tcp) => tcp.write_all(bytes).await?,
            Stream::Tls(tls) => {
                tls.write_all(bytes).await?;
                tls.flush().await?;
            }
        }
        Ok(())
    }

    /// A head and a part of the objects' bytes behind it; without TLS no byte of it is copied here.
    pub async fn object(&mut self, head: &[u8], objects: &Objects, range: Range<usize>) -> Result<()> {
        let tcp = match self {
            Stream::Plain(tcp) => tcp,
            Stream::Tls(tls) => {
                tls.write_all(head).await?;
                tls.write_all(&objects.bytes[range]).await?;
                tls.flush().await?;
                return Ok(());
            }
        };
        // The body goes into the same packet.
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
