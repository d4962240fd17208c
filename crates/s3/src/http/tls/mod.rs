//! TLS by rustls, over buffers of this crate.

mod buffers;
mod config_cache;
#[cfg(feature = "tls-direct")]
mod direct_records;
mod look_turns;
#[cfg(feature = "tls-direct")]
mod record;
mod rustls_records;
#[cfg(test)]
pub mod test_connection_pair;
mod tls_stream;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;

pub use self::config_cache::{TlsConfigCache, TlsOptions};
#[cfg(all(any(fuzzing, clippy), feature = "tls-direct"))]
pub use self::direct_records::test_server::play as fuzz_records;
pub use self::tls_stream::TlsStream;
use super::stream::Stream;
use crate::error::{Error, ErrorKind, Result};
use crate::probe::Secured;

/// The certificate authorities that TLS accepts.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum RootCerts {
    /// The certificates of the operating system.
    #[default]
    System,
    /// The certificates in this PEM text, and no others.
    Pem(Vec<u8>),
    /// The certificates in this file of PEM text, and no others. It is read again when it was
    /// written, and when a server is not trusted.
    PemFile(PathBuf),
    /// A whole configuration of rustls, with a provider of your own.
    Custom(Arc<ClientConfig>),
}

impl RootCerts {
    /// Reads the certificates, as the first connection does.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] when they cannot be read, are not PEM, or are none.
    pub fn check(&self) -> Result<()> {
        Tls::config(self).map(drop)
    }
}

/// Makes TLS connections; sessions are resumed.
pub struct Tls {
    config: Arc<ClientConfig>,
    direct: bool,
}

impl Tls {
    /// `direct`: records are sealed and opened by us, where that can be. Errors with `Invalid` when
    /// a provider of the caller's own gives no keys away.
    pub fn new(root_certs: &RootCerts, http2: bool, direct: bool) -> Result<Self> {
        let mut tls = match root_certs {
            _ if http2 => Self::offering(root_certs, &[b"h2", b"http/1.1"])?,
            RootCerts::Custom(config) => Tls { config: Arc::clone(config), direct: false },
            _ => Self::offering(root_certs, &[b"http/1.1"])?,
        };
        if direct {
            #[cfg(feature = "tls-direct")]
            if !direct_records::KernelSecrets::is_open(&tls.config.crypto_provider().cipher_suites)
            {
                let what = "the TLS provider gives no keys away: set tls_direct to false, or take another provider";
                return Err(Error::new(ErrorKind::Invalid, what));
            }
            // rustls exports its keys only from connections whose configuration allows it.
            Arc::make_mut(&mut tls.config).enable_secret_extraction = true;
            tls.direct = true;
        }
        Ok(tls)
    }

    /// With these protocols to choose from, whatever a configuration of the caller's own says.
    pub fn offering(root_certs: &RootCerts, protocols: &[&[u8]]) -> Result<Self> {
        let mut config = Self::config(root_certs)?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(Tls { config: Arc::new(config), direct: false })
    }

    fn config(root_certs: &RootCerts) -> Result<ClientConfig> {
        let roots = match root_certs {
            RootCerts::Custom(config) => return Ok(ClientConfig::clone(config)),
            RootCerts::System => system_roots()?,
            RootCerts::Pem(pem) => pem_roots(pem)?,
            RootCerts::PemFile(path) => file_roots(path)?,
        };
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config
            .map_err(|e| Error::new(ErrorKind::Invalid, "TLS cannot be set up").with_source(e))?;
        Ok(config.with_root_certificates(roots).with_no_client_auth())
    }

    /// A connection with `host` over `tcp`.
    pub async fn connect(&self, host: &str, tcp: TcpStream) -> Result<Stream> {
        Ok(Stream::Tls(Box::new(self.handshake(host, tcp).await?)))
    }

    /// What a handshake with `host` over `tcp` agrees on.
    pub async fn survey(&self, host: &str, tcp: TcpStream) -> Result<Secured> {
        let negotiated = self.handshake(host, tcp).await?.negotiated;
        let text = |name: Option<String>| name.unwrap_or_else(|| "unknown".into());
        Ok(Secured {
            version: text(negotiated.version.map(|version| format!("{version:?}"))),
            suite: text(negotiated.suite.map(|suite| format!("{suite:?}"))),
            alpn: negotiated.alpn.map(|name| String::from_utf8_lossy(&name).into_owned()),
        })
    }

