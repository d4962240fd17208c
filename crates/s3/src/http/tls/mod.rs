//! TLS by rustls, over buffers of this crate.

mod buffers;
mod cert_read_turns;
mod config_cache;
#[cfg(feature = "tls-direct")]
mod direct_records;
#[cfg(feature = "tls-direct")]
mod record;
mod root_certs;
mod rustls_records;
#[cfg(test)]
pub mod test_connection_pair;
mod tls_stream;
mod wire;

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;

pub use self::config_cache::{TlsConfigCache, TlsOptions};
#[cfg(all(any(fuzzing, clippy), feature = "tls-direct"))]
pub use self::direct_records::test_server::play as fuzz_records;
pub use self::root_certs::RootCerts;
pub use self::tls_stream::TlsStream;
use super::stream::Stream;
use crate::error::{Error, ErrorKind, Result};
use crate::http::Secured;

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
        let mut config = root_certs.config()?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(Tls { config: Arc::new(config), direct: false })
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

#[cfg(all(test, feature = "tls-direct"))]
mod tests {
    use rustls::crypto::cipher::{
        AeadKey, Iv, MessageDecrypter, MessageEncrypter, Tls13AeadAlgorithm,
        UnsupportedOperationError,
    };
    use rustls::{
        ConnectionTrafficSecrets, SupportedCipherSuite, Tls13CipherSuite, crypto::CipherSuiteCommon,
    };

    use rustls::RootCertStore;

    use super::*;

    /// Records of a provider that gives no keys away.
    struct Shut(&'static dyn Tls13AeadAlgorithm);

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
