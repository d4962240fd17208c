//! Records as no library would send them.

use std::task::{Context, Waker};

use super::test_server::{Client, Ladder, Server, keys, play};
use super::*;

const LENS: [usize; 2] = [100, 40_000];

/// What a client makes of all that a server sent.
fn client(server: &Server) -> (Client, Result<bool, Error>) {
    let mut client = Client::new();
    let mut received = 0;
    loop {
        received += client.receive(&server.bytes[received..]);
        let read = client.read(LENS);
        if received == server.bytes.len() || read.is_err() {
            return (client, read);
        }
    }
}

fn error(server: &Server) -> Error {
    let (client, read) = client(server);
    assert!(client.got.is_empty());
    read.unwrap_err()
}

/// The records that went out, opened.
fn said(client: &mut Client, mut keys: RecordKeys) -> Vec<(u8, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(client.outgoing.poll_drain(&mut cx, &mut bytes).is_ready());
    let mut records = Vec::new();
    let mut at = 0;
    let mut generation = 0;
    while let Some(len) = record::first(&bytes[at..]).unwrap() {
        let (header, rest) = bytes[at..].split_at_mut(HEADER_BYTES);
        let (kind, payload) = keys.open_in_place(header, &mut rest[..len]).unwrap();
        records.push((kind, payload.to_vec()));
        at += HEADER_BYTES + len;
        if kind == HANDSHAKE {
            generation += 1;
            keys = test_server::keys(1, generation);
        }
    }
    assert_eq!(at, bytes.len());
    records
}

#[test]
fn whatever_the_pieces_all_of_it_comes() {
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..100 {
        let script: Vec<u8> = (0..8)
            .flat_map(|_| {
                [rng.u8(..) % 6, rng.u8(..), rng.u8(..), rng.u8(..), rng.u8(..), rng.u8(..)]
            })
            .collect();
        assert!(play(&script), "{script:?}");
    }
}

#[test]
fn whatever_is_done_to_them_nothing_else_comes() {
    let mut rng = fastrand::Rng::with_seed(8);
    let mut whole = 0;
    for _ in 0..300 {
        let script: Vec<u8> = (0..40).map(|_| rng.u8(..)).collect();
        whole += u32::from(play(&script));
    }
    assert!(whole < 290, "the scripts spoil too little");
}

#[test]
fn a_part_of_a_record_is_waited_for() {
    let mut server = Server::new();
    server.record(APPLICATION_DATA, &[7; 5000]);
    let mut client = Client::new();
    let mut bytes = &server.bytes[..];
    for len in [1, 4, 5, 100, 4912] {
        assert_eq!(client.read(LENS), Ok(false));
        assert!(client.got.is_empty());
        client.receive(bytes.split_off(..len).unwrap());
    }
    assert!(bytes.is_empty());
    assert_eq!((client.read(LENS), client.got), (Ok(false), vec![7; 5000]));
}

#[test]
fn lengths_that_no_record_has_are_refused_at_once() {
    for (header, expected) in [
        ([23, 3, 3, 0x40, 18], Error::PeerSentOversizedRecord),
        ([23, 3, 3, 0xFF, 0xFF], Error::PeerSentOversizedRecord),
        ([23, 3, 3, 0, 16], Error::DecryptError),
        ([20, 3, 3, 0, 1], PeerMisbehaved::IllegalMiddleboxChangeCipherSpec.into()),
        ([21, 3, 3, 0, 2], InvalidMessage::InvalidContentType.into()),
        ([22, 3, 3, 0, 90], InvalidMessage::InvalidContentType.into()),
    ] {
        let mut server = Server::new();
        server.bytes.extend_from_slice(&header);
        assert_eq!(error(&server), expected);
    }
    let mut server = Server::new();
    server.record(APPLICATION_DATA, &[1; PLAIN_BYTES_MAX]).padded(
        APPLICATION_DATA,
        &[2; PLAIN_BYTES_MAX - 9],
        9,
    );
    assert_eq!(client(&server).0.got.len(), 2 * PLAIN_BYTES_MAX - 9);
}

