use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::error::{Error, ErrorKind, Result};

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
        self.config().map(drop)
    }

    /// The settings of rustls with these certificates.
    pub(super) fn config(&self) -> Result<ClientConfig> {
        let roots = match self {
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
    use super::*;

    #[test]
    fn a_bundle_without_certificates_is_refused() {
        for pem in
            ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
        {
            assert_eq!(RootCerts::Pem(pem.into()).check().unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}
