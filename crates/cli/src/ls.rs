//! `kvtier ls`: lists the chunks of a directory or bucket.

use anyhow::Result;
use kvtier::file::inspect::{ChunkName, Directory};

use crate::bucket::{Asking, Bucket, infos};
use crate::chunk_line::long_head;
use crate::dir::{InfoReader, listed};
use crate::json::json;
use crate::location_args::Where;
use crate::stored_form::StoredForm;

/// `kvtier ls`.
#[derive(clap::Args)]
pub struct LsArgs {
    #[command(flatten)]
    at: Where,
    /// Print raw and stored length, codec, key id, age, last use, tenant and model before each
    /// name. `-` is what is not known, `>2h` a use at least that long ago. Tenants are digits of a digest, of the cache salt
    /// where there is one. Reads a footer, or asks for an object's metadata, for each chunk.
    #[arg(long)]
    long: bool,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

/// Lists chunks: digest, payload bytes.
pub fn ls(args: &LsArgs) -> Result<()> {
    if let Some(bucket) = args.at.bucket()? {
        return ls_bucket(&bucket, args.long, args.json);
    }
    let dir = args.at.directory()?;
    let mut chunks = listed(&dir, &args.at.path)?;
    // The order of a directory differs between file systems and runs.
    chunks.sort_unstable();
    if args.long {
        return ls_long(&dir, &chunks, args);
    }
    for chunk in chunks {
        let line = if args.json {
            let form = dir.stored_form(&chunk).ok().and_then(Result::ok).map(StoredForm::from);
            short_json(&chunk.label(), chunk.len, &form.unwrap_or_default())
        } else {
            format!("{} {}", chunk.label(), chunk.len)
        };
        crate::stdout::line(&line)?;
    }
    Ok(())
}

/// A line of `ls --json`.
fn short_json(label: &str, bytes: u64, form: &StoredForm) -> String {
    let mut line = json!({ "key": label, "bytes": bytes });
    line.as_object_mut().into_iter().for_each(|fields| form.add_to(fields));
    line.to_string()
}

fn ls_long(dir: &Directory, chunks: &[ChunkName], args: &LsArgs) -> Result<()> {
    let reader = InfoReader::with_uses(dir, &args.at.path)?;
    if !args.json {
        crate::stdout::line(&long_head())?;
    }
    for chunk in chunks {
        let info = reader.read(chunk)?;
        let label = chunk.label();
        let line =
            if args.json { info.json(&label, chunk.len).to_string() } else { info.line(&label) };
        crate::stdout::line(&line)?;
    }
    Ok(())
}

/// Lists chunks: digest or name, and bytes; with `long` what else is known.
fn ls_bucket(bucket: &Bucket, long: bool, as_json: bool) -> Result<()> {
    let chunks = bucket.chunks()?;
    if !long {
        return chunks.iter().try_for_each(|chunk| {
            crate::stdout::line(&if as_json {
                short_json(&chunk.label, chunk.bytes, &chunk.form)
            } else {
                format!("{} {}", chunk.label, chunk.bytes)
            })
        });
    }
    if !as_json {
        crate::stdout::line(&long_head())?;
    }
    for (info, chunk) in infos(bucket, &chunks, Asking::default())?.iter().zip(&chunks) {
        let label = chunk.label.as_str();
        let bytes = chunk.bytes;
        crate::stdout::line(&if as_json {
            info.json(label, bytes).to_string()
        } else {
            info.line(label)
        })?;
    }
    Ok(())
}
