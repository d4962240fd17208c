//! A save's chunk is encoded into memory, before space is reserved: then exactly the bytes that are
//! stored are reserved.
//!
//! A chunk that no encoding makes smaller is saved as it is, from the caller's memory. Where a
//! required encryption fails, the save fails and nothing is stored.

use std::sync::Arc;

use kvtier_codec::ErrorKind as CodecErrorKind;
use kvtier_core::{Error, ErrorKind, Key};
use kvtier_key::{BlockSums, EncodedPayload, Facts};
use kvtier_mem::{Lease, View};

use super::Saving;
use super::write::already_ended;
use crate::chunk_file_name::encoded_file_len;
use crate::counters::add;
use crate::data_dir::REGISTRATION_WAIT_MAX;
use crate::direct_io::PAGE;
use crate::encoding_memory::NoEncodingMemory;
use crate::mover::Mover;
use crate::shared::Shared;
use crate::thread_pool::Lane;
use crate::wait_queue::{QueueEntry, WaitToken};

/// An encoded chunk that waits to be written.
#[derive(Debug)]
pub struct EncodedChunk {
    payload: EncodedPayload,
    /// Length of the encoded bytes.
    stored_len: usize,
    /// The encoded bytes, and the zeros up to the footer.
    padded: View,
}

impl EncodedChunk {
    /// The length of the chunk's file in bytes.
    pub fn file_len(&self) -> u64 {
        self.padded.len() as u64 + PAGE
    }

    /// The bytes of the file before its footer.
    pub fn padded(&self) -> View {
        self.padded.clone()
    }

    /// What the footer says of it.
    pub fn facts(&self, key: &Key) -> Facts {
        let stored = self.padded.as_ref().get(..self.stored_len).unwrap_or_default();
        let sums = BlockSums::from_bytes(stored);
        Facts::encoded(*key.digest(), key.namespace().digest(), self.payload, sums)
    }

    /// Encodes the chunk into the front of `lease`, which has the bytes that
    /// [`encode_memory`] says. Nothing where no encoding makes it smaller.
    fn new<M: Mover>(
        shared: &Shared<M>,
        key: &Key,
        raw: &[View],
        mut lease: Lease,
    ) -> Result<Option<Self>, kvtier_codec::Error> {
        let pieces: Vec<&[u8]> = raw.iter().map(View::as_ref).collect();
        let out = lease.as_host_mut().unwrap_or_default();
        let Some((payload, stored_len)) = shared.encoding.encode(key, &pieces, out)? else {
            return Ok(None);
        };
        let padded = (encoded_file_len(payload.raw_len, stored_len as u64) - PAGE) as usize;
        // What the memory held before must not reach the file.
        out[stored_len..padded].fill(0);
        lease.assume_filled(padded);
        let padded = lease.freeze();
        let padded = padded.slice(0..padded.len());
        Ok(Some(EncodedChunk { payload, stored_len, padded }))
    }
}

/// How much memory a chunk of `len` bytes needs to be encoded, with its padding.
pub fn encode_memory<M: Mover>(shared: &Shared<M>, len: u64) -> Result<u64, Error> {
    let bound = usize::try_from(len).ok().map(|len| shared.encoding.bound(len));
    match bound {
        Some(Ok(bound)) => Ok((bound as u64).next_multiple_of(PAGE) + PAGE),
        Some(Err(e)) => {
            Err(Error::new(ErrorKind::Invalid, "cannot encode the chunk").with_source(e))
        }
        None => Err(Error::new(ErrorKind::Invalid, "the chunk is too long to be encoded")),
    }
}

