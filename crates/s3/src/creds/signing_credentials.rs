//! The credentials that sign a request now: the base credentials, or on S3 Express a session
//! created with them.

use std::sync::Arc;
use std::time::Duration;

use zeroize::Zeroizing;

use crate::client::Inner;
use crate::creds::Credentials;
use crate::creds::cache::{Cached, CredentialCache, Fetch, FetchTurn};
use crate::error::{Error, ErrorKind, Result};
use crate::request::{Request, Signer};
use crate::response_check;
use crate::retry::AttemptError;
use crate::time_formats::iso;
use crate::xml;

/// The longest time that a fetch of credentials may take.
const FETCH_MAX: Duration = Duration::from_secs(10);
const SESSION_BYTES_MAX: usize = 64 * 1024;

impl Inner {
    /// The credentials to sign a request with.
    pub async fn identity(self: &Arc<Self>, signer: Signer) -> Result<Credentials> {
        let session = self.is_session(signer);
        let cache = self.credential_cache(session);
        let credentials = self.cached_or_fetched(session).await?;
        // After the fetch, not before: new credentials end the pause.
        cache.admit()?;
        Ok(credentials)
    }

    async fn cached_or_fetched(self: &Arc<Self>, session: bool) -> Result<Credentials> {
        match self.credential_cache(session).get(self.clock.server()) {
            Cached::Valid(credentials) => Ok(credentials),
            Cached::RefreshDue(credentials) => {
                let inner = Arc::clone(self);
                // In a task of its own: the caller's request goes on, and its deadline does not end
                // the renewal.
                tokio::spawn(async move {
                    let result = inner.fetch(session).await;
                    inner.credential_cache(session).finish_refresh(inner.clock.server(), result);
                });
                Ok(credentials)
            }
            Cached::Empty => self.first(session).await,
        }
    }

    /// Fetches, or waits for the caller that does. The fetch continues when this caller is out of
    /// time, since the next one needs the result too.
    async fn first(self: &Arc<Self>, session: bool) -> Result<Credentials> {
        let guard = match self.credential_cache(session).fetch_turn(|| self.clock.server()).await? {
            FetchTurn::Use(credentials) => return Ok(credentials),
            FetchTurn::Fetch(guard) => guard,
        };
        let inner = Arc::clone(self);
        // The guard moves into the task, so a caller that gives up does not let a second fetch
        // begin.
        let fetch = tokio::spawn(async move {
            let result = inner.fetch(session).await;
            inner.credential_cache(session).finish_fetch(inner.clock.server(), &result, guard);
            result
        });
        let ended =
            |e| Error::new(ErrorKind::Io, "the source of credentials broke off").with_source(e);
        fetch.await.unwrap_or_else(|e| Err(ended(e)))
    }

    /// Drops what the store called expired.
    pub fn forget(&self, refused: &Credentials, signer: Signer, refusal: &Error) {
        self.credential_cache(self.is_session(signer)).forget(refused, refusal);
    }

    /// The store refused what they signed, and others would not help.
    pub fn note_refused(&self, refused: &Credentials, signer: Signer, refusal: &Error) {
        self.credential_cache(self.is_session(signer)).note_refused(refused, refusal);
    }

    /// A request with these credentials was a success.
    pub fn note_worked(&self, credentials: &Credentials, signer: Signer) {
        self.credential_cache(self.is_session(signer)).note_worked(credentials);
    }

    fn is_session(&self, signer: Signer) -> bool {
        signer == Signer::Data && self.config.endpoint.service() == "s3express"
    }

    fn credential_cache(&self, session: bool) -> &CredentialCache {
        if session { &self.session } else { &self.base }
    }

    /// Boxed, since a session is made by a request that itself needs an identity.
    fn fetch(self: &Arc<Self>, session: bool) -> Fetch {
        let inner = Arc::clone(self);
        Box::pin(async move {
            let work = async {
                if session {
                    inner.create_session().await
                } else {
                    inner.config.credentials.provide().await
                }
            };
            let result = tokio::time::timeout(FETCH_MAX, work).await.unwrap_or_else(|_| {
                Err(Error::new(
                    ErrorKind::Timeout,
                    "the source of credentials did not answer in time",
                ))
            });
            match &result {
                Ok(_) => inner.counters.identity_renewals.one(),
                Err(_) => inner.counters.identity_failures.one(),
            }
            result
        })
    }

    async fn create_session(self: &Arc<Self>) -> Result<Credentials> {
        let mode = if self.config.read_only { "ReadOnly" } else { "ReadWrite" };
        let headers = [("x-amz-create-session-mode", mode)];
        let request = Request {
            query: &[("session", "")],
            headers: &headers,
            signer: Signer::Base,
            ..Request::new("GET", None)
        };
        self.ask_for(&request, SESSION_BYTES_MAX, |_, body| session_of(body)).await
    }
}

/// The credentials in a `CreateSessionResult`, whose elements come in any order.
fn session_of(body: &[u8]) -> Result<Credentials, AttemptError> {
    let mut access = None;
    let mut secret = None;
    let mut token = None;
    let mut end = None;
    let read = response_check::document(body, "CreateSessionResult", |path, text| {
        let [.., within, field] = path else { return };
        match field.as_str() {
            _ if within != "Credentials" => {}
            "AccessKeyId" => access = Some(text.to_owned()),
            "SecretAccessKey" => secret = Some(Zeroizing::new(text.to_owned())),
            "SessionToken" => token = Some(Zeroizing::new(text.to_owned())),
            "Expiration" => end = iso(text),
            _ => {}
        }
    });
    // A store without sessions passes over the question and lists the bucket.
    if read.is_err() && xml::each_in(body, "ListBucketResult", |_, _| {}).is_ok() {
        return Err(no_sessions());
    }
    read?;
    match (access, secret, token) {
        (Some(access), Some(mut secret), Some(mut token)) => {
            let secret = std::mem::take(&mut *secret);
            let token = std::mem::take(&mut *token);
            Ok(Credentials::temporary(access, secret, Some(token), end))
        }
        _ => Err(no_sessions()),
    }
}

fn no_sessions() -> AttemptError {
    AttemptError::fatal(Error::new(
        ErrorKind::Unsupported,
        "the store makes no sessions: it is not S3 Express",
    ))
}

#[cfg(any(fuzzing, clippy))]
pub fn fuzz_session(body: &[u8]) {
    drop(session_of(body));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_in_any_order() {
        let body = b"<?xml version=\"1.0\"?>\n<CreateSessionResult xmlns=\"x\"><Credentials><SessionToken>t</SessionToken>\
            <SecretAccessKey>s</SecretAccessKey><AccessKeyId>a</AccessKeyId><Expiration>2013-05-24T00:00:00Z</Expiration>\
            </Credentials></CreateSessionResult>";
        let session = session_of(body).unwrap();
        assert_eq!(
            (session.access_key(), session.token(), session.expires()),
            ("a", Some("t"), Some(1_369_353_600))
        );
        let listing = b"<ListBucketResult><Name>b</Name></ListBucketResult>";
        assert_eq!(session_of(listing).unwrap_err().error.kind(), ErrorKind::Unsupported);
    }
}
