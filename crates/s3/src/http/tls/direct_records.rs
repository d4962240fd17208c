//! Records sealed and opened by us, under TLS 1.3, once rustls has shaken hands: the payload goes
//! from the buffer that the socket is read into straight to where the caller wants it, and the
//! other way. Keys and tickets stay with rustls.

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::kernel::KernelConnection;
use rustls::{
    AlertDescription, CipherSuite, Error, InvalidMessage, PeerMisbehaved, SupportedCipherSuite,
};

use super::buffers::{Incoming, Outgoing, PlaintextLeft, PlaintextSpace};
use super::record::{
    self, ALERT, APPLICATION_DATA, HANDSHAKE, HEADER_BYTES, MORE_BYTES, PLAIN_BYTES_MAX, RecordKeys,
};

/// The longest message behind the handshake: that of a ticket.
const MESSAGE_BYTES_MAX: usize = 128 * 1024;
/// The most records in a row that carry no bytes for the caller.
const QUIET_MAX: u32 = 64;

/// Handshake messages that come behind the handshake.
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

const WARNING: u8 = 1;
const FATAL: u8 = 2;

/// Who makes the next keys, and keeps tickets.
pub trait Secrets {
    fn next_to_open(&mut self) -> Result<RecordKeys, Error>;
    fn next_to_seal(&mut self) -> Result<RecordKeys, Error>;
    fn ticket(&mut self, ticket: &[u8]) -> Result<(), Error>;
}

/// What rustls keeps of a connection that it no longer carries.
pub struct KernelSecrets(KernelConnection<ClientConnectionData>);

impl KernelSecrets {
    /// Whether we know how to seal and open what `connection` negotiated.
    pub fn suits(connection: &UnbufferedClientConnection) -> bool {
        const KNOWN: [CipherSuite; 3] = [
            CipherSuite::TLS13_AES_128_GCM_SHA256,
            CipherSuite::TLS13_AES_256_GCM_SHA384,
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        ];
        connection.negotiated_cipher_suite().is_some_and(|suite| KNOWN.contains(&suite.suite()))
    }

    /// Whether a provider with these suites gives keys away, as it must when we are to use them.
    pub fn is_open(suites: &[SupportedCipherSuite]) -> bool {
        let key = || AeadKey::from([0; 32]);
        let iv = || Iv::new([0; 12]);
        suites
            .iter()
            .filter_map(SupportedCipherSuite::tls13)
            .all(|suite| suite.aead_alg.extract_keys(key(), iv()).is_ok())
    }
}

impl Secrets for KernelSecrets {
    fn next_to_open(&mut self) -> Result<RecordKeys, Error> {
        self.0.update_rx_secret().and_then(|(number, secrets)| RecordKeys::new(number, secrets))
    }

    fn next_to_seal(&mut self) -> Result<RecordKeys, Error> {
        self.0.update_tx_secret().and_then(|(number, secrets)| RecordKeys::new(number, secrets))
    }

    fn ticket(&mut self, ticket: &[u8]) -> Result<(), Error> {
        self.0.handle_new_session_ticket(ticket)
    }
}

/// The records of one connection.
pub struct Direct<S> {
    secrets: S,
    opening: RecordKeys,
    sealing: RecordKeys,
    /// With how many records the keys are worn out.
    sealed_max: u64,
    /// The beginning of a handshake message that is longer than a record.
    message: Vec<u8>,
    /// Records in a row that brought nothing.
    quiet: u32,
    /// Whether the server wants to see new keys of ours.
    owes_keys: bool,
    ended: bool,
    /// Whether `close_notify` or an alert was sent, after which no data follows: it would
    /// not listen any more.
    done: bool,
}

impl Direct<KernelSecrets> {
    /// Takes over `connection`, which has shaken hands and has seen no record since.
    pub fn over(connection: UnbufferedClientConnection) -> Result<Self, Error> {
        let suite = connection.negotiated_cipher_suite().and_then(|suite| suite.tls13());
        // Beyond this many records a key no longer guarantees secrecy.
        let sealed_max = suite.map_or(0, |suite| suite.common.confidentiality_limit);
        let (secrets, kernel) = connection.dangerous_into_kernel_connection()?;
        Ok(Direct::new(
            KernelSecrets(kernel),
            RecordKeys::new(secrets.rx.0, secrets.rx.1)?,
            RecordKeys::new(secrets.tx.0, secrets.tx.1)?,
            sealed_max,
        ))
    }
}

