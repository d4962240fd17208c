//! Names of [`ObjectKey`], the key of LMCache's multi-process mode.

use blake2::Blake2b;
use blake2::digest::{Digest as _, consts::U8};

use super::{SEP, checked_file_name, checked_length, checked_s3_name};
use crate::python_text::{
    bytes_from_hex, int_i64, push_hex, push_int_hex, push_quoted, push_slashes_as, unquoted,
};
use crate::{ChunkHash, HASH_BYTES_MAX, InvalidKey, KvRank, ObjectKey};

const FS_SUFFIX: &str = ".data";

impl ObjectKey {
    /// `model@rank@group@hash[@salt]`: the key that native connectors are given, and the S3
    /// object's name. Errors: longer than [`S3_NAME_BYTES_MAX`](super::S3_NAME_BYTES_MAX).
    pub fn native_name(&self) -> Result<String, InvalidKey> {
        let mut out = String::with_capacity(self.name_bytes());
        out.push_str(&self.model);
        self.push_fields(&mut out, "");
        checked_s3_name(out)
    }

    /// Reads the native name: 4 or 5 fields, numbers as Python reads them.
    pub fn from_native_name(name: &str) -> Result<Self, InvalidKey> {
        checked_length(name)?;
        let (model, fields) = name.split_once('@').ok_or_else(|| wrong_fields(name))?;
        from_fields(model, fields, name)
    }

    /// `model@rank@hash`, the form that LMCache's public documents show. Errors: a group or a salt,
    /// which have no place.
    pub fn three_field_name(&self) -> Result<String, InvalidKey> {
        if self.group != 0 || !self.salt.is_empty() {
            return Err(InvalidKey::new(
                "the form of three fields has no place for an object group or a salt",
            ));
        }
        let mut out = String::with_capacity(self.name_bytes());
        out.push_str(&self.model);
        out.push('@');
        push_int_hex(&mut out, self.rank.0, "", 8);
        out.push('@');
        push_hex(&mut out, self.hash.as_bytes());
        checked_s3_name(out)
    }

    /// Reads the form of three fields; LMCache 0.5.6 itself no longer does.
    pub fn from_three_field_name(name: &str) -> Result<Self, InvalidKey> {
        checked_length(name)?;
        let fields: Vec<&str> = name.splitn(4, '@').collect();
        match fields[..] {
            [model, rank, hash] => {
                ObjectKey::new(model, rank_of(rank, name)?, 0, hash_of(hash, name)?, "")
            }
            _ => Err(wrong_fields(name)),
        }
    }

    /// The file name of LMCache's `fs` adapter: `/` in the model is written `-SEP-`.
    /// Errors: longer than [`FILE_NAME_BYTES_MAX`](super::FILE_NAME_BYTES_MAX); a NUL.
    pub fn fs_name(&self) -> Result<String, InvalidKey> {
        let mut out = String::with_capacity(self.name_bytes());
        push_slashes_as(&mut out, &self.model, SEP);
        self.push_fields(&mut out, "0x");
        out.push_str(FS_SUFFIX);
        checked_file_name(out)
    }

    /// The file name of LMCache's `fs_native` adapter: as [`fs_name`](Self::fs_name), but a
    /// negative rank is spelled otherwise (`0x-0000001`), and LMCache cannot read that back.
    pub fn fs_native_name(&self) -> Result<String, InvalidKey> {
        let mut name = self.fs_name()?;
        if self.rank.0 < 0 {
            let at =
                // The two spellings have the same length: `-0x` becomes `0x-` in place.
                name.find("@-0x").expect("a negative rank follows the model, which has no '@'");
            name.replace_range(at..at + 4, "@0x-");
        }
        Ok(name)
    }

    /// Reads a file name of the `fs` adapter; `-SEP-` becomes `/` wherever it stands in the model.
    pub fn from_fs_name(name: &str) -> Result<Self, InvalidKey> {
        checked_length(name)?;
        let stem = name
            .strip_suffix(FS_SUFFIX)
            .ok_or_else(|| refused(name, "it does not end with .data"))?;
        // The model has no `@`, so the first one ends it. The salt has none either.
        let (model, fields) = stem.split_once('@').ok_or_else(|| wrong_fields(name))?;
        from_fields(&model.replace(SEP, "/"), fields, name)
    }

