//! A build without the feature `aws-config` says which feature it lacks.
#![cfg(not(feature = "aws-config"))]
#![allow(clippy::unwrap_used)]

use std::process::Command;

#[test]
fn a_source_that_this_build_cannot_ask_is_an_error_that_names_the_feature() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let shared = file(
        "shared",
        "[profile run]\ncredential_process = /bin/who\n[profile role]\nrole_arn = arn:aws:iam::1:role/r\n",
    );
    let tiers = file(
        "kv.json",
        r#"{"tiers":[{"type":"s3","s3_endpoint":"http://127.0.0.1:9","bucket":"b","s3_region":"r"}]}"#,
    );
    let commands = [
        vec!["ls", "s3://b", "--endpoint", "http://127.0.0.1:9", "--region", "r"],
        vec!["replay", "--requests", "1", "--config", &tiers],
    ];
    for words in commands {
        for variables in [
            &[("AWS_CONFIG_FILE", shared.as_str()), ("AWS_PROFILE", "run")][..],
            &[("AWS_CONFIG_FILE", &shared), ("AWS_PROFILE", "role")],
            &[("AWS_WEB_IDENTITY_TOKEN_FILE", "/token")],
            &[("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2")],
            &[],
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
            let out =
                command.args(&words).env_clear().envs(variables.iter().copied()).output().unwrap();
            let said = String::from_utf8(out.stderr).unwrap();
            assert_eq!(out.status.code(), Some(2), "{words:?} {variables:?}: {said}");
            assert!(said.contains("feature aws-config"), "{words:?} {variables:?}: {said}");
        }
    }
}
