//! A server that is never the bottleneck: one thread, objects of any length out of one memory file, bodies that it forgets.

mod stream;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use self::stream::{Objects, Stream};

/// Heads and pieces of bodies are read into so much memory.
const BUFFER_BYTES: usize = 256 * 1024;
const HEADERS_MAX: usize = 64;

/// Serves until standard input ends.
pub fn run(certificate: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let objects = Rc::new(Objects::new()?);
    let acceptor = acceptor(certificate)?;
    LocalSet::new().block_on(&runtime, async {
        let plain = TcpListener::bind("127.0.0.1:0").await?;
        let secure = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", json!({ "plain": plain.local_addr()?.port(), "tls": secure.local_addr()?.port() }));
        tokio::task::spawn_local(accept(plain, None, Rc::clone(&objects)));
        tokio::task::spawn_local(accept(secure, Some(acceptor), objects));
        tokio::task::spawn_blocking(|| drop(std::io::stdin().read_to_end(&mut Vec::new()))).await?;
        Ok(())
    })
}

fn acceptor(certificate: &Path) -> Result<TlsAcceptor> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into(), "127.0.0.1".into()])?;
    fs::write(certificate, made.cert.pem()).with_context(|| format!("cannot write {}", certificate.display()))?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let config = ServerConfig::builder().with_no_client_auth();
    let mut config = config.with_single_cert(vec![made.cert.der().clone()], key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, objects: Rc<Objects>) {
    while let Ok((tcp, _)) = listener.accept().await {
        let (tls, objects) = (tls.clone(), Rc::clone(&objects));
        tokio::task::spawn_local(async move {
            // A client that goes away is no news; one that asks nonsense shall be seen.
            if let Err(e) = serve(tcp, tls, &objects).await
                && !e.is::<std::io::Error>()
            {
                eprintln!("server: {e:#}");
            }
        });
    }
}

async fn serve(tcp: TcpStream, tls: Option<TlsAcceptor>, objects: &Objects) -> Result<()> {
    tcp.set_nodelay(true)?;
    let mut stream = match tls {
        Some(tls) => Stream::Tls(Box::new(tls.accept(tcp).await?)),
        None => Stream::Plain(tcp),
    };
    let (mut buffer, mut filled) = (vec![0; BUFFER_BYTES], 0);
    loop {
        let Some((ask, len)) = Ask::parse(&buffer[..filled])? else {
            match stream.read(&mut buffer[filled..]).await? {
                0 => return Ok(()),
                got => filled += got,
            }
            continue;
        };
        if ask.expects {
            stream.write(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let here = ask.body.min(filled - len);
        buffer.copy_within(len + here..filled, 0);
        filled -= len + here;
        let mut left = ask.body - here;
        while left > 0 {
            // The client waits for our answer: nothing comes behind the body.
            match stream.read(&mut buffer[..left.min(BUFFER_BYTES)]).await? {
                0 => return Ok(()),
                got => left -= got,
            }
        }
        answer(&mut stream, &ask, objects).await?;
    }
}

/// What a request asks for.
struct Ask {
    method: Method,
    /// Bytes of the object, from its name.
    size: usize,
    range: Option<(usize, usize)>,
    /// Bytes of the request's body.
    body: usize,
    expects: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    Get,
    Head,
    Put,
}

impl Ask {
    /// Of a whole head, and its length.
    fn parse(bytes: &[u8]) -> Result<Option<(Ask, usize)>> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let httparse::Status::Complete(len) = request.parse(bytes)? else { return Ok(None) };
        let method = match request.method {
            Some("GET") => Method::Get,
            Some("HEAD") => Method::Head,
            Some("PUT") => Method::Put,
            other => bail!("no method {other:?}"),
        };
        let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
        let size = path.rsplit('/').nth(1).and_then(|size| size.parse().ok());
        let mut ask = Ask {
            method,
            size: size.with_context(|| format!("no object {path}"))?,
            range: None,
            body: 0,
            expects: false,
        };
        for header in request.headers.iter() {
            let value = std::str::from_utf8(header.value)?;
            match header.name.to_ascii_lowercase().as_str() {
                "content-length" => ask.body = value.parse()?,
                "expect" => ask.expects = true,
                "transfer-encoding" => bail!("a body in chunks"),
                "range" => ask.range = Some(range(value).with_context(|| format!("no range {value}"))?),
                _ => {}
            }
        }
        ensure!(ask.size <= crate::bytes::BYTES_MAX, "too long an object");
        Ok(Some((ask, len)))
    }
}

fn range(value: &str) -> Option<(usize, usize)> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

async fn answer(stream: &mut Stream, ask: &Ask, objects: &Objects) -> Result<()> {
    const REST: &str = "etag: \"0123456789abcdef0123456789abcdef\"\r\nlast-modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n\
        date: Sat, 21 Nov 2026 00:00:00 GMT\r\nx-amz-request-id: BENCH\r\n\r\n";
    if ask.method == Method::Put {
        return stream.write(format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{REST}").as_bytes()).await;
    }
    let (first, last) = ask.range.unwrap_or((0, ask.size - 1));
    ensure!(first <= last && last < ask.size, "a range outside the object");
    let (status, ranged) = match ask.range {
        Some(_) => ("206 Partial Content", format!("content-range: bytes {first}-{last}/{}\r\n", ask.size)),
        None => ("200 OK", String::new()),
    };
    let len = last + 1 - first;
    let kind = "content-type: application/octet-stream\r\naccept-ranges: bytes\r\n";
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {len}\r\n{ranged}{kind}{REST}");
    match ask.method {
        Method::Head => stream.write(head.as_bytes()).await,
        _ => stream.object(head.as_bytes(), objects, first..first + len).await,
    }
}
