//! What a chunk file ends with: facts, key, and the checks on both.

use kvtier_key::{Facts, FactsError, Key};

use crate::chunk_file_name;
use crate::direct_io::PAGE;

const MAGIC: [u8; 8] = *b"KVTFOOT1";
const HEAD: usize = MAGIC.len() + 4;

/// The last 4 KiB of a chunk's file: magic, length of the key, facts record, canonical key, zeros.
/// All of it is checked: facts by their own CRC, the key through its digest in the facts, the rest
/// by value.
pub fn encode(facts: &Facts, key: &Key) -> Result<[u8; PAGE as usize], FactsError> {
    encode_parts(facts, &key.canonical())
}

/// The same for a key of which only the canonical form is known, or, where `name` is empty, only
/// the digest in the facts.
pub fn encode_parts(facts: &Facts, name: &[u8]) -> Result<[u8; PAGE as usize], FactsError> {
    let record = facts.encode();
    let mut page = [0; PAGE as usize];
    let end = HEAD + record.len() + name.len();
    if end > page.len() {
        return Err(FactsError::Length);
    }
    page[..MAGIC.len()].copy_from_slice(&MAGIC);
    page[MAGIC.len()..HEAD].copy_from_slice(&(name.len() as u32).to_le_bytes());
    page[HEAD..HEAD + record.len()].copy_from_slice(&record);
    page[HEAD + record.len()..end].copy_from_slice(name);
    Ok(page)
}

/// The length in bytes of the file of a chunk with these facts.
pub fn file_len_of(facts: &Facts) -> u64 {
    match facts.is_plain() {
        true => chunk_file_name::file_len(facts.raw_len),
        false => chunk_file_name::encoded_file_len(facts.raw_len, facts.stored_len()),
    }
}

/// Reads a footer: its facts and the canonical key. Total: any other bytes are an error.
pub fn decode(page: &[u8]) -> Result<(Facts, &[u8]), FactsError> {
    if page.len() != PAGE as usize {
        return Err(FactsError::Length);
    }
    if page[..MAGIC.len()] != MAGIC {
        return Err(FactsError::Magic);
    }
    let mut name_len = [0; 4];
    name_len.copy_from_slice(&page[MAGIC.len()..HEAD]);
    let (facts, used) = Facts::decode_prefix(&page[HEAD..])?;
    let start = HEAD + used;
    let end =
        start.checked_add(u32::from_le_bytes(name_len) as usize).filter(|end| *end <= page.len());
    let end = end.ok_or(FactsError::Length)?;
    if page[end..].iter().any(|b| *b != 0) {
        return Err(FactsError::Fields);
    }
    Ok((facts, &page[start..end]))
}

#[cfg(test)]
mod tests {
    use kvtier_key::{BlockSums, Digest};

    use super::*;

    #[test]
    fn a_key_may_fill_the_page_and_no_more() {
        let facts = Facts::plain(Digest([1; 32]), Digest([2; 32]), BlockSums::from_bytes(b"x"));
        let most = PAGE as usize - HEAD - facts.encode().len();
        let full = encode_parts(&facts, &vec![3; most]).unwrap();
        assert_eq!(decode(&full).unwrap().1.len(), most);
        assert_eq!(encode_parts(&facts, &vec![3; most + 1]), Err(FactsError::Length));
    }
}
