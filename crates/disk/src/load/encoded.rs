//! Loads of encoded chunks: the whole file is read into memory of the tier, checked, and decoded into
//! the caller's leases on the pool. For leases that the CPU cannot reach it is decoded into memory of
//! the tier, from which the mover copies it.
//!
//! A chunk that this process cannot decode, for lack of a codec or a key, is a miss. Its file stays
//! for those that can; the next save of the chunk replaces it.

use std::fs::File;
use std::io;
use std::sync::Arc;

use kvtier_codec::ErrorKind as CodecErrorKind;
use kvtier_core::{Error, ErrorKind, Load, MissReason};
use kvtier_key::{BlockSums, Facts, Key};
use kvtier_mem::{Lease, View};

use super::verify::not_copied;
use super::{LoadFile, LoadOp, finish_refused};
use crate::active_reads::ReadMark;
use crate::chunk_file_name::file_len;
use crate::counters::add;
use crate::direct_io::PAGE;
use crate::encoding_memory::NoEncodingMemory;
use crate::footer;
use crate::mover::{Moved, Mover, Part, Refused, Transfer};
use crate::shared::Shared;
use crate::submit_transfer::{Submitted, submit};
use crate::thread_pool::Lane;
use crate::wait_queue::{QueueEntry, WaitToken};

/// How much longer than the file of its raw payload a file may be and still hold an encoding of it:
/// stages add a few bytes to what does not become smaller. A longer one is damaged.
const GROWTH_MAX: u64 = 1 << 20;

/// Whether a file of `bytes` may hold an encoding of a payload of `len` bytes.
pub fn may_be_encoded(len: u64, bytes: u64) -> bool {
    bytes != file_len(len)
        && bytes.is_multiple_of(PAGE)
        && (2 * PAGE..=file_len(len) + GROWTH_MAX).contains(&bytes)
}

/// How the bytes of a file become those of the caller.
enum Decoded {
    /// They are in place.
    Yes,
    /// The file is damaged.
    Corrupt,
    /// This process cannot decode them.
    Not(MissReason),
    /// The load fails.
    Failed(Error),
}

/// A load whose encoded file is being read.
struct EncodedRead<M: Mover> {
    reading: ReadMark,
    found: LoadFile,
    /// Where to decode, if the CPU cannot reach the caller's memory.
    staging: Option<Lease>,
    load: LoadOp<M>,
}

/// The memory of a load of an encoded chunk.
struct DecodeMemory {
    /// For the file.
    stored: Lease,
    /// For the decoded bytes, where the CPU cannot reach the caller's memory.
    staging: Option<Lease>,
}

impl<M: Mover> LoadOp<M> {
    /// Reads a file that may hold an encoding of the chunk, or waits for memory and begins again.
    pub(super) fn read_encoded(
        self,
        reading: ReadMark,
        file: File,
        found: LoadFile,
        token: Option<WaitToken>,
    ) {
        let queue = self.shared.memory.decode.queue.clone();
        let releases = (token.is_some() || queue.is_empty()).then(|| queue.releases());
        let leased = match releases {
            Some(_) => self.lease_decode_memory(found),
            // Loads that wait already go first, or large chunks would wait for ever.
            None => Err(NoEncodingMemory::Busy),
        };
        match leased {
            Ok(DecodeMemory { stored: into, staging }) => {
                // The token goes first, so that the next load reads at the same time.
                drop(token);
                let part = Part::Read { at: 0, len: into.len(), into };
                let (parts, file) = (vec![part], Arc::new(file.into()));
                let shared = Arc::clone(&self.shared);
                let transfer = Transfer { file, parts, watch: None, sums: None };
                submit(
                    &shared.mover,
                    transfer,
                    EncodedRead { reading, found, staging, load: self },
                );
            }
            // The file is good: loads into host memory need less, and hit.
            Err(NoEncodingMemory::Failed(error)) if self.is_far() => {
                drop((token, reading, file));
                self.shared.last_fault.set(format!("load: {}", error.report()));
                self.miss(MissReason::Codec);
            }
            // Another process may have the memory for it, and this one after a restart: the file stays,
            // and each load looks again.
            Err(NoEncodingMemory::TooLarge(error)) => {
                drop((token, reading, file));
                let key = self.op.key.digest();
                self.shared.last_fault.set(format!("load: {key}: {}", error.report()));
                self.miss(MissReason::TooLarge);
            }
            Err(NoEncodingMemory::Failed(error)) => {
                drop(token);
                let error = error.with_op("load").with_tier(self.shared.caps.name.clone());
                let error = error.with_key(*self.op.key.digest());
                self.fail(error);
            }
            Err(NoEncodingMemory::Busy) => {
                drop((reading, file));
                let entry = QueueEntry { token, releases };
                let threads = self.threads.clone();
                let resume = move |token| self.begin(Some(token));
                threads.wait(&queue, entry, Lane::Read, resume);
            }
        }
    }