impl<S: Secrets> Direct<S> {
    /// Opens with one and seals with the other; with the latter at most `sealed_max` records.
    pub fn new(secrets: S, opening: RecordKeys, sealing: RecordKeys, sealed_max: u64) -> Self {
        let message = Vec::new();
        let quiet = 0;
        let owes_keys = false;
        let ended = false;
        let done = false;
        Direct { secrets, opening, sealing, sealed_max, message, quiet, owes_keys, ended, done }
    }

    /// Opens records while the caller has space and they are whole; whether the server said that
    /// nothing more will come.
    pub fn open(
        &mut self,
        incoming: &mut Incoming,
        space: &mut PlaintextSpace<'_>,
        left: &mut PlaintextLeft,
        outgoing: &mut Outgoing,
    ) -> Result<bool, Error> {
        let mut used = 0;
        let bytes = incoming.filled();
        while !self.ended && !space.next().is_empty() {
            // Not a whole record yet: it stays in the buffer until the socket brings the rest.
            let Some(len) = record::first(&bytes[used..])? else { break };
            let (header, rest) = bytes[used..].split_at_mut(HEADER_BYTES);
            // An error ends the connection; records before it are valid and stay.
            self.take(header, &mut rest[..len], space, left)?;
            used += HEADER_BYTES + len;
        }
        incoming.consume(used);
        // One answer serves for many questions, so that they cannot fill our memory.
        if self.owes_keys && !self.done && outgoing.is_empty() {
            self.change_keys(outgoing)?;
        }
        Ok(self.ended)
    }

    /// One record. If its payload fits, it is opened where it belongs.
    fn take(
        &mut self,
        header: &[u8],
        sealed: &mut [u8],
        space: &mut PlaintextSpace<'_>,
        left: &mut PlaintextLeft,
    ) -> Result<(), Error> {
        // The payload with its type behind it: what the cipher writes before it is known how long
        // the padding is.
        let opened_len = sealed.len() - (MORE_BYTES - 1);
        let Some(target) = space.next().get_mut(..opened_len) else {
            // The caller's space is too short for the whole record, so this one is copied.
            let (kind, payload) = self.opening.open_in_place(header, sealed)?;
            if kind != APPLICATION_DATA {
                return self.control(kind, payload);
            }
            left.push(&payload[space.put(payload)..]);
            return self.brought(payload.len());
        };
        let (kind, len) = self.opening.open_into(header, sealed, target)?;
        if kind != APPLICATION_DATA {
            // That is not the caller's: nothing of it stays there.
            let payload = target[..len].to_vec();
            target.fill(0);
            return self.control(kind, &payload);
        }
        space.landed(len);
        self.brought(len)
    }

    /// `len` bytes came for the caller.
    fn brought(&mut self, len: usize) -> Result<(), Error> {
        // The standard forbids data between the fragments of a handshake message.
        if !self.message.is_empty() {
            return Err(PeerMisbehaved::MessageInterleavedWithHandshakeMessage.into());
        }
        if len > 0 {
            self.quiet = 0;
            return Ok(());
        }
        self.brought_nothing()
    }

    fn brought_nothing(&mut self) -> Result<(), Error> {
        self.quiet += 1;
        if self.quiet > QUIET_MAX {
            Err(PeerMisbehaved::TooManyEmptyFragments.into())
        } else {
            Ok(())
        }
    }

    /// A record that is not for the caller.
    fn control(&mut self, kind: u8, payload: &[u8]) -> Result<(), Error> {
        // Counted for all of them: tickets and key updates without end would also keep the caller
        // waiting.
        self.brought_nothing()?;
        match kind {
            HANDSHAKE if payload.is_empty() => Err(InvalidMessage::InvalidEmptyPayload.into()),
            HANDSHAKE => {
                self.message.extend_from_slice(payload);
                self.messages()
            }
            _ if !self.message.is_empty() => {
                Err(PeerMisbehaved::MessageInterleavedWithHandshakeMessage.into())
            }
            ALERT => self.alert(payload),
            _ => Err(InvalidMessage::InvalidContentType.into()),
        }
    }

