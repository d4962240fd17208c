use std::future::{Future, poll_fn};
use std::io::{self, IoSlice, IoSliceMut};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::unconstrained;

use super::tls::TlsStream;

/// What HTTP/2 is given at a time under TLS: a record.
const PIECE_BYTES: usize = 16 * 1024;

/// A connected socket, plain or under TLS, or a simulated one.
#[derive(Debug)]
pub enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
    #[cfg(feature = "simulate")]
    Simulated(tokio::io::DuplexStream),
}

impl Stream {
    /// Whether the server chose HTTP/2 when TLS was set up.
    pub fn chose_http2(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            #[cfg(feature = "simulate")]
            Stream::Simulated(_) => false,
            Stream::Tls(tls) => tls.negotiated.alpn.as_deref() == Some(b"h2"),
        }
    }

    /// Bytes that were copied out of records of TLS since this was last asked.
    pub fn take_copied(&mut self) -> u64 {
        match self {
            Stream::Plain(_) => 0,
            #[cfg(feature = "simulate")]
            Stream::Simulated(_) => 0,
            Stream::Tls(tls) => std::mem::take(&mut tls.copied),
        }
    }

    /// Whether TLS records are sealed and opened by us.
    pub fn is_direct(&self) -> bool {
        match self {
            #[cfg(feature = "tls-direct")]
            Stream::Tls(tls) => tls.is_direct(),
            _ => false,
        }
    }

    /// Reads into `space`.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Stream::Tls(tls) => tls.poll_read(cx, [space, &mut []]),
            Stream::Plain(tcp) => {
                let mut space = ReadBuf::new(space);
                ready!(Pin::new(tcp).poll_read(cx, &mut space))?;
                Poll::Ready(Ok(space.filled().len()))
            }
            #[cfg(feature = "simulate")]
            Stream::Simulated(duplex) => {
                let mut space = ReadBuf::new(space);
                ready!(Pin::new(duplex).poll_read(cx, &mut space))?;
                Poll::Ready(Ok(space.filled().len()))
            }
        }
    }

    /// Reads into three pieces, one behind the other; the last is for bytes that should not exist.
    /// A socket that does not fill it is empty, which is then known without another call. Under
    /// TLS it is not filled: how much is read from the socket does not depend on it.
    pub fn poll_read_pieces(
        &mut self,
        cx: &mut Context<'_>,
        pieces: [&mut [u8]; 3],
    ) -> Poll<io::Result<usize>> {
        let tcp = match self {
            Stream::Plain(tcp) => tcp,
            Stream::Tls(tls) => {
                let [first, second, _] = pieces;
                return tls.poll_read(cx, [first, second]);
            }
            #[cfg(feature = "simulate")]
            Stream::Simulated(_) => {
                let first = pieces.into_iter().find(|piece| !piece.is_empty());
                return self.poll_fill(cx, first.unwrap_or_default());
            }
        };
        let mut pieces = pieces.map(IoSliceMut::new);
        let space_total = pieces.iter().map(|piece| piece.len()).sum();
        poll_some(tcp, Interest::READABLE, space_total, cx, || tcp.try_read_vectored(&mut pieces))
    }

    /// The socket; a simulated connection has none.
    pub fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Stream::Plain(tcp) => Some(tcp),
            Stream::Tls(tls) => Some(tls.tcp()),
            #[cfg(feature = "simulate")]
            Stream::Simulated(_) => None,
        }
    }

    /// Whether an idle connection was closed by the server or holds unrequested bytes,
    /// half a record of them included. (TLS takes in tickets while it looks.)
    pub fn is_stale(&mut self) -> bool {
        // Only a look. The waker of the task must not be registered for a connection that it does
        // not wait for.
        let mut cx = Context::from_waker(Waker::noop());
        let mut space = [0];
        // Not within the task's budget: when that is spent, every socket looks empty.
        let looked =
            pin!(unconstrained(poll_fn(|cx| self.poll_fill(cx, &mut space)))).poll(&mut cx);
        // Ready means the end, an error, or bytes that no request asked for. All three make the
        // connection useless: the next response would be read behind those bytes.
        looked.is_ready() || matches!(self, Stream::Tls(tls) if tls.holds_sealed())
    }
}

/// Does `io`, which moves at most `all` bytes, as soon as the socket is ready for it. A socket that
/// moved fewer is empty, or full: it is no longer ready then, and need not be asked to find that
/// out.
fn poll_some(
    tcp: &TcpStream,
    interest: Interest,
    all: usize,
    cx: &mut Context<'_>,
    mut io: impl FnMut() -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(if interest.is_readable() {
            tcp.poll_read_ready(cx)
        } else {
            tcp.poll_write_ready(cx)
        })?;
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
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            #[cfg(feature = "simulate")]
            Stream::Simulated(duplex) => Pin::new(duplex).poll_read(cx, buf),
            Stream::Tls(tls) => {
                // No more than one read gives is made ready for it.
                let space = buf.initialize_unfilled_to(buf.remaining().min(PIECE_BYTES));
                let got = ready!(tls.poll_read(cx, [space, &mut []]))?;
                buf.advance(got);
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            #[cfg(feature = "simulate")]
            Stream::Simulated(duplex) => Pin::new(duplex).poll_write(cx, buf),
            Stream::Tls(tls) => tls.poll_write(cx, &[IoSlice::new(buf)]),
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
            Stream::Tls(tls) => tls.poll_write(cx, bufs),
            #[cfg(feature = "simulate")]
            Stream::Simulated(duplex) => Pin::new(duplex).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            #[cfg(feature = "simulate")]
            Stream::Simulated(duplex) => Pin::new(duplex).poll_flush(cx),
            Stream::Tls(tls) => tls.poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            #[cfg(feature = "simulate")]
            Stream::Simulated(duplex) => Pin::new(duplex).poll_shutdown(cx),
            Stream::Tls(tls) => tls.poll_shutdown(cx),
        }
    }
}
