//! Our signatures beside botocore's: `vectors/sign.py` and `vectors/express.py` made the files.

use serde_json::Value;

use super::*;
use crate::percent_encode;

const ACCESS: &str = "AKIDEXAMPLE";

/// Those of the file that `KVTIER_S3_VECTORS` names, or the committed ones.
fn random_requests() -> String {
    match std::env::var_os("KVTIER_S3_VECTORS") {
        Some(path) => std::fs::read_to_string(path).unwrap(),
        None => include_str!("../../vectors/botocore.jsonl").to_owned(),
    }
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

fn pairs(value: &Value) -> Vec<(&str, &str)> {
    let both = value.as_array().unwrap().iter();
    both.map(|pair| (pair[0].as_str().unwrap(), pair[1].as_str().unwrap())).collect()
}

/// What we make of a request of `sign.py`: path, query and headers by the client's own means.
fn ours(case: &Value) -> String {
    let mut path = text(case, "prefix").to_owned();
    let mut query = String::new();
    percent_encode::path(&mut path, text(case, "key"));
    for (name, value) in pairs(&case["query"]) {
        if !query.is_empty() {
            query.push('&');
        }
        percent_encode::query(&mut query, name);
        query.push('=');
        percent_encode::query(&mut query, value);
    }
    let payload = match (text(case, "payload"), text(case, "body")) {
        (UNSIGNED, _) => UNSIGNED.to_owned(),
        (_, "") => EMPTY_SHA256.to_owned(),
        (_, body) => sha256_hex(body.as_bytes()),
    };
    let stamp = Stamp::of(case["at"].as_i64().unwrap());
    let express = case["express"] == true;
    let token_name = if express { "x-amz-s3session-token" } else { "x-amz-security-token" };
    let mut headers = Headers::default();
    let own = [
        ("host", text(case, "host")),
        ("x-amz-content-sha256", &payload),
        ("x-amz-date", stamp.as_str()),
    ];
    let token = case["token"].as_str().map(|token| (token_name, token));
    let extra = case["headers"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str().unwrap()));
    own.into_iter()
        .chain(token)
        .chain(extra)
        .for_each(|(name, value)| assert!(headers.insert(name, value)));
    let service = if express { "s3express" } else { "s3" };
    let scope = Scope { access_key: ACCESS, region: text(case, "region"), service };
    let parts = Parts {
        method: text(case, "method"),
        path: &path,
        query: &query,
        headers: &headers,
        payload: &payload,
    };
    let mut out = Vec::new();
    authorize(
        &mut out,
        &parts,
        &scope,
        &stamp,
        &Keyring::default().key(text(case, "secret"), &scope, &stamp),
    );
    String::from_utf8(out).unwrap()
}

#[test]
fn random_requests_are_signed_as_botocore_signs_them() {
    let file = random_requests();
    let mut count = 0;
    for line in file.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        assert_eq!(ours(&case), text(&case, "authorization"), "{line}");
        count += 1;
    }
    assert!(count >= 500, "{count}");
}

#[test]
fn what_boto3_sends_to_s3_express_is_signed_as_we_would() {
    let file = include_str!("../../vectors/express.jsonl");
    for line in file.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let header =
            |name: &str| case["headers"][name].as_str().unwrap_or_else(|| panic!("{name}: {line}"));
        let theirs = header("authorization");
        let field =
            |name: &str| theirs.split_once(name).unwrap().1.split([',', '/']).next().unwrap();
        let mut headers = Headers::default();
        field("SignedHeaders=")
            .split(';')
            .for_each(|name| assert!(headers.insert(name, header(name))));
        let mut query: Vec<String> = text(&case, "query")
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(str::to_owned)
            .collect();
        query.iter_mut().filter(|pair| !pair.contains('=')).for_each(|pair| pair.push('='));
        query.sort();
        let stamp = Stamp::of(case["at"].as_i64().unwrap());
        let scope =
            Scope { access_key: field("Credential="), region: "us-east-1", service: "s3express" };
        let payload = header("x-amz-content-sha256");
        let parts = Parts {
            method: text(&case, "method"),
            path: text(&case, "path"),
            query: &query.join("&"),
            headers: &headers,
            payload,
        };
        let mut out = Vec::new();
        authorize(
            &mut out,
            &parts,
            &scope,
            &stamp,
            &Keyring::default().key(text(&case, "secret"), &scope, &stamp),
        );
        assert_eq!(String::from_utf8(out).unwrap(), theirs, "{line}");
    }
    assert_eq!(file.lines().count(), 13);
}
