//! `kvtier key` with the files of chunks.
#![allow(clippy::unwrap_used)]

mod places;
mod support;

use std::fs;
use std::path::Path;

use kvtier::file::Layout;
use kvtier::key::{DType, GdsElement, GdsHeader, MemoryFormat};
use places::{CHUNKS, Dir, kvtier, ok};
use serde_json::Value;

#[test]
fn key_reads_the_file_of_a_chunk() {
    let dir = Dir::filled(Layout::Kvtier);
    let answer = |path: &Path| -> Value {
        serde_json::from_str(&ok(kvtier(&["key", "--json", &path.display().to_string()]))).unwrap()
    };
    let plain = answer(&dir.file(&CHUNKS[0]));
    let footer = &plain["readings"][0];
    assert_eq!(
        (&footer["form"], &footer["key"]["model"]),
        (&"kvtier-footer".into(), &"org/a".into()),
        "{plain}"
    );
    assert_eq!(footer["key"]["chunk_hash"], "01".repeat(32));
    assert_eq!(footer["key"]["digest"], CHUNKS[0].key().digest().to_hex());
    assert!(footer["names"]["mp-native"].as_str().unwrap().starts_with("org/a@"), "{plain}");
    let salted = answer(&dir.file(&CHUNKS[1]));
    assert_eq!(salted["readings"][0]["key"]["model"], "org/a");
    assert!(
        salted["readings"][0]["key"]["tenant"].as_str().unwrap().len() == 32
            && !salted.to_string().contains("pepper")
    );
    let path = dir.file(&CHUNKS[0]).display().to_string();
    assert!(ok(kvtier(&["key", &path, "--to", "mp-native"])).starts_with("org/a@"));

    // The footer of another chunk, a file that is no chunk's, and one that is not there.
    fs::copy(dir.file(&CHUNKS[3]), dir.file(&CHUNKS[0])).unwrap();
    let swapped = kvtier(&["key", &path]);
    assert!(String::from_utf8(swapped.stdout).unwrap().contains("the footer is of another chunk"));
    for (name, says) in [
        ("readme.txt", "not the file of a chunk"),
        ("missing", "no such file"),
        ("", "not a regular file"),
    ] {
        fs::write(dir.path().join("readme.txt"), "text").unwrap();
        let out = kvtier(&["key", &dir.path().join(name).display().to_string()]);
        assert_eq!(out.status.code(), Some(1), "{name}");
        assert!(String::from_utf8(out.stdout).unwrap().contains(says), "{name}");
    }

    let dir = Dir::filled(Layout::LmcacheMp);
    let file = fs::read_dir(dir.path())
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.is_file())
        .unwrap();
    let foreign = answer(&file);
    let forms: Vec<&str> = foreign["readings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["form"].as_str().unwrap())
        .collect();
    assert!(
        forms.contains(&"facts") && forms.iter().any(|form| form.starts_with("mp-")),
        "{foreign}"
    );
}

#[test]
fn key_reads_a_gds_header() {
    let element = GdsElement::from_dtype(DType::from_torch_name("bfloat16").unwrap()).unwrap();
    let header = GdsHeader::new(element, vec![2, 4, 16, 32], MemoryFormat::Kv2Ltd);
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("47/79");
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("m%401%400%4012ab%40bfloat16.kvcache.safetensors");
    let payload = vec![7; header.payload_bytes().unwrap() as usize];
    fs::write(&file, [header.encode().unwrap(), payload].concat()).unwrap();
    let answer: Value =
        serde_json::from_str(&ok(kvtier(&["key", "--json", file.to_str().unwrap()]))).unwrap();
    let readings = answer["readings"].as_array().unwrap();
    assert_eq!(
        (&readings[0]["form"], &readings[0]["key"]["shape"]),
        (&"gds-header".into(), &"2x4x16x32".into())
    );
    assert_eq!(readings[0]["key"]["payload_bytes"], 2 * 2 * 4 * 16 * 32);
    assert!(
        readings.iter().any(|one| one["form"] == "gds" && one["key"]["model"] == "m"),
        "{answer}"
    );
}
