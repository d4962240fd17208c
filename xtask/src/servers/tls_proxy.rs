//! haproxy before a server, for what none of them speaks by itself: TLS with a CA of ours, and
//! HTTP/2.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::process::{await_that, ports, spawn};
use super::{Access, DOMAIN, packages, quiet};
use crate::sh::Cmd;

/// How the tests reach a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As it is.
    Plain,
    /// HTTP/1.1 over TLS.
    Tls,
    /// HTTP/2 over TLS.
    Http2,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 3] = [Way::Plain, Way::Tls, Way::Http2];

    /// What a client must know to take it to a server that `access` names.
    pub fn through(self, front: &TlsProxy, access: &Access) -> Access {
        let mut access = access.clone();
        if self == Way::Plain {
            return access;
        }
        access.retain(|(name, _)| *name != "S3_ENDPOINT");
        access.push(("S3_ENDPOINT", format!("https://127.0.0.1:{}", front.port)));
        access.push(("S3_CA", front.ca.clone()));
        access.push(("S3_HTTP2", if self == Way::Http2 { "auto" } else { "off" }.into()));
        access
    }
}

/// A running haproxy. It ends with the server whose directory it has.
#[derive(Debug)]
pub struct TlsProxy {
    port: u16,
    ca: String,
}

impl TlsProxy {
    /// Why there can be none here, if so.
    pub fn lacks() -> Result<Option<String>> {
        packages::debian(&["haproxy", "openssl"], &["haproxy", "openssl"])
    }

    /// One before the server that `access` names.
    pub fn start(dir: &Path, access: &Access) -> Result<TlsProxy> {
        let url =
            access.iter().find(|(name, _)| *name == "S3_ENDPOINT").map(|(_, url)| url.as_str());
        let server =
            url.and_then(|url| url.strip_prefix("http://")).context("a server on plain HTTP")?;
        certify(dir).context("no certificate")?;
        let [port] = ports()?;
        let config = dir.join("haproxy.cfg");
        let both = dir.join("both.pem");
        fs::write(
            &both,
            [fs::read(dir.join("leaf.pem"))?, fs::read(dir.join("leaf.key"))?].concat(),
        )?;
        // No connection to the server is used twice: some servers answer early and leave one that
        // hangs.
        let text = format!(
            "global\n  nbthread 1\n  tune.h2.initial-window-size 1048576\n\
             defaults\n  mode http\n  http-reuse never\n  timeout connect 30s\n  timeout client 60s\n  timeout server 60s\n\
             frontend f\n  bind 127.0.0.1:{port} ssl crt {} alpn h2,http/1.1\n  default_backend b\n\
             backend b\n  server s {server}\n",
            both.display()
        );
        fs::write(&config, text)?;
        let mut child =
            spawn(dir, "haproxy", Command::new("haproxy").arg("-db").arg("-f").arg(&config))?;
        await_that(&mut child, dir, || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        Ok(TlsProxy { port, ca: dir.join("ca.pem").to_string_lossy().into_owned() })
    }
}

/// Makes a CA and a certificate that it signed.
fn certify(dir: &Path) -> Result<()> {
    let at = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2".split(' ');
    let ca = Cmd::new("openssl req -x509 -subj /CN=kvtier-tests").args(key.clone());
    quiet(&ca.args(["-keyout", &at("ca.key"), "-out", &at("ca.pem")]))?;
    let asked = Cmd::new("openssl req -subj /CN=localhost").args(key);
    quiet(&asked.args(["-keyout", &at("leaf.key"), "-out", &at("leaf.csr")]))?;
    fs::write(
        dir.join("names"),
        format!("subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:*.{DOMAIN}\n"),
    )?;
    let signed = Cmd::new("openssl x509 -req -days 2 -CAcreateserial").args([
        "-CA",
        &at("ca.pem"),
        "-CAkey",
    ]);
    let signed = signed.arg(at("ca.key")).args([
        "-in",
        &at("leaf.csr"),
        "-out",
        &at("leaf.pem"),
        "-extfile",
    ]);
    quiet(&signed.arg(at("names"))).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_changes_only_how_the_server_is_reached() {
        let front = TlsProxy { port: 8443, ca: "/ca.pem".into() };
        let access = vec![("S3_ENDPOINT", "http://127.0.0.1:80".into()), ("S3_BUCKET", "b".into())];
        assert_eq!(Way::Plain.through(&front, &access), access);
        let changed = Way::Http2.through(&front, &access);
        let of = |name| {
            changed.iter().find(|(other, _)| *other == name).map(|(_, value)| value.as_str())
        };
        assert_eq!(
            (of("S3_ENDPOINT"), of("S3_BUCKET")),
            (Some("https://127.0.0.1:8443"), Some("b"))
        );
        assert_eq!(
            (of("S3_CA"), of("S3_HTTP2"), changed.len()),
            (Some("/ca.pem"), Some("auto"), 4)
        );
    }
}