    async fn handshake(&self, host: &str, tcp: TcpStream) -> Result<TlsStream> {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|e| {
            Error::new(ErrorKind::Invalid, format!("{host} is no name for TLS")).with_source(e)
        })?;
        let handshake = TlsStream::connect(Arc::clone(&self.config), name, tcp).await;
        let handshake =
            if self.direct { handshake.and_then(TlsStream::go_direct) } else { handshake };
        handshake.map_err(|e| {
            let certificate = e.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
            // Not retried on another address, which has the same certificate; but the CA bundle may
            // have changed.
            let distrust = matches!(certificate, Some(rustls::Error::InvalidCertificate(_)));
            let (kind, advice) = match distrust {
                true => (ErrorKind::Denied, ": set the CA bundle that signed its certificate"),
                false => (ErrorKind::Io, ""),
            };
            Error::new(kind, format!("TLS with {host} failed{advice}")).with_source(e)
        })
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

fn system_roots() -> Result<RootCertStore> {
    // Certificates that cannot be parsed are skipped: systems ship some that no verifier takes.
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    match added {
        0 => Err(Error::new(
            ErrorKind::Invalid,
            "the system has no CA certificates: install them or set a CA bundle",
        )),
        _ => Ok(roots),
    }
}

fn file_roots(path: &Path) -> Result<RootCertStore> {
    let failed = |what: &str| format!("the CA bundle {} {what}", path.display());
    let pem = std::fs::read(path).map_err(|e| {
        Error::new(ErrorKind::Invalid, failed("cannot be read: check its path")).with_source(e)
    })?;
    pem_roots(&pem)
        .map_err(|e| Error::new(ErrorKind::Invalid, failed("is of no use")).with_source(e))
}

fn pem_roots(pem: &[u8]) -> Result<RootCertStore> {
    let broken = |e: Box<dyn std::error::Error + Send + Sync>| {
        Error::new(ErrorKind::Invalid, "the CA bundle is not a PEM file of certificates")
            .with_source(e)
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|e| broken(e.into()))?;
        roots.add(certificate).map_err(|e| broken(e.into()))?;
    }
    match roots.is_empty() {
        true => Err(Error::new(ErrorKind::Invalid, "the CA bundle holds no certificate")),
        false => Ok(roots),
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "tls-direct")]
    use rustls::crypto::cipher::{
        AeadKey, Iv, MessageDecrypter, MessageEncrypter, Tls13AeadAlgorithm,
        UnsupportedOperationError,
    };
    #[cfg(feature = "tls-direct")]
    use rustls::{
        ConnectionTrafficSecrets, SupportedCipherSuite, Tls13CipherSuite, crypto::CipherSuiteCommon,
    };

    use super::*;

    #[test]
    fn a_bundle_without_certificates_is_refused() {
        for pem in
            ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
        {
            assert_eq!(
                Tls::new(&RootCerts::Pem(pem.into()), false, false).unwrap_err().kind(),
                ErrorKind::Invalid
            );
        }
    }

    /// Records of a provider that gives no keys away.
    #[cfg(feature = "tls-direct")]
    struct Shut(&'static dyn Tls13AeadAlgorithm);

    #[cfg(feature = "tls-direct")]
    impl Tls13AeadAlgorithm for Shut {
        fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
            self.0.encrypter(key, iv)
        }
        fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
            self.0.decrypter(key, iv)
        }
        fn key_len(&self) -> usize {
            self.0.key_len()
        }
        fn extract_keys(
            &self,
            _: AeadKey,
            _: Iv,
        ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
            Err(UnsupportedOperationError)
        }
    }

    #[cfg(feature = "tls-direct")]
    #[test]
    fn a_provider_that_gives_no_keys_away_is_refused_before_it_is_used() {
        let open = rustls::crypto::aws_lc_rs::default_provider();
        let mut shut = open.clone();
        for suite in &mut shut.cipher_suites {
            let SupportedCipherSuite::Tls13(of) = *suite else { continue };
            let CipherSuiteCommon { suite: name, hash_provider, confidentiality_limit } = of.common;
            *suite = SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
                common: CipherSuiteCommon { suite: name, hash_provider, confidentiality_limit },
                hkdf_provider: of.hkdf_provider,
                aead_alg: Box::leak(Box::new(Shut(of.aead_alg))),
                quic: None,
            })));
        }
        for (provider, direct, refused) in
            [(&open, true, false), (&shut, true, true), (&shut, false, false)]
        {
            let config = ClientConfig::builder_with_provider(Arc::new(provider.clone()));
            let config = config.with_safe_default_protocol_versions().unwrap();
            let config =
                config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
            let made = Tls::new(&RootCerts::Custom(Arc::new(config)), false, direct);
            assert_eq!(
                made.err().map(|e| e.kind()),
                refused.then_some(ErrorKind::Invalid),
                "{direct}"
            );
        }
    }
}
