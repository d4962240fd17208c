//! Which answer a request gets, over any transport: what the script says, whether the signature is
//! right, and what the store holds.

use std::sync::atomic::Ordering;
use std::thread;

use super::fault::Fault;
use super::operations;
use super::server::{SeenRequest, ServerState, StalledRequest, lock};
use super::sigv4::{Claim, Rules};
use super::wire::{Response, WireRequest, decode};
use super::{aws_chunked, calendar, create_bucket};

/// Whether a host is not one of production's names.
fn is_local(host: &str) -> bool {
    !is_aws(host)
}

fn is_aws(host: &str) -> bool {
    host.split(':').next().is_some_and(|name| name.ends_with(".amazonaws.com"))
}

impl ServerState {
    pub(super) fn fault(&self, request: &WireRequest) -> Option<Fault> {
        let mut rules = lock(&self.rules);
        let at = rules.iter().position(|rule| {
            let here =
                |marker: &str| request.path.contains(marker) || request.query.contains(marker);
            rule.method.is_none_or(|method| method == request.method)
                && rule.marker.is_none_or(here)
                && rule.header.is_none_or(|(name, value)| request.header(name) == Some(value))
        })?;
        // The first rule that fits is used, and removed after its last time.
        rules[at].times -= 1;
        match rules[at].times {
            0 => Some(rules.remove(at).fault),
            _ => Some(rules[at].fault.clone()),
        }
    }

    pub(super) fn answer(
        &self,
        request: &WireRequest,
        body: Vec<u8>,
        fault: Option<&Fault>,
    ) -> Response {
        match fault {
            Some(Fault::Error(status, code)) => return Response::error(*status, code),
            Some(Fault::SlowDown(seconds)) => {
                return Response::error(503, "SlowDown").with("retry-after", seconds.to_string());
            }
            Some(Fault::Html(status)) => {
                return Response::new(*status, "<html><body><h1>Bad gateway<br></body></html>");
            }
            Some(Fault::OkThenError(code)) => return Response::error(200, code),
            Some(Fault::Foreign(foreign)) if !foreign.done => return Response::foreign(foreign),
            Some(Fault::Elsewhere(elsewhere)) => {
                let refusal = Response::complaint(elsewhere.status, &elsewhere.inside);
                let (name, value) = elsewhere.header.clone().unwrap_or(("x-none", String::new()));
                return refusal.with(name, value);
            }
            // A stalled request is answered afterwards as usual; the client may have given up by
            // then.
            Some(Fault::Stall(time)) => {
                self.note_stalled(request);
                thread::sleep(*time);
            }
            Some(Fault::Hang) => self.hanging.wait(|| self.note_stalled(request)),
            _ => {}
        }
        // The signature is checked before the request has any effect, as a store does it.
        if let Err(refusal) = self.verdict(request, &body) {
            return refusal;
        }
        let Some(body) = aws_chunked::decode(request, body) else {
            return Response::error(400, "IncompleteBody");
        };
        let mut request = request.clone();
        if matches!(fault, Some(Fault::IgnoreRange)) {
            // After the check of the signature, which may cover the header.
            request.headers.retain(|(name, _)| name != "range");
        }
        let response = self.handle(&request, body);
        match fault {
            // The request took effect, and the answer says otherwise: what a client sees of a store
            // that fails late.
            Some(Fault::DoneThenError(status, code)) => Response::error(*status, code),
            Some(Fault::Foreign(foreign)) => Response::foreign(foreign),
            _ => response,
        }
    }

