//! Records as rustls seals and opens them: in a buffer of ours, so that it keeps none of what
//! comes.

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError,
    UnbufferedStatus, WriteTraffic,
};
use rustls::{ClientConfig, Error};

use super::buffers::{Outgoing, PlaintextSpace};
use super::wire::Wire;

/// The longest record, and what a record has besides its payload at most.
const RECORD_BYTES: usize = 16 * 1024;
const RECORD_MORE_BYTES: usize = 32;

/// A connection of rustls.
pub struct RustlsRecords {
    pub connection: UnbufferedClientConnection,
    /// Whether the server said that nothing more will come.
    pub ended: bool,
}

/// What comes after a step.
pub enum RecordStep {
    /// Another.
    Step,
    /// More bytes from the server.
    Bytes,
    /// Bytes to the server, if there are any; the handshake is over. More from it are welcome.
    Ready,
    /// Nothing: both sides have said that they ended.
    End,
}

/// What to say when there is nothing else to do.
enum Send<'a> {
    Nothing,
    Bytes(&'a [u8]),
    CloseNotify,
}

impl RustlsRecords {
    pub fn new(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self, Error> {
        Ok(RustlsRecords {
            connection: UnbufferedClientConnection::new(config, name)?,
            ended: false,
        })
    }

    /// One step with the first `shown` bytes of what came, and what comes next. Leaves behind how
    /// many of them are still shown.
    pub fn step(&mut self, wire: &mut Wire, shown: &mut usize) -> Result<RecordStep, Error> {
        let Wire { incoming, outgoing, left, .. } = wire;
        let (used, next) = self.process(
            &mut incoming.filled()[..*shown],
            |bytes| left.push(bytes),
            outgoing,
            Send::Nothing,
        );
        // Also when the step failed: rustls has taken these bytes in.
        incoming.consume(used);
        *shown -= used;
        next
    }

    /// Opens records while the caller has space; whether the server said that nothing more will
    /// come.
    pub fn open(&mut self, wire: &mut Wire, space: &mut PlaintextSpace<'_>) -> Result<bool, Error> {
        let Wire { incoming, outgoing, left, .. } = wire;
        while !self.ended && !space.next().is_empty() {
            // What does not fit is kept for the next read; rustls gives it once.
            let take = |bytes: &[u8]| left.push(&bytes[space.put(bytes)..]);
            let (used, next) = self.process(incoming.filled(), take, outgoing, Send::Nothing);
            incoming.consume(used);
            match next? {
                RecordStep::Step => {}
                RecordStep::Bytes | RecordStep::Ready | RecordStep::End => break,
            }
        }
        Ok(self.ended)
    }

    /// Seals `plain`. What is opened on the way is left for later.
    pub fn seal(&mut self, plain: &[u8], wire: &mut Wire) -> Result<(), Error> {
        self.send(wire, || Send::Bytes(plain))
    }

    /// Says that nothing more will come.
    pub fn close_notify(&mut self, wire: &mut Wire) -> Result<(), Error> {
        self.send(wire, || Send::CloseNotify)
    }

    fn send<'a>(&mut self, wire: &mut Wire, what: impl Fn() -> Send<'a>) -> Result<(), Error> {
        let Wire { incoming, outgoing, left, .. } = wire;
        loop {
            let (used, next) =
                self.process(incoming.filled(), |bytes| left.push(bytes), outgoing, what());
            incoming.consume(used);
            match next? {
                RecordStep::Ready => return Ok(()),
                RecordStep::Step => {}
                RecordStep::Bytes | RecordStep::End => {
                    return Err(Error::General("nothing can be sent any more".into()));
                }
            }
        }
    }

    /// Queues the alert that reports an error to the server.
    pub fn send_alert(&mut self, wire: &mut Wire) {
        // What it makes of the rest does not count any more.
        let (_, _) =
            self.process(wire.incoming.filled(), |_| {}, &mut wire.outgoing, Send::Nothing);
    }

    /// One step: how many bytes it is done with, and what comes next.
    fn process(
        &mut self,
        bytes: &mut [u8],
        mut take: impl FnMut(&[u8]),
        outgoing: &mut Outgoing,
        say: Send<'_>,
    ) -> (usize, Result<RecordStep, Error>) {
        let UnbufferedStatus { mut discard, state } = self.connection.process_tls_records(bytes);
        let next = match state {
            Ok(ConnectionState::ReadTraffic(mut records)) => loop {
                match records.next_record() {
                    Some(Ok(record)) => {
                        discard += record.discard;
                        take(record.payload);
                    }
                    Some(Err(e)) => break Err(e),
                    None => break Ok(RecordStep::Step),
                }
            },
            Ok(ConnectionState::EncodeTlsData(mut record)) => {
                encode(&mut record, outgoing).map(|()| RecordStep::Step)
            }
            Ok(ConnectionState::TransmitTlsData(sent)) => {
                // It goes out before anything else does.
                sent.done();
                Ok(RecordStep::Step)
            }
            Ok(ConnectionState::WriteTraffic(mut traffic)) => match say {
                Send::Nothing => Ok(RecordStep::Ready),
                Send::Bytes(plain) => {
                    encrypt(&mut traffic, plain, outgoing).map(|()| RecordStep::Ready)
                }
                Send::CloseNotify => end(&mut traffic, outgoing).map(|()| RecordStep::Ready),
            },
            Ok(ConnectionState::BlockedHandshake) => Ok(RecordStep::Bytes),
            Ok(ConnectionState::PeerClosed) => {
                self.ended = true;
                Ok(RecordStep::Step)
            }
            Ok(ConnectionState::Closed) => Ok(RecordStep::End),
            Ok(other) => {
                Err(Error::General(format!("a state of rustls that no client has: {other:?}")))
            }
            Err(e) => Err(e),
        };
        (discard, next)
    }
}

fn encode<D>(record: &mut EncodeTlsData<'_, D>, outgoing: &mut Outgoing) -> Result<(), Error> {
    let mut space = RECORD_MORE_BYTES;
    loop {
        match record.encode(outgoing.space(space)) {
            Ok(len) => {
                outgoing.wrote(len);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size, .. })) => {
                space = required_size
            }
            Err(e) => return Err(Error::General(e.to_string())),
        }
    }
}

fn encrypt<D>(
    traffic: &mut WriteTraffic<'_, D>,
    plain: &[u8],
    outgoing: &mut Outgoing,
) -> Result<(), Error> {
    let space = plain.len() + plain.len().div_ceil(RECORD_BYTES) * RECORD_MORE_BYTES;
    sealed(space, outgoing, |out| traffic.encrypt(plain, out))
}

fn end<D>(traffic: &mut WriteTraffic<'_, D>, outgoing: &mut Outgoing) -> Result<(), Error> {
    sealed(RECORD_MORE_BYTES, outgoing, |out| traffic.queue_close_notify(out))
}

fn sealed(
    mut space: usize,
    outgoing: &mut Outgoing,
    mut seal: impl FnMut(&mut [u8]) -> Result<usize, EncryptError>,
) -> Result<(), Error> {
    loop {
        match seal(outgoing.space(space)) {
            Ok(len) => {
                outgoing.wrote(len);
                return Ok(());
            }
            Err(EncryptError::InsufficientSize(InsufficientSizeError {
                required_size, ..
            })) => space = required_size,
            Err(EncryptError::EncryptExhausted) => return Err(Error::EncryptError),
        }
    }
}
