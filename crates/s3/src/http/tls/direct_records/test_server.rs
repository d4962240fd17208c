//! A server of records by a script, for tests and fuzzers: what a client makes of them, in whatever
//! pieces they come.

use std::task::{Context, Poll, Waker};

use rustls::ConnectionTrafficSecrets;

use super::*;

/// Memory around what a client may write into.
const GUARD: u8 = 0x5A;

/// The keys of a direction (0: the server seals, 1: the client does) after a number of changes.
pub fn keys(direction: u8, generation: u8) -> RecordKeys {
    let key = AeadKey::from([direction + 1; 32]);
    let iv = Iv::new([generation; 12]);
    let secrets = match generation % 2 {
        0 => ConnectionTrafficSecrets::Aes256Gcm { key, iv },
        _ => ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv },
    };
    RecordKeys::new(0, secrets).expect("a cipher that is known, and its key")
}

/// Keys one after the other, and the tickets that came.
#[derive(Default)]
pub struct Ladder {
    pub opening: u8,
    pub sealing: u8,
    pub tickets: Vec<Vec<u8>>,
}

impl Secrets for Ladder {
    fn next_to_open(&mut self) -> Result<RecordKeys, Error> {
        self.opening = self.opening.wrapping_add(1);
        Ok(keys(0, self.opening))
    }

    fn next_to_seal(&mut self) -> Result<RecordKeys, Error> {
        self.sealing = self.sealing.wrapping_add(1);
        Ok(keys(1, self.sealing))
    }

    fn ticket(&mut self, ticket: &[u8]) -> Result<(), Error> {
        self.tickets.push(ticket.to_vec());
        Ok(())
    }
}

/// What seals.
pub struct Server {
    keys: RecordKeys,
    generation: u8,
    /// All that it sent.
    pub bytes: Vec<u8>,
}

impl Server {
    pub fn new() -> Self {
        Server { keys: keys(0, 0), generation: 0, bytes: Vec::new() }
    }

    pub fn record(&mut self, kind: u8, payload: &[u8]) -> &mut Self {
        let start = self.bytes.len();
        self.bytes.resize(start + HEADER_BYTES + payload.len() + MORE_BYTES, 0);
        let len = self.keys.seal(kind, payload, &mut self.bytes[start..]).expect("space for it");
        assert_eq!(start + len, self.bytes.len());
        self
    }

    /// With zeros behind it, at least one.
    pub fn padded(&mut self, kind: u8, payload: &[u8], zeros: usize) -> &mut Self {
        let inner = [payload, &[kind], &vec![0; zeros - 1]].concat();
        self.record(0, &inner)
    }

    /// A handshake message.
    pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let [_, a, b, c] = u32::try_from(body.len()).expect("24 bits").to_be_bytes();
        [&[kind, a, b, c], body].concat()
    }

    pub fn change_keys(&mut self, asks: bool) -> &mut Self {
        self.record(HANDSHAKE, &Self::message(KEY_UPDATE, &[asks.into()]));
        self.generation = self.generation.wrapping_add(1);
        self.keys = keys(0, self.generation);
        self
    }
}

/// A client, and what it has to read and write with.
pub struct Client {
    pub direct: Direct<Ladder>,
    incoming: Incoming,
    left: PlaintextLeft,
    pub outgoing: Outgoing,
    /// What the caller got.
    pub got: Vec<u8>,
}

impl Client {
    pub fn new() -> Self {
        let direct = Direct::new(Ladder::default(), keys(0, 0), keys(1, 0), 1 << 24);
        let (left, outgoing) = Default::default();
        Client { direct, incoming: Incoming::new(64 * 1024), left, outgoing, got: Vec::new() }
    }

    /// Receives as much of `bytes` as fits. Returns how much.
    pub fn receive(&mut self, mut bytes: &[u8]) -> usize {
        let mut cx = Context::from_waker(Waker::noop());
        match self.incoming.poll_fill(&mut cx, &mut bytes) {
            Poll::Ready(Ok(len)) => len,
            other => panic!("{other:?}"),
        }
    }

