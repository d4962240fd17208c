//! docs/CONFIG.md says what the table of settings in code says. `KVTIER_WRITE_DOCS=1 cargo test -p
//! kvtier --test config_doc` writes it.
#![cfg(feature = "config")]
#![allow(clippy::unwrap_used)]

mod docs;

use kvtier::config::Adapter;
use kvtier::config::settings::{self, BEGIN, END};

#[test]
fn the_document_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONFIG.md");
    let text = std::fs::read_to_string(path).unwrap();
    let begin = text.find(BEGIN).unwrap();
    let end = text.find(END).unwrap() + END.len();
    let wanted = settings::document();
    if std::env::var_os("KVTIER_WRITE_DOCS").is_some() {
        docs::write(path, &format!("{}{wanted}{}", &text[..begin], &text[end..]));
        return;
    }
    assert_eq!(&text[begin..end], wanted, "write it with KVTIER_WRITE_DOCS=1");
}

#[test]
fn what_the_documents_show_is_read() {
    let mut seen = 0;
    for page in
        ["README.md", "docs/CONFIG.md", "docs/ENCODINGS.md", "docs/GDS.md", "docs/lmcache.md"]
    {
        let text = std::fs::read_to_string(format!("{}/../../{page}", env!("CARGO_MANIFEST_DIR")))
            .unwrap();
        for block in text.split("```").skip(1).step_by(2) {
            let (form, body) = block.split_once('\n').unwrap();
            seen += shown(form, body);
        }
    }
    assert!(seen >= 18, "{seen} examples");
}

/// Reads what a block of this form shows; how many configurations that were.
fn shown(form: &str, body: &str) -> usize {
    use kvtier::config::Config;
    use kvtier::config::lmcache::{Inputs, LmcacheConfig};
    let own = body.lines().any(|line| line.starts_with("tiers:"));
    match form {
        "json" if body.contains("KvtierTier") || body.contains("KvtierHiCache") => {
            // The objects of vLLM and SGLang, with our specs in them.
            let object: serde_json::Value = serde_json::from_str(body).unwrap();
            let text = serde_json::json!({ "tiers": object["tiers"] }).to_string();
            drop(Config::from_text(&text, "x.json").unwrap());
        }
        "json" if body.contains("class_name") => adapter(body.trim()),
        "json" | "toml" => drop(Config::from_text(body, &format!("x.{form}")).unwrap()),
        "yaml" if own => drop(Config::from_text(body, "x.yaml").unwrap()),
        "yaml" => {
            let read = LmcacheConfig::read(&Inputs::new().with_file("x.yaml", body)).unwrap();
            assert!(read.notes().is_empty(), "{:?}", read.notes());
            drop(read.stack(0).unwrap());
        }
        "sh" if body.contains("--l2-adapter") => {
            let object = body
                .split("--l2-adapter '")
                .nth(1)
                .and_then(|rest| rest.split('\'').next())
                .unwrap();
            adapter(object);
        }
        _ => return 0,
    }
    1
}

/// Reads the object of an adapter of LMCache's server.
fn adapter(object: &str) {
    let adapters = Adapter::list(&[object], false).unwrap();
    let notes = adapters[0].notes();
    let tiers = adapters[0].tiers().unwrap();
    assert!(notes.is_empty() && !tiers.is_empty(), "{object}");
}
