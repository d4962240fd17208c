//! Opens a stack from YAML: host memory over a directory. What is evicted from memory is loaded
//! from the directory.
#![allow(clippy::print_stdout)]

use std::error::Error;

use kvtier::config::Config;
use kvtier::{Blocking, Key, Namespace};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::temp_dir().join(format!("kvtier-yaml-{}", std::process::id()));
    let yaml = format!(
        "tiers:\n- {{type: host, bytes: 1MiB}}\n- {{type: file, path: {}, bytes: 64MiB}}\n",
        dir.display()
    );
    let stack = Config::from_text(&yaml, "example.yaml")?.open()?;
    let ns = Namespace::from_name("example");
    for n in 0..8u8 {
        stack.top.save_bytes(&Key::from_name(&ns, [n]), vec![n; 256 << 10])?;
    }
    for n in 0..8u8 {
        let key = Key::from_name(&ns, [n]);
        assert_eq!(stack.top.load_bytes(&key)?, Some(vec![n; 256 << 10]));
        // The first load promoted the chunk to memory, which serves the second one.
        assert_eq!(stack.top.load_bytes(&key)?, Some(vec![n; 256 << 10]));
    }
    for tier in &stack.tiers {
        println!("{}: {} hits", tier.caps().name, tier.status().counter("hits"));
    }
    stack.top.close().wait()?;
    drop(stack);
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
