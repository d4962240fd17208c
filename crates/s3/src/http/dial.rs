use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::dns::{DnsCache, Resolve};
use super::stream::Stream;
use super::target::Target;
use super::tls::{RootCerts, Tls, TlsConfigCache, TlsOptions};
use crate::config::Http2;
use crate::error::{Error, ErrorKind, Result};
use crate::http::Connection;
use crate::local_clock::Instant;
#[cfg(feature = "simulate")]
use crate::simulated_machine::SimulatedMachine;

/// The most addresses of one name that are tried for one connection.
const TRIES_MAX: usize = 3;

/// Opens connections.
#[derive(Debug)]
pub struct Dialer {
    dns: DnsCache,
    tls: TlsConfigCache,
    connect_max: Duration,
    http2: Http2,
    #[cfg(feature = "simulate")]
    machine: Option<Arc<dyn SimulatedMachine>>,
}

impl Dialer {
    /// Resolves by `resolver`, accepts `root_certs`, waits `connect_max` for each address.
    /// `direct`: TLS records are ours where they can be.
    pub fn new(
        resolver: Box<dyn Resolve>,
        root_certs: RootCerts,
        connect_max: Duration,
        http2: Http2,
        direct: bool,
    ) -> Self {
        let options = TlsOptions { root_certs, http2: http2 != Http2::Off, direct };
        let tls = TlsConfigCache::new(options, connect_max);
        Dialer {
            dns: DnsCache::new(resolver),
            tls,
            connect_max,
            http2,
            #[cfg(feature = "simulate")]
            machine: None,
        }
    }

    /// Opens connections of this machine, if there is one.
    #[cfg(feature = "simulate")]
    pub fn on_machine(self, machine: Option<Arc<dyn SimulatedMachine>>) -> Self {
        Dialer { machine, ..self }
    }

    /// Whether a connection with `target` may come to speak HTTP/2.
    pub fn may_speak_http2(&self, target: &Target) -> bool {
        match self.http2 {
            Http2::Off => false,
            Http2::Auto => target.tls,
            Http2::PriorKnowledge => true,
        }
    }

    /// Marks the resolved addresses as possibly out of date.
    pub fn invalidate_dns(&self) {
        self.dns.invalidate();
    }

    /// Whether this one does.
    pub fn speaks_http2(&self, target: &Target, stream: &Stream) -> bool {
        stream.chose_http2() || (!target.tls && self.http2 == Http2::PriorKnowledge)
    }

    /// A new connection. Errors with `Io` or `Timeout` when no address answers, `Denied` when its
    /// certificate is not trusted.
    pub async fn connect(&self, target: &Target) -> Result<Stream> {
        #[cfg(feature = "simulate")]
        if let Some(machine) = &self.machine {
            return simulated(machine.as_ref(), target, self.connect_max).await;
        }
        let addresses = self.addresses(target).await?;
        let mut last = no_address(target);
        // A few only: a name may have dozens of addresses that are all down, and each costs
        // `connect_max`.
        for address in addresses.into_iter().take(TRIES_MAX) {
            // Remembered, because another task may refresh the configuration meanwhile: only the
            // one that failed is replaced.
            let used = self.tls_for(target).await?;
            let mut dialed = self.dial(target, address, used.as_deref()).await;
            // The server's certificate may be of a new authority.
            if let Some(used) = &used
                && matches!(&dialed, Ok(Err(e)) if e.kind() == ErrorKind::Denied)
                && self.tls.refresh(used, Instant::now()).await
            {
                let tls = self.tls_for(target).await?;
                dialed = self.dial(target, address, tls.as_deref()).await;
            }
            match dialed {
                Ok(Ok(stream)) => return Ok(stream),
                // Such as a certificate that is not trusted: another address of the same name has
                // the same.
                Ok(Err(e)) if !e.is_retryable() => return Err(e),
                Ok(Err(e)) => last = e,
                Err(_) => last = self.silent(target, address),
            }
            // The next connection starts with another address, and does not wait for this one
            // again.
            self.dns.drop_address(&target.host, target.port, address);
        }
        Err(last)
    }

    /// Whether the name of `target` has an address: errors with `Io` or `Timeout` where it has
    /// none.
    pub async fn resolve(&self, target: &Target) -> Result<()> {
        self.addresses(target).await.map(drop)
    }

    /// Opens a connection that offers all protocols, and closes it.
    pub async fn survey(&self, target: &Target) -> Result<Connection> {
        let addresses = self.addresses(target).await?;
        let address = *addresses.first().ok_or_else(|| no_address(target))?;
        let began = Instant::now();
        let look = async {
            let tcp = socket(target, address).await?;
            match target.tls {
                true => self.offering_all().await?.survey(&target.host, tcp).await.map(Some),
                false => Ok(None),
            }
        };
        let tls = timeout(self.connect_max, look)
            .await
            .unwrap_or_else(|_| Err(self.silent(target, address)))?;
        Ok(Connection { address, addresses: addresses.len(), took: began.elapsed(), tls })
    }

