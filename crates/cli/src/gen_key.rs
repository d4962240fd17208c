//! `kvtier gen-key`: makes a key for encryption.

use std::path::PathBuf;

use anyhow::Result;

/// Makes a key for the encoding aes-256-gcm: 64 random hexadecimal digits in a new file of mode
/// 600. Set it as `key_file`, with a `key_id` of your choice. Keep a copy: without the key its
/// chunks cannot be read.
#[derive(clap::Args)]
pub struct GenKeyArgs {
    /// The file, which must not exist yet.
    path: PathBuf,
}

/// Writes the key; the key itself is not printed.
pub fn run(args: &GenKeyArgs) -> Result<()> {
    kvtier::config::write_new_key_file(&args.path)?;
    let path = std::path::absolute(&args.path).unwrap_or_else(|_| args.path.clone());
    let settings = crate::json::json!({
        "name": "aes-256-gcm", "key_file": crate::json::path(&path), "key_id": 1,
    });
    crate::stdout::line(&format!("wrote {}, mode 600; keep a copy of it", path.display()))?;
    crate::stdout::line(&format!("\"encode\": [{settings}]"))
}