    /// What LMCache's raw-block adapter writes for the key: the model is quoted.
    pub fn raw_block_name(&self) -> String {
        let mut out = String::with_capacity(self.name_bytes());
        push_quoted(&mut out, &self.model, false);
        self.push_fields(&mut out, "0x");
        out
    }

    /// Reads what [`raw_block_name`](Self::raw_block_name) wrote.
    pub fn from_raw_block_name(name: &str) -> Result<Self, InvalidKey> {
        checked_length(name)?;
        let (model, fields) = name.split_once('@').ok_or_else(|| wrong_fields(name))?;
        let model = unquoted(model).ok_or_else(|| refused(name, "its model is quoted wrongly"))?;
        from_fields(&model, fields, name)
    }

    /// The number in a raw-block slot's header that identifies the key.
    pub fn raw_block_identity(&self) -> u64 {
        u64::from_le_bytes(Blake2b::<U8>::digest(self.raw_block_name().as_bytes()).into())
    }

    fn push_fields(&self, out: &mut String, prefix: &str) {
        out.push('@');
        push_int_hex(out, self.rank.0, prefix, 8);
        out.push('@');
        push_int_hex(out, self.group.into(), "", 1);
        out.push('@');
        push_hex(out, self.hash.as_bytes());
        if !self.salt.is_empty() {
            out.push('@');
            out.push_str(&self.salt);
        }
    }

    /// The length of a name in bytes, without the quoting of odd characters.
    fn name_bytes(&self) -> usize {
        self.model.len() + 2 * self.hash.as_bytes().len() + self.salt.len() + 48
    }
}

/// Reads `rank@group@hash[@salt]`.
fn from_fields(model: &str, fields: &str, name: &str) -> Result<ObjectKey, InvalidKey> {
    let mut parts = fields.split('@');
    // Four or five fields; a sixth part makes the tuple not match.
    let (Some(rank), Some(group), Some(hash), salt, None) =
        (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(wrong_fields(name));
    };
    let group = int_i64(group, 16).and_then(|group| u32::try_from(group).ok());
    let group = group
        .ok_or_else(|| refused(name, "its object group is no hexadecimal number of 32 bits"))?;
    ObjectKey::new(
        model,
        rank_of(rank, name)?,
        group,
        hash_of(hash, name)?,
        salt.unwrap_or_default(),
    )
}

fn rank_of(text: &str, name: &str) -> Result<KvRank, InvalidKey> {
    let rank = int_i64(text, 16)
        .ok_or_else(|| refused(name, "its rank is no hexadecimal number of 64 bits"))?;
    Ok(KvRank(rank))
}

fn hash_of(text: &str, name: &str) -> Result<ChunkHash, InvalidKey> {
    // On the stack, so that reading a name does not allocate for the usual hash.
    let mut buffer = [0; HASH_BYTES_MAX];
    let bytes = bytes_from_hex(text, &mut buffer);
    Ok(ChunkHash::new(
        bytes
            .ok_or_else(|| refused(name, "its chunk hash is no hexadecimal bytes, 512 at most"))?,
    ))
}

fn wrong_fields(name: &str) -> InvalidKey {
    refused(name, "it has the wrong number of fields between '@'")
}

/// The message leaves out the salt, which is the fifth field.
fn refused(name: &str, why: &str) -> InvalidKey {
    // Errors are logged, and a salt may be a tenant's secret.
    let shown = name.match_indices('@').nth(3).map_or(name, |(at, _)| &name[..at]);
    InvalidKey::new(format!("{shown:?} names no chunk: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_three_fields_has_neither_a_group_nor_a_salt() {
        let name = |group, salt| {
            let hash = ChunkHash::new(&[0xab, 0xcd]);
            ObjectKey::new("org/m", KvRank(0x0100_0100), group, hash, salt)
                .unwrap()
                .three_field_name()
        };
        assert_eq!(name(0, "").unwrap(), "org/m@01000100@abcd");
        assert!([(2, ""), (0, "pepper"), (2, "pepper")].iter().all(|(g, s)| name(*g, s).is_err()));
    }
}
