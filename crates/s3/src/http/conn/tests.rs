//! Heads that are as long as expected, and all the others: every byte of a body ends up where it
//! belongs, and none elsewhere.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::super::body_sink::{BodyBuffer, BodySink};
use super::super::tls::test_connection_pair::{DIRECT, narrow};
use super::*;

const LEN: usize = 5000;
const GUARD: usize = 64;
const IDLE: Duration = Duration::from_secs(60);

fn object() -> Vec<u8> {
    (0..LEN).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

/// Answers each request with the next of these, all of it in one write.
async fn serving(answers: Vec<Vec<u8>>) -> Box<Conn> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        for answer in answers {
            assert!(socket.read(&mut [0; 64]).await.unwrap() > 0);
            socket.write_all(&answer).await.unwrap();
        }
        // Until the client closes.
        drop(socket.read(&mut [0; 1]).await);
    });
    let tcp = TcpStream::connect(address).await.unwrap();
    Conn::new(Stream::Plain(tcp), Arc::new(Target::new(false, "127.0.0.1", Some(address.port()))))
}

/// A head of its own length, and the object.
fn answer(name: &str) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LEN}\r\nx: {name}\r\n\r\n");
    [head.as_bytes(), &object()].concat()
}

/// Asks, and lands a body if that was good; bytes that were copied.
async fn get(conn: &mut Conn, memory: &mut [u8]) -> Result<(u16, u64)> {
    let mut buffer = BodyBuffer::new(memory);
    conn.out = b"GET".to_vec().into();
    conn.send(&[], IDLE).await?;
    let head = conn.head(false, IDLE, buffer.next(usize::MAX)).await?;
    match head.is_success() {
        true => {
            conn.body(head.framing, BodySink::Buffer(&mut buffer), IDLE).await?;
            assert_eq!(buffer.filled(), LEN);
        }
        false => {
            let mut text = Vec::new();
            conn.body(head.framing, BodySink::Text(&mut text, LEN), IDLE).await?;
            assert_eq!(text, b"<Error/>");
        }
    }
    Ok((head.status, conn.copied))
}

#[tokio::test]
async fn a_body_lands_right_whatever_head_comes_before_it() {
    let missing = b"HTTP/1.1 404 Not Found\r\ncontent-length: 8\r\n\r\n<Error/>".to_vec();
    let late = [b"HTTP/1.1 103 Early Hints\r\n\r\n".to_vec(), answer("aa")].concat();
    let mut chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    chunked.extend([format!("{LEN:x}\r\n").as_bytes(), &object(), b"\r\n0\r\n\r\n"].concat());
    let steps = [
        (answer("aa"), None),
        (answer("bb"), None),
        (answer("cc"), Some(0)),
        (answer("longer-than-that"), None),
        (answer("longer-than-this"), None),
        (answer("much-longer-than-this-one-with-a-lot-of-words"), None),
        (answer("aa"), None),
        (answer("aa"), None),
        (answer("a"), None),
        (answer("aa"), None),
        (answer("aa"), None),
        (missing.clone(), None),
        (answer("aa"), Some(0)),
        (late, None),
        (chunked, None),
        (missing, None),
    ];
    let mut conn = serving(steps.iter().map(|(answer, _)| answer.clone()).collect()).await;
    for (step, (answer, copied)) in steps.iter().enumerate() {
        let mut memory = vec![0xEE; LEN + GUARD];
        let (mine, guard) = memory.split_at_mut(LEN);
        let (status, count) =
            get(&mut conn, mine).await.unwrap_or_else(|e| panic!("step {step}: {e}"));
        assert!(status == 404 || mine == object(), "step {step}");
        assert!(guard.iter().all(|byte| *byte == 0xEE), "step {step}");
        assert!(
            copied.is_none_or(|copied| copied == count),
            "step {step}: {count} bytes were copied"
        );
        assert!(
            answer.starts_with(b"HTTP/1.1 404") == (status == 404)
                && conn.is_usable()
                && !conn.is_stale(),
            "step {step}"
        );
    }
}

#[tokio::test]
async fn a_socket_is_known_to_be_empty_when_the_answer_is_read() {
    let mut conn = serving(vec![answer("aa"); 4]).await;
    let mut memory = vec![0xEE; LEN];
    for _ in 0..4 {
        get(&mut conn, &mut memory).await.unwrap();
        assert!(memory == object());
    }
    // Readiness that is left makes `is_stale` ask the kernel.
    let left = conn.stream.tcp().unwrap().try_io(tokio::io::Interest::READABLE, || Ok(()));
    assert_eq!(left.map_err(|e| e.kind()), Err(io::ErrorKind::WouldBlock));
}

