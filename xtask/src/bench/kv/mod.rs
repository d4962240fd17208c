//! `cargo xtask bench kv [--minutes N]`: how small `bf16-split` makes the keys and values of a
//! model.
//!
//! No model is loaded from elsewhere: a small transformer is trained on the project's own text for
//! a few minutes, and its keys and values for text that it has not seen are encoded. With
//! `--minutes 0` its weights are random.

use std::fs;

use anyhow::{Context, Result};

use crate::args::Args;
use crate::sh::{Cmd, root};
use crate::tree::Tree;
use crate::{venv, vllm_venv, workspace};

const SCRIPT: &str = "xtask/src/bench/kv/train_and_dump.py";
/// The variable by which the test finds the keys and values.
const DUMP: &str = "KVTIER_KV_DUMP";
const LIMIT_S: u64 = 60 * 60;

pub fn run(args: &mut Args) -> Result<()> {
    let minutes: f64 = match args.value("--minutes")? {
        Some(minutes) => minutes.parse().context("--minutes takes a number")?,
        None => 3.0,
    };
    args.end()?;
    // The environment of vLLM has torch.
    let python = venv::python(&vllm_venv::make()?);
    let out = workspace::target_dir().join("bench/kv");
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&out)?;
    let texts = texts()?;
    let list = out.join("texts");
    fs::write(&list, texts.join("\n"))?;
    println!("a model learns from {} documents for {minutes} minutes", texts.len());
    Cmd::new("")
        .arg(python.to_string_lossy())
        .arg(root().join(SCRIPT).to_string_lossy())
        .arg(out.to_string_lossy())
        .arg(minutes.to_string())
        .arg(list.to_string_lossy())
        .limit_s(LIMIT_S)
        .run()?;
    Cmd::new(
        "cargo test --locked --release -p kvtier-codec --test entropy -- --nocapture of_a_model",
    )
    .env(DUMP, out.to_string_lossy())
    .limit_s(LIMIT_S)
    .run()
}

/// The project's documents and sources.
fn texts() -> Result<Vec<String>> {
    let tree = Tree::read()?;
    let paths = tree.texts(&[".md", ".rs"]).map(|(path, _)| root().join(path));
    Ok(paths.map(|path| path.to_string_lossy().into_owned()).collect())
}
