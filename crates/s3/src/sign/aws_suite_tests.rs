//! AWS's own test suite for signatures, from the source of the crate `aws-sigv4`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::*;

/// Where cargo keeps the source of `aws-sigv4`.
fn suite() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--offline"])
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&out.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages.iter().find(|package| package["name"] == "aws-sigv4").unwrap();
    Path::new(package["manifest_path"].as_str().unwrap())
        .with_file_name("aws-signing-test-suite")
        .join("v4")
}

/// The signature of a canonical request: normalisation and encoding, which S3 does otherwise than
/// the suite, have been done.
fn signature(canonical: &str, context: &Value) -> String {
    let lines: Vec<&str> = canonical.split('\n').collect();
    let [method, path, query, .., signed, payload] = lines[..] else { panic!("{canonical}") };
    let mut headers = Headers::default();
    for line in &lines[3..lines.len() - 3] {
        let (name, value) = line.split_once(':').unwrap();
        assert!(headers.insert(name, value));
    }
    let names: Vec<&str> = headers.as_slice().iter().map(|(name, _)| *name).collect();
    assert_eq!(names.join(";"), signed);
    let date = headers.as_slice().iter().find(|(name, _)| *name == "x-amz-date").unwrap().1;
    assert_eq!(date, "20150830T123600Z");
    let stamp = Stamp::of(1_440_938_160);
    let keys = &context["credentials"];
    assert_eq!(stamp.as_str(), date);
    let text = |name: &str| context[name].as_str().unwrap();
    let access_key = keys["access_key_id"].as_str().unwrap();
    let scope = Scope { access_key, region: text("region"), service: text("service") };
    let parts = Parts { method, path, query, headers: &headers, payload };
    let mut out = Vec::new();
    let key = Keyring::default().key(keys["secret_access_key"].as_str().unwrap(), &scope, &stamp);
    authorize(&mut out, &parts, &scope, &stamp, &key);
    String::from_utf8(out).unwrap().rsplit_once("Signature=").unwrap().1.to_owned()
}

#[test]
fn every_case_of_the_suite_inside_aws_sigv4() {
    let mut count = 0;
    for case in std::fs::read_dir(suite()).unwrap() {
        let folder = case.unwrap().path();
        let read = |name: &str| std::fs::read_to_string(folder.join(name));
        // Two cases of the crate's own are about encoding alone.
        let (Ok(canonical), Ok(context)) =
            (read("header-canonical-request.txt"), read("context.json"))
        else {
            continue;
        };
        let context = serde_json::from_str(&context).unwrap();
        let theirs = read("header-signature.txt").unwrap();
        assert_eq!(signature(&canonical, &context), theirs.trim(), "{}", folder.display());
        count += 1;
    }
    assert!(count >= 36, "{count} cases");
}