    fn alert(&mut self, payload: &[u8]) -> Result<(), Error> {
        // The level is ignored: TLS 1.3 defines it by the description.
        let [_, what] = *payload else { return Err(InvalidMessage::InvalidContentType.into()) };
        match AlertDescription::from(what) {
            AlertDescription::CloseNotify => self.ended = true,
            // A close_notify follows.
            AlertDescription::UserCanceled => {}
            // All others end the connection, whatever level they name.
            what => return Err(Error::AlertReceived(what)),
        }
        Ok(())
    }

    /// Handshake messages, as far as they are whole.
    fn messages(&mut self) -> Result<(), Error> {
        while let [kind, a, b, c, ..] = *self.message {
            let len = 4 + u32::from_be_bytes([0, a, b, c]) as usize;
            if len > MESSAGE_BYTES_MAX {
                return Err(InvalidMessage::HandshakePayloadTooLarge.into());
            }
            // The rest comes with the next record.
            let Some(body) = self.message.get(4..len) else { return Ok(()) };
            match kind {
                NEW_SESSION_TICKET => self.secrets.ticket(body)?,
                KEY_UPDATE => {
                    // Whatever comes behind it is sealed with other keys.
                    if self.message.len() > len {
                        return Err(PeerMisbehaved::KeyEpochWithPendingFragment.into());
                    }
                    self.owes_keys |= match body {
                        [0] => false,
                        [1] => true,
                        _ => return Err(InvalidMessage::InvalidKeyUpdate.into()),
                    };
                    // At once, since the next record is sealed with it.
                    self.opening = self.secrets.next_to_open()?;
                }
                _ => {
                    return Err(InvalidMessage::UnexpectedMessage(
                        "a handshake message behind the handshake",
                    )
                    .into());
                }
            }
            self.message.drain(..len);
        }
        Ok(())
    }

    /// Seals `plain`.
    pub fn seal(&mut self, plain: &[u8], outgoing: &mut Outgoing) -> Result<(), Error> {
        for piece in plain.chunks(PLAIN_BYTES_MAX) {
            // Before the record and not after it: the limit holds also for the last one.
            if self.owes_keys || self.sealing.number >= self.sealed_max {
                self.change_keys(outgoing)?;
            }
            self.put(APPLICATION_DATA, piece, outgoing)?;
        }
        Ok(())
    }

    /// Says that nothing more will come.
    pub fn close_notify(&mut self, outgoing: &mut Outgoing) -> Result<(), Error> {
        self.done = true;
        self.put(ALERT, &[WARNING, AlertDescription::CloseNotify.into()], outgoing)
    }

    /// Queues the alert that reports an error to the server.
    pub fn send_alert(&mut self, e: &Error, outgoing: &mut Outgoing) {
        // One alert at most.
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        let what = match e {
            Error::AlertReceived(_) => return,
            Error::DecryptError => AlertDescription::BadRecordMac,
            Error::PeerSentOversizedRecord => AlertDescription::RecordOverflow,
            Error::PeerMisbehaved(_)
            | Error::InvalidMessage(InvalidMessage::UnexpectedMessage(_)) => {
                AlertDescription::UnexpectedMessage
            }
            Error::InvalidMessage(_) => AlertDescription::DecodeError,
            _ => AlertDescription::InternalError,
        };
        // The error is reported to the caller, whether or not the alert arrives.
        drop(self.put(ALERT, &[FATAL, what.into()], outgoing));
    }

    /// Announces to the server that the next record is sealed with new keys.
    fn change_keys(&mut self, outgoing: &mut Outgoing) -> Result<(), Error> {
        // Sealed with the old keys, and only then are they replaced: it announces that the next
        // record is sealed with new ones.
        self.put(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0], outgoing)?;
        self.sealing = self.secrets.next_to_seal()?;
        self.owes_keys = false;
        Ok(())
    }

    fn put(&mut self, kind: u8, plain: &[u8], outgoing: &mut Outgoing) -> Result<(), Error> {
        let space = outgoing.space(HEADER_BYTES + plain.len() + MORE_BYTES);
        let len = self.sealing.seal(kind, plain, space)?;
        outgoing.wrote(len);
        Ok(())
    }
}

#[cfg(any(test, fuzzing, clippy))]
pub mod test_server;
#[cfg(test)]
mod tests;
