//! Both ways to carry records, beside a server on rustls.

use std::pin::pin;

use rustls::{PeerMisbehaved, version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::server::TlsStream;

use super::super::test_connection_pair::{ALL, DIRECT, flooded, pair};
use super::*;
use crate::http::stream::Stream;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// Sends all of it, with an empty piece in between, and says that this is all.
async fn send(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) {
    let mut sent = 0;
    while sent < bytes.len() {
        let (one, two) = bytes[sent..].split_at((bytes.len() - sent).min(700));
        let pieces = [one, &[], two].map(IoSlice::new);
        sent += stream.write_vectored(&pieces).await.unwrap();
    }
    stream.flush().await.unwrap();
    stream.shutdown().await.unwrap();
}

#[tokio::test]
async fn bytes_come_back_as_they_went() {
    for versions in [ALL, &[&version::TLS12], &[&version::TLS13]] {
        for direct in DIRECT {
            let (client, server) = pair(*direct, versions).await;
            // The older version is the library's in any case.
            assert_eq!(client.is_direct(), *direct && versions.contains(&&version::TLS13));
            let bytes = pattern(3 << 20);
            let (mut from, mut to) = tokio::io::split(client);
            let (mut in_from, mut in_to) = tokio::io::split(server);
            let echo = async {
                tokio::io::copy(&mut in_from, &mut in_to).await.unwrap();
                in_to.shutdown().await.unwrap();
            };
            let mut back = Vec::new();
            let (_, (), came) =
                tokio::join!(echo, send(&mut to, &bytes), from.read_to_end(&mut back));
            assert_eq!(came.unwrap(), bytes.len());
            assert!(back == bytes);
        }
    }
}

/// What comes in pieces of these lengths.
async fn read(stream: &mut Stream, lens: [usize; 2], total: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < total {
        let mut one = vec![0; lens[0]];
        let mut two = vec![0; lens[1]];
        let got =
            poll_fn(|cx| stream.poll_read_pieces(cx, [&mut one, &mut two, &mut []])).await.unwrap();
        assert!(got > 0);
        bytes.extend_from_slice(&[one, two].concat()[..got]);
    }
    bytes
}

#[tokio::test]
async fn pieces_of_any_length_are_filled_one_after_the_other() {
    for direct in DIRECT {
        for lens in [[1, 0], [7, 9], [300, 70_000], [70_000, 0], [16_384, 1], [16_385, 16_385]] {
            let (mut client, mut server) = pair(*direct, ALL).await;
            let bytes = pattern(if lens[0] < 10 { 40_000 } else { 400_000 });
            let serve = async {
                server.write_all(&bytes).await.unwrap();
                server.flush().await.unwrap();
            };
            let ((), came) = tokio::join!(serve, read(&mut client, lens, bytes.len()));
            assert!(came == bytes, "{direct} {lens:?}");
            // The next one is unrequested.
            assert!(!client.is_stale());
            server.write_all(b"more").await.unwrap();
            server.flush().await.unwrap();
            let came = async {
                while !client.is_stale() {
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(std::time::Duration::from_secs(600), came).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_record_that_has_only_begun_was_not_asked_for_either() {
    for direct in DIRECT {
        let (mut client, mut server) = pair(*direct, ALL).await;
        server.write_all(b"all").await.unwrap();
        server.flush().await.unwrap();
        assert_eq!(read(&mut client, [3, 0], 3).await, b"all");
        assert!(!client.is_stale());
        server.get_mut().0.write_all(&[23, 3, 3, 1, 0, 7, 7]).await.unwrap();
        let came = async {
            while !client.is_stale() {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(600), came).await.unwrap();
    }
}

#[tokio::test]
async fn keys_change_on_the_way() {
    for direct in DIRECT {
        let (mut client, mut server) = pair(*direct, &[&version::TLS13]).await;
        for round in 0..5 {
            server.get_mut().1.refresh_traffic_keys().unwrap();
            let bytes = pattern(50_000 + round);
            server.write_all(&bytes).await.unwrap();
            server.flush().await.unwrap();
            assert!(read(&mut client, [50_000, 16_500], bytes.len()).await == bytes);
            client.write_all(&bytes[..20_000]).await.unwrap();
            client.flush().await.unwrap();
            let mut back = vec![0; 20_000];
            server.read_exact(&mut back).await.unwrap();
            assert!(back == bytes[..20_000]);
        }
    }
}

#[tokio::test]
async fn an_end_that_is_not_announced_is_an_error() {
    for direct in DIRECT {
        let (mut client, mut server) = pair(*direct, ALL).await;
        server.write_all(b"all").await.unwrap();
        server.shutdown().await.unwrap();
        let mut came = Vec::new();
        assert_eq!(client.read_to_end(&mut came).await.unwrap(), 3);
        assert!(client.is_stale());

        let (mut client, mut server) = pair(*direct, ALL).await;
        server.write_all(b"half").await.unwrap();
        server.flush().await.unwrap();
        drop(server);
        came.clear();
        assert_eq!(
            client.read_to_end(&mut came).await.unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        assert_eq!(came, b"half");
    }
}

/// A record that cannot be opened.
const BAD: [u8; 30] =
    [23, 3, 3, 0, 25, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7];

/// A connection on which a record and then a bad one have come, and a byte of the first was read.
async fn spoilt(direct: bool, good: &[u8]) -> (Stream, TlsStream<TcpStream>) {
    let (mut client, mut server) = pair(direct, ALL).await;
    server.write_all(good).await.unwrap();
    server.flush().await.unwrap();
    server.get_mut().0.write_all(&BAD).await.unwrap();
    // Both are there when the first byte is read.
    let mut seen = [0; 4096];
    while client.tcp().unwrap().peek(&mut seen).await.unwrap() < good.len() + BAD.len() {}
    assert_eq!(read(&mut client, [1, 0], 1).await, &good[..1]);
    (client, server)
}

#[tokio::test]
async fn what_came_before_an_error_is_delivered_before_it() {
    for direct in DIRECT {
        for space in [1, 4, 5, 6, 100] {
            let (mut client, _server) = spoilt(*direct, b"answer").await;
            let mut came = Vec::new();
            let mut memory = vec![0; space];
            let error = loop {
                match client.read(&mut memory).await {
                    Ok(got) => came.extend_from_slice(&memory[..got]),
                    Err(e) => break e,
                }
            };
            assert_eq!(
                (&came[..], error.kind()),
                (&b"nswer"[..], io::ErrorKind::InvalidData),
                "{direct} {space}"
            );
            assert_eq!(
                client.read(&mut memory).await.unwrap_err().kind(),
                io::ErrorKind::BrokenPipe
            );
            assert_eq!(client.write(b"a").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        }
    }
    // Also when there is no more than that one byte.
    let (mut client, _server) = spoilt(false, b"a").await;
    assert_eq!(client.read(&mut [0]).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[tokio::test]
async fn an_error_that_the_goodbye_meets_is_one_for_good() {
    let (mut client, mut server) = spoilt(false, b"ab").await;
    assert_eq!(client.shutdown().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    // An alert reports the reason to the server.
    let mut received = [0];
    let failure =
        tokio::time::timeout(std::time::Duration::from_secs(600), server.read(&mut received)).await;
    let failure = failure.unwrap().unwrap_err();
    assert!(failure.to_string().contains("BadRecordMac"), "{failure}");
    let mut rest = [0; 2];
    assert_eq!((client.read(&mut rest).await.unwrap(), rest[0]), (1, b'b'));
    assert_eq!(client.read(&mut rest).await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn a_server_that_sends_nothing_but_tickets_is_given_up() {
    for direct in DIRECT {
        let mut client = flooded(*direct, 40_000).await;
        let mut memory = [0];
        let read =
            tokio::time::timeout(std::time::Duration::from_secs(600), client.read(&mut memory))
                .await;
        let error = read.expect("it does not wait for ever").unwrap_err();
        let cause = error.get_ref().and_then(|e| e.downcast_ref::<Error>());
        assert_eq!(
            cause,
            Some(&PeerMisbehaved::TooManyEmptyFragments.into()),
            "{direct}: {error:?}"
        );
    }
}

#[tokio::test]
async fn a_task_that_has_done_much_sees_what_is_stale_all_the_same() {
    for direct in DIRECT {
        let (mut client, mut server) = pair(*direct, ALL).await;
        server.write_all(b"all").await.unwrap();
        server.flush().await.unwrap();
        assert_eq!(read(&mut client, [3, 0], 3).await, b"all");
        server.shutdown().await.unwrap();
        // It has come.
        client.tcp().unwrap().peek(&mut [0]).await.unwrap();
        poll_fn(|cx| {
            while let Poll::Ready(done) = tokio::task::coop::poll_proceed(cx) {
                done.made_progress();
            }
            assert!(client.is_stale(), "the task's budget is spent, and the server has closed");
            Poll::Ready(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_that_does_not_read_stops_us_and_loses_nothing() {
    for direct in DIRECT {
        let (client, mut server) = pair(*direct, ALL).await;
        let (mut from, mut to) = tokio::io::split(client);
        let bytes = pattern(8 << 20);
        {
            let mut sending = pin!(send(&mut to, &bytes));
            // Nothing is left to do but to wait: the clock jumps.
            tokio::time::pause();
            let waited =
                tokio::time::timeout(std::time::Duration::from_millis(200), &mut sending).await;
            tokio::time::resume();
            assert!(waited.is_err(), "8 MiB are more than sockets hold");
            // Bytes that arrive meanwhile are received.
            server.write_all(b"stop").await.unwrap();
            server.flush().await.unwrap();
            let mut word = [0; 4];
            from.read_exact(&mut word).await.unwrap();
            assert_eq!(&word, b"stop");
            let mut came = Vec::new();
            let ((), got) = tokio::join!(sending, server.read_to_end(&mut came));
            assert_eq!(got.unwrap(), bytes.len());
            assert!(came == bytes);
        }
    }
}