#[tokio::test]
async fn an_object_may_be_larger_than_the_one_before() {
    let small = b"HTTP/1.1 200 OK\r\ncontent-length: 0010\r\nx: aa\r\n\r\n0123456789".to_vec();
    let steps = [small.clone(), small.clone(), small.clone(), answer("aa"), answer("aa")];
    let mut conn = serving(steps.to_vec()).await;
    for (step, answer) in steps.iter().enumerate() {
        // All that is read ahead is what the small one needs.
        let mut memory = vec![0xEE; LEN + GUARD];
        let len = if *answer == small { 10 } else { LEN };
        let mut buffer = BodyBuffer::new(&mut memory[..len]);
        conn.out = b"GET".to_vec().into();
        conn.send(&[], IDLE).await.unwrap();
        let head = conn.head(false, IDLE, buffer.next(10)).await.unwrap();
        conn.body(head.framing, BodySink::Buffer(&mut buffer), IDLE).await.unwrap();
        let right = if *answer == small { b"0123456789".to_vec() } else { object() };
        assert!(
            memory[..len] == right && memory[len..].iter().all(|byte| *byte == 0xEE),
            "step {step}"
        );
        assert!(conn.is_usable() && !conn.is_stale(), "step {step}");
    }
}

#[tokio::test]
async fn a_head_that_is_longer_than_usual_waits_for_nothing_when_all_is_there() {
    let mut conn = serving(vec![answer("aa"), answer("aa"), answer("longer-than-that")]).await;
    // More than the object has: nothing of the answer is left to come.
    let mut memory = vec![0xEE; LEN + GUARD];
    for _ in 0..3 {
        let got = tokio::time::timeout(IDLE / 3, get(&mut conn, &mut memory)).await;
        got.expect("it does not wait for more").unwrap();
        assert!(memory[..LEN] == object());
    }
}

#[tokio::test]
async fn what_comes_behind_a_body_is_not_part_of_it() {
    let long = [answer("aa"), b"HTTP/1.1".to_vec()].concat();
    let mut conn = serving(vec![answer("aa"), answer("aa"), long]).await;
    let mut memory = vec![0xEE; LEN + GUARD];
    for _ in 0..3 {
        assert!(conn.is_usable() && !conn.is_stale());
        get(&mut conn, &mut memory).await.unwrap();
        assert!(memory[..LEN] == object());
    }
    assert!(!conn.is_usable() || conn.is_stale(), "the bytes are of no request");
}

#[tokio::test]
async fn a_refusal_is_received_while_the_last_bytes_wait_to_be_sent() {
    for direct in DIRECT {
        let (stream, mut server) = narrow(*direct, 4096).await;
        let mut conn = Conn::new(stream, Arc::new(Target::new(true, "127.0.0.1", None)));
        conn.out = b"PUT".to_vec().into();
        // All of it is sealed at once; the sockets hold less, and the server reads nothing.
        let body = vec![7; 60_000];
        let refuse = async {
            server.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            server.flush().await.unwrap();
        };
        let (sent, ()) = tokio::join!(conn.send(&body, IDLE), refuse);
        assert_eq!(sent.unwrap(), Sent::Early);
        assert_eq!(conn.head(false, IDLE, &mut []).await.unwrap().status, 403);
        assert!(!conn.is_usable());
    }
}

#[tokio::test]
async fn the_last_words_of_a_server_are_waited_for_no_longer_than_they_are_worth() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    tokio::spawn(async move {
        server.write_all(b"HTTP/1.1 403 Forbidden\r\nx: ").await.unwrap();
        // Never an end, and never long nothing.
        while server.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    tcp.shutdown().await.unwrap();
    let mut conn = Conn::new(Stream::Plain(tcp), Arc::new(Target::new(false, "127.0.0.1", None)));
    conn.out = b"PUT".to_vec().into();
    let sent = tokio::time::timeout(IDLE * 10, conn.send(&[7; 100], IDLE)).await;
    assert_eq!(sent.expect("it does not wait for ever").unwrap_err().kind(), ErrorKind::Io);
}

#[tokio::test]
async fn a_chunk_has_a_size_of_hex_digits() {
    for (size, kind) in [
        ("1388", None),
        ("1388 ;a=b", None),
        ("+1388", Some(ErrorKind::Corrupt)),
        ("", Some(ErrorKind::Corrupt)),
    ] {
        let mut answer =
            format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{size}\r\n").into_bytes();
        answer.extend([&object()[..], b"\r\n0\r\n\r\n"].concat());
        let got = get(&mut *serving(vec![answer]).await, &mut vec![0; LEN]).await;
        assert_eq!(got.err().map(|e| e.kind()), kind, "{size}");
    }
}

#[tokio::test]
async fn what_a_connection_holds_is_not_printed() {
    let mut conn = serving(Vec::new()).await;
    conn.out = b"GET / HTTP/1.1\r\nx-amz-s3session-token: hush".to_vec().into();
    conn.path = "/private".into();
    conn.read_buffer.push(b"<SessionToken>hush</SessionToken>");
    let shown = format!("{conn:?}");
    let bytes = format!("{:?}", b"hush");
    assert!(!shown.contains("hush") && !shown.contains(bytes.trim_matches(['[', ']'])), "{shown}");
    assert!(!shown.contains("private") && shown.contains("127.0.0.1"), "{shown}");
}