    fn handle(&self, request: &WireRequest, body: Vec<u8>) -> Response {
        let setup = &self.setup;
        let bucket = &setup.bucket;
        let express = setup.is_express();
        let host = request.header("host").unwrap_or_default();
        if express
            && host.starts_with("s3express-control.")
                != (self.is_of_control(request) && !is_local(host))
        {
            return Response::error(405, "MethodNotAllowed");
        }
        if express && request.query("session").is_some() {
            return match lock(&self.store).bucket_exists {
                true => lock(&self.sessions).create(request, self.now()),
                false => Response::error(404, "NoSuchBucket"),
            };
        }
        let path = decode(&request.path);
        // The bucket is in the host or in the path; the rest of the path is the key in both cases.
        let virtual_host = self.is_virtual(host);
        let rest = match virtual_host {
            true => Some(path.as_str()),
            false => path.strip_prefix(&format!("/{bucket}")),
        };
        let mut store = lock(&self.store);
        // Times of objects are by the server's clock, which a test may have moved.
        store.ahead_s = self.setup.clock_ahead_s + self.clock_step_s.load(Ordering::SeqCst);
        match rest.map(|rest| rest.strip_prefix('/').unwrap_or(rest)) {
            None => Response::error(404, "NoSuchBucket"),
            Some("")
                if express
                    && virtual_host
                    && matches!(request.method.as_str(), "PUT" | "DELETE") =>
            {
                Response::error(405, "MethodNotAllowed")
            }
            Some("") if request.method == "PUT" => {
                let wanted = if is_aws(host) { Some(setup.region.as_str()) } else { None };
                create_bucket::bucket(&mut store, bucket, wanted, &body)
            }
            Some("") => operations::bucket(&mut store, request, &body, setup),
            Some(key) => operations::object(&mut store, request, key, body, setup),
        }
    }

    fn verdict(&self, request: &WireRequest, body: &[u8]) -> Result<(), Response> {
        let claim = Claim::of(request).ok_or_else(|| Response::error(403, "AccessDenied"))?;
        let express = self.setup.is_express();
        let in_session =
            express && request.query("session").is_none() && !self.is_of_control(request);
        let secret = match in_session {
            true => lock(&self.sessions).find(claim.access_key, request, self.now())?.secret,
            // Requests to S3 Express are signed with the session's secret, all others with the
            // long-lived one.
            false if claim.access_key == self.setup.access_key => self.setup.secret_key.clone(),
            false => return Err(Response::error(403, "InvalidAccessKeyId")),
        };
        let service = if express { "s3express" } else { "s3" };
        let region = self.setup.region.as_str();
        let refuse_unsigned = self.setup.refuse_unsigned;
        claim.check(
            request,
            body,
            &secret,
            &Rules { region, service, now: self.now(), refuse_unsigned },
        )
    }

    pub(super) fn dated(&self, response: Response) -> Response {
        let response = response.with("date", calendar::http(self.now()));
        // A proxy's page has no id of the store's.
        if response.foreign || response.body.starts_with(b"<html>") {
            response
        } else {
            response.with("x-amz-request-id", "REQ1")
        }
    }

    pub(super) fn note(&self, request: &WireRequest, status: u16) {
        let target = request.target();
        let WireRequest { method, headers, .. } = request.clone();
        lock(&self.seen).push(SeenRequest { method, target, headers, status });
    }

    pub(super) fn note_stalled(&self, request: &WireRequest) {
        let (method, target) = (request.method.clone(), request.target());
        lock(&self.stalled).push(StalledRequest { method, target });
    }

    /// Whether it makes or unmakes a directory bucket: the bucket in the path, and signed without a
    /// session.
    fn is_of_control(&self, request: &WireRequest) -> bool {
        self.setup.is_express()
            && matches!(request.method.as_str(), "PUT" | "DELETE")
            && request.query.is_empty()
            && request.path.trim_end_matches('/') == format!("/{}", self.setup.bucket)
    }

    /// Whether a request for this host is for the bucket before it.
    fn is_virtual(&self, host: &str) -> bool {
        host.strip_prefix(&self.setup.bucket).is_some_and(|rest| rest.starts_with('.'))
    }

    fn now(&self) -> i64 {
        calendar::now() + self.setup.clock_ahead_s + self.clock_step_s.load(Ordering::SeqCst)
    }
}