    /// Whether the CPU cannot reach the caller's memory.
    fn is_far(&self) -> bool {
        self.op.into.iter().any(|lease| !lease.place().is_host())
    }

    /// Takes all memory at once: loads that hold some and wait for more could wait for each other.
    fn lease_decode_memory(&self, found: LoadFile) -> Result<DecodeMemory, NoEncodingMemory> {
        let memory = &self.shared.memory.decode;
        let bytes = found.id.bytes().unwrap_or(0);
        if !self.is_far() {
            return Ok(DecodeMemory { stored: memory.lease(bytes)?, staging: None });
        }
        let all = memory.lease(bytes + found.len.next_multiple_of(PAGE))?;
        // What is read is not longer than its memory, so it fits a `usize`.
        let (stored, staging) = all.split_at(bytes as usize);
        Ok(DecodeMemory { stored, staging: Some(staging) })
    }

    /// Decodes what was read, on the pool.
    fn decode(mut self, found: LoadFile, result: io::Result<u64>, memory: DecodeMemory) {
        let DecodeMemory { stored, mut staging } = memory;
        let decoded = result.map(|_| {
            let file = stored.as_host().unwrap_or_default();
            let into = staging.as_mut().map_or(&mut self.op.into[..], std::slice::from_mut);
            decode_file(&self.shared, &self.op.key, found.len, file, into)
        });
        drop(stored);
        match (decoded, staging) {
            (Ok(Decoded::Yes), Some(staging)) => self.upload(found, staging.freeze()),
            (decoded, staging) => {
                drop(staging);
                self.end_decoded(found, decoded);
            }
        }
    }

    /// Copies the decoded bytes into the caller's memory, which the CPU cannot reach.
    fn upload(mut self, found: LoadFile, from: View) {
        let into = std::mem::take(&mut self.op.into);
        let shared = Arc::clone(&self.shared);
        let done = move |into, result: io::Result<()>| {
            self.op.into = into;
            // The file is good, whatever the kind of the error.
            let result = result.map(|()| Decoded::Yes).map_err(not_copied);
            self.end_decoded(found, result);
        };
        shared.mover.upload(from, into, Box::new(done));
    }

    /// Ends the load; its memory has been returned.
    fn end_decoded(self, found: LoadFile, decoded: io::Result<Decoded>) {
        // Before the answer: a caller that loads again at once finds the memory free.
        self.shared.memory.decode.queue.notify();
        match decoded {
            Ok(Decoded::Yes) => {
                add(&self.shared.counters.decoded_chunks, 1);
                self.answer(Ok(true), found);
            }
            Ok(Decoded::Corrupt) => self.answer(Ok(false), found),
            Ok(Decoded::Not(reason)) => self.miss_unusable(found, reason),
            Ok(Decoded::Failed(error)) => self.fail(error),
            Err(e) => self.answer(Err(e), found),
        }
    }

