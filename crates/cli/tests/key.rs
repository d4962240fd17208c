//! `kvtier key` as an operator runs it.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const NATIVE: &str = "meta-llama/Llama-3.1-8B@01000100@0@a1b2c3d4@tenant";

fn kvtier(args: &[&str], input: &str) -> (Output, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvtier"))
        .arg("key")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A child that refuses early closes its end; what it says is looked at, not this.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let out = child.wait_with_output().unwrap();
    let text = String::from_utf8(out.stdout.clone()).unwrap();
    (out, text)
}

fn one(args: &[&str]) -> Value {
    let (out, text) = kvtier(&[args, &["--json"]].concat(), "");
    assert!(out.status.success(), "{args:?}: {text}");
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_name_is_explained() {
    let answer = one(&[NATIVE]);
    let reading = &answer["readings"][0];
    assert_eq!(reading["form"], "mp-native");
    assert_eq!(reading["loss"], Value::Null);
    let key = &reading["key"];
    assert_eq!(
        (&key["model"], &key["cache_salt"]),
        (&json!("meta-llama/Llama-3.1-8B"), &json!("tenant"))
    );
    assert_eq!((&key["chunk_hash"], &key["object_group"]), (&json!("a1b2c3d4"), &json!(0)));
    assert_eq!(key["kv_rank"]["world_size"], 1);
    let text = kvtier(&[NATIVE], "").1;
    assert!(
        text.contains("read as mp-native") && text.contains("chunk_hash     a1b2c3d4"),
        "{text}"
    );
}

#[test]
fn names_convert_there_and_back() {
    let (out, file) = kvtier(&[NATIVE, "--to", "mp-fs"], "");
    assert!(out.status.success());
    assert!(file.contains("meta-llama-SEP-Llama"), "{file}");
    let (out, back) = kvtier(&[file.trim(), "--from", "mp-fs", "--to", "mp-native"], "");
    assert!(out.status.success());
    assert_eq!(back.trim(), NATIVE);
    let s3 = one(&[NATIVE, "--to", "mp-s3:kv/eu"]);
    let name = s3["readings"][0]["names"]["mp-s3:kv/eu"].as_str().unwrap();
    assert!(name.contains("kv/eu/") && name.contains("%40"), "{name}");
}

#[test]
fn an_in_process_key_and_a_file_of_our_own_are_distinguished() {
    let engine = one(&["mistral-7b@2@1@-1f@bfloat16@3@tier%gold"]);
    let key = &engine["readings"][0]["key"];
    assert_eq!((&key["mode"], &key["layer"]), (&json!("in-process"), &json!(3)));
    assert_eq!((&key["chunk_hash"]["int"], &key["tags"]["tier"]), (&json!("-31"), &json!("gold")));
    let own = one(&[&format!("/mnt/kv/ab/{}-40000", "ab".repeat(32))]);
    assert_eq!(own["readings"][0]["form"], "kvtier-file");
    assert_eq!(own["readings"][0]["key"]["payload_bytes"], 262_144);
}

#[test]
fn a_batch_is_answered_line_by_line() {
    let input = format!(
        "{}\n\n{}\n",
        json!(NATIVE),
        json!({"name": NATIVE, "from": "mp-native", "to": ["mp-fs"]})
    );
    let (out, text) = kvtier(&[], &input);
    assert!(out.status.success());
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0]["readings"][0]["names"].as_object().unwrap().len() > 3);
    assert_eq!(lines[1]["readings"][0]["names"].as_object().unwrap().len(), 1);
}

#[test]
fn what_is_no_name_is_said_and_the_batch_goes_on() {
    let (out, text) = kvtier(&[], &format!("\"no name\"\n{}\n", json!(NATIVE)));
    assert_eq!(out.status.code(), Some(1));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines[0]["error"].as_str().unwrap().contains("not the name of a chunk"));
    assert_eq!(lines[1]["readings"][0]["form"], "mp-native");
    // A key of the one mode has no name of the other.
    let (out, text) = kvtier(&[NATIVE, "--to", "text"], "");
    assert_eq!(out.status.code(), Some(1), "{text}");
}

#[test]
fn bad_questions_end_with_2_and_name_the_line() {
    for (input, says) in [
        ("\"x\"\n{\"nam\":1}\n", "line 2"),
        ("nonsense\n", "line 1"),
        ("{\"name\":\"x\",\"to\":[\"fs9\"]}\n", "fs9"),
        ("[1]\n", "line 1"),
    ] {
        let (out, _) = kvtier(&[], input);
        let text = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{input}: {text}");
        assert_eq!(text.trim_end().lines().count(), 1, "{text}");
        assert!(text.contains(says), "{text}");
    }
    let (out, _) = kvtier(&[NATIVE, "--from", "nowhere"], "");
    assert_eq!(out.status.code(), Some(2));
}
