//! Every name that LMCache gives a chunk, on every medium: written as LMCache 0.5.6 writes it, read
//! as it reads it. And those of vLLM's `fs` tier.
//!
//! [`NameForm`] is the entry point. The rules are methods of the keys: [`ObjectKey`](crate::ObjectKey) for the
//! multi-process mode, [`CacheEngineKey`](crate::CacheEngineKey) and
//! [`LayerCacheEngineKey`](crate::LayerCacheEngineKey) for the in-process mode. Some forms lose
//! information (`/` becomes `_`, `-` or `-SEP-`): [`NameForm::format`] refuses a key that would not
//! read back as itself, so no two keys it accepts share a name, and [`NameForm::parse`] answers
//! [`Parsed::Lossy`] with the reason when another key could have been meant.

mod detect;
mod engine_key_names;
mod name_form;
mod object_key_names;
pub(crate) mod vllm;

pub use detect::detect;
pub use name_form::{Loss, NameForm, Parsed};
pub use vllm::is_vllm_fs_dir;

use crate::InvalidKey;

/// The longest file name in bytes.
// `NAME_MAX` of Linux: a longer name fails with ENAMETOOLONG when the file is created.
pub const FILE_NAME_BYTES_MAX: usize = 255;
/// The longest S3 object name in bytes, before it is quoted for a path.
pub const S3_NAME_BYTES_MAX: usize = 1024;
/// The longest text that is looked at as a name, in bytes.
// Far above every valid name. It bounds the work on hostile names and the length of error messages.
pub const NAME_BYTES_MAX: usize = 8192;

/// What LMCache's file forms write for `/`.
const SEP: &str = "-SEP-";

fn checked_file_name(name: String) -> Result<String, InvalidKey> {
    if name.len() > FILE_NAME_BYTES_MAX {
        let len = name.len();
        return Err(InvalidKey::new(format!(
            "file name of {len} bytes is longer than {FILE_NAME_BYTES_MAX}"
        )));
    }
    if name.contains(['/', '\0']) {
        return Err(InvalidKey::new("file name contains '/' or NUL"));
    }
    Ok(name)
}

fn checked_s3_name(name: String) -> Result<String, InvalidKey> {
    if name.len() > S3_NAME_BYTES_MAX {
        let len = name.len();
        return Err(InvalidKey::new(format!(
            "S3 object name of {len} bytes is longer than {S3_NAME_BYTES_MAX}"
        )));
    }
    Ok(name)
}

fn checked_length(text: &str) -> Result<(), InvalidKey> {
    if text.len() > NAME_BYTES_MAX {
        return Err(InvalidKey::new(format!(
            "a name of {} bytes is longer than {NAME_BYTES_MAX}",
            text.len()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_names_are_good_and_longer_ones_are_not() {
        let name = |bytes| "n".repeat(bytes);
        let file = |bytes| checked_file_name(name(bytes)).is_ok();
        assert_eq!([255, 256].map(file), [true, false]);
        let object = |bytes| checked_s3_name(name(bytes)).is_ok();
        assert_eq!([1024, 1025].map(object), [true, false]);
        let any = |bytes| checked_length(&name(bytes)).is_ok();
        assert_eq!([8191, 8192, 8193, 9000].map(any), [true, true, false, false]);
    }
}