    /// TLS that offers all protocols. The certificates' files may be on a mount that hangs.
    async fn offering_all(&self) -> Result<Tls> {
        let root_certs = self.tls.root_certs().clone();
        let read = move || Tls::offering(&root_certs, &[b"h2", b"http/1.1"]);
        let broke_off =
            |e| Error::new(ErrorKind::Io, "the CA certificates were not read").with_source(e);
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|e| Err(broke_off(e)))
    }

    async fn addresses(&self, target: &Target) -> Result<Vec<SocketAddr>> {
        // No name, so nothing is asked or cached.
        if let Ok(ip) = target.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, target.port)]);
        }
        let found = timeout(self.connect_max, self.dns.addresses(&target.host, target.port)).await;
        match found {
            Ok(found) => found.map_err(|e| {
                let what =
                    format!("the name {} cannot be resolved: check the endpoint", target.host);
                Error::new(ErrorKind::Io, what).with_source(e)
            }),
            Err(_) => Err(Error::new(
                ErrorKind::Timeout,
                format!("the name {} was not resolved in time", target.host),
            )),
        }
    }

    /// The TLS configuration of a new connection with `target`, if it is reached over TLS.
    async fn tls_for(&self, target: &Target) -> Result<Option<Arc<Tls>>> {
        if target.tls { self.tls.tls().await.map(Some) } else { Ok(None) }
    }

    /// One attempt, of `connect_max` at most.
    async fn dial(
        &self,
        target: &Target,
        address: SocketAddr,
        tls: Option<&Tls>,
    ) -> Result<Result<Stream>, Elapsed> {
        let attempt = async {
            let tcp = socket(target, address).await?;
            match tls {
                Some(tls) => tls.connect(&target.host, tcp).await,
                None => Ok(Stream::Plain(tcp)),
            }
        };
        // Socket and handshake together.
        timeout(self.connect_max, attempt).await
    }

    fn silent(&self, target: &Target, address: SocketAddr) -> Error {
        let what = format!(
            "{target} ({address}) did not answer within {} ms",
            self.connect_max.as_millis()
        );
        Error::new(ErrorKind::Timeout, what)
    }
}

/// A connection of a simulated machine.
#[cfg(feature = "simulate")]
async fn simulated(
    machine: &dyn SimulatedMachine,
    target: &Target,
    connect_max: Duration,
) -> Result<Stream> {
    let failed =
        |e| Error::new(ErrorKind::Io, format!("{target} cannot be reached")).with_source(e);
    match timeout(connect_max, machine.connect()).await {
        Ok(connected) => connected.map(Stream::Simulated).map_err(failed),
        Err(_) => Err(Error::new(ErrorKind::Timeout, format!("{target} did not answer in time"))),
    }
}

/// What every connection is made of: requests go out at once, and do not wait for the answers to
/// others.
async fn socket(target: &Target, address: SocketAddr) -> Result<TcpStream> {
    let failed = |e| {
        Error::new(ErrorKind::Io, format!("{target} ({address}) cannot be reached")).with_source(e)
    };
    let tcp = TcpStream::connect(address).await.map_err(failed)?;
    // A request's head and its last piece are small, and Nagle's algorithm would hold them back.
    tcp.set_nodelay(true).map_err(failed)?;
    Ok(tcp)
}

fn no_address(target: &Target) -> Error {
    Error::new(ErrorKind::Io, format!("{} has no address", target.host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_header_names_only_unusual_ports() {
        assert_eq!(Target::new(true, "h", None).authority, "h");
        assert_eq!(Target::new(true, "h", Some(443)).authority, "h");
        assert_eq!(Target::new(false, "h", Some(443)).authority, "h:443");
        assert_eq!(Target::new(false, "::1", Some(9000)).to_string(), "http://[::1]:9000");
    }

    #[tokio::test]
    async fn no_connection_waits_for_more_to_send() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let target = Target::new(false, "127.0.0.1", Some(address.port()));
        let dialer = |http2| {
            let names = Box::new(crate::http::SystemResolver);
            Dialer::new(names, RootCerts::System, Duration::from_secs(600), http2, false)
        };
        assert!(
            !TcpStream::connect(address).await.unwrap().nodelay().unwrap(),
            "it is not so by itself"
        );
        for http2 in [Http2::Off, Http2::PriorKnowledge] {
            let stream = dialer(http2).connect(&target).await.unwrap();
            assert!(stream.tcp().unwrap().nodelay().unwrap());
        }
        for direct in super::super::tls::test_connection_pair::DIRECT {
            assert!(
                super::super::tls::test_connection_pair::dialed(*direct)
                    .await
                    .tcp()
                    .unwrap()
                    .nodelay()
                    .unwrap()
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_survey_of_a_server_that_says_nothing_ends() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target::new(true, "127.0.0.1", Some(listener.local_addr().unwrap().port()));
        let names = Box::new(crate::http::SystemResolver);
        let dialer =
            Dialer::new(names, RootCerts::System, Duration::from_secs(60), Http2::Off, false);
        let found = timeout(Duration::from_secs(600), dialer.survey(&target)).await;
        assert_eq!(
            found.expect("it does not wait for ever").unwrap_err().kind(),
            ErrorKind::Timeout
        );
    }
}
