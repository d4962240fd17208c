//! Plain sockets with unsigned requests and bodies read in place: the minimal cost of a client on tokio.

use std::cell::RefCell;
use std::io::IoSlice;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use kvtier_mem::{Lease, View};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::{BUCKET, Peer, memory};
use crate::job::RunArgs;

const HEAD_MAX: usize = 2048;

trait Io: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Io for T {}

/// The client. It reuses connections, the last one first.
pub struct Raw {
    authority: String,
    tls: Option<TlsConnector>,
    idle: RefCell<Vec<Box<dyn Io>>>,
}

impl Raw {
    pub fn new(args: &RunArgs) -> Result<Self> {
        let tls = if args.tls() { Some(connector()?) } else { None };
        Ok(Raw { authority: args.authority().to_owned(), tls, idle: RefCell::default() })
    }

    async fn connection(&self) -> Result<Box<dyn Io>> {
        if let Some(idle) = self.idle.borrow_mut().pop() {
            return Ok(idle);
        }
        let tcp = TcpStream::connect(&self.authority).await?;
        tcp.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(Box::new(tcp)) };
        Ok(Box::new(tls.connect(ServerName::try_from("localhost")?, tcp).await?))
    }

    /// Sends a request and reads the head of the response. Returns the bytes read and the start of the body.
    async fn exchange(
        &self,
        io: &mut dyn Io,
        request: &str,
        body: &[u8],
        head: &mut [u8],
    ) -> Result<(usize, usize)> {
        let mut sent = 0;
        let total = request.len() + body.len();
        while sent < total {
            let rest = request.as_bytes().get(sent..).unwrap_or_default();
            let body = &body[sent.saturating_sub(request.len())..];
            sent += io.write_vectored(&[IoSlice::new(rest), IoSlice::new(body)]).await?;
        }
        io.flush().await?;
        let mut filled = 0;
        loop {
            let got = io.read(&mut head[filled..]).await?;
            ensure!(got > 0, "the server closed");
            filled += got;
            if let Some(end) = head[..filled].windows(4).position(|four| four == b"\r\n\r\n") {
                ensure!(head.starts_with(b"HTTP/1.1 20"), "the server refused");
                return Ok((filled, end + 4));
            }
        }
    }

    fn request(&self, method: &str, key: &str, length: &str) -> String {
        format!("{method} /{BUCKET}/{key} HTTP/1.1\r\nhost: {}\r\n{length}\r\n", self.authority)
    }
}

impl Peer for Raw {
    async fn get(&self, key: &str, into: &mut Lease) -> Result<()> {
        let mut io = self.connection().await?;
        let mut head = [0; HEAD_MAX];
        let (filled, start) =
            self.exchange(&mut *io, &self.request("GET", key, ""), &[], &mut head).await?;
        let memory = memory(into)?;
        let early = &head[start..filled];
        memory.get_mut(..early.len()).context("more bytes than memory")?.copy_from_slice(early);
        io.read_exact(&mut memory[early.len()..]).await?;
        self.idle.borrow_mut().push(io);
        Ok(())
    }

    async fn put(&self, key: &str, from: &View) -> Result<()> {
        let mut io = self.connection().await?;
        let mut head = [0; HEAD_MAX];
        let request = self.request("PUT", key, &format!("content-length: {}\r\n", from.len()));
        self.exchange(&mut *io, &request, from.as_host().context("host memory")?, &mut head)
            .await?;
        self.idle.borrow_mut().push(io);
        Ok(())
    }

    async fn head(&self, key: &str, len: u64) -> Result<()> {
        let mut io = self.connection().await?;
        let mut head = [0; HEAD_MAX];
        let (_, end) =
            self.exchange(&mut *io, &self.request("HEAD", key, ""), &[], &mut head).await?;
        let text = std::str::from_utf8(&head[..end])?;
        let found = text.lines().find_map(|line| line.strip_prefix("content-length: "));
        if found.and_then(|found| found.parse().ok()) != Some(len) {
            bail!("wrong length");
        }
        self.idle.borrow_mut().push(io);
        Ok(())
    }
}

/// Trusts what everyone here does: the file that `SSL_CERT_FILE` names.
fn connector() -> Result<TlsConnector> {
    let path = std::env::var("SSL_CERT_FILE").context("SSL_CERT_FILE names no certificate")?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path)? {
        roots.add(certificate?)?;
    }
    Ok(TlsConnector::from(Arc::new(
        ClientConfig::builder().with_root_certificates(roots).with_no_client_auth(),
    )))
}
