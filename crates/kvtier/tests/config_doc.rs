//! docs/CONFIG.md says what the table of settings in code says. `KVTIER_WRITE_DOCS=1 cargo test -p kvtier --test config_doc` writes it.
#![cfg(feature = "config")]
#![allow(clippy::unwrap_used)]

use kvtier::config::keys::{self, BEGIN, END};

#[test]
fn the_document_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONFIG.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (begin, end) = (text.find(BEGIN).unwrap(), text.find(END).unwrap() + END.len());
    let wanted = keys::document();
    if std::env::var_os("KVTIER_WRITE_DOCS").is_some() {
        std::fs::write(path, format!("{}{wanted}{}", &text[..begin], &text[end..])).unwrap();
        return;
    }
    assert_eq!(&text[begin..end], wanted, "write it with KVTIER_WRITE_DOCS=1");
}

#[test]
fn what_the_document_shows_is_read() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONFIG.md")).unwrap();
    let mut seen = 0;
    for block in text.split("```").skip(1).step_by(2) {
        let (form, body) = block.split_once('\n').unwrap();
        match form {
            "json" | "toml" => drop(kvtier::config::Config::from_text(body, &format!("x.{form}")).unwrap()),
            "yaml" if body.contains("tiers:") => drop(kvtier::config::Config::from_text(body, "x.yaml").unwrap()),
            "yaml" => {
                let inputs = kvtier::config::lmcache::Inputs::new().with_file("x.yaml", body);
                drop(kvtier::config::lmcache::LmcacheConfig::read(&inputs).unwrap());
            }
            _ => continue,
        }
        seen += 1;
    }
    assert!(seen >= 4, "{seen} examples");
}