    /// Ends the load of a chunk that this process cannot use. Its file stays; the next save replaces
    /// it.
    pub(super) fn miss_unusable(mut self, found: LoadFile, reason: MissReason) {
        self.op.into.iter_mut().for_each(|lease| lease.assume_filled(0));
        self.shared.set_unusable(self.op.key.digest(), found.named_len, found.id);
        self.miss(reason);
    }
}

/// Decodes the file's bytes into the leases, which then hold all of the chunk or nothing.
fn decode_file<M: Mover>(
    shared: &Shared<M>,
    key: &Key,
    len: u64,
    file: &[u8],
    into: &mut [Lease],
) -> Decoded {
    let Some((facts, stored)) = verified(key, len, file) else {
        return Decoded::Corrupt;
    };
    let mut left = len as usize;
    let mut raw = Vec::with_capacity(into.len());
    for lease in &mut *into {
        let n = lease.len().min(left);
        left -= n;
        raw.extend(lease.as_host_mut().and_then(|bytes| bytes.get_mut(..n)));
    }
    match shared.encoding.decode(&facts, stored, &mut raw) {
        Ok(()) => {
            fill(into, len as usize);
            Decoded::Yes
        }
        Err(e) => match e.kind() {
            CodecErrorKind::Corrupt => Decoded::Corrupt,
            CodecErrorKind::Unsupported => Decoded::Not(MissReason::Codec),
            CodecErrorKind::KeyMissing => Decoded::Not(MissReason::KeyMissing),
            _ => Decoded::Failed(
                Error::new(ErrorKind::Invalid, "cannot decode the chunk")
                    .with_op("load")
                    .with_key(*key.digest())
                    .with_tier(shared.caps.name.clone())
                    .with_source(e),
            ),
        },
    }
}

/// Declares that the leases hold `len` bytes together.
fn fill(leases: &mut [Lease], mut len: usize) {
    for lease in leases {
        let n = lease.len().min(len);
        lease.assume_filled(n);
        len -= n;
    }
}

/// Compares key, namespace, lengths, padding and every byte's checksum of an encoded chunk's file
/// with its footer. Returns the facts and the encoded bytes.
fn verified<'a>(key: &Key, len: u64, file: &'a [u8]) -> Option<(Facts, &'a [u8])> {
    let (padded, page) = file.split_at_checked(file.len().checked_sub(PAGE as usize)?)?;
    let (facts, name) = footer::decode(page).ok()?;
    let (stored, padding) = padded.split_at_checked(usize::try_from(facts.stored_len()).ok()?)?;
    let is_same = facts.key == *key.digest()
        && facts.namespace == key.namespace().digest()
        && facts.raw_len == len
        && !facts.is_plain()
        && (name.is_empty() || name == key.canonical())
        && footer::file_len_of(&facts) == file.len() as u64
        && padding.iter().all(|b| *b == 0)
        && facts.sums == BlockSums::from_bytes(stored);
    is_same.then_some((facts, stored))
}

impl<M: Mover> Submitted for EncodedRead<M> {
    /// Decodes on the pool: that takes long.
    fn finish(self, moved: Moved) {
        let EncodedRead { reading, found, staging, load } = self;
        let Moved { transfer: Transfer { file, parts, .. }, result, .. } = moved;
        // Before the answer: a chunk that is deleted after it frees its space at once.
        drop((reading, file));
        let stored = parts.into_iter().find_map(|part| match part {
            Part::Read { into, .. } => Some(into),
            Part::Write { .. } => None,
        });
        let Some(stored) = stored else {
            let lost = io::Error::other("the mover lost the memory of a read");
            return load.answer(result.and(Err(lost)), found);
        };
        let memory = DecodeMemory { stored, staging };
        let pool = Arc::clone(&load.threads.pool);
        pool.push(Lane::Read, move || load.decode(found, result, memory));
    }

    fn refused(self, refused: Refused) {
        drop((self.reading, self.staging, refused.transfer));
        let LoadOp { shared, op, slot, .. } = self.load;
        shared.memory.decode.queue.notify();
        let Load { key, into } = op;
        finish_refused(slot, Load { key, into }, refused.closed);
    }
}

