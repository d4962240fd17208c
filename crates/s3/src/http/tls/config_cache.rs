//! The TLS configuration of now. Certificates change while a process lives: a bundle in a file is
//! read again when it was written, and whatever is trusted when a server is not.
//!
//! Files are looked at on a thread of their own, by one look at a time, which is waited for no longer
//! than `wait_max`: the file may be on a mount that hangs. While a look is under way, other
//! connections use what was read before; a look that hangs lets one other run beside it (see
//! [`CertReadTurns`]). No runtime waits for these threads when it ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::timeout;

use super::cert_read_turns::{CertReadTurn, CertReadTurns};
use super::{RootCerts, Tls};
use crate::error::{Error, ErrorKind, Result};
use crate::local_clock::Instant;

/// Because of a server that is not trusted, certificates are read again at most this often.
const REREAD_MIN: Duration = Duration::from_secs(10);

/// What connections are made with.
#[derive(Debug)]
pub struct TlsConfigCache {
    shared: Arc<Shared>,
    cert_read_turns: CertReadTurns,
    wait_max: Duration,
}

#[derive(Debug)]
struct Shared {
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

/// How TLS connections are made.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// The certificates to accept.
    pub root_certs: RootCerts,
    /// Offer HTTP/2.
    pub http2: bool,
    /// Seal and open records ourselves.
    pub direct: bool,
}

impl TlsConfigCache {
    /// Nothing is read yet. Files are waited for `wait_max`.
    pub fn new(options: TlsOptions, wait_max: Duration) -> Self {
        let TlsOptions { root_certs, http2, direct } = options;
        let shared = Arc::new(Shared { root_certs, http2, direct, state: Mutex::default() });
        TlsConfigCache { shared, cert_read_turns: CertReadTurns::default(), wait_max }
    }

    /// The configured root certificates.
    pub fn root_certs(&self) -> &RootCerts {
        &self.shared.root_certs
    }

    /// For a new connection. A file that was written since it was read is read again; one that
    /// cannot be read any more, or holds nothing of use, changes nothing.
    ///
    /// # Errors
    ///
    /// `Invalid` when nothing could ever be read, `Timeout` when that takes too long.
    pub async fn tls(&self) -> Result<Arc<Tls>> {
        let known = self.shared.state().tls.clone();
        match known {
            // The system's certificates are read again only when a server is not trusted; one file
            // is cheap to look at.
            Some(tls) if !matches!(self.shared.root_certs, RootCerts::PemFile(_)) => Ok(tls),
            None if !self.shared.is_in_files() => self.shared.read(),
            Some(tls) => {
                // Without a wait: the configuration that is there works for nearly all connections.
                let Some(turn) = self.cert_read_turns.try_turn() else { return Ok(tls) };
                let looked = self.blocking(turn, Shared::look).await;
                Ok(looked.and_then(|looked| looked.ok()).unwrap_or(tls))
            }
            None => {
                let first = async {
                    let turn = self.cert_read_turns.turn().await;
                    self.blocking(turn, Shared::look).await
                };
                timeout(self.wait_max, first).await.ok().flatten().unwrap_or_else(|| {
                    let what = "the CA certificates could not be read in time: check the file system that they are on";
                    Err(Error::new(ErrorKind::Timeout, what))
                })
            }
        }
    }

    /// A server is not trusted with the configuration `used`: reads certificates again, unless that
    /// was just done. Whether another connection may be trusted now: several connections fail at
    /// once with the same configuration, and the first of them replaces it for all.
    pub async fn refresh(&self, used: &Arc<Tls>, now: Instant) -> bool {
        if !self.shared.is_in_files() {
            return false;
        }
        let turn = timeout(self.wait_max, self.cert_read_turns.turn()).await;
        let Ok(turn) = turn else { return false };
        {
            let mut state = self.shared.state();
            // Another connection has replaced it since.
            if state.tls.as_ref().is_some_and(|tls| !Arc::ptr_eq(tls, used)) {
                return true;
            }
            if state.reread.is_some_and(|last| now.duration_since(last) < REREAD_MIN) {
                return false;
            }
            // Before the read: one that hangs or fails counts as well.
            state.reread = Some(now);
        }
        self.blocking(turn, |shared| shared.read().is_ok()).await.unwrap_or(false)
    }

    /// Runs `work` where it may block, and waits `wait_max` for it. It keeps its turn to its end.
    async fn blocking<T: Send + 'static>(
        &self,
        turn: CertReadTurn,
        work: impl FnOnce(&Shared) -> T + Send + 'static,
    ) -> Option<T> {
        let shared = Arc::clone(&self.shared);
        let (send, done) = tokio::sync::oneshot::channel();
        let look = move || {
            let done = work(&shared);
            // Before the result is sent: who gets it may take the next turn at once.
            drop(turn);
            drop(send.send(done));
        };
        std::thread::Builder::new().name("s3-ca".into()).spawn(look).ok()?;
        timeout(self.wait_max, done).await.ok()?.ok()
    }
}

