//! The project's own build steps: `cargo xtask <step>`.

fn main() {}