#[cfg(test)]
mod tests {
    use kvtier_key::{CodecId, Digest, EncodedPayload};

    use super::*;
    use crate::chunk_file_name::encoded_file_len;
    use crate::disk::tests::key;

    #[test]
    fn the_length_of_a_file_shows_whether_it_is_encoded() {
        for len in [1_u64, 4095, 4096, 4097, 1 << 20] {
            for stored in [1, len.saturating_sub(4096).max(1), len, len + 44, len + 8192] {
                let bytes = encoded_file_len(len, stored);
                assert!(bytes != file_len(len) && may_be_encoded(len, bytes), "{len} {stored}");
            }
            let refused =
                [0, PAGE, file_len(len), file_len(len) + 1, file_len(len) + 2 * GROWTH_MAX];
            assert!(refused.iter().all(|bytes| !may_be_encoded(len, *bytes)), "{len}");
        }
    }

    #[test]
    fn a_file_a_mebibyte_longer_than_its_raw_payload_may_be_encoded_and_no_longer_one() {
        let most = file_len(4096) + GROWTH_MAX;
        assert!(may_be_encoded(4096, most));
        assert!(!may_be_encoded(4096, most + PAGE));
        assert!(may_be_encoded(1 << 20, 2 * PAGE));
    }

    const RAW: usize = 5000;
    const STORED: [u8; 300] = [7; 300];

    fn with(change: impl FnOnce(&mut Facts)) -> Facts {
        let mut facts = facts();
        change(&mut facts);
        facts
    }

    fn facts() -> Facts {
        let raw_crc = Some(BlockSums::from_bytes(&[1; RAW]).whole());
        let payload = EncodedPayload { codec: CodecId(2), key_id: 0, raw_len: RAW as u64, raw_crc };
        let key = key(1);
        let sums = BlockSums::from_bytes(&STORED);
        Facts::encoded(*key.digest(), key.namespace().digest(), payload, sums)
    }

    fn file(facts: &Facts, name: &[u8], stored: &[u8]) -> Vec<u8> {
        let mut file = stored.to_vec();
        file.resize((footer::file_len_of(facts) - PAGE) as usize, 0);
        file.extend(footer::encode_parts(facts, name).unwrap());
        file
    }

    #[test]
    fn an_encoded_file_is_verified_by_its_footer_and_one_thing_that_differs_refuses_it() {
        let is_verified = |file: &[u8]| {
            let found = verified(&key(1), RAW as u64, file);
            assert!(found.as_ref().is_none_or(|(_, stored)| *stored == STORED));
            found.is_some()
        };
        let good = file(&facts(), &key(1).canonical(), &STORED);
        assert!(is_verified(&good));
        assert!(is_verified(&file(&facts(), b"", &STORED)));
        let wrong = [
            with(|facts| facts.key = *key(2).digest()),
            with(|facts| facts.namespace = Digest([1; 32])),
            with(|facts| facts.raw_len = RAW as u64 + 1),
        ];
        for facts in wrong {
            assert!(!is_verified(&file(&facts, b"", &STORED)), "{facts:?}");
        }
        assert!(!is_verified(&file(&facts(), &key(2).canonical(), &STORED)));
        // Facts of a payload as it is, in a file that has their length.
        let key = key(1);
        let plain =
            Facts::plain(*key.digest(), key.namespace().digest(), BlockSums::from_bytes(&[7; RAW]));
        assert!(verified(&key, RAW as u64, &file(&plain, b"", &[7; RAW])).is_none());
        let mut longer = STORED.to_vec();
        longer.resize(good.len(), 0);
        longer.extend_from_slice(&good[good.len() - PAGE as usize..]);
        assert!(!is_verified(&longer), "one page too many");
        for at in [0, STORED.len(), good.len() - PAGE as usize, good.len() - 1] {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            assert!(verified(&key, RAW as u64, &bytes).is_none(), "byte {at}");
        }
    }
}