impl Shared {
    /// What there is, read again where its file was written.
    fn look(&self) -> Result<Arc<Tls>> {
        let written = self.written();
        let known = {
            let state = self.state();
            let is_current = written.is_none() || written == state.written;
            state.tls.clone().map(|tls| (tls, is_current))
        };
        match known {
            Some((tls, true)) => Ok(tls),
            None => self.read(),
            Some((tls, false)) => Ok(self.read().unwrap_or_else(|_| {
                // It is not read again before it is written again.
                self.state().written = written;
                tls
            })),
        }
    }

    fn read(&self) -> Result<Arc<Tls>> {
        // Before the content: a file that is written in between is read once more, and not never.
        let written = self.written();
        let tls = Arc::new(Tls::new(&self.root_certs, self.http2, self.direct)?);
        let mut state = self.state();
        (state.tls, state.written) = (Some(Arc::clone(&tls)), written);
        Ok(tls)
    }

    fn is_in_files(&self) -> bool {
        matches!(self.root_certs, RootCerts::System | RootCerts::PemFile(_))
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
    use crate::http::tls::cert_read_turns::HANGS_AFTER;

    fn bundle() -> String {
        rcgen::generate_simple_self_signed(vec!["s3.test".into()]).unwrap().cert.pem()
    }

    fn cache(root_certs: RootCerts, wait_max: Duration) -> TlsConfigCache {
        TlsConfigCache::new(TlsOptions { root_certs, http2: false, direct: false }, wait_max)
    }

    /// A file system that hangs, as a FIFO without a writer does.
    #[tokio::test]
    async fn a_bundle_that_cannot_be_read_in_time_holds_up_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        let wait_max = Duration::from_millis(50);
        let hanging = |path: &std::path::Path| {
            assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
        };
        hanging(&path);
        let never_read = cache(RootCerts::PemFile(path.clone()), wait_max);
        for _ in 0..2 {
            assert_eq!(never_read.tls().await.unwrap_err().kind(), ErrorKind::Timeout);
        }
        // The thread that reads it goes on, and ends.
        drop(std::fs::OpenOptions::new().write(true).open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, bundle()).unwrap();
        let patient = Duration::from_secs(600);
        let current = cache(RootCerts::PemFile(path.clone()), patient);
        let first = current.tls().await.unwrap();
        let current = TlsConfigCache { wait_max, ..current };
        std::fs::remove_file(&path).unwrap();
        hanging(&path);
        for _ in 0..5 {
            assert!(Arc::ptr_eq(&first, &current.tls().await.unwrap()), "what was read before");
        }
        assert!(!current.refresh(&first, Instant::now()).await, "a look is under way");
        drop(std::fs::OpenOptions::new().write(true).open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, bundle()).unwrap();
        let current = TlsConfigCache { wait_max: patient, ..current };
        assert!(current.refresh(&first, Instant::now()).await, "the look has ended");
        assert!(!Arc::ptr_eq(&first, &current.tls().await.unwrap()));
    }

    /// A mount that hangs for ever, below a path that leads to a readable bundle later.
    #[tokio::test]
    async fn a_look_that_hangs_does_not_keep_later_ones_away() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let current = cache(RootCerts::PemFile(path.clone()), Duration::from_millis(50));
        assert_eq!(current.tls().await.unwrap_err().kind(), ErrorKind::Timeout);
        // This waits until the thread has opened the FIFO. It hangs until the writer is dropped.
        let writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, bundle()).unwrap();
        assert_eq!(current.tls().await.unwrap_err().kind(), ErrorKind::Timeout, "so soon");
        let current = TlsConfigCache { wait_max: Duration::from_secs(600), ..current };
        tokio::time::pause();
        tokio::time::advance(HANGS_AFTER).await;
        tokio::time::resume();
        let first = current.tls().await.unwrap();
        assert!(current.refresh(&first, Instant::now()).await, "by the same spare turn");
        drop(writer);
    }

    #[tokio::test]
    async fn servers_that_are_not_trusted_have_certificates_read_again_now_and_then() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        let patient = Duration::from_secs(600);
        let current = cache(RootCerts::PemFile(path.clone()), patient);
        let now = Instant::now();
        let error = current.tls().await.unwrap_err();
        assert!(error.to_string().contains("ca.pem"), "{error}");
        std::fs::write(&path, bundle()).unwrap();
        let first = current.tls().await.unwrap();
        assert!(Arc::ptr_eq(&first, &current.tls().await.unwrap()), "read once");
        assert!(current.refresh(&first, now).await);
        let second = current.tls().await.unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(current.refresh(&first, now).await, "another connection that used the first");
        assert!(Arc::ptr_eq(&second, &current.tls().await.unwrap()), "nothing was read for it");
        assert!(!current.refresh(&second, now + REREAD_MIN / 2).await, "so soon");
        assert!(current.refresh(&second, now + REREAD_MIN).await);
        let third = current.tls().await.unwrap();
        std::fs::write(&path, "nonsense").unwrap();
        assert!(!current.refresh(&third, now + 2 * REREAD_MIN).await, "there is nothing new");
        assert!(current.tls().await.is_ok());
        let fixed = cache(RootCerts::Pem(bundle().into_bytes()), patient);
        assert!(!fixed.refresh(&fixed.tls().await.unwrap(), now).await);
    }
}