    /// Reads into two pieces of these lengths until nothing comes any more; whether the server has
    /// ended.
    pub fn read(&mut self, lens: [usize; 2]) -> Result<bool, Error> {
        loop {
            let mut memory = vec![GUARD; lens[0] + lens[1] + 8];
            let (first, rest) = memory.split_at_mut(lens[0]);
            let (second, _) = rest.split_at_mut(lens[1]);
            let mut space = PlaintextSpace::new([first, second]);
            self.left.drain(&mut space);
            let ended = self.direct.open(
                &mut self.incoming,
                &mut space,
                &mut self.left,
                &mut self.outgoing,
            );
            let filled = space.filled();
            assert!(memory[lens[0] + lens[1]..] == [GUARD; 8], "a byte outside the space");
            let ended = ended?;
            self.got.extend_from_slice(&memory[..filled]);
            if filled < lens[0] + lens[1] {
                return Ok(ended);
            }
        }
    }
}

/// Plays a script: whatever records it makes, in whatever pieces they come, and whatever is done to
/// them on the way, the caller gets what was sent, from its beginning, and nothing else. Whether
/// all of it came.
pub fn play(script: &[u8]) -> bool {
    let mut server = Server::new();
    let mut client = Client::new();
    let mut sent = Vec::new();
    let mut script = script.iter().copied();
    let mut spoilt = false;
    while let Some(what) = script.next() {
        let mut next = || usize::from(script.next().unwrap_or(0));
        let len = next() << 8 | next();
        let seed = next();
        let lens = [next(), next() << 7 | 1];
        let start = server.bytes.len();
        let data: Vec<u8> = (0..len % (PLAIN_BYTES_MAX + 1)).map(|at| (at + seed) as u8).collect();
        match what % 8 {
            0..=2 => {
                server.record(APPLICATION_DATA, &data);
                sent.extend_from_slice(if spoilt { &[] } else { &data });
            }
            3 => {
                let data = &data[..data.len() / 2];
                server.padded(APPLICATION_DATA, data, 1 + seed);
                sent.extend_from_slice(if spoilt { &[] } else { data });
            }
            4 => {
                server.change_keys(seed % 2 == 1);
            }
            5 => {
                let message = Server::message(NEW_SESSION_TICKET, &data[..data.len().min(300)]);
                let (one, two) = message.split_at(seed.clamp(1, message.len()));
                server.record(HANDSHAKE, one);
                if !two.is_empty() {
                    server.record(HANDSHAKE, two);
                }
            }
            6 => {
                // Of any type but that of data, also behind padding.
                let payload: Vec<u8> = data.iter().take(9).map(|byte| byte | 0x80).collect();
                server.record(
                    if seed == usize::from(APPLICATION_DATA) { 0 } else { seed as u8 },
                    &payload,
                );
            }
            _ => server.bytes.extend_from_slice(&data[..data.len().min(40)]),
        }
        spoilt |= what % 8 >= 6 && server.bytes.len() > start;
        if what >= 0xF0 && server.bytes.len() > start {
            // One bit of it is another on arrival.
            let at = start + len % (server.bytes.len() - start);
            server.bytes[at] ^= 1 << (seed % 8);
            spoilt = true;
        }
        if !deliver(&mut client, &server.bytes[start..], 1 + seed * 97, lens) {
            break;
        }
    }
    assert!(sent.starts_with(&client.got), "other bytes than were sent");
    client.got.len() == sent.len()
}

/// In pieces; whether it goes on.
fn deliver(client: &mut Client, bytes: &[u8], piece: usize, lens: [usize; 2]) -> bool {
    for piece in bytes.chunks(piece) {
        let mut received = 0;
        while received < piece.len() {
            received += client.receive(&piece[received..]);
            if !matches!(client.read(lens), Ok(false)) {
                return false;
            }
        }
    }
    true
}
