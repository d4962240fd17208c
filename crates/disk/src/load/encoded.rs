//! Loads of encoded chunks: the whole file is read into memory of the tier, checked, and decoded into
//! the caller's leases on the pool.
//!
//! A chunk that this process cannot decode, for lack of a codec or a key, is a miss. Its file stays
//! for those that can; the next save of the chunk replaces it.

use std::fs::File;
use std::io;
use std::sync::Arc;

use kvtier_codec::ErrorKind as CodecErrorKind;
use kvtier_core::{Error, ErrorKind, Load, MissReason};
use kvtier_key::{BlockSums, Facts, Key};
use kvtier_mem::Lease;

use super::{LoadFile, LoadOp, finish_refused};
use crate::active_reads::ReadMark;
use crate::chunk_file_name::file_len;
use crate::counters::add;
use crate::direct_io::PAGE;
use crate::encoding_memory::NoEncodingMemory;
use crate::footer;
use crate::mover::{Moved, Mover, Part, Refused, Transfer};
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
    load: LoadOp<M>,
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
        // Decoding writes with the CPU. The file is good: loads into host memory hit.
        if self.op.into.iter().any(|lease| !lease.place().is_host()) {
            drop((reading, file));
            return self.miss(MissReason::Codec);
        }
        let queue = self.shared.memory.decode.queue.clone();
        let releases = (token.is_some() || queue.is_empty()).then(|| queue.releases());
        let bytes = found.id.bytes().unwrap_or(0);
        let leased = match releases {
            Some(_) => self.shared.memory.decode.lease(bytes),
            // Loads that wait already go first, or large chunks would wait for ever.
            None => Err(NoEncodingMemory::Busy),
        };
        match leased {
            Ok(into) => {
                // The token goes first, so that the next load reads at the same time.
                drop(token);
                let part = Part::Read { at: 0, len: into.len(), into };
                let (parts, file) = (vec![part], Arc::new(file.into()));
                let shared = Arc::clone(&self.shared);
                let transfer = Transfer { file, parts, watch: None, sums: None };
                submit(&shared.mover, transfer, EncodedRead { reading, found, load: self });
            }
            // Another process may have the memory for it, and this one after a restart: the file stays,
            // and each load looks again.
            Err(NoEncodingMemory::TooLarge(error)) => {
                drop((token, reading, file));
                let key = self.op.key.digest();
                self.shared.last_fault.set(format!("load: {key}: {error}"));
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

    /// Decodes what was read, on the pool.
    fn decode(mut self, found: LoadFile, result: io::Result<u64>, stored: Option<Lease>) {
        let decoded = match (result, &stored) {
            (Err(e), _) => Err(e),
            (Ok(_), Some(stored)) => {
                Ok(self.decode_file(found, stored.as_host().unwrap_or_default()))
            }
            (Ok(_), None) => Ok(Decoded::Corrupt),
        };
        drop(stored);
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

    /// Decodes the file's bytes into the caller's leases, which then hold all of the chunk or
    /// nothing.
    fn decode_file(&mut self, found: LoadFile, file: &[u8]) -> Decoded {
        let Some((facts, stored)) = verified(&self.op.key, found.len, file) else {
            return Decoded::Corrupt;
        };
        let mut left = found.len as usize;
        let mut raw = Vec::with_capacity(self.op.into.len());
        for lease in &mut self.op.into {
            let n = lease.len().min(left);
            left -= n;
            raw.extend(lease.as_host_mut().and_then(|bytes| bytes.get_mut(..n)));
        }
        let decoded = self.shared.encoding.decode(&facts, stored, &mut raw);
        match decoded {
            Ok(()) => {
                fill(&mut self.op.into, found.len as usize);
                Decoded::Yes
            }
            Err(e) => match e.kind() {
                CodecErrorKind::Corrupt => Decoded::Corrupt,
                CodecErrorKind::Unsupported => Decoded::Not(MissReason::Codec),
                CodecErrorKind::KeyMissing => Decoded::Not(MissReason::KeyMissing),
                _ => Decoded::Failed(
                    Error::new(ErrorKind::Invalid, "cannot decode the chunk")
                        .with_op("load")
                        .with_key(*self.op.key.digest())
                        .with_tier(self.shared.caps.name.clone())
                        .with_source(e),
                ),
            },
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
        let EncodedRead { reading, found, load } = self;
        let Moved { transfer: Transfer { file, parts, .. }, result, .. } = moved;
        // Before the answer: a chunk that is deleted after it frees its space at once.
        drop((reading, file));
        let stored = parts.into_iter().find_map(|part| match part {
            Part::Read { into, .. } => Some(into),
            Part::Write { .. } => None,
        });
        let pool = Arc::clone(&load.threads.pool);
        pool.push(Lane::Read, move || load.decode(found, result, stored));
    }

    fn refused(self, refused: Refused) {
        drop((self.reading, refused.transfer));
        let LoadOp { shared, op, slot, .. } = self.load;
        shared.memory.decode.queue.notify();
        let Load { key, into } = op;
        finish_refused(slot, Load { key, into }, refused.closed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk_file_name::encoded_file_len;

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
}
