use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, BufReader, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// What TLS reads from: by itself it would ask the socket for 4 KiB at a time.
pub type Buffered = BufReader<TcpStream>;

/// A connected socket, plain or under TLS.
#[derive(Debug)]
pub enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<Buffered>>),
}

impl Stream {
    /// Whether the server chose HTTP/2 when TLS was set up.
    pub fn chose_http2(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            Stream::Tls(tls) => tls.get_ref().1.alpn_protocol() == Some(b"h2"),
        }
    }

    /// Reads into two pieces, one behind the other; under TLS only into the first.
    pub fn poll_read_both(&mut self, cx: &mut Context<'_>, pieces: [&mut [u8]; 2]) -> Poll<io::Result<usize>> {
        let tcp = match self {
            Stream::Plain(tcp) => tcp,
            Stream::Tls(_) => {
                let [first, _] = pieces;
                let mut space = ReadBuf::new(first);
                ready!(Pin::new(self).poll_read(cx, &mut space))?;
                return Poll::Ready(Ok(space.filled().len()));
            }
        };
        let mut pieces = pieces.map(IoSliceMut::new);
        let room = pieces.iter().map(|piece| piece.len()).sum();
        poll_some(tcp, Interest::READABLE, room, cx, || tcp.try_read_vectored(&mut pieces))
    }

    /// Whether an idle connection was closed by the server or holds bytes that nobody asked for. (TLS takes in tickets
    /// while it looks.)
    pub fn is_stale(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(self).poll_read(&mut cx, &mut ReadBuf::new(&mut [0])).is_ready()
    }
}

/// Does `io`, which moves at most `all` bytes, as soon as the socket is ready for it. A socket that moved fewer is empty, or full: it is no
/// longer ready then, and need not be asked to find that out.
fn poll_some(
    tcp: &TcpStream,
    interest: Interest,
    all: usize,
    cx: &mut Context<'_>,
    mut io: impl FnMut() -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(if interest.is_readable() { tcp.poll_read_ready(cx) } else { tcp.poll_write_ready(cx) })?;
        let mut moved = Ok(0);
        let tried = tcp.try_io(interest, || {
            moved = io();
            // This is how the readiness is taken back.
            if matches!(moved, Ok(some) if 0 < some && some < all) {
                Err(io::ErrorKind::WouldBlock.into())
            } else {
                Ok(())
            }
        });
        match moved {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            // Readiness was gone before `io` was tried.
            Ok(0) if tried.is_err() => {}
            moved => return Poll::Ready(moved),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Stream::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Stream::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(tcp) => {
                let all = bufs.iter().map(|buf| buf.len()).sum();
                poll_some(tcp, Interest::WRITABLE, all, cx, || tcp.try_write_vectored(bufs))
            }
            Stream::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Stream::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Stream::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
