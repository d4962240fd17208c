//! A small HTTP server that answers as a test says: STS, a container's agent, instance metadata.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// One request as it came.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub method: String,
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    fn read(from: &mut BufReader<TcpStream>) -> Option<Self> {
        let mut line = String::new();
        from.read_line(&mut line).ok().filter(|len| *len > 0)?;
        let mut words = line.split(' ').map(str::to_owned);
        let mut asked = Asked { method: words.next()?, path: words.next()?, ..Asked::default() };
        loop {
            let mut line = String::new();
            from.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            asked.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut body =
            vec![0; asked.header("content-length").and_then(|len| len.parse().ok()).unwrap_or(0)];
        from.read_exact(&mut body).ok()?;
        asked.body = String::from_utf8(body).ok()?;
        Some(asked)
    }
}

/// What it says: status and body, and how often it was asked before.
type Answer = dyn Fn(&Asked, usize) -> (u16, String) + Send + Sync;

pub struct Fake {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Fake {
    pub fn start(answer: impl Fn(&Asked, usize) -> (u16, String) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let asked = Arc::default();
        let address = listener.local_addr().unwrap();
        let answer: Arc<Answer> = Arc::new(answer);
        let seen = Arc::clone(&asked);
        // It ends with the process.
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let answer = Arc::clone(&answer);
                let seen = Arc::clone(&seen);
                std::thread::spawn(move || converse(socket, &*answer, &seen));
            }
        });
        Fake { address, asked }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn converse(socket: TcpStream, answer: &Answer, seen: &Mutex<Vec<Asked>>) -> Option<()> {
    let mut from = BufReader::new(socket.try_clone().ok()?);
    let mut to = socket;
    while let Some(asked) = Asked::read(&mut from) {
        let before = {
            let mut seen = seen.lock().unwrap();
            seen.push(asked.clone());
            seen.len() - 1
        };
        let (status, body) = answer(&asked, before);
        let kind = if body.starts_with('<') { "text/xml" } else { "application/json" };
        let ttl = "x-aws-ec2-metadata-token-ttl-seconds: 21600";
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{ttl}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        to.write_all((head + &body).as_bytes()).ok()?;
    }
    None
}