#[test]
fn a_flipped_bit_anywhere_ends_it_and_leaves_nothing() {
    for at in [1, 2, 5, 3000, 5 + 5000, 5 + 5000 + 1, 5021] {
        let mut server = Server::new();
        server.record(APPLICATION_DATA, &[7; 5000]);
        server.bytes[at] ^= 0x10;
        let mut client = Client::new();
        let mut memory = [0x5A; 6000];
        let mut space = PlaintextSpace::new([&mut memory, &mut []]);
        let mut incoming = Incoming::new(64 * 1024);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(incoming.poll_fill(&mut cx, &mut &server.bytes[..]).is_ready());
        let opened = client.direct.open(
            &mut incoming,
            &mut space,
            &mut PlaintextLeft::default(),
            &mut client.outgoing,
        );
        assert_eq!((opened, space.filled()), (Err(Error::DecryptError), 0));
        assert!(!memory.contains(&7), "payload that was not proven stays in the caller's memory");
        client.direct.send_alert(&Error::DecryptError, &mut client.outgoing);
        assert_eq!(said(&mut client, keys(1, 0)), [(ALERT, vec![FATAL, 20])]);
    }
}

#[test]
fn records_that_come_twice_or_not_at_all_are_refused() {
    let mut server = Server::new();
    server.record(APPLICATION_DATA, b"one").record(APPLICATION_DATA, b"two");
    let half = server.bytes.len() / 2;
    let one = server.bytes[..half].to_vec();
    let two = server.bytes[half..].to_vec();
    server.bytes = [&one[..], &one].concat();
    assert_eq!(client(&server).1, Err(Error::DecryptError));
    server.bytes = two;
    assert_eq!(error(&server), Error::DecryptError);
}

#[test]
fn both_sides_change_their_keys() {
    let mut server = Server::new();
    server
        .record(APPLICATION_DATA, b"a")
        .change_keys(false)
        .record(APPLICATION_DATA, b"b")
        .change_keys(true);
    server.change_keys(true).record(APPLICATION_DATA, b"c");
    let (mut client, read) = client(&server);
    assert_eq!((read, &client.got[..]), (Ok(false), &b"abc"[..]));
    client.direct.seal(b"x", &mut client.outgoing).unwrap();
    let update = (HANDSHAKE, vec![KEY_UPDATE, 0, 0, 1, 0]);
    // Both questions came before there was a chance to answer.
    assert_eq!(said(&mut client, keys(1, 0)), [update, (APPLICATION_DATA, b"x".to_vec())]);
}

#[test]
fn behind_a_goodbye_nothing_more_is_said() {
    let mut server = Server::new();
    server.change_keys(true).record(APPLICATION_DATA, b"a");
    let mut client = Client::new();
    client.direct.close_notify(&mut client.outgoing).unwrap();
    assert_eq!(said(&mut client, keys(1, 0)), [(ALERT, vec![WARNING, 0])]);
    client.receive(&server.bytes);
    assert_eq!((client.read(LENS), &client.got[..]), (Ok(false), &b"a"[..]));
    client.direct.send_alert(&Error::DecryptError, &mut client.outgoing);
    assert!(client.outgoing.is_empty(), "close_notify was sent");
}

#[test]
fn key_updates_that_make_no_sense_are_refused() {
    let update = |body: &[u8]| Server::message(KEY_UPDATE, body);
    for (bytes, expected) in [
        (update(&[2]), Error::from(InvalidMessage::InvalidKeyUpdate)),
        (update(&[]), InvalidMessage::InvalidKeyUpdate.into()),
        ([update(&[0]), vec![4]].concat(), PeerMisbehaved::KeyEpochWithPendingFragment.into()),
    ] {
        assert_eq!(error(Server::new().record(HANDSHAKE, &bytes)), expected);
    }
}

#[test]
fn worn_out_keys_are_changed() {
    let mut client = Client::new();
    client.direct = Direct::new(Ladder::default(), keys(0, 0), keys(1, 0), 2);
    client.direct.seal(&vec![9; 4 * PLAIN_BYTES_MAX], &mut client.outgoing).unwrap();
    let records = said(&mut client, keys(1, 0));
    let kinds: Vec<u8> = records.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [23, 23, 22, 23, 23], "{kinds:?}");
}

