use std::time::{Duration, UNIX_EPOCH};

use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings,
    UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::v4;

use super::*;
use crate::percent_encode;

const ACCESS: &str = "AKIAIOSFODNN7EXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const HOST: (&str, &str) = ("host", "examplebucket.s3.amazonaws.com");
const MAY_2013: i64 = 1_369_353_600;

/// The signature of one of AWS's worked examples.
fn example(method: &str, path: &str, query: &str, extra: &[(&str, &str)], payload: &str) -> String {
    let stamp = Stamp::of(MAY_2013);
    let mut headers = Headers::default();
    let own = [HOST, ("x-amz-date", stamp.as_str()), ("x-amz-content-sha256", payload)];
    own.iter().chain(extra).for_each(|(name, value)| assert!(headers.insert(name, value)));
    let scope = Scope { access_key: ACCESS, region: "us-east-1", service: "s3" };
    let parts = Parts { method, path, query, headers: &headers, payload };
    let mut out = Vec::new();
    authorize(&mut out, &parts, &scope, &stamp, &Keyring::default().key(SECRET, &scope, &stamp));
    String::from_utf8(out).unwrap().rsplit_once("Signature=").unwrap().1.to_owned()
}

#[test]
fn the_worked_examples_of_aws() {
    let get = example("GET", "/test.txt", "", &[("range", "bytes=0-9")], EMPTY_SHA256);
    assert_eq!(get, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
    let put =
        [("date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-storage-class", "REDUCED_REDUNDANCY")];
    let put = example("PUT", "/test%24file.text", "", &put, &sha256_hex(b"Welcome to Amazon S3."));
    assert_eq!(put, "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
    let lifecycle = example("GET", "/", "lifecycle=", &[], EMPTY_SHA256);
    assert_eq!(lifecycle, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
    let list = example("GET", "/", "max-keys=2&prefix=J", &[], EMPTY_SHA256);
    assert_eq!(list, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

struct Case {
    method: &'static str,
    path: String,
    query: String,
    extra: Vec<(String, String)>,
    secret: String,
    token: Option<String>,
    express: bool,
    payload: String,
    at: i64,
}

fn text(rng: &mut fastrand::Rng, max: usize) -> String {
    const ODD: &[char] = &[
        '/', '.', ' ', '+', '%', '?', '=', '&', '~', '!', '*', '\'', '(', ')', 'é', '世', '"', '#',
        ':', '@',
    ];
    let len = rng.usize(0..=max);
    (0..len)
        .map(|_| if rng.bool() { rng.alphanumeric() } else { ODD[rng.usize(..ODD.len())] })
        .collect()
}

impl Case {
    fn random(rng: &mut fastrand::Rng) -> Self {
        let mut path = String::from("/");
        percent_encode::path(&mut path, &text(rng, 60));
        let mut names: Vec<(String, String)> = Vec::new();
        for _ in 0..rng.usize(..4) {
            let mut name = String::new();
            let mut value = String::new();
            percent_encode::query(&mut name, &format!("q{}", text(rng, 6)));
            percent_encode::query(&mut value, &text(rng, 20));
            names.push((name, value));
        }
        names.sort();
        names.dedup_by(|a, b| a.0 == b.0);
        let query = names
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect::<Vec<_>>()
            .join("&");
        let ascii = |rng: &mut fastrand::Rng| {
            (0..rng.usize(1..30)).map(|_| char::from(rng.u8(32..127))).collect::<String>()
        };
        let extra = (0..rng.usize(..5))
            .map(|n| (format!("x-amz-meta-{}{n}", rng.lowercase()), ascii(rng)))
            .collect();
        let payload =
            if rng.bool() { UNSIGNED.to_owned() } else { sha256_hex(text(rng, 40).as_bytes()) };
        Case {
            method: ["GET", "PUT", "HEAD", "DELETE", "POST"][rng.usize(..5)],
            path,
            query,
            extra,
            secret: ascii(rng),
            token: rng.bool().then(|| format!("tok/{}+=", rng.u64(..))),
            express: rng.bool(),
            payload,
            at: rng.i64(1_000_000_000..4_000_000_000),
        }
    }

    fn token_name(&self) -> &'static str {
        if self.express { "x-amz-s3session-token" } else { "x-amz-security-token" }
    }

    fn scope(&self) -> Scope<'_> {
        Scope {
            access_key: ACCESS,
            region: "eu-west-3",
            service: if self.express { "s3express" } else { "s3" },
        }
    }

    fn ours(&self, ring: &Keyring) -> String {
        let stamp = Stamp::of(self.at);
        let mut headers = Headers::default();
        let own =
            [HOST, ("x-amz-date", stamp.as_str()), ("x-amz-content-sha256", self.payload.as_str())];
        let token = self.token.as_deref().map(|token| (self.token_name(), token));
        let extra = self.extra.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        own.into_iter()
            .chain(token)
            .chain(extra)
            .for_each(|(name, value)| assert!(headers.insert(name, value)));
        let path = self.path.as_str();
        let query = self.query.as_str();
        let parts =
            Parts { method: self.method, path, query, headers: &headers, payload: &self.payload };
        let mut out = Vec::new();
        authorize(
            &mut out,
            &parts,
            &self.scope(),
            &stamp,
            &ring.key(&self.secret, &self.scope(), &stamp),
        );
        String::from_utf8(out).unwrap()
    }

    fn oracle(&self) -> String {
        let mut settings = SigningSettings::default();
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        settings.session_token_name_override = Some(self.token_name());
        let token = self.token.clone();
        let identity =
            aws_credential_types::Credentials::new(ACCESS, &self.secret, token, None, "test")
                .into();
        let time = UNIX_EPOCH + Duration::from_secs(self.at.try_into().unwrap());
        let scope = self.scope();
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(scope.region)
            .name(scope.service);
        let params = params.time(time).settings(settings).build().unwrap().into();
        let uri = format!("https://{}{}?{}", HOST.1, self.path, self.query);
        let extra = self.extra.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let body = match self.payload.as_str() {
            UNSIGNED => SignableBody::UnsignedPayload,
            hash => SignableBody::Precomputed(hash.to_owned()),
        };
        let request = SignableRequest::new(self.method, uri.as_str(), extra, body).unwrap();
        let (instructions, _) = sign(request, &params).unwrap().into_parts();
        instructions.headers().find(|(name, _)| *name == "authorization").unwrap().1.to_owned()
    }
}

#[test]
fn ten_thousand_random_requests_are_signed_as_aws_sigv4_signs_them() {
    let mut rng = fastrand::Rng::with_seed(4);
    for n in 0..10_000 {
        let case = Case::random(&mut rng);
        assert_eq!(
            case.ours(&Keyring::default()),
            case.oracle(),
            "case {n}: {} {}?{}",
            case.method,
            case.path,
            case.query
        );
    }
}

#[test]
fn a_kept_key_is_derived_anew_when_the_scope_changes() {
    let mut rng = fastrand::Rng::with_seed(5);
    let mut case = Case::random(&mut rng);
    let ring = Keyring::default();
    for (express, at) in [
        (false, 1_700_000_000),
        (true, 1_700_000_000),
        (true, 1_700_086_400),
        (true, 1_700_086_401),
    ] {
        (case.express, case.at) = (express, at);
        assert_eq!(case.ours(&ring), case.oracle());
    }
}

#[test]
fn more_headers_than_fit_are_refused() {
    let mut headers = Headers::default();
    assert!((0..HEADERS_MAX).all(|_| headers.insert("a", "b")));
    assert!(!headers.insert("a", "b"));
}
