//! TLS over a socket: large pieces of ciphertext are read into a buffer of ours and opened there,
//! record by record.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::pki_types::ServerName;
use rustls::{CipherSuite, ClientConfig, Error, PeerMisbehaved, ProtocolVersion};
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::task::coop;

use super::buffers::PlaintextSpace;
#[cfg(feature = "tls-direct")]
use super::direct_records::{Direct, KernelSecrets};
use super::rustls_records::{RecordStep, RustlsRecords};
use super::wire::Wire;

/// So much is sealed before it is written: five records, so that a head and an object of 64 KiB go
/// out at once.
const SEAL_BYTES: usize = 80 * 1024;
/// The most bytes in a row that a server may send without any for the caller: tickets, other keys,
/// records of nothing.
const QUIET_BYTES_MAX: usize = 1024 * 1024;

/// A connection under TLS.
pub struct TlsStream {
    wire: Wire,
    records: Records,
    /// Whether nothing counts any more.
    failed: bool,
    /// The error that comes behind bytes which were read together with its cause.
    owed: Option<io::Error>,
    /// Bytes in a row that came from the server and brought nothing.
    quiet: usize,
    /// Whether `close_notify` was sent.
    done: bool,
    /// Bytes that were copied to where the caller wants them.
    pub copied: u64,
    /// What the handshake negotiated.
    pub negotiated: Negotiated,
}

/// What a handshake negotiated.
#[derive(Clone, Debug)]
pub struct Negotiated {
    pub version: Option<ProtocolVersion>,
    pub suite: Option<CipherSuite>,
    pub alpn: Option<Vec<u8>>,
}

/// Who seals and opens.
enum Records {
    RustlsRecords(Box<RustlsRecords>),
    #[cfg(feature = "tls-direct")]
    Direct(Box<Direct<KernelSecrets>>),
}

impl TlsStream {
    /// Shakes hands with `name`.
    pub async fn connect(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        tcp: TcpStream,
    ) -> io::Result<Self> {
        let mut library = RustlsRecords::new(config, name).map_err(broken)?;
        let mut wire = Wire::new(tcp);
        // By rustls in every case: only records behind the handshake may be processed here.
        wire.shake_hands(&mut library).await?;
        let connection = &library.connection;
        let negotiated = Negotiated {
            version: connection.protocol_version(),
            suite: connection.negotiated_cipher_suite().map(|suite| suite.suite()),
            alpn: connection.alpn_protocol().map(<[u8]>::to_vec),
        };
        Ok(TlsStream {
            wire,
            records: Records::RustlsRecords(Box::new(library)),
            failed: false,
            owed: None,
            quiet: 0,
            done: false,
            copied: 0,
            negotiated,
        })
    }

    /// From now on seals and opens records itself, if it can: built so, under TLS 1.3, with a
    /// cipher that it supports.
    #[cfg_attr(not(feature = "tls-direct"), allow(unused_mut))]
    pub fn go_direct(mut self) -> io::Result<Self> {
        #[cfg(feature = "tls-direct")]
        {
            self.records = match self.records {
                // TLS 1.2 and other ciphers stay with rustls.
                Records::RustlsRecords(library) if KernelSecrets::suits(&library.connection) => {
                    Records::Direct(Box::new(Direct::over(library.connection).map_err(broken)?))
                }
                other => other,
            };
        }
        Ok(self)
    }

    /// Whether it seals and opens records itself.
    #[cfg(feature = "tls-direct")]
    pub fn is_direct(&self) -> bool {
        matches!(self.records, Records::Direct(_))
    }