#[test]
fn alerts_end_it_one_way_or_the_other() {
    let alert = |payload: &[u8]| {
        client(Server::new().record(APPLICATION_DATA, b"a").record(ALERT, payload).record(23, b"b"))
    };
    let (ended, read) = alert(&[WARNING, 0]);
    assert_eq!((read, &ended.got[..]), (Ok(true), &b"a"[..]));
    let (canceled, read) = alert(&[WARNING, 90]);
    assert_eq!((read, &canceled.got[..]), (Ok(false), &b"ab"[..]));
    assert_eq!(alert(&[FATAL, 80]).1, Err(Error::AlertReceived(AlertDescription::InternalError)));
    // Whatever level it names.
    assert_eq!(
        alert(&[WARNING, 40]).1,
        Err(Error::AlertReceived(AlertDescription::HandshakeFailure))
    );
    for payload in [&[][..], &[1], &[1, 0, 0]] {
        assert!(alert(payload).1.is_err());
    }
}

#[test]
fn tickets_come_in_the_middle_and_in_parts() {
    let tickets: Vec<Vec<u8>> = (1..=3).map(|n| vec![n; 6000 * usize::from(n)]).collect();
    let bytes: Vec<u8> =
        tickets.iter().flat_map(|ticket| Server::message(NEW_SESSION_TICKET, ticket)).collect();
    let mut server = Server::new();
    server.record(APPLICATION_DATA, b"a");
    for part in bytes.chunks(10_000) {
        server.record(HANDSHAKE, part);
    }
    let (client, read) = client(server.record(APPLICATION_DATA, b"b"));
    assert_eq!((read, &client.got[..]), (Ok(false), &b"ab"[..]));
    assert_eq!(client.direct.secrets.tickets, tickets);
}

#[test]
fn messages_that_do_not_belong_here_are_refused() {
    let half = &Server::message(NEW_SESSION_TICKET, &[1; 100])[..50];
    for (kind, payload) in [(APPLICATION_DATA, &b"a"[..]), (ALERT, &[WARNING, 0])] {
        let e = error(Server::new().record(HANDSHAKE, half).record(kind, payload));
        assert_eq!(e, PeerMisbehaved::MessageInterleavedWithHandshakeMessage.into());
    }
    let server = |kind, payload: &[u8]| error(Server::new().record(kind, payload));
    assert_eq!(server(HANDSHAKE, &[]), InvalidMessage::InvalidEmptyPayload.into());
    assert_eq!(
        server(HANDSHAKE, &[4, 255, 255, 255]),
        InvalidMessage::HandshakePayloadTooLarge.into()
    );
    assert!(matches!(
        server(HANDSHAKE, &[1, 0, 0, 0]),
        Error::InvalidMessage(InvalidMessage::UnexpectedMessage(_))
    ));
    assert_eq!(server(0, &[0; 40]), PeerMisbehaved::IllegalTlsInnerPlaintext.into());
    for kind in [20, 24, 99] {
        assert_eq!(server(kind, b"a"), InvalidMessage::InvalidContentType.into());
    }
}

#[test]
fn a_server_that_only_says_nothing_is_given_up() {
    let mut server = Server::new();
    for _ in 0..QUIET_MAX {
        server.record(APPLICATION_DATA, &[]);
    }
    server.record(APPLICATION_DATA, b"a");
    assert_eq!(client(&server).0.got, b"a");
    let mut others = Server::new();
    for _ in 0..=QUIET_MAX {
        server.record(APPLICATION_DATA, &[]);
        others.change_keys(true);
    }
    for server in [server, others] {
        assert_eq!(client(&server).1, Err(PeerMisbehaved::TooManyEmptyFragments.into()));
    }
}

#[test]
fn nothing_of_a_message_stays_in_the_callers_memory() {
    let mut server = Server::new();
    server.record(HANDSHAKE, &Server::message(NEW_SESSION_TICKET, &[7; 1000]));
    let mut memory = [1; 2000];
    let mut incoming = Incoming::new(64 * 1024);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(incoming.poll_fill(&mut cx, &mut &server.bytes[..]).is_ready());
    let mut client = Client::new();
    let mut space = PlaintextSpace::new([&mut memory, &mut []]);
    let opened = client.direct.open(
        &mut incoming,
        &mut space,
        &mut PlaintextLeft::default(),
        &mut client.outgoing,
    );
    assert_eq!((opened, space.filled()), (Ok(false), 0));
    assert!(!memory.contains(&7));
}
