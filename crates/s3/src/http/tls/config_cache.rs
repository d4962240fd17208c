//! The TLS configuration of now. Certificates change while a process lives: a bundle in a file is
//! read again when it was written, and whatever is trusted when a server is not.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::{RootCerts, Tls};
use crate::error::Result;
use crate::time::Instant;

/// Because of a server that is not trusted, certificates are read again at most this often.
const REREAD_MIN: Duration = Duration::from_secs(10);

/// What connections are made with.
#[derive(Debug)]
pub struct TlsConfigCache {
    root_certs: RootCerts,
    http2: bool,
    direct: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tls: Option<Arc<Tls>>,
    /// When the file that was read was written.
    written: Option<SystemTime>,
    /// When certificates were last read again because of a server.
    reread: Option<Instant>,
}

impl TlsConfigCache {
    /// Nothing is read yet.
    pub fn new(root_certs: RootCerts, http2: bool, direct: bool) -> Self {
        TlsConfigCache { root_certs, http2, direct, state: Mutex::default() }
    }

    /// The configured root certificates.
    pub fn root_certs(&self) -> &RootCerts {
        &self.root_certs
    }

    /// For a new connection. A file that was written since it was read is read again; one that
    /// cannot be read any more, or holds nothing of use, changes nothing.
    ///
    /// # Errors
    ///
    /// `Invalid` when nothing could ever be read.
    pub fn tls(&self) -> Result<Arc<Tls>> {
        let mut state = self.state();
        let written = self.written();
        match &state.tls {
            Some(tls) if written.is_none() || written == state.written => Ok(Arc::clone(tls)),
            Some(tls) => {
                let tls = self.make().unwrap_or_else(|_| Arc::clone(tls));
                (state.tls, state.written) = (Some(Arc::clone(&tls)), written);
                Ok(tls)
            }
            None => {
                let tls = self.make()?;
                (state.tls, state.written) = (Some(Arc::clone(&tls)), written);
                Ok(tls)
            }
        }
    }

    /// A server is not trusted with the configuration `used`: reads certificates again, unless that
    /// was just done. Whether another connection may be trusted now: several connections fail at
    /// once with the same configuration, and the first of them replaces it for all.
    pub fn refresh(&self, used: &Arc<Tls>, now: Instant) -> bool {
        let mut state = self.state();
        if state.tls.as_ref().is_some_and(|tls| !Arc::ptr_eq(tls, used)) {
            return true;
        }
        let is_soon = state.reread.is_some_and(|last| now.duration_since(last) < REREAD_MIN);
        if is_soon || !matches!(self.root_certs, RootCerts::System | RootCerts::PemFile(_)) {
            return false;
        }
        state.reread = Some(now);
        let written = self.written();
        let made = self.make();
        let is_new = made.is_ok();
        if let Ok(tls) = made {
            (state.tls, state.written) = (Some(tls), written);
        }
        is_new
    }

    fn make(&self) -> Result<Arc<Tls>> {
        Tls::new(&self.root_certs, self.http2, self.direct).map(Arc::new)
    }

    fn written(&self) -> Option<SystemTime> {
        let RootCerts::PemFile(path) = &self.root_certs else { return None };
        std::fs::metadata(path).and_then(|file| file.modified()).ok()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle() -> String {
        rcgen::generate_simple_self_signed(vec!["s3.test".into()]).unwrap().cert.pem()
    }

    #[test]
    fn servers_that_are_not_trusted_have_certificates_read_again_now_and_then() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        let current = TlsConfigCache::new(RootCerts::PemFile(path.clone()), false, false);
        let now = Instant::now();
        let error = current.tls().unwrap_err();
        assert!(error.to_string().contains("ca.pem"), "{error}");
        std::fs::write(&path, bundle()).unwrap();
        let first = current.tls().unwrap();
        assert!(Arc::ptr_eq(&first, &current.tls().unwrap()), "read once");
        assert!(current.refresh(&first, now));
        let second = current.tls().unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(current.refresh(&first, now), "another connection that used the first");
        assert!(Arc::ptr_eq(&second, &current.tls().unwrap()), "nothing was read for it");
        assert!(!current.refresh(&second, now + REREAD_MIN / 2), "so soon");
        assert!(current.refresh(&second, now + REREAD_MIN));
        let third = current.tls().unwrap();
        std::fs::write(&path, "nonsense").unwrap();
        assert!(!current.refresh(&third, now + 2 * REREAD_MIN), "there is nothing new");
        assert!(current.tls().is_ok());
        let fixed = TlsConfigCache::new(RootCerts::Pem(bundle().into_bytes()), false, false);
        assert!(!fixed.refresh(&fixed.tls().unwrap(), now));
    }
}
