//! `docs/SCALE.md` and its pictures are what the record gives, and the model agrees with the record's runs.

#![allow(clippy::unwrap_used)]
// What only the measuring program uses.
#![allow(dead_code)]

use std::fs;
use std::path::Path;

#[path = "../examples/scale/model.rs"]
mod model;
#[path = "../examples/scale/record.rs"]
mod record;
#[path = "../examples/scale/render.rs"]
mod render;
#[path = "../examples/scale/svg.rs"]
mod svg;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const PICTURES: [&str; 5] = ["cost", "behaviour", "cap", "shed", "memory"];

#[test]
fn the_page_and_its_pictures_are_those_of_the_record() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scale-page");
    fs::create_dir_all(copy.join("scale")).unwrap();
    for file in ["SCALE.md", "scale/runs.txt"] {
        fs::copy(docs.join(file), copy.join(file)).unwrap();
    }
    // An error if the model is too far from a run.
    render::render(&copy).unwrap();
    let pictures = PICTURES.map(|name| format!("scale/{name}.svg"));
    for file in pictures.iter().map(String::as_str).chain(["SCALE.md"]) {
        let rendered = fs::read_to_string(copy.join(file)).unwrap();
        let committed = fs::read_to_string(docs.join(file)).unwrap();
        assert!(rendered == committed, "{file}: run `cargo xtask scale --render`");
    }
}
