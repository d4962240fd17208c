//! Large bodies: their reader is woken for many bytes at a time, and still reads every byte in
//! time.

use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::time::sleep;

use super::super::body_sink::{BodyBuffer, BodyObserver, BodySink};
use super::test_connections::{Server, connections};
use super::*;

const LEN: usize = 2 << 20;
const PIECE: usize = 16 * 1024;
const IDLE: Duration = Duration::from_secs(240);

/// Counts the reads that brought bytes.
#[derive(Debug, Default)]
struct Reads(usize);

impl BodyObserver for Reads {
    fn begin(&mut self, _: &ResponseHead) -> bool {
        true
    }
    fn received(&mut self, _: &[u8], _: usize) {
        self.0 += 1;
    }
}

async fn write(server: &mut Server, bytes: &[u8]) {
    server.write_all(bytes).await.unwrap();
    server.flush().await.unwrap();
}

async fn head(conn: &mut Conn) -> ResponseHead {
    conn.out = b"GET".to_vec().into();
    conn.send(&[], IDLE).await.unwrap();
    conn.head(false, IDLE, &mut []).await.unwrap()
}

#[tokio::test]
async fn the_reader_is_woken_for_many_segments_at_a_time() {
    for (mut conn, mut server) in connections().await {
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {LEN}\r\n\r\n");
        let (found, ()) = tokio::join!(head(&mut conn), write(&mut server, answer.as_bytes()));
        let mut memory = vec![0; LEN];
        let mut reads = Reads::default();
        let mut buffer = BodyBuffer::new(&mut memory).observed_by(&mut reads);
        let segments = async {
            for _ in 0..LEN / PIECE {
                write(&mut server, &[7; PIECE]).await;
                sleep(Duration::from_millis(1)).await;
            }
        };
        let (read, ()) =
            tokio::join!(conn.body(found.framing, BodySink::Buffer(&mut buffer), IDLE), segments);
        read.unwrap();
        assert!(reads.0 <= 40, "{} reads for {} segments", reads.0, LEN / PIECE);
        assert!(memory.iter().all(|byte| *byte == 7));
        // A short answer behind it is seen at once.
        assert!(conn.is_usable() && !conn.is_stale());
        let missing = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
        let (found, ()) = tokio::join!(head(&mut conn), write(&mut server, missing));
        assert_eq!(found.status, 404);
    }
}

/// Says how many bytes landed.
#[derive(Debug)]
struct Landed(watch::Sender<usize>);

impl BodyObserver for Landed {
    fn begin(&mut self, _: &ResponseHead) -> bool {
        true
    }
    fn received(&mut self, _: &[u8], new: usize) {
        self.0.send_modify(|landed| *landed += new);
    }
}

/// Lets the clock jump. It runs on before and after, since the sockets do.
async fn jump(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_slow_body_waits_once_for_more_bytes_however_many_chunks_it_has() {
    const CHUNKS: usize = 4;
    for (mut conn, mut server) in connections().await {
        let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let (found, ()) = tokio::join!(head(&mut conn), write(&mut server, answer.as_bytes()));
        let mut memory = vec![0; LEN];
        let (count, mut landed) = watch::channel(0);
        let mut count = Landed(count);
        let mut buffer = BodyBuffer::new(&mut memory).observed_by(&mut count);
        let pieces = async {
            for at in (0..LEN).step_by(LEN / CHUNKS) {
                // The reader is in this chunk when its first byte has landed.
                write(&mut server, format!("{:x}\r\n\x07", LEN / CHUNKS).as_bytes()).await;
                landed.wait_for(|landed| *landed > at).await.unwrap();
                // Fewer bytes than it is woken for.
                write(&mut server, &[7; PIECE]).await;
                if at == 0 {
                    jump(IDLE / 2).await;
                }
                landed.wait_for(|landed| *landed > at + PIECE).await.unwrap();
                write(&mut server, &vec![7; LEN / CHUNKS - PIECE - 1]).await;
                write(&mut server, b"\r\n").await;
            }
            write(&mut server, b"0\r\n\r\n").await;
        };
        let began = Instant::now();
        let (read, ()) =
            tokio::join!(conn.body(found.framing, BodySink::Buffer(&mut buffer), IDLE), pieces);
        read.unwrap();
        assert!(began.elapsed() < IDLE, "waited {:?}", began.elapsed());
        assert!(memory.iter().all(|byte| *byte == 7));
    }
}

#[tokio::test]
async fn few_bytes_are_read_before_their_body_counts_as_stopped() {
    for (mut conn, mut server) in connections().await {
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {LEN}\r\n\r\n");
        let (found, ()) = tokio::join!(head(&mut conn), write(&mut server, answer.as_bytes()));
        let mut memory = vec![0; LEN];
        let (count, mut landed) = watch::channel(0);
        let mut count = Landed(count);
        let mut buffer = BodyBuffer::new(&mut memory).observed_by(&mut count);
        let body = conn.body(found.framing, BodySink::Buffer(&mut buffer), IDLE);
        let pieces = async {
            write(&mut server, &[7; PIECE]).await;
            jump(IDLE / 2).await;
            landed.wait_for(|landed| *landed == PIECE).await.unwrap();
            jump(IDLE).await;
        };
        let (stopped, ()) = tokio::join!(body, pieces);
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Timeout);
        assert_eq!(buffer.filled(), PIECE);
    }
}