    /// Reads into two pieces of memory, one behind the other. As a read from a socket does, it
    /// takes part in the task's budget: what was read from the socket before is no reason to
    /// keep other tasks waiting.
    pub fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        pieces: [&mut [u8]; 2],
    ) -> Poll<io::Result<usize>> {
        let budget = ready!(coop::poll_proceed(cx));
        let read = self.poll_open(cx, pieces);
        if read.is_ready() {
            budget.made_progress();
        }
        read
    }

    fn poll_open(
        &mut self,
        cx: &mut Context<'_>,
        pieces: [&mut [u8]; 2],
    ) -> Poll<io::Result<usize>> {
        let mut space = PlaintextSpace::new(pieces);
        // Bytes of an earlier record come first; they are in the order of the stream.
        // What an earlier read had opened beyond its caller's space.
        self.wire.left.drain(&mut space);
        loop {
            let opened = self.open(cx, &mut space);
            self.copied += space.take_copied();
            let ended = match opened {
                // With bytes in hand the error waits for the next call: a caller gets all that was
                // proven, and then the reason why there is no more.
                Err(e) if space.filled() == 0 => return Poll::Ready(Err(e)),
                // What was proven before it counts: it may be the answer that says why.
                Err(e) => {
                    self.owed.get_or_insert(e);
                    true
                }
                Ok(ended) => ended,
            };
            // An answer to what was opened, if there is one. What the socket does not take now goes
            // out with the next write, which also reports errors: there may still be
            // something to read.
            drop(self.wire.poll_drain(cx));
            if space.filled() > 0 {
                self.quiet = 0;
                return Poll::Ready(Ok(space.filled()));
            }
            if ended || space.next().is_empty() {
                return Poll::Ready(Ok(0));
            }
            // A server could keep this task busy for ever with records that carry nothing.
            if self.quiet > QUIET_BYTES_MAX {
                return Poll::Ready(Err(
                    self.fail(cx, PeerMisbehaved::TooManyEmptyFragments.into())
                ));
            }
            match ready!(self.wire.poll_fill(cx))? {
                // A cut connection must not look like a server that ended the session.
                0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                got => self.quiet += got,
            }
        }
    }

    /// The socket.
    pub fn tcp(&self) -> &TcpStream {
        &self.wire.tcp
    }

    /// Whether a record has begun to arrive and is not whole.
    pub fn holds_sealed(&self) -> bool {
        !self.wire.incoming.is_empty()
    }

    /// Seals some of `pieces`, once the socket has taken what was sealed before.
    pub fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // At most one batch of sealed records waits, so a slow socket slows the caller down.
        ready!(self.wire.poll_drain(cx))?;
        let mut done = 0;
        for piece in pieces {
            // Whole pieces up to the limit. The number returned is of plain bytes, all of which are
            // sealed, whether or not the socket took them.
            let piece = &piece[..piece.len().min(SEAL_BYTES - done)];
            if !piece.is_empty() {
                self.seal(cx, piece)?;
                done += piece.len();
            }
        }
        if let Poll::Ready(sent) = self.wire.poll_drain(cx) {
            sent?;
        }
        Poll::Ready(Ok(done))
    }

    /// Sends what was sealed.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wire.poll_drain(cx)
    }

    /// Sends `close_notify` and shuts down the write side of the socket.
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Once, and not behind an alert: after either nothing more may be sent.
        if !self.failed && !std::mem::replace(&mut self.done, true) {
            let said = match &mut self.records {
                Records::RustlsRecords(library) => library.close_notify(&mut self.wire),
                #[cfg(feature = "tls-direct")]
                Records::Direct(direct) => direct.close_notify(&mut self.wire.outgoing),
            };
            said.map_err(|e| self.fail(cx, e))?;
        }
        ready!(self.wire.poll_drain(cx))?;
        match ready!(Pin::new(&mut self.wire.tcp).poll_shutdown(cx)) {
            // It is closed already.
            Err(e) if e.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            done => Poll::Ready(done),
        }
    }

    /// Opens records as long as the caller has space and they are whole; whether the server said
    /// that nothing more will come.
    fn open(&mut self, cx: &mut Context<'_>, space: &mut PlaintextSpace<'_>) -> io::Result<bool> {
        if space.filled() == 0
            && let Some(e) = self.owed.take()
        {
            return Err(e);
        }
        // After an error the records are out of step: nothing more is opened or sealed.
        self.check()?;
        let opened = match &mut self.records {
            Records::RustlsRecords(library) => library.open(&mut self.wire, space),
            #[cfg(feature = "tls-direct")]
            Records::Direct(direct) => {
                let Wire { incoming, outgoing, left, .. } = &mut self.wire;
                direct.open(incoming, space, left, outgoing)
            }
        };
        opened.map_err(|e| self.fail(cx, e))
    }

    fn seal(&mut self, cx: &mut Context<'_>, plain: &[u8]) -> io::Result<()> {
        self.check()?;
        if self.done {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let sealed = match &mut self.records {
            Records::RustlsRecords(library) => library.seal(plain, &mut self.wire),
            #[cfg(feature = "tls-direct")]
            Records::Direct(direct) => direct.seal(plain, &mut self.wire.outgoing),
        };
        sealed.map_err(|e| self.fail(cx, e))
    }

    fn check(&self) -> io::Result<()> {
        if self.failed { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }

    /// After an error nothing is opened or sealed any more. An alert reports the reason to the
    /// server, if it can be sent out at once.
    fn fail(&mut self, cx: &mut Context<'_>, e: Error) -> io::Error {
        self.failed = true;
        match &mut self.records {
            Records::RustlsRecords(library) => library.send_alert(&mut self.wire),
            #[cfg(feature = "tls-direct")]
            Records::Direct(direct) => direct.send_alert(&e, &mut self.wire.outgoing),
        }
        // The error is reported to the caller, whether or not the alert arrived.
        drop(self.wire.poll_drain(cx));
        broken(e)
    }
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream").field("negotiated", &self.negotiated).finish_non_exhaustive()
    }
}

impl Wire {
    /// Shows the library no record that follows the handshake: the code that opens those may be
    /// another.
    async fn shake_hands(&mut self, library: &mut RustlsRecords) -> io::Result<()> {
        let mut shown = 0;
        loop {
            match library.step(self, &mut shown) {
                Ok(_) if library.ended => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(RecordStep::Step) => {}
                Ok(RecordStep::Ready) => return poll_fn(|cx| self.poll_drain(cx)).await,
                Ok(RecordStep::Bytes | RecordStep::End) => {
                    poll_fn(|cx| self.poll_drain(cx)).await?;
                    shown += self.one_more(shown).await?;
                }
                Err(e) => {
                    library.send_alert(self);
                    drop(poll_fn(|cx| self.poll_drain(cx)).await);
                    return Err(broken(e));
                }
            }
        }
    }
}

fn broken(e: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}

#[cfg(all(test, feature = "tls-direct"))]
mod openssl_tests;
#[cfg(test)]
mod tests;