impl<M: Mover> Saving<M> {
    /// Encodes the chunk, or waits for memory.
    pub(super) fn encode(self, token: Option<WaitToken>) {
        if let Some(error) = self.ended("ended while it waited to be encoded") {
            return self.end(Err(error));
        }
        // An encoding reads the bytes with the CPU.
        if self.is_far() {
            return self.fetch(|save| save.encode(None));
        }
        let shared = Arc::clone(&self.shared);
        if let Err(error) = shared.begin_to_encode() {
            return self.end_refused(error);
        }
        let queue = shared.memory.encode.queue.clone();
        // Read before the attempt: memory that returns in between ends the wait at once. Saves that
        // wait already go first, or large chunks would wait for ever.
        let releases = (token.is_some() || queue.is_empty()).then(|| queue.releases());
        let leased = encode_memory(&shared, self.len).map_err(NoEncodingMemory::Failed);
        let leased = leased.and_then(|bytes| match releases {
            Some(_) => shared.memory.encode.lease(bytes),
            None => Err(NoEncodingMemory::Busy),
        });
        match leased {
            // The token goes first, so that the next save encodes on another thread.
            Ok(lease) => {
                drop(token);
                self.encode_into(lease);
            }
            Err(NoEncodingMemory::TooLarge(error) | NoEncodingMemory::Failed(error)) => {
                drop(token);
                self.end_refused(error);
            }
            Err(NoEncodingMemory::Busy) => {
                let threads = self.threads.clone();
                let entry = QueueEntry { token, releases };
                threads.wait(&queue, entry, Lane::Write, move |token| self.encode(Some(token)));
            }
        }
    }

    fn encode_into(mut self, lease: Lease) {
        let Some(answer) = &self.answer else { return };
        let shared = Arc::clone(&self.shared);
        let raw = self.fetched.as_ref().unwrap_or(&answer.op.from);
        let encoded = EncodedChunk::new(&shared, &answer.op.key, raw, lease);
        // Staging memory is scarce, and a save may wait for space.
        self.fetched = None;
        match encoded {
            Ok(Some(encoded)) => {
                add(&shared.counters.encoded_chunks, 1);
                add(&shared.counters.encoded_raw_bytes, self.len);
                add(&shared.counters.encoded_stored_bytes, encoded.stored_len as u64);
                self.encoded = Some(encoded);
            }
            Ok(None) => {
                shared.memory.encode.queue.notify();
                add(&shared.counters.encode_refused_chunks, 1);
            }
            Err(e) => {
                shared.memory.encode.queue.notify();
                return self.end_refused(encode_error(e));
            }
        }
        self.begin_reserve();
    }

    fn end_refused(self, error: Error) {
        if error.kind() == ErrorKind::Io {
            self.shared.fault(format!("save: {}", error.report()));
        }
        let error = error.with_op("save").with_tier(self.shared.caps.name.clone());
        let error = self.key().map_or_else(already_ended, |key| error.with_key(*key.digest()));
        self.end(Err(error));
    }

    /// Returns the memory of the encoded chunk.
    pub(super) fn release_encoded(&mut self) {
        if self.encoded.take().is_some() {
            self.shared.memory.encode.queue.notify();
        }
    }
}

impl<M: Mover> Shared<M> {
    /// Notes that the directory may have encoded chunks, unless it is noted: the path may name
    /// another directory since the tier was opened, or it was read-only then.
    fn begin_to_encode(&self) -> Result<(), Error> {
        if !self.data_dir.may_have_encoded()
            && self.data_dir.begin_to_encode(REGISTRATION_WAIT_MAX)?
        {
            self.changes.append_lost();
        }
        Ok(())
    }
}

fn encode_error(e: kvtier_codec::Error) -> Error {
    let (kind, next) = match e.kind() {
        CodecErrorKind::KeyMissing => (ErrorKind::Denied, "load the key, or choose another key_id"),
        CodecErrorKind::KeyExhausted => (ErrorKind::Denied, "rotate the key"),
        _ => (ErrorKind::Invalid, "choose another encoding"),
    };
    Error::new(kind, "cannot encode the chunk; nothing was stored").with_cause(e, next)
}
