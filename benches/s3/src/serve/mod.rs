//! A server that is never the bottleneck: one thread, objects of any length out of one memory file, bodies that it forgets.

mod ask;
mod http2;
mod stream;

use std::fmt::Write;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use self::ask::{Ask, Body, REST, Reply};
use self::stream::{Objects, Stream};

/// Heads and pieces of bodies are read into so much memory.
const BUFFER_BYTES: usize = 256 * 1024;
const HEADERS_MAX: usize = 64;

/// Serves until standard input ends. Each request is answered after `latency`.
pub fn run(certificate: &Path, latency: Duration) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let objects = Rc::new(Objects::new()?);
    let [one, two] = acceptors(certificate)?;
    LocalSet::new().block_on(&runtime, async {
        let mut ports = serde_json::Map::new();
        let doors = [("http", None, false), ("https", Some(one), false), ("h2c", None, true), ("h2", Some(two), true)];
        for (scheme, tls, http2) in doors {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            ports.insert(scheme.into(), listener.local_addr()?.port().into());
            tokio::task::spawn_local(accept(listener, Door { tls, http2, latency, objects: Rc::clone(&objects) }));
        }
        println!("{}", serde_json::Value::Object(ports));
        tokio::task::spawn_blocking(|| drop(std::io::stdin().read_to_end(&mut Vec::new()))).await?;
        Ok(())
    })
}

/// What a listener serves.
#[derive(Clone)]
struct Door {
    tls: Option<TlsAcceptor>,
    http2: bool,
    latency: Duration,
    objects: Rc<Objects>,
}

/// One that offers HTTP/1.1, and one that offers HTTP/2: what a client speaks is never a question of its taste.
fn acceptors(certificate: &Path) -> Result<[TlsAcceptor; 2]> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into(), "127.0.0.1".into()])?;
    fs::write(certificate, made.cert.pem()).with_context(|| format!("cannot write {}", certificate.display()))?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let config = ServerConfig::builder().with_no_client_auth();
    let one = config.with_single_cert(vec![made.cert.der().clone()], key)?;
    let offering = |protocol: &[u8]| {
        let mut config = one.clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        TlsAcceptor::from(Arc::new(config))
    };
    Ok([offering(b"http/1.1"), offering(b"h2")])
}

async fn accept(listener: TcpListener, door: Door) {
    while let Ok((tcp, _)) = listener.accept().await {
        let door = door.clone();
        tokio::task::spawn_local(async move {
            // A client that goes away is no news; one that asks nonsense shall be seen.
            if let Err(e) = serve(tcp, door).await
                && !e.is::<std::io::Error>()
                && !e.is::<h2::Error>()
            {
                eprintln!("server: {e:#}");
            }
        });
    }
}

async fn serve(tcp: TcpStream, door: Door) -> Result<()> {
    tcp.set_nodelay(true)?;
    let Some(tls) = door.tls else {
        return match door.http2 {
            true => http2::serve(tcp, &door.objects, door.latency).await,
            false => http1(Stream::Plain(tcp), &door.objects, door.latency).await,
        };
    };
    let tls = tls.accept(tcp).await?;
    match (door.http2, tls.get_ref().1.alpn_protocol()) {
        (false, _) => http1(Stream::Tls(Box::new(tls)), &door.objects, door.latency).await,
        (true, Some(b"h2")) => http2::serve(tls, &door.objects, door.latency).await,
        (true, _) => bail!("a client did not ask for HTTP/2"),
    }
}

async fn http1(mut stream: Stream, objects: &Objects, latency: Duration) -> Result<()> {
    let (mut buffer, mut filled) = (vec![0; BUFFER_BYTES], 0);
    loop {
        let Some((ask, len)) = parse(&buffer[..filled])? else {
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
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        let reply = ask.reply(objects)?;
        let mut head = head_of(&reply)?;
        match reply.body {
            Body::Object(first) => stream.object(head.as_bytes(), objects, first..first + reply.length).await?,
            Body::Text(text) => {
                head.push_str(text);
                stream.write(head.as_bytes()).await?;
            }
        }
    }
}

/// A whole head, and its length.
fn parse(bytes: &[u8]) -> Result<Option<(Ask, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(len) = request.parse(bytes)? else { return Ok(None) };
    let mut ask = Ask::new(request.method.unwrap_or_default(), request.path.unwrap_or_default())?;
    for header in request.headers.iter() {
        ask.header(header.name, header.value)?;
    }
    Ok(Some((ask, len)))
}

fn head_of(reply: &Reply) -> Result<String> {
    let mut head = String::with_capacity(512);
    write!(head, "HTTP/1.1 {} OK\r\ncontent-length: {}\r\n", reply.status, reply.length)?;
    if let Some(part) = &reply.part {
        write!(head, "content-range: {part}\r\n")?;
    }
    for (name, value) in &reply.meta {
        write!(head, "{name}: {value}\r\n")?;
    }
    for (name, value) in REST {
        write!(head, "{name}: {value}\r\n")?;
    }
    head.push_str("\r\n");
    Ok(head)
}
