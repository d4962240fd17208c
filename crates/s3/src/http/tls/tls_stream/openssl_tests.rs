//! Records of ours beside another make: `openssl s_server`. Skipped, and said so, where openssl is
//! not installed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::{RootCerts, Tls};
use super::*;

/// A running `openssl s_server`, which sends what it reads from its input and prints what it
/// receives.
struct Server {
    child: Child,
    shows: BufReader<std::process::ChildStdout>,
    port: u16,
    ca: String,
    _dir: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Server {
    fn start(arguments: &[&str]) -> Option<Self> {
        let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let ca = certified.cert.pem();
        std::fs::write(
            dir.path().join("both.pem"),
            format!("{ca}{}", certified.signing_key.serialize_pem()),
        )
        .unwrap();
        let mut command = Command::new("openssl");
        command
            .current_dir(dir.path())
            .args(["s_server", "-accept", "127.0.0.1:0", "-cert", "both.pem"])
            .args(arguments);
        let Ok(mut child) =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
        else {
            // Not by a macro, whose words the test harness would swallow.
            let what = "SKIPPED: openssl is not installed (apt-get install openssl): TLS records were not tried with it\n";
            std::io::stderr().write_all(what.as_bytes()).unwrap();
            return None;
        };
        let shows = BufReader::new(child.stdout.take().unwrap());
        let mut server = Server { child, shows, port: 0, ca, _dir: dir };
        let line = server.shown("ACCEPT");
        server.port = line.trim().rsplit(':').next().unwrap().parse().unwrap();
        Some(server)
    }

    /// A line of input: `k` and `K` change its keys, with the latter it wants others of ours.
    fn send(&mut self, line: &str) {
        // In one write: openssl reads a command only together with the end of its line.
        self.child.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// The next line with this in it.
    fn shown(&mut self, what: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(
                self.shows.read_line(&mut line).unwrap() > 0,
                "openssl ended before it showed {what}"
            );
            if line.contains(what) {
                return line;
            }
        }
    }

    async fn session(&self, direct: bool) -> TlsStream {
        let tls = Tls::new(&RootCerts::Pem(self.ca.clone().into_bytes()), false, direct).unwrap();
        let tcp = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        tls.handshake("127.0.0.1", tcp).await.unwrap()
    }
}

async fn expect(session: &mut TlsStream, what: &str) {
    let mut bytes = vec![0; 100];
    let got = poll_fn(|cx| session.poll_read(cx, [&mut bytes, &mut []])).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes[..got]), what);
}

async fn send_line(session: &mut TlsStream, what: &str) {
    let sent =
        poll_fn(|cx| session.poll_write(cx, &[IoSlice::new(what.as_bytes())])).await.unwrap();
    assert_eq!(sent, what.len());
    poll_fn(|cx| session.poll_flush(cx)).await.unwrap();
}

#[tokio::test]
async fn keys_change_under_every_cipher() {
    for suite in
        ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"]
    {
        let Some(mut server) = Server::start(&["-tls1_3", "-ciphersuites", suite]) else { return };
        let mut session = server.session(true).await;
        assert!(session.is_direct());
        send_line(&mut session, "first\n").await;
        server.shown("first");
        // Behind the tickets.
        server.send("hello");
        expect(&mut session, "hello\n").await;
        for (command, word) in [("k", "theirs"), ("K", "both"), ("K", "again"), ("k", "last")] {
            server.send(command);
            // A command is known by being alone in what openssl reads, and has been read when there
            // is news of it.
            session.wire.tcp.peek(&mut [0]).await.unwrap();
            server.send(word);
            expect(&mut session, &format!("{word}\n")).await;
            send_line(&mut session, &format!("after {word}\n")).await;
            server.shown(&format!("after {word}"));
        }
    }
}

#[tokio::test]
async fn records_of_any_length_and_padding_come() {
    for arguments in [
        &["-tls1_3", "-HTTP"][..],
        &["-tls1_3", "-HTTP", "-record_padding", "1000"],
        &["-tls1_3", "-HTTP", "-split_send_frag", "700"],
        &["-tls1_3", "-HTTP", "-num_tickets", "9"],
        &["-tls1_2", "-HTTP"],
    ] {
        let Some(server) = Server::start(arguments) else { return };
        let object: Vec<u8> = (0..1_000_000_usize).map(|at| (at % 251) as u8).collect();
        std::fs::write(server._dir.path().join("object"), &object).unwrap();
        for direct in [true, false] {
            let session = server.session(direct).await;
            assert_eq!(session.is_direct(), direct && arguments[0] == "-tls1_3");
            let mut stream = crate::http::stream::Stream::Tls(Box::new(session));
            stream.write_all(b"GET /object HTTP/1.0\r\n\r\n").await.unwrap();
            stream.flush().await.unwrap();
            let mut came = Vec::new();
            stream.read_to_end(&mut came).await.unwrap();
            assert!(came == object, "{arguments:?}");
        }
    }
}
