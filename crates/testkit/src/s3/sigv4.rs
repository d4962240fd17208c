//! Signatures, checked from the bytes on the wire and by code that shares nothing with the
//! client's.

use sha2::{Digest, Sha256};

use super::aws_chunked::STREAMING;
use super::calendar;
use super::wire::{Response, WireRequest};

/// The most that a request's date may be off, in seconds.
const SKEW_MAX_S: i64 = 900;

/// Who may sign, and how.
#[derive(Clone, Debug)]
pub struct Rules<'a> {
    pub region: &'a str,
    pub service: &'a str,
    pub now: i64,
    pub refuse_unsigned: bool,
}

/// The parts of an `authorization` header.
pub struct Claim<'a> {
    pub access_key: &'a str,
    day: &'a str,
    region: &'a str,
    service: &'a str,
    names: &'a str,
    signature: &'a str,
}

impl<'a> Claim<'a> {
    pub fn of(request: &'a WireRequest) -> Option<Self> {
        // `AWS4-HMAC-SHA256 Credential=KEY/DAY/REGION/SERVICE/aws4_request, SignedHeaders=...,
        // Signature=...`
        let text = request.header("authorization")?.strip_prefix("AWS4-HMAC-SHA256 ")?;
        let field = |name: &str| {
            text.split(", ").find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
        };
        let mut scope = field("Credential")?.split('/');
        let access_key = scope.next()?;
        let day = scope.next()?;
        let region = scope.next()?;
        let service = scope.next()?;
        (scope.next()? == "aws4_request").then_some(())?;
        let names = field("SignedHeaders")?;
        let signature = field("Signature")?;
        Some(Claim { access_key, day, region, service, names, signature })
    }

    /// The answer to a request that is not signed as it should be.
    pub fn check(
        &self,
        request: &WireRequest,
        body: &[u8],
        secret: &str,
        rules: &Rules<'_>,
    ) -> Result<(), Response> {
        let refuse = |status, code: &str| Err(Response::error(status, code));
        // S3 names the right region in this error. Clients learn from it where the bucket is.
        if self.region != rules.region || self.service != rules.service {
            let inside = format!(
                "<Code>AuthorizationHeaderMalformed</Code><Region>{}</Region>",
                rules.region
            );
            return Err(Response::complaint(400, &inside));
        }
        let date = request.header("x-amz-date").unwrap_or_default();
        // The key is derived from the day, so the day of the scope and that of the header must
        // agree.
        if !date.starts_with(self.day) || !calendar::is_near(date, rules.now, SKEW_MAX_S) {
            return refuse(403, "RequestTimeTooSkewed");
        }
        // S3 insists on these. Others may be signed or not.
        let must = |name: &str| name == "host" || name.starts_with("x-amz-");
        let signed: Vec<&str> = self.names.split(';').collect();
        if request.headers.iter().any(|(name, _)| must(name) && !signed.contains(&name.as_str()))
            || !signed.is_sorted()
        {
            return refuse(403, "AccessDenied");
        }
        if self.signature_of(request, secret, date) != self.signature {
            return refuse(403, "SignatureDoesNotMatch");
        }
        // After the signature, which covers this header: a body is right only if the hash that was
        // signed is its own.
        match request.header("x-amz-content-sha256").unwrap_or_default() {
            "UNSIGNED-PAYLOAD" if rules.refuse_unsigned => refuse(400, "XAmzContentSHA256Mismatch"),
            "UNSIGNED-PAYLOAD" => Ok(()),
            chunked if chunked.starts_with(STREAMING) && !rules.refuse_unsigned => Ok(()),
            hash if hash == hex(&Sha256::digest(body)) => Ok(()),
            _ => refuse(400, "XAmzContentSHA256Mismatch"),
        }
    }

    fn signature_of(&self, request: &WireRequest, secret: &str, date: &str) -> String {
        let mut pairs: Vec<String> =
            request.query.split('&').filter(|pair| !pair.is_empty()).map(str::to_owned).collect();
        // A parameter without a value is signed with an empty one.
        pairs.iter_mut().filter(|pair| !pair.contains('=')).for_each(|pair| pair.push('='));
        pairs.sort();
        let header = |name: &str| {
            let value = request.header(name).unwrap_or_default();
            // Runs of blanks count as one.
            format!("{name}:{}\n", value.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        let canonical = [
            request.method.clone(),
            request.path.clone(),
            pairs.join("&"),
            self.names.split(';').map(header).collect(),
            self.names.to_owned(),
            request.header("x-amz-content-sha256").unwrap_or_default().to_owned(),
        ]
        .join("\n");
        let scope = format!("{}/{}/{}/aws4_request", self.day, self.region, self.service);
        let text =
            format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(&Sha256::digest(canonical)));
        let first = format!("AWS4{secret}").into_bytes();
        let key = [self.day, self.region, self.service, "aws4_request"]
            .iter()
            .fold(first, |key, part| hmac(&key, part));
        hex(&hmac(&key, &text))
    }
}

fn hmac(key: &[u8], message: &str) -> Vec<u8> {
    // HMAC by its definition (RFC 2104), written out: the server must not share code with the
    // signer that it checks.
    let mut block = if key.len() > 64 { Sha256::digest(key).to_vec() } else { key.to_vec() };
    block.resize(64, 0);
    let pad = |byte: u8| block.iter().map(|other| other ^ byte).collect::<Vec<u8>>();
    let inner = Sha256::digest([pad(0x36), message.as_bytes().to_vec()].concat());
    Sha256::digest([pad(0x5c), inner.to_vec()].concat()).to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
